"""Memory that was released, back to the system."""

import ctypes
import time
from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger()

LEAST_BYTES: Final = 64 << 20
"""Less than this is not worth the walk through the heap."""
LEAST_SECONDS: Final = 60.0
"""Between two such walks."""


def trim_heap() -> bool:
    """Has the C library give free pages back; whether it can (glibc) and did."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except AttributeError:
        return False


class Trimming:
    """Trims the heap once what is open has fallen to half of its peak since the last time.

    The allocator keeps what is freed between what is not, by the page, so that the resident memory
    of a process would stay at its peak.
    """

    def __init__(
        self,
        trim: Callable[[], bool] = trim_heap,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trim = trim
        self._monotonic = monotonic
        self._peak_bytes = 0
        self._not_before = 0.0

    def look(self, memory_tier_bytes: int) -> None:
        """Takes note of what is open now, after each commit."""
        self._peak_bytes = max(self._peak_bytes, memory_tier_bytes)
        if self._peak_bytes < LEAST_BYTES or 2 * memory_tier_bytes > self._peak_bytes:
            return
        now = self._monotonic()
        if now < self._not_before:
            return
        released = self._trim()
        took = self._monotonic() - now
        log.info("heap_trimmed", from_bytes=self._peak_bytes, to_bytes=memory_tier_bytes,
                 released=released, seconds=round(took, 3))  # fmt: skip
        self._peak_bytes, self._not_before = memory_tier_bytes, now + LEAST_SECONDS
