"""An event loop in which time passes only while everybody waits, and then at once."""

import asyncio
import contextlib
import selectors
import time
from collections.abc import Callable, Iterator
from unittest import mock


class Stuck(AssertionError):
    """Everybody waits for something that nobody will ever do."""


class _NothingOutside(selectors.DefaultSelector):
    """No news comes from outside; waiting for some moves the clock."""

    pass_by: Callable[[float], None]

    def select(self, timeout: float | None = None) -> list:
        if timeout is None:
            raise Stuck("everybody waits, and no time will end it")
        if timeout > 0:
            self.pass_by(timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Starts at zero seconds. Runs the same way each time."""

    def __init__(self) -> None:
        selector = _NothingOutside()
        selector.pass_by = self._pass_by
        self._now_seconds = 0.0
        super().__init__(selector)
        self._clock_resolution = 1e-6  # sums of seconds are not exact

    def time(self) -> float:
        return self._now_seconds

    def _pass_by(self, seconds: float) -> None:
        self._now_seconds += seconds


@contextlib.contextmanager
def simulated_time(wall_ms: Callable[[float], int]) -> Iterator[SimulatedLoop]:
    """A loop that is the clock of the whole process; *wall_ms* shows what people's clocks say."""
    loop = SimulatedLoop()
    with (
        mock.patch.object(time, "monotonic", loop.time),
        mock.patch.object(time, "time_ns", lambda: wall_ms(loop.time()) * 1_000_000),
    ):
        try:
            yield loop
        finally:
            loop.close()
