"""What a trial of weights gets to see of a turn: values, and bets on them gathered by trace."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evaluator.core.gate import Observation, Trial, Verdict, trace_observation
from evaluator.core.measures import MISSING
from evaluator.core.merge import SettledQuery
from evaluator.core.releases import Rules, Version
from evaluator.core.reliabilities import seen_with
from evaluator.core.types import IntArray


class Bet(NamedTuple):
    """What one query says of the candidate, and who judged it."""

    parties: tuple[str, ...]
    differences: tuple[int | None, ...]  # by measure of the rules; None where either lacks it


def write_units(
    queries: Sequence[SettledQuery], version: Version, rules: Rules, into: IntArray
) -> None:
    """Writes the values of a version where it is in force and has the features it needs.

    *into*, `[n_queries, n_measures]`, becomes MISSING where it is in force and has not.
    """
    in_force = [
        place for place, query in enumerate(queries) if query.event_time_ms >= version.from_ms
    ]
    into[in_force] = MISSING
    mine = [place for place in in_force if queries[place].feature_names == version.feature_names]
    if mine:
        chosen = [seen_with(queries[place], version.history) for place in mine]
        into[mine] = rules.contest.units(chosen, version.weights)


def add_units(units: IntArray, rules: Rules, to: dict[str, tuple[int, int]]) -> None:
    """Adds values, `[n_queries, n_measures]`, to their number and sum by measure."""
    for column, measure in enumerate(rules.contest.measures.canonical):
        values = units[units[:, column] != MISSING, column].tolist()
        n, total = to.get(measure, (0, 0))
        to[measure] = (n + len(values), total + sum(values))


def bet_of(query: SettledQuery, champion: IntArray, candidate: IntArray, rules: Rules) -> Bet:
    """What a query says of the candidate; the values of both are `[n_measures]`."""
    columns = [rules.contest.measures.column_of(measure) for measure in rules.measures]
    differences = tuple(
        None
        if MISSING in (candidate[column], champion[column])
        else int(candidate[column] - champion[column])
        for column in columns
    )
    party = (lambda source: source) if rules.trust is None else rules.trust.party
    return Bet(tuple(sorted({party(source) for source in query.sources})), differences)


def evidence_of(trial: Trial, verdict: Verdict, rules: Rules) -> dict[str, Any]:
    """What a release says of the trial that it ends."""
    of_measure = trial.sums.get(rules.gate.measure)
    return {
        "traces": trial.n_traces,
        "queries": trial.n_queries,
        "mean_difference": None if of_measure is None else of_measure.mean,
        "for": verdict.evidence_for,
        "against": verdict.evidence_against,
        "started_ms": trial.started_ms,
    }


def observation_of(
    now_ms: int, bets: Sequence[Bet], worth: Mapping[str, float] | None, rules: Rules
) -> Observation:
    """A trace: its differences, and what the judgments of each query are worth."""
    differences: dict[str, list[int]] = {}
    weights: dict[str, list[float]] = {}
    for bet in bets:
        weight = 1.0
        if worth is not None:
            weight = min((min(worth[party], 1.0) for party in bet.parties), default=0.0)
        for measure, difference in zip(rules.measures, bet.differences, strict=True):
            if difference is not None:
                differences.setdefault(measure, []).append(difference)
                weights.setdefault(measure, []).append(weight)
    return trace_observation(now_ms, differences, None if worth is None else weights)
