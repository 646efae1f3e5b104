"""Running values: measured again with each judgment, and summed by stratum and by window."""

from collections.abc import Mapping
from typing import Any

from evaluator.core.columns.table import Groups
from evaluator.core.join.changes import Head, Ledger
from evaluator.core.join.join import Join, JudgedBatch
from evaluator.core.join.open_queries import OpenQueries
from evaluator.core.join.rules import JoinRules
from evaluator.core.measures import MeasureSet
from evaluator.core.measures.exact_sums import DelayHistogram, StratumTotals, Totals, Windows
from evaluator.core.settle.evaluate import Evaluator
from evaluator.core.settle.level_sums import LevelSums
from evaluator.core.types.records import AnyStratum, IntArray, Stratum
from evaluator.core.types.segments import SegmentRules


class Running:
    """Running values of open queries, and all sums of a task."""

    def __init__(
        self,
        open_queries: OpenQueries,
        join: Join,
        evaluator: Evaluator,
        measures: MeasureSet,
        rules: JoinRules,
        ledger: Ledger,
        segments: SegmentRules,
    ) -> None:
        self._queries = open_queries
        self._join = join
        self._evaluator = evaluator
        self._counts = ledger.counts
        self.totals = Totals(measures.canonical)
        self.levels = LevelSums(segments, open_queries, measures)
        self.windows = Windows(measures.canonical, rules.window_ms, rules.retention_ms)
        self.delays = DelayHistogram()

    def measure(self, judged: JudgedBatch) -> None:
        """Replaces the results of queries with changed running grades."""
        self.delays.add(judged.delays_ms)
        rows, queries, table = judged.rows, self._queries, self._queries.table
        graded = table["n_judged"][rows] > 0
        self._counts["with_value"] += int(graded.sum()) - int(table["graded"][rows].sum())
        table["graded"][rows] = graded
        old = rows[table["result_start"][rows] >= 0]
        old_results = queries.results(old)
        queries.drop_results(old)
        judged_queries = queries.judged_of(rows)
        have_value = self._evaluator.have_value(judged_queries)
        new = rows[have_value]
        picked = judged_queries.picked(have_value)
        results = self._evaluator.measure(picked, self._join.subtopics(new))
        queries.set_results(new, results)
        self._replace(old, old_results, new, results)

    def _replace(
        self, old: IntArray, old_results: IntArray, new: IntArray, new_results: IntArray
    ) -> None:
        """Subtracts old results from the sums, and adds new ones."""
        strata, table = self._queries.strata, self._queries.table
        for rows, moved in self._evaluator.moved(old, old_results, new, new_results):
            self.levels.move(rows, moved)
            numbers, starts = table["stratum"][rows], self.windows.starts(table["event_ms"][rows])
            groups = Groups.of(numbers, starts)
            numbers, starts, sums = groups.each(numbers), groups.each(starts), groups.sums(moved)
            cells = numbers.tolist(), starts.tolist(), sums.tolist()
            for number, start_ms, counted in zip(*cells, strict=True):
                self.windows.add(start_ms, strata[number], counted)
            groups = Groups.of(numbers)
            totals = groups.each(numbers).tolist(), groups.sums(sums).tolist()
            for number, counted in zip(*totals, strict=True):
                self.totals.of(strata[number]).running.add_counted(counted)

    def state(self) -> dict[str, Any]:
        """The members of `Head`; the sums are stored by stratum and by window."""
        return {"delays": self.delays.as_list()}

    def load(self, head: Head, totals: Mapping[AnyStratum, StratumTotals]) -> None:
        """Replaces the delays and the lifetime sums."""
        self.delays.restore(head.delays)
        self.totals.restore({key: totals[key] for key in totals if isinstance(key, Stratum)})
        self.levels.restore(totals)

    def everything(self) -> dict[AnyStratum, StratumTotals]:
        """The lifetime sums of every stratum, and of every level."""
        return self.totals.everything() | self.levels.totals.everything()
