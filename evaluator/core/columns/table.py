"""Memory for many queries in columns: numbered slots, and pools of spans of varying length."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import DTypeLike, NDArray

IntArray = NDArray[np.int64]


def span_indices(starts: IntArray, lengths: IntArray) -> IntArray:
    """Flat positions of spans, one span after the other: `[sum of lengths]`.

    >>> span_indices(np.array([5, 20]), np.array([2, 3]))
    array([ 5,  6, 20, 21, 22])
    """
    indices: IntArray
    if len(lengths) and (lengths == lengths[0]).all():  # common, and a third of the time
        indices = (starts[:, None] + np.arange(lengths[0])).ravel()
    else:
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        indices = np.arange(total) + np.repeat(starts - ends + lengths, lengths)
    return indices


class SlotTable:
    """Rows of columns under reusable numbers. `table[name]` is a column; index it by slots.

    Columns grow by doubling; take `table[name]` afresh after `allocate`.
    """

    def __init__(self, columns: Mapping[str, DTypeLike]) -> None:
        self._columns: dict[str, NDArray[np.generic]] = {
            name: np.zeros(0, dtype) for name, dtype in columns.items()
        }
        self._free = np.empty(0, np.int64)  # a stack; its top is at _n_free
        self._n_free = 0
        self._n_ever = 0

    def __getitem__(self, name: str) -> NDArray:  # type: ignore[type-arg]  # columns differ
        return self._columns[name]

    def __len__(self) -> int:
        return self._n_ever - self._n_free

    def allocate(self, n: int) -> IntArray:
        """Numbers of *n* rows; what their columns hold is left over from earlier use."""
        reused = min(n, self._n_free)
        self._n_free -= reused
        old = self._free[self._n_free : self._n_free + reused]
        new = np.arange(self._n_ever, self._n_ever + n - reused)
        self._n_ever += n - reused
        self._reserve(self._n_ever)
        return np.concatenate((old, new))

    def release(self, slots: IntArray) -> None:
        """Gives rows back; objects in their columns are let go."""
        needed = self._n_free + len(slots)
        if needed > len(self._free):
            self._free = np.resize(self._free, max(needed, 2 * len(self._free)))
        self._free[self._n_free : needed] = slots
        self._n_free = needed
        for column in self._columns.values():
            if column.dtype == object:
                column[slots] = np.array(None, object)

    def _reserve(self, n: int) -> None:
        for name, column in self._columns.items():
            if n > len(column):
                grown = np.zeros(max(n, 2 * len(column), 1024), column.dtype)
                grown[: len(column)] = column
                self._columns[name] = grown


class SpanPool:
    """Flat columns that hold a span of entries for each owner.

    Owners keep (start, length). Discarded entries stay until `compact` moves the live spans
    together; `wasteful` says when that is due.
    """

    _SMALLEST = 1 << 16
    _COMPACTED_AT_ONCE = 1 << 14

    def __init__(self, columns: Mapping[str, DTypeLike]) -> None:
        self._columns: dict[str, NDArray[np.generic]] = {
            name: np.zeros(1024, dtype) for name, dtype in columns.items()
        }
        self._size = 0
        self._discarded = 0

    def __getitem__(self, name: str) -> NDArray:  # type: ignore[type-arg]  # columns differ
        return self._columns[name]

    def append(self, lengths: IntArray, **flat: NDArray[np.generic]) -> IntArray:
        """Adds spans given one after the other in *flat*, by column; returns their starts."""
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        self._reserve(self._size + total)
        for name, entries in flat.items():
            self._columns[name][self._size : self._size + total] = entries
        starts: IntArray = ends - lengths + self._size
        self._size += total
        return starts

    def discard(self, n_entries: int) -> None:
        """Says that entries of some spans are not needed any more."""
        self._discarded += n_entries

    @property
    def n_bytes(self) -> int:
        """Bytes of the entries that are needed."""
        live = self._size - self._discarded
        return live * sum(column.itemsize for column in self._columns.values())

    @property
    def wasteful(self) -> bool:
        """More than a third of the pool is discarded, and it is not small."""
        return self._size > self._SMALLEST and 3 * self._discarded > self._size

    def compact(self, starts: IntArray, lengths: IntArray) -> IntArray:
        """Keeps only these spans; returns their new starts."""
        ends = np.cumsum(lengths)
        size = int(ends[-1]) if len(ends) else 0
        kept = {
            name: np.zeros(max(size, 1024), column.dtype) for name, column in self._columns.items()
        }
        for first in range(0, len(starts), self._COMPACTED_AT_ONCE):  # indices take more than spans
            part = slice(first, first + self._COMPACTED_AT_ONCE)
            indices = span_indices(starts[part], lengths[part])
            end = int(ends[part][-1])
            for name, column in self._columns.items():
                kept[name][end - len(indices) : end] = column[indices]
        self._columns, self._size, self._discarded = kept, size, 0
        return ends - lengths

    def _reserve(self, size: int) -> None:
        for name, column in self._columns.items():
            if size > len(column):
                grown = np.zeros(max(size, 2 * len(column)), column.dtype)
                grown[: len(column)] = column
                self._columns[name] = grown
