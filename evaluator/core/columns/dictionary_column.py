"""Strings by the thousand, of which few differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class DictionaryColumn:
    """A flat column of strings, as numbers of names: entry i is `names[numbers[i]]`.

    `numbers` is `[n_entries]`. A name may stand in `names` more than once, or be mentioned by
    no entry.
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
        """The entries of all parts, one after the other."""
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
