"""The promotion gate: evidence, guardrails and age that a promotion needs.

Pure rules over a state that JSON stores exactly; docs/gate.md states the worlds for which their
promise was measured. The unit of a bet is a block of event time: the mean over its traces, of the
mean over the queries of each. Differences are challenger minus champion, in units of 2^-40.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.promotion.blocks import BlockBets, OpenBlock, Sample
from evaluator.core.promotion.e_process import Wealth

_FORMAT: Final = 2
_DAY_MS: Final = 86_400_000

UNDECIDED: Final = "undecided"
Status = Literal["undecided", "promoted", "rejected"]


class GateRules(Struct, frozen=True):
    """The conditions of a promotion.

    Args:
        measure: the measure of the bets.
        tolerances: of each guardrail, another measure, how much worse its mean may be; in [0, 1].
        alpha: the largest probability that a challenger that is no better is ever promoted.
        block_ms: event time of a block.
        min_traces: traces before a promotion.
        min_age_ms: event time between start and promotion; from a day on, the bets on whole days
            must not have lost.
        max_age_ms: event time after which an experiment ends, also if it is undecided.
        cool_down_ms: event time between the end of an experiment and the next one's start.
    """

    measure: str
    tolerances: Mapping[str, float] = field(default_factory=dict)
    alpha: float = 0.01
    block_ms: int = 600_000
    min_traces: int = 1_000
    min_age_ms: int = 7_200_000
    max_age_ms: int = 72_000_000
    cool_down_ms: int = 21_600_000


PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "cautious": {
        "block_ms": _DAY_MS * 2 // 3,
        "min_age_ms": 7 * _DAY_MS,
        "max_age_ms": 70 * _DAY_MS,
        "cool_down_ms": _DAY_MS,
    },
    "standard": {},
    "quick": {
        "alpha": 0.05,
        "block_ms": 60_000,
        "min_traces": 200,
        "min_age_ms": 900_000,
        "max_age_ms": 9_000_000,
        "cool_down_ms": 900_000,
    },
}
"""Values that differ from the defaults of `GateRules`, by name."""


class Difference(NamedTuple):
    """Difference in one measure, of a trace or an experiment; both numbers in units of 2^-40.

    `units` is the weighted sum over the queries of a trace, divided by their number; `weight` the
    same of the weights.
    """

    units: int = 0
    weight: int = 0

    @property
    def mean(self) -> float | None:
        """The weighted mean; None if the weight is 0."""
        return self.units / self.weight if self.weight else None


_NONE: Final = Difference()


class Observation(NamedTuple):
    """One trace: the difference of each measure that any of its queries has."""

    time_ms: int
    n_queries: int
    differences: Mapping[str, Difference]


class Experiment(Struct, frozen=True):
    """The paired results of a challenger and the champion so far.

    `days` are bets of the sign of each day on the challenger; `traces` and `queries` are those that
    have counted.
    """

    started_ms: int
    last_ms: int  # the newest trace
    n_traces: int = 0
    n_queries: int = 0
    bets: BlockBets = field(default_factory=BlockBets.of_one)
    days: Wealth = field(default_factory=Wealth.of_one)
    block: OpenBlock | None = None
    day: OpenBlock | None = None
    sums: Mapping[str, Difference] = field(default_factory=dict)  # over all traces
    traces: Sample = field(default_factory=Sample)
    queries: Sample = field(default_factory=Sample)

    def state(self) -> dict[str, Any]:
        """Everything, as JSON stores it exactly."""
        return {
            "started_ms": self.started_ms,
            "last_ms": self.last_ms,
            "n_traces": self.n_traces,
            "n_queries": self.n_queries,
            **self.bets.state(),
            "days": self.days.state(),
            "block": None if self.block is None else list(self.block),
            "day": None if self.day is None else list(self.day),
            "sums": {measure: list(found) for measure, found in sorted(self.sums.items())},
            "traces": self.traces.state(),
            "queries": self.queries.state(),
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "Experiment":
        """The same experiment. Raises ValueError if `state` has not written this."""
        left = dict(state)
        bets = BlockBets.load(*(left.pop(name) for name in ("gain", "loss", "spread")))
        changes: dict[str, Any] = {
            "bets": bets,
            "days": Wealth.load(left["days"]),
            "sums": {measure: Difference(*found) for measure, found in left["sums"].items()},
        }
        for name in ("block", "day"):
            changes[name] = None if left[name] is None else OpenBlock(*left[name])
            if changes[name] is not None and changes[name].n < 1:
                raise ValueError(f"the open {name} of an experiment has no trace")
        for name in ("traces", "queries"):
            changes[name] = Sample.load(left[name])
        return cls(**{**left, **changes})


class Verdict(NamedTuple):
    """The decision on an experiment. `lacking` names the conditions for promotion not yet met.

    `reason` is UNDECIDED if its age alone has ended it, and empty otherwise.
    """

    status: Status
    evidence_for: float
    evidence_against: float
    lacking: tuple[str, ...]
    reason: str = ""


class Gate(Struct, frozen=True):
    """The current experiment, if any, and the earliest start of the next one."""

    experiment: Experiment | None = None
    rests_until_ms: int = 0

    def state(self) -> dict[str, Any]:
        """Everything, as JSON stores it exactly."""
        experiment = None if self.experiment is None else self.experiment.state()
        return {"format": _FORMAT, "rests_until_ms": self.rests_until_ms, "experiment": experiment}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "Gate":
        experiment = None if state["experiment"] is None else Experiment.load(state["experiment"])
        return cls(experiment, state["rests_until_ms"])


def trace_observation(
    time_ms: int,
    differences: Mapping[str, Sequence[int]],
    weights: Mapping[str, Sequence[float]] | None = None,
) -> Observation:
    """The mean differences of one trace: exact sums in any order, rounded once.

    Args:
        time_ms: of the trace.
        differences: by measure, of the queries that have it, in units; in [-1, 1].
        weights: parallel to the differences, in [0, 1]: the source weights of each query. A
            smaller weight makes a bet smaller; it is not scaled up again. None: 1 each.

    >>> differences = {"mrr": [1 << 40, 0]}
    >>> trace_observation(0, differences).differences["mrr"].units / 2**40
    0.5
    >>> weighted = trace_observation(0, differences, {"mrr": [0.5, 1.0]}).differences["mrr"]
    >>> weighted.units / 2**40, weighted.weight / 2**40
    (0.25, 0.75)
    """
    found = {
        measure: _difference(units, [1.0] * len(units) if weights is None else weights[measure])
        for measure, units in differences.items()
        if units
    }
    return Observation(time_ms, max(map(len, differences.values()), default=0), found)


def _difference(units: Sequence[int], weights: Sequence[float]) -> Difference:
    ratios = [weight.as_integer_ratio() for weight in weights]
    whole = max(denominator for _, denominator in ratios)  # a power of two, as all of them are
    exact = [numerator * (whole // denominator) for numerator, denominator in ratios]
    weighted = sum(weight * each for weight, each in zip(exact, units, strict=True))
    divisor = len(units) * whole
    return Difference(
        round(Fraction(weighted, divisor)), round(Fraction(sum(exact) * UNITS_PER_ONE, divisor))
    )


def decided(
    experiment: Experiment,
    observations: Sequence[Observation],
    rules: GateRules,
    *,
    until_ms: int = 0,
) -> tuple[Experiment, Verdict]:
    """The experiment after further traces, in order, up to the block that decides it.

    A block ends with the first trace of a later one, or with *until_ms*; a trace of an earlier one
    counts in the open one. Traces before the first whole block or day of the experiment count in
    it. A trace without weight in the measure of the bets is in no block. At *until_ms* an
    experiment of the largest age ends.
    """
    may_decide = _may_decide(experiment, rules)
    for each in observations:
        before, experiment = experiment, _with_ended_blocks(experiment, each.time_ms, rules)
        if experiment is not before:
            may_decide = _may_decide(experiment, rules)
        experiment = _with_trace(experiment, each, rules)
        if may_decide and (found := verdict(experiment, rules)).status != "undecided":
            return experiment, found
    experiment = _with_ended_blocks(experiment, until_ms, rules)
    return experiment, verdict(experiment, rules, now_ms=until_ms)


def _may_decide(experiment: Experiment, rules: GateRules) -> bool:
    """Whether the evidence for or against is enough."""
    bets = experiment.bets
    return bool(max(bets.gain.evidence(), bets.loss.evidence()) >= 1 / rules.alpha)


def _with_ended_blocks(experiment: Experiment, now_ms: int, rules: GateRules) -> Experiment:
    """The experiment after bets on the blocks that ended at *now_ms* or before."""
    block, day = experiment.block, experiment.day
    if block is not None and now_ms // rules.block_ms > block.number:
        bets = experiment.bets.after(block.value(), block.n)
        experiment = replace(experiment, bets=bets, block=None)
    if day is not None and now_ms // _DAY_MS > day.number:
        sign = np.sign(day.value())
        experiment = replace(experiment, days=experiment.days.after(sign), day=None)
    return experiment


def _with_trace(experiment: Experiment, trace: Observation, rules: GateRules) -> Experiment:
    sums = dict(experiment.sums)
    for measure, found in trace.differences.items():
        before = sums.get(measure, _NONE)
        sums[measure] = Difference(before.units + found.units, before.weight + found.weight)
    bet = trace.differences.get(rules.measure, _NONE)
    changes: dict[str, Any] = {}
    if bet.weight:
        for name, length_ms in (("block", rules.block_ms), ("day", _DAY_MS)):
            first_whole = -(-experiment.started_ms // length_ms)
            number = max(trace.time_ms // length_ms, first_whole)
            number, n, units = getattr(experiment, name) or OpenBlock(number, 0, 0)
            changes[name] = OpenBlock(number, n + 1, units + bet.units)
    return replace(
        experiment,
        last_ms=max(experiment.last_ms, trace.time_ms),
        n_traces=experiment.n_traces + bool(bet.weight),
        n_queries=experiment.n_queries + trace.n_queries,
        sums=sums,
        **changes,
    )


def verdict(experiment: Experiment, rules: GateRules, *, now_ms: int | None = None) -> Verdict:
    """Whether the challenger is promoted, rejected, or undecided.

    It is rejected as soon as the evidence against it reaches 1/alpha. It is promoted if the
    evidence for it reaches 1/alpha while all other conditions are met. One that is undecided at
    the largest age, at *now_ms*, is rejected too, so that later snapshots can be tried.
    """
    evidence_for = float(experiment.bets.gain.evidence())
    evidence_against = float(experiment.bets.loss.evidence())
    enough = 1 / rules.alpha
    lacking = [
        *(["evidence"] if evidence_for < enough else []),
        *(["traces"] if experiment.n_traces < rules.min_traces else []),
        *(["age"] if experiment.last_ms - experiment.started_ms < rules.min_age_ms else []),
    ]
    if rules.min_age_ms >= _DAY_MS and not experiment.days.evidence() > 1:
        lacking.append("days")
    for measure, tolerance in sorted(rules.tolerances.items()):
        found = experiment.sums.get(measure, _NONE)
        if not found.weight or found.units < -Fraction(tolerance) * found.weight:
            lacking.append(f"guardrail {measure}")
    status: Status = "undecided" if lacking else "promoted"
    if evidence_against >= enough:
        status = "rejected"
    too_old = now_ms is not None and now_ms - experiment.started_ms >= rules.max_age_ms
    reason = UNDECIDED if status == "undecided" and too_old else ""
    if reason:
        status = "rejected"
    return Verdict(status, evidence_for, evidence_against, tuple(lacking), reason)
