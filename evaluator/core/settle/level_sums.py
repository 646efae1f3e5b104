"""Sums of running and settled values by level of segments."""

import heapq
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from evaluator.core.columns.table import Groups
from evaluator.core.join.open_queries import OpenQueries
from evaluator.core.measures import MeasureSet
from evaluator.core.measures.exact_sums import StratumTotals, Sums, Totals, exactly
from evaluator.core.settle.evaluate import QueryValues
from evaluator.core.types.records import OTHER, AnyStratum, IntArray, Levels, LevelStratum, Stratum
from evaluator.core.types.segments import SegmentRules, level_hash


class LevelSums:
    """Sums by stratum, segment and level; those of levels that are not kept are of OTHER.

    A query is in the sums of each of its levels, from its start on.
    """

    def __init__(
        self, rules: SegmentRules, open_queries: OpenQueries, measures: MeasureSet
    ) -> None:
        self._rules = rules
        self._queries = open_queries
        self._columns = measures.columns_of(rules.measures)
        self._n_columns = len(measures.canonical)
        self.totals = Totals([measures.canonical[column] for column in self._columns])
        self._strata: dict[Stratum, None] = {}
        self._kept: dict[str, set[str]] = {name: set() for name in rules.names}
        self._largest: dict[str, list[tuple[int, str]]] = {name: [] for name in rules.names}

    def start(self, rows: IntArray) -> None:
        """Adds the levels of queries that have started."""
        if not self._rules.names:
            return
        strata, names, numbers = self._queries.table["stratum"][rows], *self._levels(rows)
        for pair in np.unique(strata.astype(np.int64) << 32 | numbers).tolist():
            stratum = self._queries.strata[pair >> 32]
            self._strata[stratum] = None
            for segment, level in names[pair & 0xFFFFFFFF]:
                self._admit(segment, level)
                key = self._key(stratum, segment, level)
                if key not in self.totals:
                    self.totals.of(key)

    def move(self, rows: IntArray, moved: IntArray) -> None:
        """Adds changes of running sums; *moved* has the columns of `QueryValues.counted`."""
        if self._rules.names:
            for totals, sums in self._by_level(rows, moved):
                self._add(totals.running, sums)

    def settle(self, part: QueryValues, rows: IntArray) -> None:
        """Adds the settled values of the queries in *rows*."""
        if self._rules.names:
            for totals, sums in self._by_level(rows, exactly(part.counted)):
                self._add(totals.settled, sums)

    def count_settled(self, rows: IntArray, one_of: IntArray) -> None:
        """Counts settled queries: `[n_queries, 3]`, 1 in a column of SETTLED_AS."""
        if self._rules.names:
            for totals, counts in self._by_level(rows, one_of):
                totals.count(*counts.tolist())

    def restore(self, strata: Mapping[AnyStratum, StratumTotals]) -> None:
        of_levels = [key for key in strata if isinstance(key, LevelStratum)]
        self.totals.restore({key: strata[key] for key in of_levels})
        self._strata = {Stratum(*key[:3]): None for key in of_levels}
        for segment in self._rules.names:
            self._kept[segment], self._largest[segment] = set(), []
        for key in of_levels:
            self._admit(key.segment, key.level)

    def _add(self, into: Sums, sums: IntArray) -> None:
        per_list = sums[:-1].reshape(-1, self._n_columns)
        into.add_counted([*per_list[:, self._columns].reshape(-1).tolist(), int(sums[-1])])

    def _by_level(
        self, rows: IntArray, columns: IntArray
    ) -> Iterator[tuple[StratumTotals, IntArray]]:
        """The totals of each level of the queries, with the sums of *columns* over its queries."""
        strata, (names, numbers) = self._queries.table["stratum"][rows], self._levels(rows)
        groups = Groups.of(strata, numbers)
        cells = groups.each(strata).tolist(), groups.each(numbers).tolist()
        for stratum, number, sums in zip(*cells, groups.sums(columns), strict=True):
            for segment, level in names[number]:
                key = self._key(self._queries.strata[stratum], segment, level)
                yield self.totals.of(key), sums

    def _levels(self, rows: IntArray) -> tuple[Sequence[Levels], IntArray]:
        """Levels by number, and the numbers of queries."""
        column = self._queries.stated.levels(rows)
        if column is None:
            raise ValueError("these queries have no levels")
        return column.names, column.numbers.astype(np.int64)

    def _key(self, stratum: Stratum, segment: str, level: str) -> LevelStratum:
        is_kept = level in self._kept[segment] or self._rules.is_declared(segment, level)
        return LevelStratum(*stratum, segment, level if is_kept else OTHER)

    def _admit(self, segment: str, level: str) -> None:
        """Keeps a level, if its hash is among the smallest, and folds the one that is not now."""
        kept, largest = self._kept[segment], self._largest[segment]
        if level in kept or level == OTHER or self._rules.is_declared(segment, level):
            return
        entry = (-int.from_bytes(level_hash(level)), level)
        if len(largest) < self._rules.max_levels:
            heapq.heappush(largest, entry)
            kept.add(level)
        elif entry > largest[0]:
            kept.add(level)
            _, evicted = heapq.heapreplace(largest, entry)
            kept.remove(evicted)
            for stratum in self._strata:
                key = LevelStratum(*stratum, segment, evicted)
                if key in self.totals:
                    self.totals.of(key._replace(level=OTHER)).add(self.totals.pop(key))
