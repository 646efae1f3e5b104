"""Whether the broker is within reach, and how long to wait for it."""

import asyncio
from typing import Final

import structlog

FIRST_BACKOFF_SECONDS: Final = 0.25
LAST_BACKOFF_SECONDS: Final = 5.0
NOT_YET: Final = "not connected yet"

log = structlog.get_logger(__name__)


class Reach:
    """Why the broker is out of reach: `away` is the reason, None while it answers."""

    def __init__(self) -> None:
        self.away: str | None = NOT_YET
        self._backoff_seconds = FIRST_BACKOFF_SECONDS

    def lost(self, reason: str) -> None:
        """The broker does not answer; said once per reason."""
        if self.away != reason:
            log.warning("broker_away", error=reason)
        self.away = reason

    def answered(self) -> None:
        """The broker answers; said only where it was away before."""
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
