"""Final evaluation of queries at maturity."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.table import Groups
from evaluator.core.join.changes import Ledger
from evaluator.core.join.join import Join
from evaluator.core.join.open_queries import JudgedQueries, OpenQueries
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.measures.exact_sums import SETTLED_AS, sums_of_columns
from evaluator.core.measures.exposure import Clicks, Seen
from evaluator.core.settle.evaluate import Evaluator, QueryValues, any_relevant
from evaluator.core.settle.running import Running
from evaluator.core.settle.silence import Silence, Silenced, served_ranks
from evaluator.core.types.records import IntArray, LoggedQuery, ServedList, SettledColumns


class _Final(NamedTuple):
    """Of queries, `[n_queries]`: grades, whether they are silent; and `Silenced.zero`."""

    grades: GradeColumns
    silent: NDArray[np.bool_]
    zero: Mapping[int, Collection[str]]


class Settler:
    """Settles queries, in the order given, and counts them."""

    def __init__(
        self,
        open_queries: OpenQueries,
        join: Join,
        evaluator: Evaluator,
        running: Running,
        ledger: Ledger,
        silence: Silence | None = None,
    ) -> None:
        self._queries = open_queries
        self._silence = silence
        self._join = join
        self.evaluator = evaluator
        self._totals, self._levels = running.totals, running.levels
        self._counts = ledger.counts

    def settle(self, rows: IntArray) -> list[SettledColumns]:
        """Settles queries, in this order."""
        queries, table = self._queries, self._queries.table
        table["settled"][rows] = True
        final, valued, results = self._final_values(rows)
        self._count(rows, final)
        parts = []
        for part in self.evaluator.by_rankers(rows[valued], results):
            indices = valued[part.members]
            if self.evaluator.of_seen or self.evaluator.of_clicks:
                self._measure_seen(part, rows[indices], final, indices)
            self._add_settled(part, rows[indices])
            parts.append(self._columns(rows, indices, final, part.units))
        has_value = np.zeros(len(rows), bool)
        has_value[valued] = True
        without = np.flatnonzero(~has_value)
        rankers = queries.strata.rankers[table["stratum"][rows[without]]]
        parts += [
            self._columns(rows, without[rankers == number], final, None)
            for number in np.unique(rankers).tolist()
        ]
        self._counts["settled"] += len(rows)
        queries.drop_settled(rows)
        return parts

    def _final_values(self, rows: IntArray) -> tuple[_Final, IntArray, IntArray]:
        """Final grades, a row per query; positions of queries with a value; their results.

        The results of queries without later judgments are the running ones.
        """
        queries, table = self._queries, self._queries.table
        differing = self._join.grades_in_time(rows.tolist())
        silence = Silenced()
        if self._silence is not None and queries.stated.served:
            running = self._join.first_in_time(rows) & (table["n_judged"][rows] > 0)
            silence = self._silence.zeros(rows, running, differing)
        silent = np.isin(rows, list(silence.silent))
        apart = np.isin(rows, list(differing))
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
            self._count_nothing_relevant(judged.picked(~silent[indices]))
            have_value = self.evaluator.have_value(judged)
            new = indices[have_value]
            subtopics = self._join.subtopics(rows[new], in_time=True)
            measured = self.evaluator.measure(judged.picked(have_value), subtopics)
            valued, results = np.concatenate((valued, new)), np.concatenate((results, measured))
        placed = silence.without_placeholders(grades).placed(owners, len(rows))
        return _Final(placed, silent, silence.zero), valued, results

    def _count(self, rows: IntArray, final: _Final) -> None:
        settled_as = np.where(final.silent, 1, np.where(final.grades.counts > 0, 0, 2))
        one_of = np.eye(len(SETTLED_AS), dtype=np.int64)[settled_as]
        numbers = self._queries.table["stratum"][rows]
        groups = Groups.of(numbers)
        cells = groups.each(numbers).tolist(), groups.sums(one_of).tolist()
        for number, counts in zip(*cells, strict=True):
            self._totals.of(self._queries.strata[number]).count(*counts)
        self._levels.count_settled(rows, one_of)

    def _count_nothing_relevant(self, judged: JudgedQueries) -> None:
        nothing = (judged.spans.n_judged > 0) & ~any_relevant(judged)
        self._counts["nothing_relevant"] += int(np.count_nonzero(nothing))

    def _measure_seen(
        self, part: QueryValues, rows: IntArray, final: _Final, indices: IntArray
    ) -> None:
        """Sets the values of exposure and clicks, of queries whose rankings state exposure."""
        grades, silent = final.grades.picked(indices), final.silent[indices].tolist()
        for at, (row, graded) in enumerate(zip(rows.tolist(), grades, strict=True)):
            served = self._queries.stated.served.get(row)
            if served is None:
                continue
            ranks = served_ranks(self._queries, row)
            clicked = [name for name, grade in graded.items() if grade and name in ranks]
            if served.exposed is not None:
                clicks = sum(1 << ranks[name] - 1 for name in clicked)
                seen = Seen(served.exposed, clicks, silent[at])
                for column, measure in self.evaluator.of_seen:
                    value = measure.kind.of_seen and measure.kind.of_seen(seen, measure.terms)
                    if value is not None:
                        part.units[at, column] = round(value * UNITS_PER_ONE)
            if served.propensities is not None and self.evaluator.of_clicks:
                propensities = [served.propensities[ranks[name] - 1] for name in clicked]
                self._weigh_clicks(part.units[at], row, clicked, propensities)

    def _weigh_clicks(
        self, units: IntArray, row: int, clicked: Sequence[str], propensities: Sequence[float]
    ) -> None:
        """Sets the values of weighted clicks, of every ranker."""
        n_rankers = int(self._queries.n_rankers(np.array([row]))[0])
        of_rankers = units.reshape(n_rankers, -1)
        for ranker in range(n_rankers):
            ranks = served_ranks(self._queries, row, ranker)
            clicks = Clicks([ranks[name] for name in clicked], propensities)
            for column, measure in self.evaluator.of_clicks:
                value = measure.kind.of_clicks and measure.kind.of_clicks(clicks, measure.terms)
                if value is not None:
                    of_rankers[ranker, column] = round(value * UNITS_PER_ONE)

    def _add_settled(self, part: QueryValues, rows: IntArray) -> None:
        self._levels.settle(part, rows)
        numbers, width = self._queries.table["stratum"][rows], part.units.shape[1]
        groups = Groups.of(numbers)
        sums, squares = sums_of_columns(part.counted, groups)
        strata = groups.each(numbers).tolist()
        for number, counted, of_squares in zip(strata, sums, squares, strict=True):
            totals = self._totals.of(self._queries.strata[number])
            totals.settled.add_counted(counted)
            totals.settled_squares.add(counted[-1], of_squares[:width])

    def _columns(
        self, rows: IntArray, indices: IntArray, final: _Final, units: IntArray | None
    ) -> SettledColumns:
        queries, table, chosen = self._queries, self._queries.table, rows[indices]
        offered = None
        if queries.offered is not None:
            ids, candidates = queries.codes.values_by_number, queries.pools.candidate_codes
            offered = queries.offered.columns(chosen, candidates, ids)
        of_part, silent = final.grades.picked(indices), final.silent[indices]
        return SettledColumns(
            strata=queries.strata.column(table["stratum"][chosen]),
            ns=indices + self._counts["settled"],
            texts=queries.texts.of(chosen),
            event_times_ms=table["event_ms"][chosen],
            offsets=table["offset"][chosen],
            grades=of_part,
            units=None if units is None else units.reshape(-1),
            offered=offered,
            levels=queries.stated.levels(chosen),
            logged=self._logged(chosen, of_part, final.zero),
            silent=silent if silent.any() else None,
        )

    def _logged(
        self, rows: IntArray, grades: GradeColumns, zero: Mapping[int, Collection[str]]
    ) -> list[LoggedQuery | None] | None:
        """Logged data of the rankings of queries; None if none of them has any.

        *zero* are candidates by row whose grade no judgment has given.
        """
        if not self._queries.stated.served:
            return None
        served = [self._queries.stated.served.get(row) for row in rows.tolist()]
        if not any(served):
            return None
        return [
            None
            if one is None
            else self._logged_query(row, one, [g for g in graded if g not in zero.get(row, ())])
            for row, one, graded in zip(rows.tolist(), served, grades, strict=True)
        ]

    def _logged_query(self, row: int, served: ServedList, graded: Iterable[str]) -> LoggedQuery:
        ranks, propensities = served_ranks(self._queries, row), served.propensities
        return LoggedQuery(
            served.exposed,
            {
                name: (ranks[name], None if propensities is None else propensities[ranks[name] - 1])
                for name in graded
                if name in ranks
            },
        )
