"""The connection to the broker: whether it answers, and which outputs are unacknowledged."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

import structlog

from evaluator.ports import Sink, SourceUnavailable
from evaluator.waiting import backoff_seconds, is_set_within
from evaluator.worker.monitoring import Stages
from evaluator.worker.settings import Emission

BROKER: Final = SourceUnavailable.what
NOT_CONNECTED: Final = "not connected yet"
ACKNOWLEDGE_SECONDS: Final = 0.5
STALLED_AFTER_SECONDS: Final = 3.0
MAX_UNACKNOWLEDGED: Final = 4
"""Emissions that may be unacknowledged while the next batch is read."""

log = structlog.get_logger(__name__)


class Connectivity:
    """Availability of the broker; `unavailable` is the reason, None while it answers.

    After an outage producers may need as long again, at most *max_wait_ms*, to send buffered
    records. `caught_up_at` (monotonic) is the end of that time.
    """

    def __init__(self, *, max_wait_ms: int) -> None:
        self.unavailable: str | None = NOT_CONNECTED
        self.what = BROKER
        self.caught_up_at = -inf
        self._max_wait_ms = max_wait_ms
        self._lost_at = 0.0
        self._pauses = backoff_seconds()

    def lost(self, reason: str, what: str = BROKER) -> None:
        """Marks the broker, or the schema registry, as unavailable; logged once per reason.

        An outage that begins before `caught_up_at` extends the previous one.
        """
        now = time.monotonic()
        if now >= self.caught_up_at:
            self._lost_at = now
        self.caught_up_at = inf
        if self.unavailable != reason:
            if what == BROKER:
                log.warning("broker_unavailable", error=reason)
            else:
                log.warning("registry_unavailable", error=reason)
        self.unavailable, self.what = reason, what

    def answered(self) -> None:
        """Marks the broker as available; logged only after an outage."""
        if self.caught_up_at == inf:
            now = time.monotonic()
            wait_ms = min(int((now - self._lost_at) * 1000), self._max_wait_ms)
            self.caught_up_at = now + wait_ms / 1000
        if self.unavailable not in {None, NOT_CONNECTED}:
            if self.what == BROKER:
                log.info("broker_reached")
            else:
                log.info("registry_reached")
        self.unavailable = None
        self._pauses = backoff_seconds()

    async def back_off(self, stopping: asyncio.Event) -> None:
        """Waits before the next attempt; ends when *stopping* is set."""
        await is_set_within(stopping, next(self._pauses))


class Emissions:
    """Emissions that the sink has not acknowledged, oldest first; calls *waiting* meanwhile."""

    def __init__(self, sink: Sink, stages: Stages, *, waiting: Callable[[], None]) -> None:
        self._sink = sink
        self._stages = stages
        self._waiting = waiting
        self._unacknowledged: deque[asyncio.Future[None]] = deque()
        self._acknowledged_at = time.monotonic()

    @property
    def stalled(self) -> bool:
        """Whether the last acknowledgement is older than STALLED_AFTER_SECONDS."""
        return time.monotonic() - self._acknowledged_at > STALLED_AFTER_SECONDS

    @property
    def overdue(self) -> bool:
        """Whether an emission is unacknowledged and the sink is stalled."""
        return bool(self._unacknowledged) and self.stalled

    async def emit(self, emission: Emission) -> None:
        """Passes an emission to the sink; waits until the sink accepts it."""
        if not self._unacknowledged:
            self._acknowledged_at = time.monotonic()
        emitting = asyncio.ensure_future(self._sink.emit(emission))
        try:
            while not emitting.done():
                await asyncio.wait({emitting}, timeout=ACKNOWLEDGE_SECONDS)
                self._waiting()
        finally:
            emitting.cancel()
        self._unacknowledged.append(asyncio.ensure_future(emitting.result()))

    async def acknowledged(
        self, *, timeout_seconds: float = ACKNOWLEDGE_SECONDS, except_last: int = 0
    ) -> bool:
        """Whether all emissions, except the last *except_last*, are acknowledged.

        Raises SourceUnusable if the sink cannot write one of them.
        """
        self._stages.begin()
        while len(self._unacknowledged) > except_last:
            first = self._unacknowledged[0]
            await asyncio.wait({first}, timeout=timeout_seconds)
            if not first.done():
                self._waiting()
                break
            self._acknowledged_at = time.monotonic()
            self._unacknowledged.popleft().result()
        self._stages.end("acknowledge")
        return len(self._unacknowledged) <= except_last
