"""When a challenger may take the champion's place: evidence, guardrails, age, rest.

Pure rules over a state that can be written down exactly; docs/gate.md says what they promise. The
unit is the trace: differences of its queries are averaged first, for they are not independent.
Differences are challenger minus champion, in units of 2^-40.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.promotion.e_process import Wealth

_FORMAT: Final = 1

Status = Literal["undecided", "promoted", "rejected"]


@dataclass(frozen=True, slots=True)
class GateRules:
    """What a challenger must show.

    Args:
        measure: the one that bets are on.
        tolerances: of each guardrail, another measure, how much worse its mean may be; in [0, 1].
        alpha: the largest chance that a challenger that is no better is ever promoted.
        min_traces: bets before a promotion.
        min_age_ms: event time between start and promotion.
        cool_down_ms: event time between the end of an experiment and the next one's start.

    Raises:
        ValueError: if any of them makes no sense.
    """

    measure: str
    tolerances: Mapping[str, float] = field(default_factory=dict)
    alpha: float = 0.01
    min_traces: int = 1_000
    min_age_ms: int = 86_400_000
    cool_down_ms: int = 86_400_000

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha is {self.alpha}; it must lie between 0 and 1, e.g. 0.01")
        if min(self.min_traces, self.min_age_ms, self.cool_down_ms) < 0:
            raise ValueError("min_traces, min_age_ms and cool_down_ms must be 0 or more")
        for measure, tolerance in self.tolerances.items():
            if measure == self.measure or not 0 <= tolerance <= 1:
                raise ValueError(
                    f"the guardrail {measure} has the tolerance {tolerance}; a guardrail is "
                    "another measure than the one bet on, and its tolerance lies in [0, 1]"
                )


class Difference(NamedTuple):
    """Difference in one measure, of a trace or an experiment; both numbers in units of 2^-40.

    `units` is the weighted sum, over the queries of a trace divided by their number; `weight` the
    same of the weights alone.
    """

    units: int = 0
    weight: int = 0

    @property
    def mean(self) -> float | None:
        """Weighted; None where nothing has a weight."""
        return self.units / self.weight if self.weight else None


_NONE: Final = Difference()


class Observation(NamedTuple):
    """One trace: the difference of each measure that any of its queries has."""

    time_ms: int
    n_queries: int
    differences: Mapping[str, Difference]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A challenger beside the champion, so far."""

    started_ms: int
    last_ms: int  # the newest trace
    n_traces: int = 0  # bet on
    n_queries: int = 0
    gain: Wealth = field(default_factory=Wealth.of_one)  # of bets on the challenger
    loss: Wealth = field(default_factory=Wealth.of_one)  # of bets against it
    sums: Mapping[str, Difference] = field(default_factory=dict)  # over all traces


class Verdict(NamedTuple):
    """The decision on an experiment. `lacking` names the conditions for promotion not yet met."""

    status: Status
    evidence_for: float
    evidence_against: float
    lacking: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gate:
    """One experiment at a time, and rest in between."""

    experiment: Experiment | None = None
    rests_until_ms: int = 0

    def may_start(self, now_ms: int) -> bool:
        """Whether a challenger may be tried now."""
        return self.experiment is None and now_ms >= self.rests_until_ms

    def state(self) -> dict[str, Any]:
        """Everything, as JSON keeps it exactly."""
        experiment = None if self.experiment is None else _state_of(self.experiment)
        return {"format": _FORMAT, "rests_until_ms": self.rests_until_ms, "experiment": experiment}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "Gate":
        """The very same gate: it goes on with the same bits.

        Raises:
            ValueError: if `state` has not written this.
        """
        if state.get("format") != _FORMAT:
            raise ValueError(f"a gate of format {state.get('format')!r} cannot be read here")
        experiment = None if state["experiment"] is None else _experiment_of(state["experiment"])
        return cls(experiment, state["rests_until_ms"])


def trace_observation(
    time_ms: int,
    differences: Mapping[str, Sequence[int]],
    weights: Mapping[str, Sequence[float]] | None = None,
) -> Observation:
    """The mean differences of one trace, exact but for one rounding, in whatever order.

    Args:
        time_ms: of the trace.
        differences: by measure, of the queries that have it, in units; a query that lacks a measure
            is not in its list.
        weights: parallel to the differences, in [0, 1]: what the judgments of each query are worth
            (`trust`). A smaller weight makes a bet smaller; nothing makes up for it.
    Raises:
        ValueError: if a difference is not in [-1, 1], or a weight not in [0, 1].

    >>> differences = {"mrr": [1 << 40, 0]}
    >>> trace_observation(0, differences).differences["mrr"].units / 2**40
    0.5
    >>> weighted = trace_observation(0, differences, {"mrr": [0.5, 1.0]}).differences["mrr"]
    >>> weighted.units / 2**40, weighted.weight / 2**40
    (0.25, 0.75)
    """
    found = {
        measure: _difference(units, None if weights is None else weights[measure])
        for measure, units in differences.items()
        if units
    }
    return Observation(time_ms, max(map(len, differences.values()), default=0), found)


