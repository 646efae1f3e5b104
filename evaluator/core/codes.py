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
