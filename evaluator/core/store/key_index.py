"""A number for each hash of a key."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.core.native import library
from evaluator.core.native.library import NativeKeyIndex
from evaluator.core.types.records import IntArray

MOST: Final = (1 << 36) - 1
"""The largest number of a hash; the smallest is 1."""
HASH_BITS: Final = 44
"""Hashes of 64 bits are equal if so many of their first bits are."""


class PlainKeyIndex:
    """Numbers by hash in a dict; arguments and results are `[n]`."""

    _ENTRY_BYTES: Final = 120

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def n_bytes(self) -> int:
        """Approximate memory in bytes."""
        return len(self) * self._ENTRY_BYTES

    def find(self, hashes: NDArray[np.uint64]) -> IntArray:
        """The number of each hash; 0 for a hash without one."""
        numbers = (self._numbers.get(each, 0) for each in _first_bits(hashes))
        return np.fromiter(numbers, np.int64, len(hashes))

    def put(self, hashes: NDArray[np.uint64], numbers: IntArray) -> None:
        """Sets the number of each hash, from 1 to `MOST`; of equal hashes the last one counts."""
        self._numbers.update(zip(_first_bits(hashes), numbers.tolist(), strict=True))

    def remove(self, hashes: NDArray[np.uint64]) -> None:
        """Removes the numbers of hashes that have one."""
        for each in _first_bits(hashes):
            self._numbers.pop(each, None)


KeyIndex = PlainKeyIndex | NativeKeyIndex
"""The native one takes a tenth of the memory."""


def _first_bits(hashes: NDArray[np.uint64]) -> list[int]:
    first: list[int] = (hashes >> np.uint64(64 - HASH_BITS)).tolist()
    return first


def new_key_index() -> KeyIndex:
    """An empty index, the native one if it was built."""
    return PlainKeyIndex() if library.BUILT is None else NativeKeyIndex(library.BUILT)
