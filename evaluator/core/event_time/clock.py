"""Event time: clocks that only records advance."""

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from evaluator.core.types.records import LOGS, IntArray, Log

MAX_TIMESTAMP_MS = (1 << 63) - 1

LONGEST_MS = 1 << 64
"""Longer than the distance of any two timestamps; all longer durations are equivalent."""

AT_THE_END = 1 << 80
"""A watermark past every deadline, at the end of the logs."""


class LogClock:
    """Clock of one log, its largest timestamp so far; it gives each record its event time.

    `time_index` has (clock, offset) of records that advanced the clock, at least *index_every_ms*
    apart. A read from an entry on gives each record the same event time as a read from the
    beginning.

    >>> clock = LogClock(out_of_orderness_ms=10)
    >>> clock.advance(np.array([100, 95, 50, 120]))
    array([100,  95,  90, 120])
    >>> clock.time_ms
    120
    """

    def __init__(self, *, out_of_orderness_ms: int, index_every_ms: int = LONGEST_MS) -> None:
        self._bound_ms = min(out_of_orderness_ms, MAX_TIMESTAMP_MS)
        self._index_every_ms = max(1, index_every_ms)
        self.time_ms: int | None = None
        self.time_index: list[tuple[int, int]] = []

    def advance(self, timestamps_ms: IntArray, offsets: IntArray | None = None) -> IntArray:
        """Event times of the next records of the log, in offset order: `[n_records]`.

        The event time is at least the clock minus the bound. Index entries need *offsets*.
        """
        if not len(timestamps_ms):
            return timestamps_ms
        first = int(timestamps_ms[0]) if self.time_ms is None else self.time_ms
        before = np.maximum.accumulate(np.concatenate(([first], timestamps_ms)))
        self.time_ms = int(before[-1])
        if offsets is not None:
            self._extend_index(before[1:], offsets)
        event_times: IntArray = np.maximum(timestamps_ms, before[:-1] - self._bound_ms)
        return event_times

    def _extend_index(self, clocks_ms: IntArray, offsets: IntArray) -> None:
        kept, every_ms = self.time_index, self._index_every_ms
        due_ms = kept[-1][0] + every_ms if kept else int(clocks_ms[0])
        while due_ms <= clocks_ms[-1]:
            row = int(np.searchsorted(clocks_ms, due_ms))
            kept.append((int(clocks_ms[row]), int(offsets[row])))
            due_ms = kept[-1][0] + every_ms

    def index_entry_before(self, time_ms: int) -> tuple[int, int] | None:
        """The latest entry not after *time_ms*, else the first; earlier entries are dropped."""
        while len(self.time_index) > 1 and self.time_index[1][0] <= time_ms:
            del self.time_index[0]
        return self.time_index[0] if self.time_index else None


def watermark_ms(clocks_ms: Sequence[int | None], *, out_of_orderness_ms: int) -> int | None:
    """Lower bound of the event times of later records; None until each clock has a time."""
    known = [clock for clock in clocks_ms if clock is not None]
    return min(known) - out_of_orderness_ms if len(known) == len(clocks_ms) else None


def next_log(clocks_ms: Mapping[Log, int | None], *, max_lead_ms: int) -> Log:
    """The log to read next if both have unread records.

    Rankings are read first, so that judgments find their query, up to *max_lead_ms* ahead.

    >>> next_log({"rankings": 500, "judgments": 100}, max_lead_ms=300)
    'judgments'
    """
    rankings_ms, judgments_ms = (-1 if (ms := clocks_ms[log]) is None else ms for log in LOGS)
    return "judgments" if rankings_ms - judgments_ms > max_lead_ms else "rankings"


def seconds_of(ms: int) -> float:
    """A duration or moment in seconds; infinite where no float is so large.

    >>> seconds_of(1_500), seconds_of(-(10**400))
    (1.5, -inf)
    """
    try:
        return ms / 1000
    except OverflowError:
        return inf if ms > 0 else -inf
