"""Strings and other values as small integers: dictionary columns, and interners."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class DictionaryColumn:
    """A flat column of strings, as numbers of names: entry i is `names[numbers[i]]`.

    `numbers` is `[n_entries]`. A name may be in `names` more than once, or be used by no entry.
    """

    names: list[str]
    numbers: NDArray[np.int32]

    @classmethod
    def of(cls, strings: Sequence[str]) -> "DictionaryColumn":
        """The same strings.

        >>> DictionaryColumn.of(["a", "bc"]).strings()
        ['a', 'bc']
        """
        return cls(list(strings), np.arange(len(strings), dtype=np.int32))

    @classmethod
    def joined(cls, parts: Sequence["DictionaryColumn"]) -> "DictionaryColumn":
        """The entries of all parts, in their order."""
        first, numbers = 0, [np.empty(0, np.int32)]
        for part in parts:
            numbers.append(part.numbers + np.int32(first))
            first += len(part.names)
        names = list(chain.from_iterable(part.names for part in parts))
        return cls(names, np.concatenate(numbers))

    def __len__(self) -> int:
        return len(self.numbers)

    def strings(self, first: int = 0, end: int | None = None) -> list[str]:
        """Entries *first* to before *end*."""
        return [self.names[number] for number in self.numbers[first:end].tolist()]


class Values(list[Any]):
    """Values by number, to which values are only added."""

    texts: Any = None  # of these values, if an output writer keeps any


class Interner(dict[Hashable, int]):
    """Numbers of values, assigned from 0 in order of first use.

    >>> numbers = Interner()
    >>> numbers.of(["b", "a", "b"], 3).tolist(), numbers.values_by_number
    ([0, 1, 0], ['b', 'a'])
    """

    def __init__(self) -> None:
        super().__init__()
        self.values_by_number = Values()

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
        """The values of numbers."""
        return list(map(self.values_by_number.__getitem__, numbers.tolist()))
