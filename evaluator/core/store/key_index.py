"""A number for each hash of a key, by the million, in little memory."""

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from evaluator.core.native import library
from evaluator.core.native.library import NativeKeyIndex
from evaluator.core.types.records import IntArray

MOST: Final = (1 << 36) - 1
"""The greatest number that a hash can have; the least is 1."""
HASH_BITS: Final = 44
"""Hashes of 64 bits are the same if their first bits agree."""


class KeyIndex(Protocol):
    """Numbers by hash, `[n]` each."""

    def __len__(self) -> int:
        """How many hashes have a number."""

    @property
    def n_bytes(self) -> int:
        """About how much memory it takes."""

    def find(self, hashes: NDArray[np.uint64]) -> IntArray:
        """The number of each hash; 0 where it has none."""

    def put(self, hashes: NDArray[np.uint64], numbers: IntArray) -> None:
        """Gives each hash a number, from 1 to `MOST`; of equal hashes the last one stands."""

    def remove(self, hashes: NDArray[np.uint64]) -> None:
        """Takes the numbers of these hashes away, where they have one."""


class PlainKeyIndex:
    """A dict; about ten times the memory of the compiled one."""

    _ENTRY_BYTES: Final = 120

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def n_bytes(self) -> int:
        return len(self) * self._ENTRY_BYTES

    def find(self, hashes: NDArray[np.uint64]) -> IntArray:
        numbers = (self._numbers.get(each, 0) for each in _first_bits(hashes))
        return np.fromiter(numbers, np.int64, len(hashes))

    def put(self, hashes: NDArray[np.uint64], numbers: IntArray) -> None:
        self._numbers.update(zip(_first_bits(hashes), numbers.tolist(), strict=True))

    def remove(self, hashes: NDArray[np.uint64]) -> None:
        for each in _first_bits(hashes):
            self._numbers.pop(each, None)


def _first_bits(hashes: NDArray[np.uint64]) -> list[int]:
    first: list[int] = (hashes >> np.uint64(64 - HASH_BITS)).tolist()
    return first


def new_key_index() -> KeyIndex:
    """An empty index, the compiled one if it was built."""
    return PlainKeyIndex() if library.BUILT is None else NativeKeyIndex(library.BUILT)
