"""The key index in C (`native.c`): 10 to 12 bytes per hash."""

import ctypes
import weakref
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.core.types.records import IntArray

PATH: Final = Path(__file__).with_name("native.so")

Library = ctypes.CDLL


def is_current(library: Path) -> bool:
    """Whether a compiled library exists and none of the C files beside it was changed since."""
    if not library.exists():
        return False
    changed = max((path.stat().st_mtime for path in library.parent.glob("*.[ch]")), default=0.0)
    return library.stat().st_mtime >= changed


def load() -> Library | None:
    """The compiled library; None if it was not built, or from other sources."""
    if not is_current(PATH):
        return None
    library = ctypes.CDLL(str(PATH))
    size, pointer = ctypes.c_int64, ctypes.c_void_p
    for function, result, arguments in (
        (library.index_new, pointer, ()),
        (library.index_free, None, (pointer,)),
        (library.index_bytes, size, (pointer,)),
        (library.index_length, size, (pointer,)),
        (library.index_find, None, (pointer, size, pointer, pointer)),
        (library.index_put, ctypes.c_bool, (pointer, size, pointer, pointer)),
        (library.index_remove, None, (pointer, size, pointer)),
    ):
        function.restype = result
        function.argtypes = arguments
    return library


BUILT: Final = load()
"""The compiled library, or None."""


class NativeKeyIndex:
    """As `evaluator.core.store.key_index.PlainKeyIndex`, in a tenth of the memory.

    It compares the first 44 bits of a hash.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._index = library.index_new()
        if not self._index:
            raise MemoryError("cannot allocate an index of keys")
        weakref.finalize(self, library.index_free, self._index)

    def __len__(self) -> int:
        return int(self._library.index_length(self._index))

    @property
    def n_bytes(self) -> int:
        return int(self._library.index_bytes(self._index))

    def find(self, hashes: NDArray[np.uint64]) -> IntArray:
        hashes, numbers = np.ascontiguousarray(hashes), np.empty(len(hashes), np.int64)
        self._library.index_find(self._index, len(hashes), hashes.ctypes.data, numbers.ctypes.data)
        return numbers

    def put(self, hashes: NDArray[np.uint64], numbers: IntArray) -> None:
        hashes, numbers = np.ascontiguousarray(hashes), np.ascontiguousarray(numbers)
        arrays = hashes.ctypes.data, numbers.ctypes.data
        if not self._library.index_put(self._index, len(hashes), *arrays):
            raise MemoryError("cannot allocate more of the index of keys")

    def remove(self, hashes: NDArray[np.uint64]) -> None:
        hashes = np.ascontiguousarray(hashes)
        self._library.index_remove(self._index, len(hashes), hashes.ctypes.data)
