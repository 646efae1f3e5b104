"""What a trial of weights gets to see of a turn: values, and bets on them gathered by trace."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evaluator.core.contest import Order
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


def units_in_force(
    queries: Sequence[SettledQuery],
    champions: Sequence[Version],
    candidate: Version | None,
    rules: Rules,
) -> tuple[IntArray, IntArray]:
    """The values of the champion and of the candidate, `[n_queries, n_measures]` each.

    Of several champions the last one that is in force counts. MISSING where none is, or where it
    has not the features it needs.
    """
    versions = [*champions] if candidate is None else [*champions, candidate]
    places: list[list[int]] = [[] for _ in versions]
    for place, query in enumerate(queries):
        in_force = [i for i, each in enumerate(champions) if query.event_time_ms >= each.from_ms]
        if in_force:
            places[in_force[-1]].append(place)
        if candidate is not None and query.event_time_ms >= candidate.from_ms:
            places[-1].append(place)
    orders = [_order(queries, *each) for each in zip(places, versions, strict=True)]
    units = rules.contest.units_of(queries, orders)
    of_champion = np.full(units.shape[1:], MISSING, np.int64)
    for order, found in zip(orders[: len(champions)], units, strict=False):
        of_champion[order.places] = found[order.places]
    return of_champion, units[-1] if candidate else np.full_like(of_champion, MISSING)


def _order(queries: Sequence[SettledQuery], places: Sequence[int], version: Version) -> Order:
    mine = [place for place in places if queries[place].feature_names == version.feature_names]
    features = [seen_with(queries[place], version.history).features for place in mine]
    return Order(mine, features, version.weights)


def add_units(units: IntArray, rules: Rules, to: dict[str, tuple[int, int]]) -> None:
    """Adds values, `[n_queries, n_measures]`, to their number and sum by measure."""
    for column, measure in enumerate(rules.contest.measures.canonical):
        values = units[units[:, column] != MISSING, column].tolist()
        n, total = to.get(measure, (0, 0))
        to[measure] = (n + len(values), total + sum(values))


def bets_of(
    queries: Sequence[SettledQuery], champion: IntArray, candidate: IntArray, rules: Rules
) -> list[Bet]:
    """What queries say of the candidate; the values of both are `[n_queries, n_measures]`."""
    columns = [rules.contest.measures.column_of(measure) for measure in rules.measures]
    champion, candidate = champion[:, columns], candidate[:, columns]
    lacking = ((champion == MISSING) | (candidate == MISSING)).tolist()
    differences = (candidate - champion).tolist()
    party = (lambda source: source) if rules.trust is None else rules.trust.party
    return [
        Bet(
            tuple(sorted({party(source) for source in query.sources})),
            tuple(None if no else each for no, each in zip(nos, of_query, strict=True)),
        )
        for query, nos, of_query in zip(queries, lacking, differences, strict=True)
    ]


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


def observations_of(
    now_ms: int,
    bets: Mapping[str, Sequence[Bet]],
    worth: Mapping[str, float] | None,
    rules: Rules,
) -> list[Observation]:
    """A trace each, by id: its differences, and what the judgments of each query are worth."""
    measures = rules.measures
    return [_observation_of(now_ms, bets[trace_id], worth, measures) for trace_id in sorted(bets)]


def _observation_of(
    now_ms: int, bets: Sequence[Bet], worth: Mapping[str, float] | None, measures: Sequence[str]
) -> Observation:
    weights: list[float] | None = None
    if worth is not None:
        weights = [
            min((min(worth[party], 1.0) for party in bet.parties), default=0.0) for bet in bets
        ]
        if min(weights) == 1.0:
            weights = None  # the same, and quicker
    differences: dict[str, list[int]] = {}
    weighed: dict[str, list[float]] = {}
    for column, measure in enumerate(measures):
        there = [i for i, bet in enumerate(bets) if bet.differences[column] is not None]
        if there:
            differences[measure] = [bets[i].differences[column] or 0 for i in there]
            if weights is not None:
                weighed[measure] = [weights[i] for i in there]
    return trace_observation(now_ms, differences, None if weights is None else weighed)
