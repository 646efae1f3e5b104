"""An event loop in which time passes only while all tasks wait, and then at once."""

import asyncio
import contextlib
import selectors
import time
from collections.abc import Callable, Iterator
from unittest import mock

TURN_SECONDS = 20e-6
"""Least duration of a turn of the loop, so that busy waiting for a moment ends."""
MOST_TURNS_AT_ONCE = 20_000


class Stuck(AssertionError):
    """All tasks wait for an event that never occurs, or a task is busy without waiting."""


class _NoExternalEvents(selectors.DefaultSelector):
    """There are no external events; waiting for one advances the clock."""

    advance: Callable[[float], None]
    turns = 0

    def select(self, timeout: float | None = None) -> list:
        if timeout is None:
            raise Stuck("everybody waits, and no time will end it")
        self.turns += 1
        self.advance(max(timeout, TURN_SECONDS))
        if timeout > 0:
            self.turns = 0
        if self.turns > MOST_TURNS_AT_ONCE:
            raise Stuck("somebody goes round and round, and no time passes")
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Starts at zero seconds. Runs the same way each time."""

    def __init__(self) -> None:
        selector = _NoExternalEvents()
        selector.advance = self._advance
        self._now_seconds = 0.0
        super().__init__(selector)
        self._clock_resolution = 1e-6  # sums of seconds are not exact

    def time(self) -> float:
        return self._now_seconds

    def _advance(self, seconds: float) -> None:
        self._now_seconds += seconds


@contextlib.contextmanager
def simulated_time(wall_ms: Callable[[float], int]) -> Iterator[SimulatedLoop]:
    """A loop that is the clock of the whole process; *wall_ms* is the time of the wall clocks."""
    loop = SimulatedLoop()

    def wall_ns() -> int:
        return wall_ms(loop.time()) * 1_000_000

    with (
        mock.patch.object(time, "monotonic", loop.time),
        mock.patch.object(time, "time_ns", wall_ns),
    ):
        try:
            yield loop
        finally:
            loop.close()
