"""Stored queries that surely have no judgments."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.core.join.changes import Changes
from evaluator.core.types.records import IntArray

_MOST: Final = 1 << 26
_FEWEST: Final = 1 << 16
"""Offsets, a byte each: the most that are known of, and for how many there is room at least."""


class Unjudged:
    """Which of the queries that this process has stored have no judgments as of the last commit.

    Of what was stored before, and of what lies too far back, it is not known.
    """

    def __init__(self) -> None:
        self._first = 0
        self._surely: NDArray[np.bool_] = np.zeros(0, bool)  # by offset, from the first one on

    def note(self, changes: Changes) -> None:
        """These changes are stored now."""
        for started in changes.started:
            if len(started.offsets):
                first, last = started.offsets[[0, -1]].tolist()
                self._reach(first, last + 1, changes.released_before)
                self._set(started.offsets, surely=True)
        for rows in changes.applied:
            self._set(rows.query_offsets, surely=False)
        singly = [query for query, _, _ in changes.applied_singly]
        self._set(np.array(singly, np.int64), surely=False)

    def among(self, offsets: IntArray) -> NDArray[np.bool_]:
        """Which of the queries with these offsets surely have none."""
        found = self._known(offsets)
        found[found] = self._surely[offsets[found] - self._first]
        return found

    def _known(self, offsets: IntArray) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = offsets >= self._first
        known &= offsets < self._first + len(self._surely)
        return known

    def _set(self, offsets: IntArray, *, surely: bool) -> None:
        self._surely[offsets[self._known(offsets)] - self._first] = surely

    def _reach(self, first: int, end: int, released_before: int) -> None:
        """Makes room for offsets from *first* to before *end*, and lets go of those released."""
        if len(self._surely) and end <= self._first + len(self._surely):
            return
        if len(self._surely):
            first = self._first
        first = max(first, released_before, end - _MOST)
        kept = self._surely[max(0, first - self._first) :]
        self._first = first
        self._surely = np.zeros(max(_FEWEST, min(2 * (end - first), _MOST)), bool)
        self._surely[: len(kept)] = kept
