"""A place for each key, by the hash of the key: sorted runs in memory, merged as in an LSM tree."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.core.types.records import IntArray

Hashes = NDArray[np.uint64]
"""128-bit hashes, `[n, 2]`: the first and the second half of each."""

_GROWTH: Final = 4
"""A run has at least this many times the entries of the next smaller run,"""
_MAX_ENTRIES: Final = 1 << 22
"""unless both together have more than this: a merge of more would take too long."""
_BITS_LEFT: Final = 3
"""A run of 2^n hashes has an index by their first n - 3 bits or so."""


class _Run:
    """Distinct hashes in ascending order of their first halves; place 0: removed."""

    def __init__(
        self, first: NDArray[np.uint64], second: NDArray[np.uint64], places: IntArray
    ) -> None:
        self.columns = self.first, self.second, self.places = first, second, places
        self._begins: NDArray[np.int32] | None = None  # of the hashes by their first bits

    def __len__(self) -> int:
        return len(self.places)

    @property
    def n_bytes(self) -> int:
        """Memory of the columns."""
        return sum(column.nbytes for column in self.columns)

    def _lower_bound(self, first: NDArray[np.uint64]) -> IntArray:
        """As `searchsorted`, which misses the cache at nearly every step."""
        bits = len(self).bit_length() - _BITS_LEFT
        if bits < 1:
            return np.searchsorted(self.first, first)
        shift = np.uint64(64 - bits)
        if self._begins is None:
            counts = np.bincount((self.first >> shift).view(np.int64), minlength=1 << bits)
            self._begins = np.append(0, np.cumsum(counts)).astype(np.int32)
        group = (first >> shift).view(np.int64)
        low, end = self._begins[group], self._begins[group + 1]
        for _ in range(int((end - low).max(initial=0)).bit_length()):
            middle = (low + end) >> 1
            less = self.first.take(middle, mode="clip") < first
            less &= low < end
            low, end = np.where(less, middle + 1, low), np.where(less, end, middle)
        return low.astype(np.int64)

    def at(self, first: NDArray[np.uint64], second: NDArray[np.uint64]) -> IntArray:
        """The entry of each hash, -1 for none: `[n]`."""
        at = self._lower_bound(first)
        np.minimum(at, len(self) - 1, out=at)
        likely = np.flatnonzero(self.first[at] == first)
        found = np.full(len(first), -1, np.int64)
        while len(likely):
            near = at[likely]
            same = self.second[near] == second[likely]
            found[likely[same]] = near[same]
            likely, near = likely[~same], near[~same] + 1  # another hash with this first half
            likely, near = likely[near < len(self)], near[near < len(self)]
            likely = likely[self.first[near] == first[likely]]
            at[likely] += 1
        return found


class KeyIndex:
    """Places, integers but 0, by hash; 24 bytes for each.

    A hash is in one run at most. New hashes are a new run; runs of similar size are merged, so
    there are few, and a hash is copied few times.
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []  # the largest first

    @property
    def n_bytes(self) -> int:
        """Memory of the runs, removed hashes included."""
        return sum(run.n_bytes for run in self._runs)

    def find(self, hashes: Hashes) -> IntArray:
        """The place of each hash, 0 for none: `[n]`."""
        order, first, second = _in_order(hashes)
        places = np.zeros(len(hashes), np.int64)
        for run in self._runs:
            at = run.at(first, second)
            found = np.flatnonzero(at >= 0)
            places[order[found]] = run.places[at[found]]
        return places

    def put(self, hashes: Hashes, places: IntArray) -> IntArray:
        """Sets the place of each hash, 0 for none; returns those before: `[n]`.

        Of equal hashes the last one counts.
        """
        order, first, second = _in_order(hashes)
        new, before = places[order], np.zeros(len(hashes), np.int64)
        missing = new != 0
        for number, run in enumerate(self._runs):
            at = run.at(first, second)
            found = np.flatnonzero(at >= 0)
            before[order[found]] = run.places[at[found]]
            run.places[at[found]] = new[found]
            missing[found] = False
            if len(found) and 2 * np.count_nonzero(run.places) < len(run):
                self._runs[number] = _without_removed(run)
        missing[:-1] &= (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        self._runs.append(_Run(first[missing], second[missing], new[missing]))
        self._merge()
        return before

    def _merge(self) -> None:
        runs = sorted(filter(len, self._runs), key=len, reverse=True)
        number = len(runs) - 2
        while number >= 0:
            larger, smaller = runs[number : number + 2]
            n = len(larger) + len(smaller)
            if n <= _MAX_ENTRIES and len(larger) < _GROWTH * len(smaller):
                runs[number : number + 2] = [_merged(larger, smaller)]
            number -= 1
        self._runs = runs


def _in_order(hashes: Hashes) -> tuple[IntArray, NDArray[np.uint64], NDArray[np.uint64]]:
    """The order of hashes, and both halves in this order: neighbours are near in each run."""
    order = np.argsort(hashes[:, 0], kind="stable")
    first, second = np.ascontiguousarray(hashes[order].T)
    if (first[1:] == first[:-1]).any():
        order = np.lexsort((hashes[:, 1], hashes[:, 0]))
        first, second = np.ascontiguousarray(hashes[order].T)
    return order, first, second


def _merged(larger: _Run, smaller: _Run) -> _Run:
    """Both runs in one; the stable sort finds them in order, and only merges them."""
    order = np.argsort(np.concatenate((smaller.first, larger.first)), kind="stable")
    pairs = zip(smaller.columns, larger.columns, strict=True)
    return _Run(*(np.concatenate(pair)[order] for pair in pairs))


def _without_removed(run: _Run) -> _Run:
    left = run.places != 0
    return _Run(*(column[left] for column in run.columns))
