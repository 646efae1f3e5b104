"""The clock of the broker, measured now and then against the clock of this machine."""

import time
from typing import Final

import structlog

from evaluator.core.types.records import MAX_SKEW_MS
from evaluator.ports import Source, SourceUnavailable

PROBE_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 30.0
STEP_MS: Final = 1_000
"""A wall clock that has moved by more than this against the monotonic one was set."""

log = structlog.get_logger(__name__)


class BrokerClock:
    """How far the clock of this machine is ahead of the broker's: `skew_ms`, None while unknown.

    The broker stamps a probe before its answer is here, so the skew is at most too large by the
    time that a probe takes, and `now_ms` is never ahead of the broker's clock for that.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.skew_ms: int | None = None
        self._measured = self._skewed = False
        self._due_at = 0.0
        self._wall_less_monotonic_ms = 0.0

    async def watch(self) -> None:
        """Probes where that is due, or the wall clock was set. Raises SourceUnusable."""
        now = time.monotonic()
        moved_ms = abs(_wall_less_monotonic_ms() - self._wall_less_monotonic_ms)
        if self._measured and moved_ms > STEP_MS:
            self._measured, self._due_at = False, now
        if now < self._due_at:
            return
        try:
            broker_ms = await self._source.broker_time_ms()
        except SourceUnavailable:
            self._due_at = time.monotonic() + RETRY_SECONDS
            return
        self._measured, self._due_at = True, time.monotonic() + PROBE_SECONDS
        self._wall_less_monotonic_ms = _wall_less_monotonic_ms()
        self.skew_ms = None if broker_ms is None else _wall_ms() - broker_ms
        self._note_skew()

    def _note_skew(self) -> None:
        skewed = abs(self.skew_ms or 0) > MAX_SKEW_MS
        if skewed and not self._skewed:
            log.warning("clock_skewed", skew_ms=self.skew_ms, max_skew_ms=MAX_SKEW_MS)
        elif self._skewed and not skewed:
            log.info("clock_skew_over", skew_ms=self.skew_ms)
        self._skewed = skewed

    @property
    def may_stamp(self) -> bool:
        """Whether records may be stamped with `now_ms`: it was measured, and is not far off."""
        return self._measured and not self._skewed

    def now_ms(self) -> int:
        """The broker's time, as far as that is known, else that of this machine."""
        return _wall_ms() - (self.skew_ms or 0)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _wall_less_monotonic_ms() -> float:
    return time.time_ns() / 1e6 - time.monotonic() * 1000
