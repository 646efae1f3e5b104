"""Strata as small integers."""

import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.interning import DictionaryColumn, Interner
from evaluator.core.types.records import RankingColumns, Stratum


class Strata:
    """Strata by number."""

    def __init__(self) -> None:
        self._interner, self._rankers = Interner(), Interner()
        self.n_rankers = np.empty(0, np.int64)  # of each stratum
        self.rankers = np.empty(0, np.int32)  # of each stratum: equal numbers, equal rankers

    def of(self, rankings: RankingColumns) -> NDArray[np.int32]:
        """Numbers of the rows' strata: `[n_rows]`."""
        numbers = self._interner.of_column(rankings.strata)
        new = self._interner.values_by_number[len(self.n_rankers) :]
        more = np.array([len(stratum.rankers) for stratum in new], np.int64)
        self.n_rankers = np.append(self.n_rankers, more)
        rankers = self._rankers.of((stratum.rankers for stratum in new), len(new))
        self.rankers = np.append(self.rankers, rankers)
        return numbers

    def column(self, numbers: NDArray[np.int32]) -> DictionaryColumn:
        """The strata of these numbers."""
        return DictionaryColumn(self._interner.values_by_number, numbers)

    def __getitem__(self, number: int) -> Stratum:
        stratum: Stratum = self._interner.values_by_number[number]
        return stratum
