"""The output topics: at least once, in order, through an idempotent producer."""

import asyncio
import contextlib
import functools
import importlib
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors
from aiokafka.codec import zstd_encode

from evaluator.adapters.kafka.batches import BATCH_BYTES, Batch, Emission, batches_of, built
from evaluator.adapters.kafka.clients import closed, started
from evaluator.adapters.kafka.connection import (
    Connection,
    input_topics,
    requests,
)
from evaluator.adapters.kafka.refusals import describe, translated
from evaluator.ports import SourceUnavailable, SourceUnusable
from evaluator.wire.outputs.sizes import refused
from evaluator.wire.records import WRITTEN, Output, OutputRecord

MAX_PENDING_BYTES = 64 * 1024 * 1024
"""`emit` waits while more than this is not acknowledged yet."""
REQUEST_TIMEOUT_MS = 30_000
SILENCE_SECONDS = 2.0
"""After so long without an answer it is looked at whether the secrets have changed."""
STOP_TIMEOUT_SECONDS = 3.0
CLOSE_TIMEOUT_SECONDS = 1.0
FIRST_BACKOFF_SECONDS = 0.1
LAST_BACKOFF_SECONDS = 5.0
ZSTD_LEVEL = 1

log = structlog.get_logger()
Lane = tuple[Output, int]


