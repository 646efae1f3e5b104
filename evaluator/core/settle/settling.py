"""Final evaluation of queries at maturity."""

from collections.abc import Iterable

import numpy as np

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.join.changes import Ledger
from evaluator.core.join.join import Join
from evaluator.core.join.open_queries import JudgedQueries, OpenQueries
from evaluator.core.measures.exact_sums import Totals, squares_of
from evaluator.core.settle.evaluate import Evaluator, StratumSums, any_relevant
from evaluator.core.types.records import (
    IntArray,
    LoggedQuery,
    ServedList,
    SettledColumns,
    Stratum,
)


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
        queries, table = self._queries, self._queries.table
        table["settled"][rows] = True
        grades, valued, results = self._final_values(rows)
        numbers, has_grade = table["stratum"][rows], grades.counts > 0
        for number in np.unique(numbers).tolist():
            members = has_grade[numbers == number]
            totals = self._totals.of(queries.strata[number])
            n_judged = int(np.count_nonzero(members))
            totals.settled_judged += n_judged
            totals.settled_unjudged += len(members) - n_judged
        parts = []
        for part in self.evaluator.by_stratum(rows[valued], results):
            self._add_settled(part)
            indices = valued[part.members]
            parts.append(self._columns(part.stratum, rows, indices, grades, part.units))
        without = np.setdiff1d(np.arange(len(rows)), valued)
        for number in np.unique(numbers[without]).tolist():
            indices = without[numbers[without] == number]
            parts.append(self._columns(queries.strata[number], rows, indices, grades, None))
        self._counts["settled"] += len(rows)
        queries.drop_settled(rows)
        return parts

    def _final_values(self, rows: IntArray) -> tuple[GradeColumns, IntArray, IntArray]:
        """Grades by maturity, a row per query; positions of queries with a value; their results.

        The results of queries without later judgments are the running ones.
        """
        queries, table = self._queries, self._queries.table
        differing = self._join.grades_in_time(rows.tolist())
        apart = np.fromiter((row in differing for row in rows.tolist()), bool, len(rows))
        in_time = self._join.first_in_time(rows) & ~apart
        together = np.flatnonzero((table["n_judged"][rows] > 0) & in_time)
        same = rows[together]
        grades, owners = queries.grades_of(same), together
        self._count_nothing_relevant(queries.judged_of(same))
        with_result = table["result_start"][same] >= 0
        valued, results = together[with_result], queries.results(same[with_result])
        if differing:
            indices = np.flatnonzero(apart)
            others = GradeColumns.of([differing[row] for row in rows[indices].tolist()])
            grades = GradeColumns.joined([grades, others])
            owners = np.concatenate((together, indices))
            judged = queries.judged_by(rows[indices], others)
            self._count_nothing_relevant(judged)
            have_value = self.evaluator.have_value(judged)
            new = indices[have_value]
            subtopics = self._join.subtopics(rows[new], in_time=True)
            measured = self.evaluator.measure(judged.picked(have_value), subtopics)
            valued, results = np.concatenate((valued, new)), np.concatenate((results, measured))
        return grades.placed(owners, len(rows)), valued, results

    def _count_nothing_relevant(self, judged: JudgedQueries) -> None:
        nothing = (judged.spans.n_judged > 0) & ~any_relevant(judged)
        self._counts["nothing_relevant"] += int(np.count_nonzero(nothing))

    def _add_settled(self, part: StratumSums) -> None:
        totals, n = self._totals.of(part.stratum), len(part.members)
        units, lacking = part.units, []
        if self.evaluator.may_lack:
            units, missing = part.summable()
            lacking = missing.sum(axis=0).tolist()
        totals.settled.add(n, units.sum(axis=0).tolist(), lacking)
        totals.settled_squares.add(n, squares_of(units).sum(axis=0).tolist())

    def _columns(
        self,
        stratum: Stratum,
        rows: IntArray,
        indices: IntArray,
        grades: GradeColumns,
        units: IntArray | None,
    ) -> SettledColumns:
        queries, table, chosen = self._queries, self._queries.table, rows[indices]
        offered = None
        if queries.offered is not None:
            ids, candidates = queries.codes.values_by_number, queries.pools.candidate_codes
            offered = queries.offered.columns(chosen, candidates, ids)
        of_part = grades.picked(indices)
        return SettledColumns(
            stratum=stratum,
            ns=indices + self._counts["settled"],
            trace_ids=table["trace_id"][chosen].tolist(),
            node_ids=table["node_id"][chosen].tolist(),
            event_times_ms=table["event_ms"][chosen],
            offsets=table["offset"][chosen],
            grades=of_part,
            units=None if units is None else units.reshape(-1),
            offered=offered,
            levels=queries.stated.levels(chosen),
            logged=self._logged(chosen, of_part),
        )

    def _logged(self, rows: IntArray, grades: GradeColumns) -> list[LoggedQuery | None] | None:
        """What the rankings of queries state; None if none of them states anything."""
        if not self._queries.stated.served:
            return None
        served = [self._queries.stated.served.get(row) for row in rows.tolist()]
        if not any(served):
            return None
        return [
            None if one is None else self._logged_query(row, one, graded)
            for row, one, graded in zip(rows.tolist(), served, grades, strict=True)
        ]

    def _logged_query(self, row: int, served: ServedList, graded: Iterable[str]) -> LoggedQuery:
        ranks, propensities = self._served_ranks(row), served.propensities
        return LoggedQuery(
            served.exposed,
            {
                name: (ranks[name], None if propensities is None else propensities[ranks[name] - 1])
                for name in graded
                if name in ranks
            },
        )

    def _served_ranks(self, row: int) -> dict[str, int]:
        """Rank of each candidate of a query in the served order, by candidate id."""
        table, pools = self._queries.table, self._queries.pools
        first, rank, n = (
            int(table[name][row]) for name in ("candidate_start", "rank_start", "n_candidates")
        )
        ids = DictionaryColumn(self._queries.codes.values_by_number, pools.candidate_codes)
        ranks = pools.ranks[rank : rank + n].tolist()
        return dict(zip(ids.values(first, first + n), ranks, strict=True))
