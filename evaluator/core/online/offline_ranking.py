"""What linear weights would have ranked, measured by the kernel that measures everything else."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.dictionary_column import DictionaryColumn
from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.table import span_indices
from evaluator.core.join.subtopics import Subtopics
from evaluator.core.learning.groups import linear_scores
from evaluator.core.measures import MISSING, MeasureSet
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.settle.evaluate import new_evaluator
from evaluator.core.types.records import SERVED, FloatArray, IntArray, RankingColumns

MOST_ORDERS: Final = 9
"""Orders of a query that are measured at once: the served one and the named scorers' of others."""


class Order(NamedTuple):
    """What would have ranked some queries: weights, and the features of each of these.

    `places` are theirs, ascending.
    """

    places: Sequence[int]
    features: Sequence[FloatArray]
    weights: Sequence[float]


class OfflineRanking:
    """Measures orders of candidates that nobody has served.

    Subtopics and ages of candidates are not known here: measures that need subtopics have no
    value, and gains do not shrink with age.

    Args:
        measures, empty, ties, judged_only: as of `Engine`.
    """

    def __init__(
        self,
        measures: MeasureSet,
        *,
        empty: str = "zero",
        ties: str = "id",
        judged_only: bool = False,
    ) -> None:
        self.measures = measures
        self._empty = empty
        self._ties = ties
        self._judged_only = judged_only

    def units(self, queries: Sequence[SettledQuery], weights: Sequence[float]) -> IntArray:
        """Values of judged queries in units, `[n_queries, n_measures]`, if *weights* had ranked.

        All queries have one feature for each weight. MISSING where there is no value, as where a
        score is beyond what a number can hold.
        """
        features = [query.features for query in queries]
        units: IntArray
        [units] = self.units_of(queries, [Order(range(len(queries)), features, weights)])
        return units

    def units_of(self, queries: Sequence[SettledQuery], orders: Sequence[Order]) -> IntArray:
        """The same of some orders at once, `[n_orders, n_queries, n_measures]`.

        MISSING also where an order is not of a query.
        """
        n_measures = len(self.measures.canonical)
        units = np.full((len(orders), len(queries), n_measures), MISSING, np.int64)
        for first in range(0, len(orders), MOST_ORDERS):
            some = slice(first, first + MOST_ORDERS)
            self._write_units(queries, orders[some], units[some])
        return units

    def _write_units(
        self, queries: Sequence[SettledQuery], orders: Sequence[Order], units: IntArray
    ) -> None:
        counts = np.array([len(query.candidate_ids) for query in queries], np.int64)
        there = np.zeros((len(queries), len(orders)), bool)
        flat = [self._scores(order, counts, there[:, i]) for i, order in enumerate(orders)]
        rows = np.flatnonzero(there.any(axis=1))
        if not len(rows):
            return
        # Scores lie query after query, and of each order after order.
        lengths = there[rows] * counts[rows, None]
        starts = (np.cumsum(lengths) - lengths.reshape(-1)).reshape(lengths.shape)
        scores = np.empty(int(lengths.sum()))
        for i, mine in enumerate(flat):
            scores[span_indices(starts[:, i], lengths[:, i])] = mine
        chosen = [queries[row] for row in rows.tolist()]
        found = self._measured(chosen, scores, counts[rows], there[rows])
        units[tuple(np.argwhere(there)[:, ::-1].T)] = found

    def _scores(self, order: Order, counts: IntArray, there: NDArray[np.bool_]) -> FloatArray:
        """Of the queries that it can order, which *there* then has, one after the other."""
        places = np.array(order.places, np.int64)
        if not len(places):
            return np.empty(0)
        with np.errstate(over="ignore", invalid="ignore"):
            scores = linear_scores(np.concatenate(order.features).T, order.weights) + 0.0
        there[places] = True
        finite = np.isfinite(scores)
        if finite.all():
            return scores
        owners = np.repeat(places, counts[places])
        there[owners[~finite]] = False
        kept: FloatArray = scores[there[owners]]
        return kept

    def _measured(
        self,
        queries: Sequence[SettledQuery],
        scores: FloatArray,
        counts: IntArray,
        there: NDArray[np.bool_],
    ) -> IntArray:
        """Of each query, and of each order that is there: `[n_lists, n_measures]`."""
        open_queries, evaluator = new_evaluator(
            self.measures, self._empty, self._ties, self._judged_only, 0
        )
        rankings = _rankings(queries, scores, counts, there.sum(axis=1).tolist())
        keys = [(query.trace_id, query.node_id) for query in queries]
        slots = open_queries.hold(
            open_queries.arrive(rankings, keys, rankings.timestamps_ms), np.arange(len(queries))
        )
        grades = GradeColumns.of([dict(query.grades) for query in queries])
        open_queries.judged.replace(slots, open_queries.coded(grades), 0)
        spans = open_queries.spans(slots)
        subtopics: list[Subtopics] | None = (
            [{} for _ in queries] if open_queries.has_subtopics else None
        )
        results = evaluator.measure(
            spans, open_queries.judged_codes, open_queries.judged_grades, subtopics
        )
        units = results.reshape(int(there.sum()), -1)[:, :-1].copy()
        have_value = evaluator.have_value(spans, open_queries.judged_grades)
        units[~np.repeat(have_value, there.sum(axis=1))] = MISSING
        return units


def _rankings(
    queries: Sequence[SettledQuery],
    scores: FloatArray,
    counts: IntArray,
    n_orders: Sequence[int],
) -> RankingColumns:
    """The queries as rankings with these scores."""
    names = tuple(f"{SERVED}{number or ''}" for number in range(MOST_ORDERS))
    n = len(queries)
    nowhere = np.empty(0, np.int64)
    return RankingColumns(
        offsets=np.arange(n),
        timestamps_ms=np.array([query.event_time_ms for query in queries], np.int64),
        trace_ids=[query.trace_id for query in queries],
        node_ids=[query.node_id for query in queries],
        hashes=[bytes(16)] * n,
        keys=[None] * n,
        values=[b""] * n,
        heartbeat_offsets=nowhere,
        heartbeat_timestamps_ms=nowhere,
        malformed=[],
        next_offset=n,
        models=[""] * n,
        variants=[""] * n,
        queries=[""] * n,
        rankers=[names[:number] for number in n_orders],
        candidate_counts=counts,
        candidate_ids=DictionaryColumn.of(
            [name for query in queries for name in query.candidate_ids]
        ),
        scores=scores,
        explicit_ranks={},
    )
