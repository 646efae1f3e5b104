"""The times of records of a log, as the gaps between them in event time."""

from bisect import bisect_left, bisect_right
from operator import itemgetter

import numpy as np

from evaluator.core.columns.table import IntArray

_BEFORE_ALL = -1


class Activity:
    """The gaps of a log that are longer than *longest_ms*; their number is bounded by `forget`.

    >>> activity = Activity(10)
    >>> activity.add(np.array([100, 105, 130]))
    >>> activity.has_any(100, 110), activity.has_any(105, 115), activity.has_any(130, 140)
    (True, False, False)
    """

    def __init__(self, longest_ms: int) -> None:
        self._longest_ms = longest_ms
        self._last_ms = _BEFORE_ALL
        self._gaps: list[tuple[int, int]] = []  # times of the records around each, ascending

    def add(self, times_ms: IntArray) -> None:
        """Adds the event times of records, in any order."""
        times = np.unique(times_ms)
        first_later = int(np.searchsorted(times, self._last_ms, side="right"))
        for time_ms in times[:first_later].tolist() if self._gaps else ():
            self._split(time_ms)
        if first_later < len(times):
            ends = np.append(self._last_ms, times[first_later:])
            wide = np.flatnonzero(np.diff(ends) > self._longest_ms)
            self._gaps += zip(ends[wide].tolist(), ends[wide + 1].tolist(), strict=True)
            self._last_ms = int(ends[-1])

    def _split(self, time_ms: int) -> None:
        at = bisect_right(self._gaps, (time_ms,)) - 1
        if at < 0:
            return
        start, end = self._gaps[at]
        if start < time_ms < end:
            parts = ((start, time_ms), (time_ms, end))
            self._gaps[at : at + 1] = [(a, b) for a, b in parts if b - a > self._longest_ms]

    def has_any(self, after_ms: int, until_ms: int) -> bool:
        """Whether there is a record with *after_ms* < event time <= *until_ms*.

        The two must be *longest_ms* apart.
        """
        if after_ms >= self._last_ms:
            return False
        at = bisect_right(self._gaps, (after_ms, np.inf)) - 1
        return at < 0 or self._gaps[at][1] <= until_ms

    def forget(self, before_ms: int) -> None:
        """Drops gaps that end before *before_ms*: no later call needs them."""
        del self._gaps[: bisect_left(self._gaps, before_ms, key=itemgetter(1))]

    def state(self) -> list[int]:
        """The state for `load`."""
        return [self._last_ms, *(time_ms for gap in self._gaps for time_ms in gap)]

    def load(self, state: list[int]) -> None:
        """Continues from a state; an empty one is that of a log without records."""
        last_ms, *times = state or [_BEFORE_ALL]
        self._last_ms = last_ms
        self._gaps = list(zip(times[::2], times[1::2], strict=True))
