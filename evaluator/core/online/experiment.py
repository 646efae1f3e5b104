"""Values and paired results of an experiment, gathered by trace."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evaluator.core.measures import MISSING
from evaluator.core.online.offline_ranking import Ranked
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.online.releases import Rules, Version
from evaluator.core.online.success_rates import seen_with
from evaluator.core.promotion.gate import Experiment, Observation, Verdict, trace_observation
from evaluator.core.types.records import IntArray


class PairedResult(NamedTuple):
    """The paired result of one query, and the sources of its judgments."""

    source_groups: tuple[str, ...]
    differences: tuple[int | None, ...]  # by measure of the rules; None where either lacks it


def units_in_force(
    queries: Sequence[SettledQuery],
    champions: Sequence[Version],
    challenger: Version | None,
    rules: Rules,
) -> tuple[IntArray, IntArray]:
    """The values of the champion and of the challenger, `[n_queries, n_measures]` each.

    Of several champions the last one that is in force counts. MISSING where none is, or where it
    has not the features it needs.
    """
    versions = [*champions] if challenger is None else [*champions, challenger]
    places: list[list[int]] = [[] for _ in versions]
    for place, query in enumerate(queries):
        in_force = [i for i, each in enumerate(champions) if query.event_time_ms >= each.from_ms]
        if in_force:
            places[in_force[-1]].append(place)
        if challenger is not None and query.event_time_ms >= challenger.from_ms:
            places[-1].append(place)
    orders = [_order(queries, *each) for each in zip(places, versions, strict=True)]
    units = rules.offline_ranking.units_of(queries, orders)
    of_champion = np.full(units.shape[1:], MISSING, np.int64)
    for order, found in zip(orders[: len(champions)], units, strict=False):
        of_champion[order.places] = found[order.places]
    return of_champion, units[-1] if challenger else np.full_like(of_champion, MISSING)


def _order(queries: Sequence[SettledQuery], places: Sequence[int], version: Version) -> Ranked:
    mine = [place for place in places if queries[place].feature_names == version.feature_names]
    features = [seen_with(queries[place], version.history).features for place in mine]
    return Ranked(mine, features, version.weights)


def add_units(units: IntArray, rules: Rules, to: dict[str, tuple[int, int]]) -> None:
    """Adds values, `[n_queries, n_measures]`, to their number and sum by measure."""
    for column, measure in enumerate(rules.offline_ranking.measures.canonical):
        values = units[units[:, column] != MISSING, column].tolist()
        n, total = to.get(measure, (0, 0))
        to[measure] = (n + len(values), total + sum(values))


def paired_results_of(
    queries: Sequence[SettledQuery], champion: IntArray, challenger: IntArray, rules: Rules
) -> list[PairedResult]:
    """Paired results of queries; the values of both are `[n_queries, n_measures]`."""
    columns = [rules.offline_ranking.measures.column_of(measure) for measure in rules.measures]
    champion, challenger = champion[:, columns], challenger[:, columns]
    lacking = ((champion == MISSING) | (challenger == MISSING)).tolist()
    differences = (challenger - champion).tolist()
    return [
        PairedResult(
            tuple(sorted({rules.group_of(source) for source in query.sources})),
            tuple(None if no else each for no, each in zip(nos, of_query, strict=True)),
        )
        for query, nos, of_query in zip(queries, lacking, differences, strict=True)
    ]


def evidence_of(experiment: Experiment, verdict: Verdict, rules: Rules) -> dict[str, Any]:
    """The evidence in the release that ends an experiment."""
    of_measure = experiment.sums.get(rules.gate.measure)
    return {
        "traces": experiment.n_traces,
        "queries": experiment.n_queries,
        "mean_difference": None if of_measure is None else of_measure.mean,
        "for": verdict.evidence_for,
        "against": verdict.evidence_against,
        "started_ms": experiment.started_ms,
    }


def observations_of(
    now_ms: int,
    paired_results: Mapping[str, Sequence[PairedResult]],
    worth: Mapping[str, float] | None,
    rules: Rules,
) -> list[Observation]:
    """One trace each, by id: its differences, and the weight of each query."""
    measures = rules.measures
    return [
        _observation_of(now_ms, paired_results[trace_id], worth, measures)
        for trace_id in sorted(paired_results)
    ]


def _observation_of(
    now_ms: int,
    paired_results: Sequence[PairedResult],
    worth: Mapping[str, float] | None,
    measures: Sequence[str],
) -> Observation:
    weights: list[float] | None = None
    if worth is not None:
        weights = [
            min(
                (min(worth[source_group], 1.0) for source_group in result.source_groups),
                default=0.0,
            )
            for result in paired_results
        ]
        if min(weights) == 1.0:
            weights = None  # the same, and quicker
    differences: dict[str, list[int]] = {}
    weighed: dict[str, list[float]] = {}
    for column, measure in enumerate(measures):
        there = [
            i for i, result in enumerate(paired_results) if result.differences[column] is not None
        ]
        if there:
            differences[measure] = [paired_results[i].differences[column] or 0 for i in there]
            if weights is not None:
                weighed[measure] = [weights[i] for i in there]
    return trace_observation(now_ms, differences, None if weights is None else weighed)
