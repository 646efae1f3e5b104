"""Heartbeats for idle logs, so that event time advances in them, and the broker clock."""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

import structlog

from evaluator.core.types.records import LOGS, MAX_SKEW_MS
from evaluator.ports import Partition, Source, SourceUnavailable, SourceUnusable
from evaluator.worker.task import Task

PROBE_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 30.0
STEP_MS: Final = 1_000
"""If the wall clock moves by more than this against the monotonic clock, it was set."""

log = structlog.get_logger(__name__)


class Heartbeats:
    """Appends a heartbeat to each log that is idle for `idle_ms`, without a wait for the broker.

    A partition that accepts no records delays the heartbeats of others only.
    """

    def __init__(self, source: Source, *, enabled: bool) -> None:
        self.clock = BrokerClock(source)
        self._source = source
        self._enabled = enabled
        self._refused: set[Partition] = set()
        self._appending: asyncio.Task[None] | None = None

    async def append_due(self, tasks: Iterable[Task], *, begin_at: float) -> None:
        """Checks all logs once, after *begin_at* (monotonic), unless heartbeats are on their way.

        Raises SourceUnusable.
        """
        await self.clock.probe_if_due()
        now, broker_ms = time.monotonic(), self.clock.now_ms()
        if not self._enabled or not self.clock.may_stamp or now < begin_at:
            return
        if self._appending is not None:
            if not self._appending.done():
                return
            self._appending.result()
        due, owned = list[Partition](), set[Partition]()
        for task in tasks:
            for log_name in LOGS:
                owned.add((log_name, task.number))
                if task.needs_heartbeat(log_name, now=now, broker_ms=broker_ms):
                    task.idle_since[log_name] = now
                    due.append((log_name, task.number))
        self._refused &= owned
        self._appending = asyncio.create_task(self._append(due, broker_ms)) if due else None

    async def _append(self, partitions: Iterable[Partition], timestamp_ms: int) -> None:
        for partition in partitions:
            reason = "its timestamp is too far ahead of the broker's clock"
            try:
                accepted = await self._source.append_heartbeat(partition, timestamp_ms)
            except SourceUnusable as error:
                self._enabled = False
                log.warning("heartbeats_off", error=str(error))
                return
            except SourceUnavailable as error:
                accepted, reason = False, str(error)
            if accepted:
                self._refused.discard(partition)
                continue
            if not self._refused:
                name, number = partition
                about = {"log": name, "partition": number, "timestamp_ms": timestamp_ms}
                log.warning("heartbeat_refused", **about, reason=reason)
            self._refused.add(partition)

    async def stop(self) -> None:
        """Ends heartbeats on their way."""
        if self._appending is not None:
            self._appending.cancel()
            await asyncio.wait({self._appending})


class BrokerClock:
    """Skew of the local clock against the broker's clock, measured by probes.

    `skew_ms` is how far the local clock is ahead; None while unknown. The broker stamps a probe
    before its answer arrives, so the error of `skew_ms` is at most the duration of the probe, and
    `now_ms` is not ahead of the broker because of it.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.skew_ms: int | None = None
        self._measured = self._skewed = False
        self._due_at = 0.0
        self._wall_less_monotonic_ms = 0.0

    async def probe_if_due(self) -> None:
        """Probes if the interval has passed or the wall clock was set. Raises SourceUnusable."""
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
        skewed = abs(self.skew_ms or 0) > MAX_SKEW_MS
        if skewed and not self._skewed:
            log.warning("clock_skewed", skew_ms=self.skew_ms, max_skew_ms=MAX_SKEW_MS)
        elif self._skewed and not skewed:
            log.info("clock_skew_over", skew_ms=self.skew_ms)
        self._skewed = skewed

    @property
    def may_stamp(self) -> bool:
        """Whether `now_ms` is usable for records: the skew was measured and is within its limit."""
        return self._measured and not self._skewed

    def now_ms(self) -> int:
        """The broker's time; the local time while the skew is unknown."""
        return _wall_ms() - (self.skew_ms or 0)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _wall_less_monotonic_ms() -> float:
    return time.time_ns() / 1e6 - time.monotonic() * 1000
