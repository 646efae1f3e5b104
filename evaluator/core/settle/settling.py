"""Final evaluation of queries at maturity."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.join.changes import Ledger
from evaluator.core.join.join import Join
from evaluator.core.join.open_queries import OpenQueries
from evaluator.core.join.subtopics import Subtopics
from evaluator.core.measures.align import QuerySpans
from evaluator.core.measures.exact_sums import Totals, squares_of
from evaluator.core.settle.evaluate import Evaluator, StratumSums, any_relevant
from evaluator.core.types.records import IntArray, OfferedColumns, SettledColumns, Stratum

GradesByRow = Mapping[int, Mapping[str, float]]


class Settling(NamedTuple):
    """Queries that settle now: which have a grade in time, and their results.

    `grades` has a row per query, empty where unjudged; `results` are flat, of the queries at
    `valued`, in that order.
    """

    grades: GradeColumns
    valued: IntArray
    results: IntArray
    n_nothing_relevant: int


class Settler:
    """Settles queries, in the order given, and counts them."""

    def __init__(
        self,
        open_queries: OpenQueries,
        join: Join,
        evaluator: Evaluator,
        totals: Totals,
        ledger: Ledger,
    ) -> None:
        self._queries = open_queries
        self._join = join
        self.evaluator = evaluator
        self._totals = totals
        self._counts = ledger.counts

    def settle(self, rows: IntArray) -> list[SettledColumns]:
        """Settles queries, in this order."""
        settling = _final_values(
            self.evaluator,
            self._queries,
            rows,
            first_in_time=self._join.first_in_time(rows),
            differing=self._join.grades_in_time(rows.tolist()),
            subtopics_in_time=lambda new: self._join.subtopics(new, in_time=True),
        )
        self._counts["nothing_relevant"] += settling.n_nothing_relevant
        numbers = self._queries.table["stratum"][rows]
        judged = settling.grades.counts > 0
        parts = []
        for number in np.unique(numbers).tolist():
            totals = self._totals.of(self._queries.strata[number])
            n_judged = int(np.count_nonzero(judged[numbers == number]))
            totals.settled_judged += n_judged
            totals.settled_unjudged += int(np.count_nonzero(numbers == number)) - n_judged
        for part in self.evaluator.by_stratum(rows[settling.valued], settling.results):
            self._add_settled(part)
            indices = settling.valued[part.members]
            parts.append(self._settled(part.stratum, rows, indices, settling, part.units))
        without = np.setdiff1d(np.arange(len(rows)), settling.valued)
        for number in np.unique(numbers[without]).tolist():
            indices = without[numbers[without] == number]
            stratum = self._queries.strata[number]
            parts.append(self._settled(stratum, rows, indices, settling, None))
        self._counts["settled"] += len(rows)
        if self._queries.offered is not None:
            self._queries.offered.drop(rows)
        return parts

    def _add_settled(self, part: StratumSums) -> None:
        totals, n = self._totals.of(part.stratum), len(part.members)
        units, lacking = part.units, []
        if self.evaluator.may_lack:
            units, missing = part.summable()
            lacking = missing.sum(axis=0).tolist()
        totals.settled.add(n, units.sum(axis=0).tolist(), lacking)
        totals.settled_squares.add(n, squares_of(units).sum(axis=0).tolist())

    def _settled(
        self,
        stratum: Stratum,
        rows: IntArray,
        indices: IntArray,
        settling: Settling,
        units: IntArray | None,
    ) -> SettledColumns:
        table = self._queries.table
        chosen = rows[indices]
        trace_ids, node_ids = zip(*table["key"][chosen].tolist(), strict=True)
        return SettledColumns(
            stratum=stratum,
            ns=(indices + self._counts["settled"]).tolist(),
            trace_ids=list(trace_ids),
            node_ids=list(node_ids),
            event_times_ms=table["event_ms"][chosen].tolist(),
            offsets=table["offset"][chosen].tolist(),
            grades=settling.grades.picked(indices),
            units=None if units is None else units.reshape(-1).tolist(),
            offered=self._offered_by(chosen),
        )

    def _offered_by(self, rows: IntArray) -> OfferedColumns | None:
        open_queries = self._queries
        if open_queries.offered is None:
            return None
        return open_queries.offered.columns(
            rows, open_queries.pools.candidate_codes, open_queries.codes.values_by_number
        )


def _final_values(
    evaluator: Evaluator,
    open_queries: OpenQueries,
    rows: IntArray,
    *,
    first_in_time: NDArray[np.bool_],
    differing: GradesByRow,
    subtopics_in_time: Callable[[IntArray], Sequence[Subtopics] | None],
) -> Settling:
    """Scores queries by what was applied in time.

    `rows` is `[n_queries]`; `first_in_time` says whether the first applied judgment came in
    time; `differing` has the grades by maturity of the queries for which they may differ from
    the running ones. Of the others all judgments came in time, or none.
    """
    table = open_queries.table
    table["settled"][rows] = True
    apart = np.fromiter((row in differing for row in rows.tolist()), bool, len(rows))
    together = np.flatnonzero((table["n_judged"][rows] > 0) & first_in_time & ~apart)
    same = rows[together]
    grades, owners = open_queries.grades_of(same), together
    spans = open_queries.spans(same)
    nothing = int(np.count_nonzero(~any_relevant(spans, open_queries.judged_grades)))
    with_result = table["result_start"][same] >= 0
    valued, results = together[with_result], open_queries.results(same[with_result])
    if differing:
        indices = np.flatnonzero(apart)
        others = GradeColumns.of([differing[row] for row in rows[indices].tolist()])
        grades = GradeColumns.joined([grades, others])
        owners = np.concatenate((together, indices))
        spans, codes, flat = open_queries.spans_of_grades(rows[indices], others)
        nothing += int(np.count_nonzero((spans.n_judged > 0) & ~any_relevant(spans, flat)))
        have_value = evaluator.have_value(spans, flat)
        part = QuerySpans(*(column[have_value] for column in spans))
        new = indices[have_value]
        subtopics = subtopics_in_time(rows[new])
        valued = np.concatenate((valued, new))
        results = np.concatenate((results, evaluator.measure(part, codes, flat, subtopics)))
    return Settling(grades.placed(owners, len(rows)), valued, results, nothing)
