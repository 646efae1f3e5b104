"""Whether the broker is within reach, and how long to wait for it."""

import asyncio
import time
from math import inf
from typing import Final

import structlog

FIRST_BACKOFF_SECONDS: Final = 0.25
LAST_BACKOFF_SECONDS: Final = 5.0
NOT_YET: Final = "not connected yet"

log = structlog.get_logger(__name__)


class Connectivity:
    """Why the broker is out of reach: `away` is the reason, None while it answers.

    After an outage producers may need as long again to send what they have buffered, but not
    longer than *longest_wait_ms*: `caught_up_at`, of the monotonic clock, is when they have.
    """

    def __init__(self, *, longest_wait_ms: int) -> None:
        self.away: str | None = NOT_YET
        self.caught_up_at = -inf
        self._longest_wait_ms = longest_wait_ms
        self._lost_at = 0.0
        self._backoff_seconds = FIRST_BACKOFF_SECONDS

    def lost(self, reason: str) -> None:
        """The broker is unavailable; logged once per reason.

        An outage that begins before producers have caught up with the last one goes on with it.
        """
        now = time.monotonic()
        if now >= self.caught_up_at:
            self._lost_at = now
        self.caught_up_at = inf
        if self.away != reason:
            log.warning("broker_unavailable", error=reason)
        self.away = reason

    def answered(self) -> None:
        """The broker answers; logged only if it was unavailable before."""
        if self.caught_up_at == inf:
            now = time.monotonic()
            wait_ms = min(int((now - self._lost_at) * 1000), self._longest_wait_ms)
            self.caught_up_at = now + wait_ms / 1000
        if self.away not in {None, NOT_YET}:
            log.info("broker_reached")
        self.away = None
        self._backoff_seconds = FIRST_BACKOFF_SECONDS

    async def pause(self, stopping: asyncio.Event) -> None:
        """Waits before the next try, each time longer; not at all once *stopping* is set."""
        try:
            await asyncio.wait_for(stopping.wait(), self._backoff_seconds)
        except TimeoutError:
            self._backoff_seconds = min(2 * self._backoff_seconds, LAST_BACKOFF_SECONDS)
