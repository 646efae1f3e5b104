"""Storage of many queries in columns: tables of rows, and spans of varying length."""

import mmap
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

IntArray = NDArray[np.int64]
_MAX_ENTRIES: Final = (1 << 31) - 1
"""Starts of spans are 32 bits."""
_SLICE_COSTS: Final = 100
"""Entries that are copied by their indices in the time that a slice takes."""
_MAPPED_BYTES: Final = 1 << 18
"""Columns from this size on have a memory mapping of their own."""


def span_indices(starts: IntArray, lengths: IntArray) -> IntArray:
    """Flat indices of consecutive spans: `[sum of lengths]`.

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


def spans_of(rows: IntArray, lengths: IntArray) -> IntArray | slice:
    """Flat indices of the spans of ascending rows; *lengths* are of the spans of all rows.

    >>> spans_of(np.array([0, 2]), np.array([1, 3, 2]))
    array([0, 4, 5])
    """
    if len(rows) == len(lengths):
        return slice(None)
    return span_indices((np.cumsum(lengths) - lengths)[rows], lengths[rows])


class Groups(NamedTuple):
    """Rows with equal keys: in `order` one group after the other, each from one of `firsts` on.

    >>> groups = Groups.of(np.array([7, 5, 7]))
    >>> groups.each(np.array([7, 5, 7])), groups.sums(np.array([1, 2, 4]))
    (array([5, 7]), array([2, 5]))
    """

    order: IntArray | slice
    firsts: IntArray

    @classmethod
    def of(cls, key: IntArray, *others: IntArray) -> "Groups":
        """The groups of rows, by key, then by the others: each `[n_rows]`, none negative."""
        keys = key, *others
        if len(key) and all((each == each[0]).all() for each in keys):  # faster, and frequent
            return cls(slice(None), np.zeros(1, np.int64))
        order = np.lexsort(keys[::-1])
        changes = [np.diff(each[order], prepend=-1) != 0 for each in keys]
        return cls(order, np.flatnonzero(np.any(changes, axis=0)))

    def each(self, key: IntArray) -> IntArray:
        """A key of each group."""
        return key[self.order][self.firsts]

    def sums(self, columns: IntArray) -> IntArray:
        """The sums of columns, `[n_rows, ...]`, over each group."""
        sums: IntArray = np.add.reduceat(columns[self.order], self.firsts, axis=0)
        return sums


def _zeros(n: int, dtype: DTypeLike) -> NDArray[np.generic]:
    """A column of zeros, whose pages take memory when they are first written.

    The heap would take memory for all of them if it reuses freed memory, and keep it afterwards.
    """
    n_bytes = n * np.dtype(dtype).itemsize
    if n_bytes < _MAPPED_BYTES or np.dtype(dtype).hasobject:
        return np.zeros(n, dtype)
    try:
        pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{n_bytes} bytes cannot be mapped: {error.strerror}") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # of a kernel without huge pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype, n)


class _Columns:
    """Named columns that grow by doubling; take `columns[name]` again after that."""

    _FEWEST = 1024

    def __init__(self, columns: Mapping[str, DTypeLike]) -> None:
        self._columns: dict[str, NDArray[np.generic]] = {
            name: np.zeros(self._FEWEST, dtype) for name, dtype in columns.items()
        }

    def __getitem__(self, name: str) -> NDArray:  # type: ignore[type-arg]  # columns differ
        return self._columns[name]

    def _reserve(self, n: int) -> None:
        for name, column in self._columns.items():
            if n > len(column):
                grown = _zeros(max(n, 2 * len(column)), column.dtype)
                grown[: len(column)] = column
                self._columns[name] = grown


class RowTable(_Columns):
    """Rows of columns under reusable numbers: `table[name]` is a column, indexed by row."""

    def __init__(self, columns: Mapping[str, DTypeLike]) -> None:
        super().__init__(columns)
        self._free = np.empty(0, np.int64)  # a stack; its top is at _n_free
        self._n_free = 0
        self._n_ever = 0

    def __len__(self) -> int:
        return self._n_ever - self._n_free

    def allocate(self, n: int) -> IntArray:
        """Numbers of *n* free rows; their columns still have earlier values."""
        reused = min(n, self._n_free)
        self._n_free -= reused
        old = self._free[self._n_free : self._n_free + reused]
        new = np.arange(self._n_ever, self._n_ever + n - reused)
        self._n_ever += n - reused
        self._reserve(self._n_ever)
        return np.concatenate((old, new))

    def release(self, rows: IntArray) -> None:
        """Frees rows, and the objects in their columns."""
        needed = self._n_free + len(rows)
        if needed > len(self._free):
            self._free = np.resize(self._free, max(needed, 2 * len(self._free)))
        self._free[self._n_free : needed] = rows
        self._n_free = needed
        for column in self._columns.values():
            if column.dtype == object:
                column[rows] = np.array(None, object)


class RaggedColumns(_Columns):
    """Flat columns with a span of entries per owner.

    Owners keep (start, length). A column takes a wider type when an entry needs it. Discarded
    entries stay until `compact` moves the live spans together; it is due when the pool is
    `wasteful`.
    """

    _SMALLEST = 1 << 16
    _COMPACTED_AT_ONCE = 1 << 14

    def __init__(self, columns: Mapping[str, DTypeLike]) -> None:
        super().__init__(columns)
        self._size = 0
        self._discarded = 0

    def append(self, lengths: IntArray, **flat: NDArray[np.generic]) -> IntArray:
        """Adds the consecutive spans of *flat*, by column; returns their starts."""
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        if self._size + total > _MAX_ENTRIES:
            raise MemoryError("the memory tier has more entries than a column can number")
        self._reserve(self._size + total)
        for name, entries in flat.items():
            self._widen(name, entries)
            self._columns[name][self._size : self._size + total] = entries
        starts: IntArray = ends - lengths + self._size
        self._size += total
        return starts

    def _widen(self, name: str, entries: NDArray[np.generic]) -> None:
        """Gives a column the type of *entries* if its own cannot represent them all."""
        column = self._columns[name]
        if column.dtype != entries.dtype and (entries.astype(column.dtype) != entries).any():
            wider = _zeros(len(column), np.result_type(column, entries))
            wider[: self._size] = column[: self._size]
            self._columns[name] = wider

    def discard(self, n_entries: int) -> None:
        """Counts entries of spans that are no longer used."""
        self._discarded += n_entries

    @property
    def n_bytes(self) -> int:
        """Bytes of the entries in use."""
        live = self._size - self._discarded
        return live * sum(column.itemsize for column in self._columns.values())

    @property
    def wasteful(self) -> bool:
        """Whether more than a third of the pool is discarded, and it is not small."""
        return self._size > self._SMALLEST and 3 * self._discarded > self._size

    def compact(self, starts: IntArray, lengths: IntArray) -> IntArray:
        """Keeps only these spans, with room for as many entries again; returns their new starts."""
        order = np.argsort(starts)
        starts, lengths = starts[order], lengths[order]
        ends = np.cumsum(lengths)
        size = int(ends[-1]) if len(ends) else 0
        kept = {
            name: _zeros(max(2 * size, self._FEWEST), column.dtype)
            for name, column in self._columns.items()
        }
        # In parts, as indices take more memory than spans.
        for first in range(0, len(starts), self._COMPACTED_AT_ONCE):
            part = slice(first, first + self._COMPACTED_AT_ONCE)
            place = slice(int(ends[first] - lengths[first]), int(ends[part][-1]))
            pieces = _pieces(starts[part], lengths[part])
            for name, column in self._columns.items():
                np.concatenate([column[piece] for piece in pieces], out=kept[name][place])
        self._columns, self._size, self._discarded = kept, size, 0
        moved = np.empty_like(starts)
        moved[order] = ends - lengths
        return moved


def _pieces(starts: IntArray, lengths: IntArray) -> list[slice] | list[IntArray]:
    """What selects the entries of spans: one slice for spans that follow each other, or indices."""
    ends = starts + lengths
    firsts = np.flatnonzero(np.append(True, starts[1:] != ends[:-1]))
    if len(firsts) * _SLICE_COSTS > lengths.sum():
        return [span_indices(starts, lengths)]
    bounds = zip(starts[firsts].tolist(), ends[np.append(firsts[1:], 0) - 1].tolist(), strict=True)
    return [slice(first, end) for first, end in bounds]
