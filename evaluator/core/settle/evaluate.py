"""Results of judged queries."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from evaluator.core.columns.table import span_indices
from evaluator.core.join.open_queries import JudgedQueries, OpenQueries
from evaluator.core.join.subtopics import Subtopics, subtopics_of_query
from evaluator.core.measures import NEVER_RANKED, MeasureSet
from evaluator.core.measures.align import judged_lists
from evaluator.core.measures.lists import QuerySubtopics
from evaluator.core.types.records import EvaluationColumns, IntArray


class QueryValues(NamedTuple):
    """Values of queries with the same rankers: `units` is `[n_queries, n_rankers * n_measures]`."""

    members: IntArray  # positions of the queries
    units: IntArray  # MISSING for a value that a query lacks
    may_lack: bool

    @property
    def counted(self) -> IntArray:
        """Columns to sum: units, with `may_lack` the MISSING ones as 1, and 1 per query."""
        ones = np.ones((len(self.members), 1), np.int64)
        if not self.may_lack:
            return np.hstack((self.units, ones))
        missing = self.units < 0
        return np.hstack((np.where(missing, 0, self.units), missing, ones))


class ValueRules(Struct, frozen=True):
    """Rules of values, the settings of the same names.

    Attributes:
        empty: value of a judged query without a relevant candidate: "zero", or "skip" for none.
        ties: how equal scores are ordered: "id", or "average" for the mean over all orders.
        judged_only: whether unjudged candidates are removed before lists are measured.
        freshness_half_life_ms: age at which a candidate's gain is halved; 0 for no decay.
        silence: at settlement an exposed candidate without a grade is "unjudged", or has grade
            "zero".
    """

    empty: str = "zero"
    ties: str = "id"
    judged_only: bool = False
    freshness_half_life_ms: int = 0
    silence: str = "unjudged"


DEFAULT_VALUES = ValueRules()


class Evaluator:
    """Measures open queries. A result is flat: per ranker the units of each measure, first rank."""

    def __init__(self, open_queries: OpenQueries, measures: MeasureSet, values: ValueRules) -> None:
        self._queries = open_queries
        self._measures = measures
        self._values = values
        self.may_lack = measures.may_lack
        self.of_seen = measures.of_seen
        self.of_clicks = measures.of_clicks
        self._n_measures = len(measures.canonical)

    def have_value(self, judged: JudgedQueries) -> NDArray[np.bool_]:
        """Which queries have a value: `[n_queries]`."""
        has_grade = judged.spans.n_judged > 0
        return has_grade & any_relevant(judged) if self._values.empty == "skip" else has_grade

    def measure(self, judged: JudgedQueries, subtopics: Sequence[Subtopics] | None) -> IntArray:
        """Results of judged queries, concatenated; *subtopics* are parallel to the queries."""
        spans = judged.spans
        list_ends = np.cumsum(spans.n_rankers)
        results = np.empty((int(spans.n_rankers.sum()), self._n_measures + 1), np.int64)
        half_life_ms = self._values.freshness_half_life_ms
        for queries, lists in judged_lists(
            spans, self._queries.pools, judged.codes, judged.grades, half_life_ms=half_life_ms
        ):
            lists_of: IntArray | slice = slice(None)
            if len(queries) < len(list_ends):
                n_rankers = spans.n_rankers[queries]
                lists_of = span_indices(list_ends[queries] - n_rankers, n_rankers)
            measured = lists.condensed() if self._values.judged_only else lists
            if subtopics is not None:
                of_queries = self._with_ids(judged, queries, subtopics)
                measured = replace(measured, subtopics=of_queries)
            results[lists_of, :-1] = self._measures.units(measured)
            first = lists.first_relevant
            results[lists_of, -1] = np.where(first < NEVER_RANKED, first, 0)
        return results.reshape(-1)

    def _with_ids(
        self, judged: JudgedQueries, queries: IntArray, subtopics: Sequence[Subtopics]
    ) -> list[QuerySubtopics | None]:
        ids, found = self._queries.codes.values_by_number, []
        starts, lengths = judged.spans.judged_starts[queries], judged.spans.n_judged[queries]
        for query, start, n in zip(
            queries.tolist(), starts.tolist(), lengths.tolist(), strict=True
        ):
            judged_ids = [ids[code] for code in judged.codes[start : start + n].tolist()]
            found.append(subtopics_of_query(judged_ids, subtopics[query]))
        return found

    def by_rankers(self, rows: IntArray, results: IntArray) -> Iterator[QueryValues]:
        """The units of queries by their rankers; *results* are concatenated."""
        numbers = self._queries.strata.rankers[self._queries.table["stratum"][rows]]
        if len(rows) and (numbers == numbers[0]).all():  # faster, and most frequent
            yield self._values_of(np.arange(len(rows)), results)
            return
        lengths = self._queries.result_lengths(rows)
        starts = np.cumsum(lengths) - lengths
        for number in np.flatnonzero(np.bincount(numbers)).tolist():  # faster than np.unique
            members = np.flatnonzero(numbers == number)
            flat = results[span_indices(starts[members], lengths[members])]
            yield self._values_of(members, flat)

    def _values_of(self, members: IntArray, results: IntArray) -> QueryValues:
        per_list = results.reshape(len(members), -1, self._n_measures + 1)
        units = per_list[:, :, :-1].reshape(len(members), -1)
        return QueryValues(members, units, self.may_lack)

    def moved(
        self, old: IntArray, old_results: IntArray, new: IntArray, new_results: IntArray
    ) -> Iterator[tuple[IntArray, IntArray]]:
        """Changes of the running sums if *new* results replace *old* ones.

        By rankers: rows `[n]`, and `[n, n_columns]`, the columns of `QueryValues.counted`.
        """
        if len(old) == len(new) and (old == new).all():  # most frequent
            parts = self.by_rankers(old, old_results), self.by_rankers(new, new_results)
            for before, after in zip(*parts, strict=True):
                yield new[after.members], after.counted - before.counted
            return
        rows, results = np.concatenate((old, new)), np.concatenate((old_results, new_results))
        for part in self.by_rankers(rows, results):
            signs = np.where(part.members < len(old), -1, 1)[:, None]
            yield rows[part.members], signs * part.counted

    def evaluations(self, rows: IntArray) -> list[EvaluationColumns]:
        """Evaluations of queries, grouped by rankers, length of tops, and presence of a value.

        In a group they are in the order of the strata.
        """
        table, strata = self._queries.table, self._queries.strata
        rows = rows[np.argsort(table["stratum"][rows], kind="stable")]
        valued = table["result_start"][rows] >= 0
        n_top = self._queries.n_top(rows)
        kinds = (strata.rankers[table["stratum"][rows]] * 4 + n_top) * 2 + valued
        return [
            self._alike(rows[kinds == kind], n_top=kind // 2 % 4, valued=bool(kind % 2))
            for kind in np.flatnonzero(np.bincount(kinds)).tolist()
        ]

    def _alike(self, rows: IntArray, *, n_top: int, valued: bool) -> EvaluationColumns:
        table = self._queries.table
        top_ids, top_scores = self._queries.tops_of(rows, n_top=n_top)
        units, first_ranks = None, np.zeros(int(self._queries.n_rankers(rows).sum()), np.int64)
        if valued:
            results = self._queries.results(rows).reshape(-1, self._n_measures + 1)
            units, first_ranks = results[:, :-1].reshape(-1), results[:, -1]
        return EvaluationColumns(
            strata=self._queries.strata.column(table["stratum"][rows]),
            n_top=n_top,
            texts=self._queries.texts.of(rows),
            event_times_ms=table["event_ms"][rows],
            revisions=table["revision"][rows].astype(np.int64),
            grades=self._queries.grades_of(rows),
            first_ranks=first_ranks,
            top_ids=top_ids,
            top_scores=top_scores,
            units=units,
            levels=self._queries.stated.levels(rows),
        )


def any_relevant(judged: JudgedQueries) -> NDArray[np.bool_]:
    """Which queries have a judged candidate with a grade above 0: `[n_queries]`."""
    starts, n_judged = judged.spans.judged_starts, judged.spans.n_judged
    owners = np.repeat(np.arange(len(n_judged)), n_judged)
    relevant = judged.grades[span_indices(starts, n_judged)] > 0
    return np.bincount(owners[relevant], minlength=len(n_judged)) > 0
