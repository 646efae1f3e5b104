"""Offline ranking: values of linear weights on settled queries."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from evaluator.core.learning.elementary import linear_scores
from evaluator.core.measures import MISSING, UNITS_PER_ONE, MeasureSet
from evaluator.core.measures.dense import dense_lists
from evaluator.core.measures.exposure import Clicks
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.types.records import FloatArray, IntArray

_MAX_CELLS: Final = 1 << 17
"""Limit of candidates that are measured at once, padding included, unless one query has more."""


class Ranked(NamedTuple):
    """Weights, and the queries that they rank.

    `places` are the positions of the queries, ascending; `features` are parallel to them, with one
    feature for each weight.
    """

    places: Sequence[int]
    features: Sequence[FloatArray]
    weights: Sequence[float]


class OfflineRanking(Struct, frozen=True):
    """Measures orders of candidates that were not served.

    Measures that need subtopics have no value, and gains do not decrease with the age of a
    candidate: a settled query has neither.

    Args:
        measures, empty, ties, judged_only: as in `Engine`.
    """

    measures: MeasureSet
    empty: str = "zero"
    ties: str = "id"
    judged_only: bool = False

    def units_of(self, queries: Sequence[SettledQuery], ranked: Sequence[Ranked]) -> IntArray:
        """The values of judged queries in units: `[n_ranked, n_queries, n_measures]`.

        A value is MISSING if the query has none, if the weights do not rank it, or if a score of
        its candidates is not finite.
        """
        return self.units_in(Tables.of(queries), ranked)

    def units_in(self, tables: "Tables", ranked: Sequence[Ranked]) -> IntArray:
        """The values of the queries of these tables, as `units_of` them."""
        shape = len(ranked), len(tables.counts), len(self.measures.canonical)
        units = np.full(shape, MISSING, np.int64)
        for first, end, table in tables.parts:
            for number, each in enumerate(ranked):
                scores, finite = _scores(each, tables.counts[first:end], first)
                rows = np.flatnonzero(finite)
                if len(rows):
                    units[number, first + rows] = self._measured(table, scores, rows)
        return units

    def _measured(self, table: "_Table", scores: FloatArray, rows: IntArray) -> IntArray:
        """The values of *rows* of a table, `[n_rows, n_measures]`."""
        padded = np.full(table.grades.shape, np.nan)
        np.fmax.at(padded.reshape(-1), table.cells, scores)  # the best mention of a candidate
        grades = table.grades[rows]
        lists = dense_lists(padded[rows], grades, with_ties=self.ties == "average")
        if self.judged_only:
            lists = lists.condensed()
        if self.measures.needs_subtopics:
            lists = replace(lists, subtopics=[None] * len(rows))
        units = self.measures.units(lists)
        counts = lists.n_relevant if self.empty == "skip" else np.count_nonzero(grades >= 0, axis=1)
        if self.measures.of_clicks:
            self._weigh_clicks(table, padded, rows, units)
        units[counts == 0] = MISSING
        return units

    def _weigh_clicks(
        self, table: "_Table", padded: FloatArray, rows: IntArray, units: IntArray
    ) -> None:
        """Sets the values of weighted clicks, of queries whose rankings have propensities."""
        for at, row in enumerate(rows.tolist()):
            if (clicked := table.clicks[row]) is None:
                continue
            scores = padded[row]
            ranks = [_rank(scores, column) for column in clicked]
            clicks = Clicks(ranks, list(clicked.values()))
            for column, measure in self.measures.of_clicks:
                value = measure.kind.of_clicks and measure.kind.of_clicks(clicks, measure.terms)
                if value is not None:
                    units[at, column] = round(value * UNITS_PER_ONE)


class _Table(NamedTuple):
    """Queries with a column for each candidate, ranked or judged, in the order of their ids.

    The last of tied columns has the greatest id, so it comes first. `cells` has the cell of each
    candidate of each query, and `grades`, `[n_queries, width]`, NaN for an unjudged one. `clicks`
    are the propensities in the served order of candidates graded above 0, by column; None for a
    query whose ranking has none.
    """

    cells: IntArray
    grades: FloatArray
    clicks: Sequence[Mapping[int, float] | None]


class Tables(NamedTuple):
    """Queries prepared to be measured.

    `counts` are their numbers of candidates; `parts` are successive tables, each with the position
    of its first query and the position after its last one.
    """

    counts: IntArray
    parts: Iterable[tuple[int, int, _Table]]

    @classmethod
    def of(cls, queries: Sequence[SettledQuery]) -> "Tables":
        """Tables that are made when they are used, once."""
        counts = np.array([len(query.candidate_ids) for query in queries], np.int64)
        return cls(counts, _tables(queries))


def _tables(queries: Sequence[SettledQuery]) -> Iterator[tuple[int, int, _Table]]:
    first, width, columns = 0, 1, list[dict[str, int]]()
    for place, query in enumerate(queries):
        ids = sorted({*query.candidate_ids, *query.grades})
        if columns and (len(columns) + 1) * max(width, len(ids)) > _MAX_CELLS:
            yield first, place, _table(queries[first:place], columns, width)
            first, width, columns = place, 1, []
        columns.append({name: column for column, name in enumerate(ids)})
        width = max(width, len(ids))
    if columns:
        yield first, len(queries), _table(queries[first:], columns, width)


def _table(
    queries: Sequence[SettledQuery], columns: Sequence[dict[str, int]], width: int
) -> _Table:
    cells, judged, values = list[int](), list[int](), list[float]()
    for row, (query, of_query) in enumerate(zip(queries, columns, strict=True)):
        start = row * width
        cells += [start + of_query[name] for name in query.candidate_ids]
        judged += [start + of_query[name] for name in query.grades]
        values += query.grades.values()
    grades = np.full((len(queries), width), np.nan)
    grades.reshape(-1)[judged] = values
    clicks = [_clicks(query, of_query) for query, of_query in zip(queries, columns, strict=True)]
    return _Table(np.array(cells, np.int64), grades, clicks)


def _clicks(query: SettledQuery, columns: Mapping[str, int]) -> dict[int, float] | None:
    logged = {} if query.logged is None else query.logged.candidates
    found = {name: p for name, (_, p) in logged.items() if p is not None}
    if not found and query.propensities is None:
        return None
    return {columns[name]: p for name, p in found.items() if query.grades.get(name, 0) > 0}


def _rank(scores: FloatArray, column: int) -> int:
    """The rank of a ranked column; of tied ones the last comes first."""
    score = scores[column]
    tied_before = np.count_nonzero(scores[column + 1 :] == score)
    return 1 + int(np.count_nonzero(scores > score) + tied_before)


def _scores(ranked: Ranked, counts: IntArray, first: int) -> tuple[FloatArray, NDArray[np.bool_]]:
    """The scores of all candidates of the queries from *first* on, and `[n_queries]` ranked.

    A score is NaN if its query is not ranked.
    """
    some = slice(*(bisect_left(ranked.places, place) for place in (first, first + len(counts))))
    places = np.array(ranked.places[some], np.int64) - first
    owners = np.repeat(np.arange(len(counts)), counts)
    is_ranked = np.zeros(len(counts), bool)
    is_ranked[places] = True
    scores = np.full(len(owners), np.nan)
    if len(places):
        features = np.concatenate(ranked.features[some])
        with np.errstate(over="ignore", invalid="ignore"):
            found = linear_scores(features.T, ranked.weights) + 0.0
        scores[is_ranked[owners]] = found
        is_ranked[owners[is_ranked[owners] & ~np.isfinite(scores)]] = False
    return scores, is_ranked