@dataclass(slots=True, eq=False)
class _Producer:
    """A producer of the library; `retired` is done once it is not used any more."""

    client: AIOKafkaProducer
    secrets: object
    retired: "asyncio.Future[None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class KafkaSink:
    """Implements `evaluator.ports.Sink` on Kafka topics.

    Each (output, partition) is a lane with at most one batch on its way: the next one leaves
    when the broker has acknowledged it. A batch that fails is sent again, with a new producer
    where the old one is of no use, until it is acknowledged or the sink is stopped.

    A batch too large for the topic is halved; what becomes of a record that is too large alone
    is in `evaluator.wire.outputs.sizes.refused`.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        topic_prefix: str = "",
        compression: str | None = "zstd",
        stop_timeout_seconds: float = STOP_TIMEOUT_SECONDS,
    ) -> None:
        self._connection = connection
        self._inputs = input_topics(topic_prefix)
        self._topics: dict[Output, str] = {each: f"{topic_prefix}{each}" for each in WRITTEN}
        self._compression = compression
        self._stop_timeout_seconds = stop_timeout_seconds
        self._producer: _Producer | None = None
        self._producing = asyncio.Lock()
        self._lanes: dict[Lane, deque[Batch]] = {}
        self._sending: dict[Lane, asyncio.Task[None]] = {}
        self._pending_bytes = 0
        self._drained = asyncio.Event()
        self._problem: Exception | None = None
        self._delayed: set[Lane] = set()
        self._refusing: set[str] = set()  # topics that have refused a record as too large
        self.refused = 0
        self._stopped = False

    async def start(self) -> None:
        """Connects and checks the output topics. Raises SourceUnavailable or SourceUnusable."""
        _use_quick_zstd()
        async with self._producing:
            if self._producer is None:
                self._producer = await self._new_producer()

    async def _check_topics(self) -> None:
        names = [*self._inputs.values(), *self._topics.values()]
        async with requests(self._connection) as asking:
            counts = await asking.partition_counts(names)
        n_tasks = max((counts[name] or 0) for name in self._inputs.values())
        missing = [name for name in self._topics.values() if counts[name] is None]
        if missing:
            raise SourceUnusable(
                f"Output topic {', '.join(missing)} not found. Create what is missing with "
                "`evaluator topics create`."
            )
        for name in self._topics.values():
            if (counts[name] or 0) < n_tasks:
                raise SourceUnusable(
                    f"Output topic {name} has {counts[name]} partitions, the inputs have "
                    f"{n_tasks}. Each task writes to its own partition: give {name} at least "
                    f"{n_tasks} partitions."
                )

    async def emit(
        self, records: Mapping[tuple[Output, int], Sequence[OutputRecord]]
    ) -> Awaitable[None]:
        """Hands records over; the awaitable ends when all of them are acknowledged.

        Waits while too much is in flight. Raises SourceUnusable, or SourceUnavailable if stopped.
        """
        while self._pending_bytes > MAX_PENDING_BYTES and not self._stopped:
            self._drained.clear()
            await self._drained.wait()
        if self._problem is not None:
            raise self._problem
        if self._stopped:
            raise SourceUnavailable("The sink is stopped.")
        emission = Emission(asyncio.get_running_loop().create_future(), 0)
        for lane, rows in records.items():
            for batch in batches_of(rows, emission):
                self._enqueue(lane, batch)
        if not emission.left:
            emission.acknowledged.set_result(None)
        return emission.acknowledged

    def _enqueue(self, lane: Lane, batch: Batch) -> None:
        batch.emission.left += 1
        self._pending_bytes += batch.n_bytes
        self._lanes.setdefault(lane, deque()).append(batch)
        if lane not in self._sending:
            self._sending[lane] = asyncio.create_task(self._send_lane(lane))

    async def stop(self) -> None:
        """Waits for what was emitted, for a limited time, then closes; also twice."""
        if self._sending and not self._stopped:
            await asyncio.wait(self._sending.values(), timeout=self._stop_timeout_seconds)
        self._stopped = True
        for task in list(self._sending.values()):
            task.cancel()
        if self._sending:
            await asyncio.wait(self._sending.values())
        self._abandon(SourceUnavailable("The sink was stopped before the broker had acknowledged."))
        self._drained.set()
        async with self._producing:
            producer, self._producer = self._producer, None
            if producer is not None:
                await _retire(producer)

    def _abandon(self, error: Exception) -> None:
        """Ends every emission that is still open with *error*."""
        for batch in (each for lane in self._lanes.values() for each in lane):
            if not batch.emission.acknowledged.done():
                batch.emission.acknowledged.set_exception(error)
                batch.emission.acknowledged.exception()  # heard, even if nobody awaits it
        self._lanes.clear()
        self._pending_bytes = 0

    # One lane

    async def _send_lane(self, lane: Lane) -> None:
        try:
            queue = self._lanes[lane]
            while queue:
                await self._deliver(lane, queue)
        except Exception as problem:  # noqa: BLE001 - raised again by `emit`
            self._problem = problem
            self._abandon(problem)
            self._drained.set()
        finally:
            del self._sending[lane]

    async def _deliver(self, lane: Lane, queue: deque[Batch]) -> None:
        """Sends the head of the queue until it is acknowledged."""
        backoff_seconds = FIRST_BACKOFF_SECONDS
        while True:
            batch = queue[0]
            try:
                await self._send(lane, batch)
            except (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError):
                self._shrink(lane, queue)
                return
            except SourceUnavailable as away:
                if not self._delayed:
                    log.warning("output_delayed", reason=describe(away))
                self._delayed.add(lane)
                await asyncio.sleep(backoff_seconds)
                backoff_seconds = min(2 * backoff_seconds, LAST_BACKOFF_SECONDS)
                continue
            if self._delayed == {lane}:
                log.info("output_resumed")
            self._delayed.discard(lane)
            self._acknowledge(queue.popleft())
            return

    def _acknowledge(self, batch: Batch) -> None:
        self._pending_bytes -= batch.n_bytes
        self._drained.set()
        batch.emission.left -= 1
        if not batch.emission.left and not batch.emission.acknowledged.done():
            batch.emission.acknowledged.set_result(None)

    def _shrink(self, lane: Lane, queue: deque[Batch]) -> None:
        """Replaces the head, which the topic refuses as too large, by something smaller."""
        batch = queue[0]
        if len(batch.records) > 1:
            middle = len(batch.records) // 2
            queue.popleft()
            half = batch.n_bytes // 2
            batch.emission.left += 1
            queue.appendleft(Batch(batch.records[middle:], batch.n_bytes - half, batch.emission))
            queue.appendleft(Batch(batch.records[:middle], half, batch.emission))
            return
        (record,), (output, partition) = batch.records, lane
        topic = self._topics[output]
        self._log_refusal(topic, record)
        smaller, letter = found = refused(record, output, topic=topic, partition=partition)
        self.refused += found.counts
        if letter is not None:
            self._enqueue(("dead-letters", partition), Batch((letter,), 0, batch.emission))
        if smaller is None:
            self._acknowledge(queue.popleft())
        else:
            queue[0] = Batch((smaller,), batch.n_bytes, batch.emission)

    def _log_refusal(self, topic: str, record: OutputRecord) -> None:
        """Logs the first record that a topic refuses; `refused` counts on."""
        if topic not in self._refusing:
            self._refusing.add(topic)
            n_bytes = len(record.value) + len(record.key or b"")
            log.error("output_too_large", topic=topic, bytes=n_bytes)

    async def _send(self, lane: Lane, batch: Batch) -> None:
        """Sends once. Raises SourceUnavailable if it may be repeated, or that it is too large."""
        producer = await self._current_producer()
        output, partition = lane
        too_large = kafka_errors.MessageSizeTooLargeError | kafka_errors.RecordListTooLargeError
        try:
            with translated(f"writing to {self._topics[output]}"):
                sent = await producer.client.send_batch(
                    built(producer.client, batch.records),
                    self._topics[output],
                    partition=partition,
                )
                sent.add_done_callback(_heard)
                await self._answered(sent, producer)
                sent.result()
        except SourceUnavailable as away:
            await self._replace(producer)
            if isinstance(away.__cause__, too_large):
                raise away.__cause__ from away
            raise

    async def _answered(self, sent: "asyncio.Future[Any]", producer: _Producer) -> None:
        """Until *sent* is done. Raises ProducerClosed where that cannot come any more.

        A producer connects again with the secrets that it was made with, for ever.
        """
        ends, first = {sent, producer.retired}, asyncio.FIRST_COMPLETED
        while not sent.done():
            await asyncio.wait(ends, timeout=SILENCE_SECONDS, return_when=first)
            if sent.done():
                return
            if producer.retired.done() or producer.secrets != self._connection.secrets():
                raise kafka_errors.ProducerClosed

    # The producer

    async def _current_producer(self) -> _Producer:
        async with self._producing:
            if self._producer is None:
                self._producer = await self._new_producer()
            return self._producer

    async def _new_producer(self) -> _Producer:
        await self._check_topics()  # they may have gone, which the library takes for a delay
        secrets = self._connection.secrets()
        client = AIOKafkaProducer(
            **self._connection.arguments(),
            enable_idempotence=True,
            acks="all",
            compression_type=self._compression,
            max_batch_size=BATCH_BYTES,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        await started(
            client,
            timeout_seconds=REQUEST_TIMEOUT_MS / 1000,
            close_timeout_seconds=CLOSE_TIMEOUT_SECONDS,
        )
        return _Producer(client, secrets)

    async def _replace(self, failed: _Producer) -> None:
        """Retires *failed*: its sequence numbers are of no use after a batch was refused."""
        async with self._producing:
            if self._producer is failed:
                self._producer = None
                await _retire(failed)


async def _retire(producer: _Producer) -> None:
    """Closes without waiting long for what is on its way: its lanes send it again."""
    await closed(producer.client, timeout_seconds=CLOSE_TIMEOUT_SECONDS)
    if not producer.retired.done():
        producer.retired.set_result(None)


def _use_quick_zstd() -> None:
    """Makes the library compress zstd at level 1; it offers no setting for that.

    On evaluations level 1 takes 1.6 us a record and leaves 22 %, level 3 (the library's) takes
    2.5 us and leaves 24 %, snappy 1.6 us and 42 %. Holds for the whole process; without effect
    should a later version of the library look different inside.
    """
    with contextlib.suppress(ImportError):
        builder: Any = importlib.import_module("aiokafka.record._crecords.default_records")
        if hasattr(builder, "zstd_encode"):
            builder.zstd_encode = functools.partial(zstd_encode, level=ZSTD_LEVEL)


def _heard(future: "asyncio.Future[object]") -> None:
    if not future.cancelled():
        future.exception()
