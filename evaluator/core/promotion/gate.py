"""The promotion gate: evidence, guardrails and age that a promotion needs.

Pure rules over a state that JSON stores exactly; docs/gate.md has their guarantees. The unit is
the trace: differences of its queries are averaged first, as they are not independent. Differences
are challenger minus champion, in units of 2^-40.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.promotion.e_process import Wealth

_FORMAT: Final = 1

Status = Literal["undecided", "promoted", "rejected"]


@dataclass(frozen=True, slots=True)
class GateRules:
    """The conditions of a promotion.

    Args:
        measure: the measure of the bets.
        tolerances: of each guardrail, another measure, how much worse its mean may be; in [0, 1].
        alpha: the largest probability that a challenger that is no better is ever promoted.
        min_traces: bets before a promotion.
        min_age_ms: event time between start and promotion.
        cool_down_ms: event time between the end of an experiment and the next one's start.
    """

    measure: str
    tolerances: Mapping[str, float] = field(default_factory=dict)
    alpha: float = 0.01
    min_traces: int = 1_000
    min_age_ms: int = 86_400_000
    cool_down_ms: int = 86_400_000


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


@dataclass(frozen=True, slots=True)
class Experiment:
    """The paired results of a challenger and the champion so far."""

    started_ms: int
    last_ms: int  # the newest trace
    n_traces: int = 0  # bets
    n_queries: int = 0
    gain: Wealth = field(default_factory=Wealth.of_one)  # of bets on the challenger
    loss: Wealth = field(default_factory=Wealth.of_one)  # of bets against the challenger
    sums: Mapping[str, Difference] = field(default_factory=dict)  # over all traces

    def state(self) -> dict[str, Any]:
        """Everything, as JSON stores it exactly."""
        return {
            "started_ms": self.started_ms,
            "last_ms": self.last_ms,
            "n_traces": self.n_traces,
            "n_queries": self.n_queries,
            "gain": self.gain.state(),
            "loss": self.loss.state(),
            "sums": {measure: list(found) for measure, found in sorted(self.sums.items())},
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "Experiment":
        wealth = {side: Wealth.load(state[side]) for side in ("gain", "loss")}
        sums = {measure: Difference(*found) for measure, found in state["sums"].items()}
        return cls(**{**state, **wealth, "sums": sums})


class Verdict(NamedTuple):
    """The decision on an experiment. `lacking` names the conditions for promotion not yet met."""

    status: Status
    evidence_for: float
    evidence_against: float
    lacking: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gate:
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
    experiment: Experiment, observations: Sequence[Observation], rules: GateRules
) -> tuple[Experiment, Verdict]:
    """The experiment after further traces, in order, up to the trace that decides it.

    A trace without weight in the measure of the bets is not a bet.
    """
    bets = [
        found.units / UNITS_PER_ONE
        for each in observations
        if (found := each.differences.get(rules.measure)) is not None and found.weight
    ]
    differences = np.array(bets, np.float64)
    gains, losses = experiment.gain.along(differences), experiment.loss.along(-differences)
    enough = 1 / rules.alpha
    may_decide = ((gains.evidence() >= enough) | (losses.evidence() >= enough)).tolist()
    sums = dict(experiment.sums)
    n_bets, n_queries, last_ms = 0, experiment.n_queries, experiment.last_ms

    def now() -> Experiment:
        return Experiment(
            experiment.started_ms,
            last_ms,
            experiment.n_traces + n_bets,
            n_queries,
            gains.at(n_bets),
            losses.at(n_bets),
            dict(sums),
        )

    for each in observations:
        for measure, found in each.differences.items():
            before = sums.get(measure, _NONE)
            sums[measure] = Difference(before.units + found.units, before.weight + found.weight)
        n_bets += bool(each.differences.get(rules.measure, _NONE).weight)
        n_queries += each.n_queries
        last_ms = max(last_ms, each.time_ms)
        if may_decide[n_bets] and (found_now := verdict(now(), rules)).status != "undecided":
            return now(), found_now
    return now(), verdict(now(), rules)


def verdict(experiment: Experiment, rules: GateRules) -> Verdict:
    """Whether the challenger is promoted, rejected, or undecided.

    It is rejected as soon as the evidence against it reaches 1/alpha. It is promoted if the
    evidence for it reaches 1/alpha while all other conditions are met.
    """
    evidence_for = float(experiment.gain.evidence())
    evidence_against = float(experiment.loss.evidence())
    enough = 1 / rules.alpha
    lacking = [
        *(["evidence"] if evidence_for < enough else []),
        *(["traces"] if experiment.n_traces < rules.min_traces else []),
        *(["age"] if experiment.last_ms - experiment.started_ms < rules.min_age_ms else []),
    ]
    for measure, tolerance in sorted(rules.tolerances.items()):
        found = experiment.sums.get(measure, _NONE)
        if not found.weight or found.units < -Fraction(tolerance) * found.weight:
            lacking.append(f"guardrail {measure}")
    status: Status = "undecided" if lacking else "promoted"
    if evidence_against >= enough:
        status = "rejected"
    return Verdict(status, evidence_for, evidence_against, tuple(lacking))
