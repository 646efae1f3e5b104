"""What was handed to the sink and is not acknowledged yet."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from evaluator.ports import Sink
from evaluator.worker.task import Emission

PATIENCE_SECONDS: Final = 0.5
STALLED_AFTER_SECONDS: Final = 3.0
MOST_OPEN: Final = 4
"""Emissions that may be on their way while the next batch is read."""


class Emissions:
    """Emissions on their way, oldest first."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._open: deque[asyncio.Future[None]] = deque()
        self._flowing_at = time.monotonic()

    @property
    def stalled(self) -> bool:
        """Whether nothing has been acknowledged for so long that people should know."""
        return time.monotonic() - self._flowing_at > STALLED_AFTER_SECONDS

    @property
    def overdue(self) -> bool:
        """Whether something is on its way that should have been acknowledged long ago."""
        return bool(self._open) and self.stalled

    async def emit(self, emission: Emission, *, waiting: Callable[[], None]) -> None:
        """Hands an emission over; calls *waiting* while the sink does not take it."""
        if not self._open:
            self._flowing_at = time.monotonic()
        emitting = asyncio.ensure_future(self._sink.emit(emission))
        try:
            while not emitting.done():
                await asyncio.wait({emitting}, timeout=PATIENCE_SECONDS)
                waiting()
        finally:
            emitting.cancel()
        self._open.append(asyncio.ensure_future(emitting.result()))

    async def acknowledged(
        self, *, patience_seconds: float = PATIENCE_SECONDS, but: int = 0
    ) -> bool:
        """Whether everything has arrived, apart from the last *but* emissions.

        Raises SourceUnusable, if the sink has found that it can never arrive.
        """
        while len(self._open) > but:
            first = self._open[0]
            await asyncio.wait({first}, timeout=patience_seconds)
            if not first.done():
                return False
            self._flowing_at = time.monotonic()
            self._open.popleft().result()
        return True
