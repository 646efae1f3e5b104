"""Further data of rankings of open queries: levels of segments, and exposure and propensities of
the served order.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import DTypeLike

from evaluator.core.columns.interning import DictionaryColumn, Interner
from evaluator.core.columns.table import RowTable
from evaluator.core.types.records import IntArray, RankingColumns, ServedList

LEVEL_COLUMNS: Final[Mapping[str, DTypeLike]] = {"levels": np.int32}


class Stated:
    """Levels, by number in the column `levels` of *table*, and served lists, by row.

    Without *segments* there are no levels, and no such column.
    """

    _LEVELS_BEFORE_CLEANING = 1 << 16

    def __init__(self, table: RowTable, *, segments: bool) -> None:
        self._table = table
        self._segments = segments
        self._levels = Interner()
        self._clean_levels_at = self._LEVELS_BEFORE_CLEANING
        self.served: dict[int, ServedList] = {}  # of queries that have not settled
        self.n_bytes = 0
        """Approximate memory of the served lists in bytes."""

    def add(
        self,
        rows: IntArray,
        rankings: RankingColumns,
        served: Mapping[int, ServedList],
        records: IntArray,
    ) -> None:
        """Adds these data of *records* to the queries in *rows*; *served* is by record."""
        if self._segments:
            if rankings.levels is None:
                raise ValueError("these rankings were decoded without their segments")
            self._table["levels"][rows] = self._levels.of_column(rankings.levels)[records]
        if served:
            for row, record in zip(rows.tolist(), records.tolist(), strict=True):
                if record in served:
                    self.served[row] = served[record]
                    self.n_bytes += _n_bytes(served[record])

    def levels(self, rows: IntArray) -> DictionaryColumn | None:
        """The levels of queries; None without segments."""
        if not self._segments:
            return None
        return DictionaryColumn(self._levels.values_by_number, self._table["levels"][rows])

    def drop(self, rows: IntArray) -> None:
        """Discards the served lists of queries."""
        if self.served:
            for row in rows.tolist():
                dropped = self.served.pop(row, None)
                self.n_bytes -= 0 if dropped is None else _n_bytes(dropped)

    def tidy(self) -> None:
        """Drops levels without an open query, if they are many."""
        if len(self._levels) <= self._clean_levels_at:
            return
        rows = np.flatnonzero(self._table["open"])
        old, self._levels = self._levels.values_by_number, Interner()
        levels = DictionaryColumn(old, self._table["levels"][rows]).compact()
        self._table["levels"][rows] = self._levels.of_column(levels)
        self._clean_levels_at = max(self._LEVELS_BEFORE_CLEANING, 2 * len(self._levels))


def _n_bytes(served: ServedList) -> int:
    return 200 + 32 * len(served.propensities or ())
