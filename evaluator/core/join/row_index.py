"""Rows of the table of queries by key: an open hash table, without an object per key."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evaluator.core.columns.key_hashes import Key, KeyHashes, halves
from evaluator.core.columns.table import RowTable
from evaluator.core.types.records import IntArray

_EMPTY: Final = -1
_REMOVED: Final = -2

KEY_COLUMNS: Final[Mapping[str, DTypeLike]] = {"key": "V16"}


class RowIndex:
    """The row of each key, and the keys of rows, `KEY_COLUMNS` of the table.

    A row is in the first slot that was free of those that its key names: one by its first half,
    and from there in steps by its second half. Keys are compared with those of their row.
    """

    _FEWEST = 1 << 10

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._slots: NDArray[np.int32] = np.full(self._FEWEST, _EMPTY, np.int32)
        self._n_used = 0  # slots that are not empty, at most
        self._n_rows = 0

    def __len__(self) -> int:
        return self._n_rows

    def keys_of(self, rows: IntArray) -> list[Key]:
        """The keys of rows."""
        keys: list[Key] = self._table["key"][rows].tolist()
        return keys

    def find(self, keys: KeyHashes) -> IntArray:
        """The row of each key, -1 for none: `[n_keys]`."""
        rows, left = np.full(len(keys), -1, np.int64), np.arange(len(keys))
        at, steps = self._probes(keys)
        while len(left):
            here = self._slots[at]
            there = np.flatnonzero(here != _EMPTY)
            left, here = left[there], here[there]
            same = self._table["key"][here] == keys[left]
            same &= here >= 0
            rows[left[same]] = here[same]
            left, there = left[~same], there[~same]
            steps = steps[there]
            at = self._next(at[there], steps)
        return rows

    def add(self, rows: IntArray) -> None:
        """Adds rows of distinct keys without a row."""
        self._n_rows += len(rows)
        if 5 * (self._n_used + len(rows)) > 3 * len(self._slots):
            rows = np.concatenate([self._slots[self._slots >= 0], rows])
            size = max(self._FEWEST, 1 << (2 * len(rows)).bit_length())
            self._slots, self._n_used = np.full(size, _EMPTY, np.int32), 0
        self._n_used += len(rows)
        at, steps = self._probes(self._table["key"][rows])
        while len(rows):
            free = self._slots[at] < 0
            self._slots[at[free]] = rows[free]
            left = np.flatnonzero(self._slots[at] != rows)  # of several rows one is there
            rows, steps = rows[left], steps[left]
            at = self._next(at[left], steps)

    def remove(self, rows: IntArray) -> None:
        """Removes rows."""
        self._n_rows -= len(rows)
        self._slots[self._slots_of(rows)] = _REMOVED

    def replace(self, rows: IntArray, others: IntArray) -> None:
        """Replaces each row by another one of its key."""
        self._slots[self._slots_of(rows)] = others

    def _probes(self, keys: KeyHashes) -> tuple[IntArray, IntArray]:
        """The first slot of each key, and the odd step to its next one."""
        first, second = halves(keys).T & np.uint64(len(self._slots) - 1)
        return first.view(np.int64), second.view(np.int64) | 1

    def _next(self, at: IntArray, steps: IntArray) -> IntArray:
        return (at + steps) & (len(self._slots) - 1)

    def _slots_of(self, rows: IntArray) -> IntArray:
        at, steps = self._probes(self._table["key"][rows])
        left = np.flatnonzero(self._slots[at] != rows)
        while len(left):
            at[left] = self._next(at[left], steps[left])
            left = left[self._slots[at[left]] != rows[left]]
        return at
