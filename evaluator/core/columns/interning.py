"""Strings and other values as small integers: dictionary columns, and interners."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray


class Values(list[Any]):
    """Values by number, to which values are only added, so that others can keep their numbers."""

    texts: Any = None  # of these values, if an output writer keeps any


class DictionaryColumn(Struct):
    """A flat column of values, as numbers of names: entry i is `names[numbers[i]]`.

    `numbers` is `[n_entries]`. A name may be in `names` more than once, or be used by no entry.
    """

    names: list[Any]
    numbers: NDArray[np.int32]

    @classmethod
    def of(cls, values: Sequence[Any]) -> "DictionaryColumn":
        """The same values.

        >>> DictionaryColumn.of(["a", "bc"]).values()
        ['a', 'bc']
        """
        return cls(list(values), np.arange(len(values), dtype=np.int32))

    @classmethod
    def joined(cls, parts: Sequence["DictionaryColumn"]) -> "DictionaryColumn":
        """The entries of all parts, in their order; without unused names, unless all share them."""
        if parts and all(part.names is parts[0].names for part in parts):
            return cls(parts[0].names, np.concatenate([part.numbers for part in parts]))
        names: list[Any] = []
        first: dict[int, int] = {}  # by the identity of a list: they are all alive here
        numbers = [np.empty(0, np.int32)]
        for part in parts:
            at = first.setdefault(id(part.names), len(names))
            if at == len(names):
                names += part.names
            numbers.append(part.numbers + np.int32(at))
        return cls(names, np.concatenate(numbers)).compact()

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, chosen: slice | NDArray[Any]) -> "DictionaryColumn":
        return DictionaryColumn(self.names, self.numbers[chosen])

    def values(self, first: int = 0, end: int | None = None) -> list[Any]:
        """Entries *first* to before *end*."""
        return list(map(self.names.__getitem__, self.numbers[first:end].tolist()))

    def groups(self) -> Iterator[tuple[Any, NDArray[np.intp]]]:
        """Each name in use, by number, with the places of its entries."""
        order = np.argsort(self.numbers, kind="stable")
        firsts = np.flatnonzero(np.diff(self.numbers[order], prepend=-1))
        for places in np.split(order, firsts)[1:]:
            yield self.names[self.numbers[places[0]]], places

    def compact(self) -> "DictionaryColumn":
        """The same entries with only the used names, in order of first use."""
        used = self.distinct()
        renumbered = np.empty(len(self.names), np.int32)
        renumbered[used] = np.arange(len(used))
        names = [self.names[number] for number in used.tolist()]
        return DictionaryColumn(names, renumbered[self.numbers])

    def distinct(self, chosen: slice | NDArray[np.bool_] = slice(None)) -> NDArray[np.intp]:
        """The numbers of *chosen* entries, in order of first use."""
        numbers = self.numbers[chosen]
        first = np.full(len(self.names), -1)
        first[numbers[::-1]] = np.arange(len(numbers))[::-1]  # the first one is assigned last
        used = np.flatnonzero(first >= 0)
        return used[np.argsort(first[used])]


class Interner(dict[Hashable, int]):
    """Numbers of values, assigned from 0 in order of first use.

    >>> numbers = Interner()
    >>> numbers.of(["b", "a", "b"], 3).tolist(), numbers.values_by_number
    ([0, 1, 0], ['b', 'a'])
    """

    def __init__(self) -> None:
        super().__init__()
        self.values_by_number = Values()
        self._names = Values()  # those looked up last
        self._numbers_of_names = np.empty(0, np.int32)  # -1: not looked up yet

    def __missing__(self, value: Hashable) -> int:
        number = self[value] = len(self.values_by_number)
        self.values_by_number.append(value)
        return number

    def of(self, values: Iterable[Hashable], n: int) -> NDArray[np.int32]:
        """Numbers of *n* values: `[n]`."""
        return np.fromiter(map(self.__getitem__, values), np.int32, n)

    def of_column(self, column: DictionaryColumn) -> NDArray[np.int32]:
        """Numbers of the entries of a column: `[n_entries]`."""
        names = column.names
        if not isinstance(names, Values):
            return self.of(names, len(names)).take(column.numbers)
        if names is not self._names:
            self._names, self._numbers_of_names = names, np.empty(0, np.int32)
        known = self._numbers_of_names
        if len(known) < len(names):
            more = np.full(len(names) - len(known), -1, np.int32)
            known = self._numbers_of_names = np.append(known, more)
        numbers: NDArray[np.int32] = known[column.numbers]
        is_new = numbers < 0
        if is_new.any():
            new = column.distinct(is_new)
            known[new] = self.of((names[number] for number in new.tolist()), len(new))
            numbers = known[column.numbers]
        return numbers
