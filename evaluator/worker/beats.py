"""Heartbeats for logs that stand still, so that time goes on in them."""

import time
from collections.abc import Iterable

import structlog

from evaluator.core.types.records import LOGS
from evaluator.ports import Partition, Source, SourceUnusable
from evaluator.worker.broker_clock import BrokerClock
from evaluator.worker.task import Task

log = structlog.get_logger(__name__)


class Beats:
    """Appends heartbeats where a log has been quiet for long enough, unless it may not."""

    def __init__(self, source: Source, *, on: bool, idle_ms: int, max_gap_ms: int) -> None:
        self._source = source
        self.clock = BrokerClock(source)
        self._refused = False
        self._on = on
        self._idle_ms = idle_ms
        self._max_gap_ms = max_gap_ms

    async def beat(self, tasks: Iterable[Task], *, begin_at: float) -> None:
        """Checks all logs once, after *begin_at* (monotonic). Raises SourceUnavailable."""
        await self.clock.watch()
        now, broker_ms = time.monotonic(), self.clock.now_ms()
        if not self._on or not self.clock.may_stamp or now < begin_at:
            return
        for task in tasks:
            for log_name in LOGS:
                if task.wants_heartbeat(
                    log_name,
                    now=now,
                    broker_ms=broker_ms,
                    idle_ms=self._idle_ms,
                    max_gap_ms=self._max_gap_ms,
                ):
                    task.quiet_since[log_name] = now
                    await self._append((log_name, task.number), broker_ms)

    async def _append(self, partition: Partition, timestamp_ms: int) -> None:
        try:
            accepted = await self._source.append_heartbeat(partition, timestamp_ms)
        except SourceUnusable as error:
            self._on = False
            log.warning("heartbeats_off", error=str(error))
            return
        if not accepted and not self._refused:
            log_name, number = partition
            log.warning(
                "heartbeat_refused", log=log_name, partition=number, timestamp_ms=timestamp_ms
            )
        self._refused = not accepted
