"""Event time. The logs are the only clock: time moves when a record says so, never by itself."""

import heapq
from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np

from evaluator.core.types import LOGS, IntArray, Log

MAX_TIMESTAMP_MS = (1 << 63) - 1

LONGEST_MS = 1 << 64
"""Longer than any two timestamps can be apart: a duration past this means the same."""

AT_THE_END = 1 << 80
"""A watermark past every deadline: nothing more will come."""


class LogClock:
    """Clock of one log: the largest timestamp so far. Gives each record its event time.

    >>> clock = LogClock(out_of_orderness_ms=10)
    >>> clock.advance(np.array([100, 95, 50, 120]))
    array([100,  95,  90, 120])
    >>> clock.time_ms
    120
    """

    def __init__(self, *, out_of_orderness_ms: int) -> None:
        self._bound_ms = min(out_of_orderness_ms, MAX_TIMESTAMP_MS)
        self.time_ms: int | None = None

    def advance(self, timestamps_ms: IntArray) -> IntArray:
        """Event times of the next records of the log, in offset order: `[n_records]`.

        A record more than the bound behind the clock has the bound as its event time.
        """
        if not len(timestamps_ms):
            return timestamps_ms
        first = int(timestamps_ms[0]) if self.time_ms is None else self.time_ms
        before = np.maximum.accumulate(np.concatenate(([first], timestamps_ms)))
        self.time_ms = int(before[-1])
        event_times: IntArray = np.maximum(timestamps_ms, before[:-1] - self._bound_ms)
        return event_times


def watermark_ms(clocks_ms: Sequence[int | None], *, out_of_orderness_ms: int) -> int | None:
    """How far event time has certainly come: no later record is older. None before all spoke."""
    spoken = [clock for clock in clocks_ms if clock is not None]
    return min(spoken) - out_of_orderness_ms if len(spoken) == len(clocks_ms) else None


def next_log(clocks_ms: Mapping[Log, int | None], *, max_lead_ms: int) -> Log:
    """The log to read next where both have unread records.

    Rankings go ahead, so that judgments find their query there, but not by more than the bound.

    >>> next_log({"rankings": 500, "judgments": 100}, max_lead_ms=300)
    'judgments'
    """
    rankings_ms, judgments_ms = (-1 if (ms := clocks_ms[log]) is None else ms for log in LOGS)
    return "judgments" if rankings_ms - judgments_ms > max_lead_ms else "rankings"


class TimerQueue:
    """Slots by the time they wait for. Many timers are pushed, and popped, at once.

    Sorted runs in a heap by their earliest time. Small pushes gather until they make a run.
    """

    _RUN = 4096

    def __init__(self) -> None:
        self._runs: list[tuple[int, int, IntArray, IntArray]] = []  # earliest, tie, times, slots
        self._young: list[tuple[IntArray, IntArray]] = []
        self._young_size = 0
        self._young_earliest = AT_THE_END
        self._ties = count()

    def push(self, times_ms: IntArray, slots: IntArray) -> None:
        """Sets one timer for each slot; both `[n_timers]`."""
        if not len(times_ms):
            return
        self._young.append((times_ms, slots))
        self._young_size += len(times_ms)
        self._young_earliest = min(self._young_earliest, int(times_ms.min()))
        if self._young_size >= self._RUN:
            self._settle_young()

    def pop_before(self, limit_ms: int) -> tuple[IntArray, IntArray]:
        """Removes the timers with a time < *limit_ms*: (times, slots), sorted by time."""
        if self._young_earliest < limit_ms:
            self._settle_young()
        popped: list[tuple[IntArray, IntArray]] = []
        while self._runs and self._runs[0][0] < limit_ms:
            _, _, times, slots = heapq.heappop(self._runs)
            passed = (
                int(np.searchsorted(times, limit_ms))
                if limit_ms <= MAX_TIMESTAMP_MS
                else len(times)
            )
            popped.append((times[:passed], slots[:passed]))
            self._add_run(times[passed:], slots[passed:])
        return _joined(popped)

    def _settle_young(self) -> None:
        times, slots = _joined(self._young)
        self._young, self._young_size, self._young_earliest = [], 0, AT_THE_END
        self._add_run(times, slots)

    def _add_run(self, times_ms: IntArray, slots: IntArray) -> None:
        if len(times_ms):
            heapq.heappush(self._runs, (int(times_ms[0]), next(self._ties), times_ms, slots))


def _joined(parts: Sequence[tuple[IntArray, IntArray]]) -> tuple[IntArray, IntArray]:
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    times = np.concatenate([times for times, _ in parts])
    slots = np.concatenate([slots for _, slots in parts])
    order = np.argsort(times, kind="stable")
    return times[order], slots[order]