def _difference(units: Sequence[int], weights: Sequence[float] | None) -> Difference:
    if max(units) > UNITS_PER_ONE or min(units) < -UNITS_PER_ONE:
        raise ValueError("a difference of values in [0, 1] is at most 1, so at most 2^40 units")
    if weights is None:
        return Difference(_rounded(sum(units), len(units)), UNITS_PER_ONE)
    if not all(0 <= weight <= 1 for weight in weights):
        raise ValueError("a weight lies in [0, 1]: it may make a judgment count less, never more")
    ratios = [weight.as_integer_ratio() for weight in weights]
    whole = max(denominator for _, denominator in ratios)  # a power of two, as all of them are
    exact = [numerator * (whole // denominator) for numerator, denominator in ratios]
    weighted = sum(weight * each for weight, each in zip(exact, units, strict=True))
    divisor = len(units) * whole
    return Difference(_rounded(weighted, divisor), _rounded(sum(exact) * UNITS_PER_ONE, divisor))


def _rounded(numerator: int, divisor: int) -> int:
    """The nearest whole number to a quotient, the even one of two: as `round` of a Fraction."""
    whole, rest = divmod(numerator, divisor)
    return whole + (2 * rest > divisor or (2 * rest == divisor and whole % 2))


def started(gate: Gate, *, now_ms: int) -> Gate:
    """With a new experiment.

    Raises:
        ValueError: if `may_start` says no.
    """
    if not gate.may_start(now_ms):
        raise ValueError(
            f"no experiment can start at {now_ms}: another one runs, or the gate rests until "
            f"{gate.rests_until_ms}. Ask may_start first"
        )
    return replace(gate, experiment=Experiment(now_ms, now_ms))


def ended(gate: Gate, rules: GateRules, *, now_ms: int) -> Gate:
    """Without its experiment, whatever became of that, and at rest.

    Raises:
        ValueError: if no experiment runs.
    """
    if gate.experiment is None:
        raise ValueError("no experiment runs, so none can end")
    return Gate(None, now_ms + rules.cool_down_ms)


def observed(experiment: Experiment, observation: Observation, rules: GateRules) -> Experiment:
    """After one more trace. One without weight in the measure that bets are on is no bet."""
    return _followed(experiment, [observation], rules, until=False)[0]


def decided(
    experiment: Experiment, observations: Sequence[Observation], rules: GateRules
) -> tuple[Experiment, Verdict]:
    """After more traces, one after the other, up to the first after which there is a verdict.

    The same as `observed` and `verdict` for each in turn, but quicker.
    """
    return _followed(experiment, observations, rules, until=True)


def _followed(
    experiment: Experiment, observations: Sequence[Observation], rules: GateRules, *, until: bool
) -> tuple[Experiment, Verdict]:
    bets = [
        found.units / UNITS_PER_ONE
        for each in observations
        if (found := each.differences.get(rules.measure)) is not None and found.weight
    ]
    differences = np.array(bets, np.float64)
    gains, losses = experiment.gain.along(differences), experiment.loss.along(-differences)
    enough = 1 / rules.alpha
    telling = ((gains.evidence() >= enough) | (losses.evidence() >= enough)).tolist()
    sums = dict(experiment.sums)
    n_paired_results, n_queries, last_ms = 0, experiment.n_queries, experiment.last_ms

    def now() -> Experiment:
        return Experiment(
            experiment.started_ms,
            last_ms,
            experiment.n_traces + n_paired_results,
            n_queries,
            gains.at(n_paired_results),
            losses.at(n_paired_results),
            dict(sums),
        )

    for each in observations:
        for measure, found in each.differences.items():
            before = sums.get(measure, _NONE)
            sums[measure] = Difference(before.units + found.units, before.weight + found.weight)
        n_paired_results += bool(each.differences.get(rules.measure, _NONE).weight)
        n_queries += each.n_queries
        last_ms = max(last_ms, each.time_ms)
        if until and telling[n_paired_results]:  # without that much evidence nothing is decided
            found_now = verdict(now(), rules)
            if found_now.status != "undecided":
                return now(), found_now
    return now(), verdict(now(), rules)


def verdict(experiment: Experiment, rules: GateRules) -> Verdict:
    """Whether the challenger is promoted, rejected, or neither so far; may be asked at any time.

    It is rejected as soon as the evidence against it reaches 1/alpha. It is promoted when the
    evidence for it does, and nothing else is lacking at that moment.
    """
    evidence_for = float(experiment.gain.evidence())
    evidence_against = float(experiment.loss.evidence())
    enough = 1 / rules.alpha
    lacking = [
        *(["evidence"] if evidence_for < enough else []),
        *(["traces"] if experiment.n_traces < rules.min_traces else []),
        *(["age"] if experiment.last_ms - experiment.started_ms < rules.min_age_ms else []),
        *_broken_guardrails(experiment, rules),
    ]
    status: Status = "undecided" if lacking else "promoted"
    if evidence_against >= enough:
        status = "rejected"
    return Verdict(status, evidence_for, evidence_against, tuple(lacking))


def _broken_guardrails(experiment: Experiment, rules: GateRules) -> list[str]:
    """Guardrails that are worse by more than their tolerance, or have no value."""
    broken = []
    for measure, tolerance in sorted(rules.tolerances.items()):
        found = experiment.sums.get(measure, Difference())
        if not found.weight or found.units < -Fraction(tolerance) * found.weight:
            broken.append(f"guardrail {measure}")
    return broken


def _state_of(experiment: Experiment) -> dict[str, Any]:
    return {
        "started_ms": experiment.started_ms,
        "last_ms": experiment.last_ms,
        "n_traces": experiment.n_traces,
        "n_queries": experiment.n_queries,
        "gain": experiment.gain.state(),
        "loss": experiment.loss.state(),
        "sums": {measure: list(found) for measure, found in sorted(experiment.sums.items())},
    }


def _experiment_of(state: Mapping[str, Any]) -> Experiment:
    wealth = {side: Wealth.load(state[side]) for side in ("gain", "loss")}
    sums = {measure: Difference(*found) for measure, found in state["sums"].items()}
    return Experiment(**{**state, **wealth, "sums": sums})
