"""A key index in the compiled part (`index.h`): 10 to 12 bytes for each hash."""

import weakref

import numpy as np
from numpy.typing import NDArray

from evaluator.core.native.library import Library
from evaluator.core.native.structs import address
from evaluator.core.types.records import IntArray


class NativeKeyIndex:
    """As `evaluator.core.store.key_index.PlainKeyIndex`, in far less memory.

    Of a hash it looks at the first 44 bits: two that agree in these are the same to it.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._index = library.index_new()
        if not self._index:
            raise MemoryError("there is no memory for an index of keys")
        weakref.finalize(self, library.index_free, self._index)

    def __len__(self) -> int:
        return int(self._library.index_length(self._index))

    @property
    def n_bytes(self) -> int:
        return int(self._library.index_bytes(self._index))

    def find(self, hashes: NDArray[np.uint64]) -> IntArray:
        numbers = np.empty(len(hashes), np.int64)
        self._library.index_find(self._index, len(hashes), address(hashes), address(numbers))
        return numbers

    def put(self, hashes: NDArray[np.uint64], numbers: IntArray) -> None:
        places = address(hashes), address(numbers)
        if not self._library.index_put(self._index, len(hashes), *places):
            raise MemoryError("there is no memory for the index of keys")

    def remove(self, hashes: NDArray[np.uint64]) -> None:
        self._library.index_remove(self._index, len(hashes), address(hashes))
