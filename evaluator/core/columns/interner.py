"""Values as small integers, given out in order of first mention."""

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.dictionary_column import DictionaryColumn


class Interner(dict[Hashable, int]):
    """Small integers for values, given out in order of first mention.

    >>> numbers = Interner()
    >>> numbers.of(["b", "a", "b"], 3).tolist(), numbers.values_by_number
    ([0, 1, 0], ['b', 'a'])
    """

    def __init__(self) -> None:
        super().__init__()
        self.values_by_number: list[Any] = []
        self._fast = np.empty(0, object)  # the same, as far as somebody asked
        self._n_fast = 0

    def __missing__(self, value: Hashable) -> int:
        number = self[value] = len(self.values_by_number)
        self.values_by_number.append(value)
        return number

    def of(self, values: Iterable[Hashable], n: int) -> NDArray[np.int32]:
        """Numbers of *n* values: `[n]`."""
        return np.fromiter(map(self.__getitem__, values), np.int32, n)

    def of_column(self, column: DictionaryColumn) -> NDArray[np.int32]:
        """Numbers of the entries of a column: `[n_entries]`."""
        return self.of(column.names, len(column.names)).take(column.numbers)

    def of_numbers(self, numbers: NDArray[np.int32]) -> list[Any]:
        """The values of numbers, from an array that grows as needed: quicker than one by one."""
        n = len(self.values_by_number)
        if n > len(self._fast):
            grown = np.empty(2 * n, object)
            grown[: self._n_fast] = self._fast[: self._n_fast]
            self._fast = grown
        if n > self._n_fast:
            for number in range(self._n_fast, n):  # a slice would take tuples apart
                self._fast[number] = self.values_by_number[number]
            self._n_fast = n
        values: list[Any] = self._fast.take(numbers).tolist()
        return values
