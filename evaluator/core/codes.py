"""Values as small integers, given out in order of first mention."""

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluator.core.mentions import Mentions


class Numbering(dict[Hashable, int]):
    """Small integers for values, given out in order of first mention.

    >>> numbers = Numbering()
    >>> numbers.of(["b", "a", "b"], 3).tolist(), numbers.values_by_number
    ([0, 1, 0], ['b', 'a'])
    """

    def __init__(self) -> None:
        super().__init__()
        self.values_by_number: list[Any] = []
        self._quickly = np.empty(0, object)  # the same, as far as somebody asked
        self._n_quickly = 0

    def __missing__(self, value: Hashable) -> int:
        number = self[value] = len(self.values_by_number)
        self.values_by_number.append(value)
        return number

    def of(self, values: Iterable[Hashable], n: int) -> NDArray[np.int32]:
        """Numbers of *n* values: `[n]`."""
        return np.fromiter(map(self.__getitem__, values), np.int32, n)

    def of_mentions(self, mentions: Mentions) -> NDArray[np.int32]:
        """Numbers of the entries of a column: `[n_entries]`."""
        return self.of(mentions.names, len(mentions.names)).take(mentions.numbers)

    def of_numbers(self, numbers: NDArray[np.int32]) -> list[Any]:
        """The values of numbers, from an array that grows as needed: quicker than one by one."""
        n = len(self.values_by_number)
        if n > len(self._quickly):
            grown = np.empty(2 * n, object)
            grown[: self._n_quickly] = self._quickly[: self._n_quickly]
            self._quickly = grown
        if n > self._n_quickly:
            for number in range(self._n_quickly, n):  # a slice would take tuples apart
                self._quickly[number] = self.values_by_number[number]
            self._n_quickly = n
        values: list[Any] = self._quickly.take(numbers).tolist()
        return values
