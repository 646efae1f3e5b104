"""From judged queries to results: measured, and added to sums by stratum."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.table import span_indices
from evaluator.core.event_time.clock import MAX_TIMESTAMP_MS
from evaluator.core.join.open_queries import OpenQueries
from evaluator.core.join.subtopics import Subtopics, subtopics_of_queries
from evaluator.core.measures import NEVER_RANKED, JudgedLists, MeasureSet
from evaluator.core.measures.align import QuerySpans, judged_lists
from evaluator.core.types.records import EvaluationColumns, FloatArray, IntArray, Stratum


class StratumSums(NamedTuple):
    """Values of some queries of one stratum: `units` is `[n_queries, n_rankers * n_measures]`."""

    stratum: Stratum
    members: IntArray  # which of the queries asked about
    units: IntArray  # MISSING for a value that a query lacks

    def summable(self) -> tuple[IntArray, IntArray]:
        """The units with 0 for what is missing, and 1 where it is: both as `units`."""
        missing = self.units < 0
        return np.where(missing, 0, self.units), missing.astype(np.int64)

    def counted(self, *, may_lack: bool) -> IntArray:
        """What adds up: units, where some *may_lack* values which of them do, and 1 per query."""
        ones = np.ones((len(self.members), 1), np.int64)
        return np.hstack((*(self.summable() if may_lack else (self.units,)), ones))


@dataclass(frozen=True, slots=True)
class ValueRules:
    """Rules of values, the settings of the same names.

    Attributes:
        empty: value of a judged query without a relevant candidate: "zero", or "skip" for none.
        ties: how equal scores are ordered: "id", or "average" for the mean over all orders.
        judged_only: whether unjudged candidates are removed before lists are measured.
        freshness_half_life_ms: age at which a candidate's gain is halved; 0 for no decay.
    """

    empty: str = "zero"
    ties: str = "id"
    judged_only: bool = False
    freshness_half_life_ms: int = 0


DEFAULT_VALUES = ValueRules()


class Evaluator:
    """Measures open queries. A result is flat: per ranker the units of each measure, first rank."""

    def __init__(self, open_queries: OpenQueries, measures: MeasureSet, values: ValueRules) -> None:
        self._queries = open_queries
        self._measures = measures
        self._values = values
        self.may_lack = measures.may_lack
        self._n_measures = len(measures.canonical)

    def have_value(self, spans: QuerySpans, grades: FloatArray) -> NDArray[np.bool_]:
        """Which queries have a value: `[n_queries]`."""
        judged = spans.n_judged > 0
        return judged & any_relevant(spans, grades) if self._values.empty == "skip" else judged

    def measure(
        self,
        spans: QuerySpans,
        judged_codes: NDArray[np.int32],
        judged_grades: FloatArray,
        subtopics: Sequence[Subtopics] | None,
    ) -> IntArray:
        """Results of judged queries, flat, one after the other; *subtopics* are theirs."""
        list_ends = np.cumsum(spans.n_rankers)
        results = np.empty((int(spans.n_rankers.sum()), self._n_measures + 1), np.int64)
        for queries, lists in judged_lists(
            spans,
            self._queries.pools,
            judged_codes,
            judged_grades,
            half_life_ms=self._values.freshness_half_life_ms,
        ):
            lists_of: IntArray | slice = slice(None)
            if len(queries) < len(list_ends):
                n_rankers = spans.n_rankers[queries]
                lists_of = span_indices(list_ends[queries] - n_rankers, n_rankers)
            measured = lists.condensed() if self._values.judged_only else lists
            if subtopics is not None:
                measured = self._with_subtopics(measured, spans, queries, judged_codes, subtopics)
            results[lists_of, :-1] = self._measures.units(measured)
            first = lists.first_relevant
            results[lists_of, -1] = np.where(first < NEVER_RANKED, first, 0)
        return results.reshape(-1)

    def _with_subtopics(
        self,
        lists: JudgedLists,
        spans: QuerySpans,
        queries: IntArray,
        judged_codes: NDArray[np.int32],
        subtopics: Sequence[Subtopics],
    ) -> JudgedLists:
        ids = self._queries.codes.values_by_number
        starts, lengths = spans.judged_starts[queries].tolist(), spans.n_judged[queries].tolist()
        judged_ids = (
            [ids[code] for code in judged_codes[start : start + n].tolist()]
            for start, n in zip(starts, lengths, strict=True)
        )
        chosen = [subtopics[query] for query in queries.tolist()]
        return replace(lists, subtopics=subtopics_of_queries(judged_ids, chosen))

    def by_stratum(self, rows: IntArray, results: IntArray) -> Iterator[StratumSums]:
        """The units of queries, stratum by stratum; *results* are theirs, flat."""
        numbers = self._queries.table["stratum"][rows]
        if len(rows) and (numbers == numbers[0]).all():  # quicker, and mostly so
            yield self._sums(numbers[0], np.arange(len(rows)), results)
            return
        lengths = self._queries.result_lengths(rows)
        starts = np.cumsum(lengths) - lengths
        for number in np.flatnonzero(np.bincount(numbers)).tolist():  # quicker than np.unique
            members = np.flatnonzero(numbers == number)
            flat = results[span_indices(starts[members], lengths[members])]
            yield self._sums(number, members, flat)

    def _sums(self, number: int, members: IntArray, results: IntArray) -> StratumSums:
        per_list = results.reshape(len(members), -1, self._n_measures + 1)
        units = per_list[:, :, :-1].reshape(len(members), -1)
        return StratumSums(self._queries.strata[int(number)], members, units)

    def moved(
        self, old: IntArray, old_results: IntArray, new: IntArray, new_results: IntArray
    ) -> Iterator[tuple[Stratum, IntArray, IntArray]]:
        """What running sums move by where *old* results go and *new* ones come.

        Of each stratum: rows `[n]`, and `[n, n_columns]`, the columns of `StratumSums.counted`.
        """
        if len(old) == len(new) and (old == new).all():  # mostly all are, or none is
            before, after = self.by_stratum(old, old_results), self.by_stratum(new, new_results)
            for stood, stands in zip(before, after, strict=True):
                yield (
                    stands.stratum,
                    new[stands.members],
                    self._counted(stands) - self._counted(stood),
                )
            return
        rows, results = np.concatenate((old, new)), np.concatenate((old_results, new_results))
        for part in self.by_stratum(rows, results):
            signs = np.where(part.members < len(old), -1, 1)[:, None]
            yield part.stratum, rows[part.members], signs * self._counted(part)

    def _counted(self, part: StratumSums) -> IntArray:
        return part.counted(may_lack=self.may_lack)

    def evaluations(self, rows: IntArray) -> list[EvaluationColumns]:
        """What people are told of queries, as it stands, alike ones together."""
        table = self._queries.table
        valued = table["result_start"][rows] >= 0
        n_top = self._queries.n_top(rows)
        kinds = (table["stratum"][rows].astype(np.int64) * 4 + n_top) * 2 + valued
        return [
            self._alike(rows[kinds == kind], n_top=kind // 2 % 4, valued=bool(kind % 2))
            for kind in np.flatnonzero(np.bincount(kinds)).tolist()
        ]

    def _alike(self, rows: IntArray, *, n_top: int, valued: bool) -> EvaluationColumns:
        table = self._queries.table
        stratum = self._queries.strata[int(table["stratum"][rows[0]])]
        trace_ids, node_ids = zip(*table["key"][rows].tolist(), strict=True)
        top_ids, top_scores = self._queries.tops_of(rows, n_top=n_top)
        units, first_ranks = None, [0] * (len(rows) * len(stratum.rankers))
        if valued:
            results = self._queries.results(rows).reshape(-1, self._n_measures + 1)
            units, first_ranks = results[:, :-1].reshape(-1).tolist(), results[:, -1].tolist()
        return EvaluationColumns(
            stratum=stratum,
            n_top=n_top,
            trace_ids=list(trace_ids),
            node_ids=list(node_ids),
            event_times_ms=table["event_ms"][rows].tolist(),
            queries=table["query"][rows].tolist(),
            revisions=table["revision"][rows].tolist(),
            grades=self._queries.grades_of(rows),
            first_ranks=first_ranks,
            top_ids=top_ids,
            top_scores=top_scores,
            units=units,
        )


def new_evaluator(
    measures: MeasureSet, values: ValueRules, *, offers: bool = False
) -> tuple[OpenQueries, Evaluator]:
    """A query table with the columns that these measures need, and its evaluator.

    Raises:
        UnsupportedTiesError: if ties are averaged and a measure does not support that.
    """
    averages = values.ties == "average"
    if averages:
        measures.require_averages()
    open_queries = OpenQueries(
        n_measures=len(measures.canonical),
        ties=averages,
        published=values.freshness_half_life_ms > 0,
        subtopics=measures.needs_subtopics,
        offers=offers,
    )
    return open_queries, Evaluator(open_queries, measures, values)


def any_relevant(spans: QuerySpans, grades: FloatArray) -> NDArray[np.bool_]:
    """Which queries have a judged candidate with a grade above 0: `[n_queries]`."""
    owners = np.repeat(np.arange(len(spans.n_judged)), spans.n_judged)
    relevant = grades[span_indices(spans.judged_starts, spans.n_judged)] > 0
    found: NDArray[np.bool_] = np.bincount(owners[relevant], minlength=len(spans.n_judged)) > 0
    return found


def window_sums(
    event_times_ms: IntArray, units: IntArray, *, window_ms: int
) -> Iterator[tuple[int, list[int]]]:
    """Start and sums by column of each window: times `[n]`, units `[n, n_columns]`.

    None of the units may be MISSING.
    """
    if window_ms > MAX_TIMESTAMP_MS:
        numbers = np.zeros_like(event_times_ms)
    else:
        numbers = event_times_ms // window_ms
    if len(numbers) and (numbers == numbers[0]).all():
        yield int(numbers[0]) * window_ms, units.sum(axis=0).tolist()
        return
    order = np.argsort(numbers, kind="stable")
    firsts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    sums = np.add.reduceat(units[order], firsts, axis=0).tolist()
    for number, of_window in zip(numbers[order[firsts]].tolist(), sums, strict=True):
        yield number * window_ms, of_window
