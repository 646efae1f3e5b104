"""Endless traffic, produced by a thread of its own during all faults."""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import merge
from random import Random

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors

from evaluator.adapters.kafka import Connection
from evaluator.adapters.kafka.clients import close
from evaluator.core.types.records import LOGS
from evaluator.ports import Partition
from tests.oracle.messages import Raw
from tests.oracle.oracle import Settings
from tests.waiting import PATIENCE_SECONDS
from tests.worker.traffic import traffic

START_MS = 2_000_000_000_000
"""Ahead of every wall clock, so that heartbeats of the workers never advance event time."""
CHUNK_MS = 250_000
"""Event time of the queries that are made at once."""
TICK_SECONDS = 0.2
PAUSE_SECONDS = 2.5
"""Longer than `idle_ms` of the workers, so that they append heartbeats."""
PAUSES_PER_SECOND = 0.02

Timed = tuple[int, int, Raw]
"""The event time at which a record is due; a number that keeps the order; the record."""


def records(seed: int, settings: Settings, *, apart_ms: int) -> dict[str, Iterator[Timed]]:
    """The logs of one task, each in the order of its clock, for ever."""
    return {log: _log(seed, settings, log, apart_ms) for log in LOGS}


def _log(seed: int, settings: Settings, log: str, apart_ms: int) -> Iterator[Timed]:
    """Chunks begin one after the other and overlap, because records of a query follow much
    later."""
    rest: Iterator[Timed] = iter(())
    chunk = 0
    while True:
        made = traffic(
            seed + chunk,
            n_queries=CHUNK_MS // apart_ms,
            settings=settings,
            start_ms=START_MS + chunk * CHUNK_MS,
            apart_ms=apart_ms,
        )
        end_ms = START_MS + (chunk + 1) * CHUNK_MS
        left: list[Timed] = []
        for timed in merge(rest, _timed(made.of(log), chunk * CHUNK_MS)):
            if timed[0] < end_ms:
                yield timed
            else:
                left.append(timed)
        rest = iter(left)
        chunk += 1


def _timed(raws: tuple[Raw, ...], first_ms: int) -> list[Timed]:
    """Each record with the clock of its log, as far as the records of this chunk advance it."""
    clock_ms = START_MS + first_ms
    far_ms = clock_ms + 100 * CHUNK_MS  # malformed records may have any time
    timed = []
    for number, raw in enumerate(raws):
        if raw.timestamp_ms is not None and raw.timestamp_ms < far_ms:
            clock_ms = max(clock_ms, raw.timestamp_ms)
        timed.append((clock_ms, first_ms * 1_000 + number, raw))
    return timed


class Feed(threading.Thread):
    """Appends the traffic of all tasks until stopped, at *speed* seconds of event time a second.

    The traffic of the first *seconds* comes at once. Records that may not have arrived are sent
    again: the logs show which ones exist.
    """

    def __init__(
        self,
        connection: Connection,
        topic_prefix: str,
        *,
        n_tasks: int,
        settings: Settings,
        speed: float,
        seed: int,
        apart_ms: int,
        seconds: float = 0.0,
    ) -> None:
        super().__init__(name="feed", daemon=True)
        self._connection = connection
        self._topic_prefix = topic_prefix
        self._speed = speed
        self._random = Random(f"{seed}-feed")
        self._streams: dict[Partition, Iterator[Timed]] = {
            (log, task): stream
            for task in range(n_tasks)
            for log, stream in records(
                seed * 1_000_000 + task * 100_000, settings, apart_ms=apart_ms
            ).items()
        }
        self._heads = {partition: next(stream) for partition, stream in self._streams.items()}
        self._stopping, self._paused = threading.Event(), threading.Event()
        self._abandoned = False
        self.seconds = seconds
        self.problem: BaseException | None = None
        self.n_sent = 0
        self.n_failed = 0

    def now_ms(self) -> int:
        """The current event time."""
        return START_MS + int(self.seconds * self._speed * 1_000)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops event time and further records."""
        self._paused.set()
        yield
        self._paused.clear()

    def stop(self) -> None:
        """Ends the feed; the broker must be available, because records in flight are still sent."""
        self._stopping.set()
        self.join(PATIENCE_SECONDS)
        if self.problem is not None:
            raise self.problem
        assert not self.is_alive(), "the feed does not end"

    def abandon(self) -> None:
        """Ends the feed soon, even if records have not arrived."""
        self._abandoned = True
        self._stopping.set()
        if self.ident is not None:
            self.join(20)

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as problem:  # noqa: BLE001 - raised again by `stop`
            self.problem = problem

    async def _run(self) -> None:
        open_: dict[Partition, list[Raw]] = defaultdict(list)
        while (not self._stopping.is_set() or any(open_.values())) and not self._abandoned:
            producer = AIOKafkaProducer(
                **self._connection.arguments(), acks="all", request_timeout_ms=3_000
            )
            try:
                await producer.start()
                await self._feed(producer, open_)
            except (kafka_errors.KafkaError, OSError):
                self.n_failed += 1
                await asyncio.sleep(0.2)
            finally:
                await close(producer)

    async def _feed(self, producer: AIOKafkaProducer, open_: dict[Partition, list[Raw]]) -> None:
        """Runs until it is stopped and all records have arrived, or until an error."""
        before = time.monotonic()
        while not self._stopping.is_set() or any(open_.values()):
            if not self._stopping.is_set():
                now = time.monotonic()
                self.seconds += 0 if self._paused.is_set() else now - before
                before = now
                self._take_due(open_)
            while any(open_.values()):
                for partition, raws in open_.items():
                    await self._send_some(producer, partition, raws)
            await asyncio.sleep(TICK_SECONDS)
            if self._random.random() < PAUSES_PER_SECOND * TICK_SECONDS:
                await asyncio.to_thread(self._stopping.wait, PAUSE_SECONDS)
                before = time.monotonic()

    def _take_due(self, open_: dict[Partition, list[Raw]]) -> None:
        now_ms = self.now_ms()
        for partition, stream in self._streams.items():
            while self._heads[partition][0] <= now_ms:
                open_[partition].append(self._heads[partition][2])
                self._heads[partition] = next(stream)

    async def _send_some(
        self, producer: AIOKafkaProducer, partition: Partition, raws: list[Raw]
    ) -> None:
        batch = producer.create_batch()
        n = 0
        while n < len(raws) and batch.append(
            key=raws[n].key, value=raws[n].value, timestamp=raws[n].timestamp_ms
        ):
            n += 1
        if n:
            log, task = partition
            await (await producer.send_batch(batch, f"{self._topic_prefix}{log}", partition=task))
            del raws[:n]
            self.n_sent += n
