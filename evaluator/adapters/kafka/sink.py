"""The output topics: at least once, in order, through an idempotent producer."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import structlog
from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors
from msgspec import Struct, field

from evaluator.adapters.kafka.aiokafka_batches import build_batch
from evaluator.adapters.kafka.clients import (
    close,
    discard_result,
    existing_counts,
    input_topics,
    require_partitions,
    start_producer,
)
from evaluator.adapters.kafka.connection import Connection
from evaluator.adapters.kafka.errors import TOO_LARGE, describe, translated
from evaluator.core.types.records import IntArray
from evaluator.ports import Lane, SourceUnavailable
from evaluator.waiting import backoff_seconds
from evaluator.wire.outputs.rows import Headers, OutputRows
from evaluator.wire.outputs.sizes import refused
from evaluator.wire.records import WRITTEN, Output, OutputRecord

BATCH_BYTES: Final = 960 * 1024  # before compression; the default limit of a broker is 1,024
RECORD_OVERHEAD_BYTES: Final = 64
MAX_PENDING_BYTES = 64 * 1024 * 1024
"""`emit` waits while more than this is not acknowledged."""
REQUEST_TIMEOUT_MS: Final = 30_000
SILENCE_SECONDS: Final = 2.0
"""Without an answer for this time the secrets are compared with those of the producer."""
STOP_TIMEOUT_SECONDS: Final = 3.0
CLOSE_TIMEOUT_SECONDS: Final = 1.0

log = structlog.get_logger()
T = TypeVar("T")


class Emission(Struct, eq=False):
    """One call of `emit`: done when all its batches are acknowledged."""

    acknowledged: "asyncio.Future[None]"
    left: int


class OutputBatch(Struct, eq=False):
    """Records that are sent together. `n_bytes` is an estimate before compression."""

    records: Sequence[OutputRecord]
    n_bytes: int
    emission: Emission


class _Producer(Struct, eq=False):
    """A producer of aiokafka; `retired` is done after its last use."""

    client: AIOKafkaProducer
    secrets: object
    retired: "asyncio.Future[None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class KafkaSink:
    """Implements `evaluator.ports.Sink` on Kafka topics.

    Each (output, partition) is a lane with at most one batch on its way: the next one is sent
    when the broker has acknowledged it. A batch that fails is sent again, with a new producer
    if the old one cannot be used, until it is acknowledged or the sink is stopped.

    A batch too large for the topic is halved; `evaluator.wire.outputs.sizes.refused` replaces a
    single record that is too large.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        topic_prefix: str = "",
        stop_timeout_seconds: float = STOP_TIMEOUT_SECONDS,
    ) -> None:
        self.refused = 0
        self._connection = connection
        self._inputs = list(input_topics(topic_prefix, connection).values())
        self._topics: dict[Output, str] = {each: f"{topic_prefix}{each}" for each in WRITTEN}
        self._stop_timeout_seconds = stop_timeout_seconds
        self._producer: _Producer | None = None
        self._producing = asyncio.Lock()
        self._lanes: dict[Lane, deque[OutputBatch]] = {}
        self._sending: dict[Lane, asyncio.Task[None]] = {}
        self._pending_bytes = 0
        self._drained = asyncio.Event()
        self._problem: Exception | None = None
        self._delayed: set[Lane] = set()
        self._refusing: set[str] = set()  # topics that have refused a record as too large
        self._stopped = False

    async def start(self) -> None:
        """Connects and checks the output topics. Raises SourceUnavailable or SourceUnusable."""
        await self._current_producer()

    async def _check_topics(self) -> None:
        outputs = list(self._topics.values())
        counts = await existing_counts(self._connection, outputs, optional=self._inputs)
        n_tasks = max(counts[name] for name in self._inputs)
        for name in outputs:
            require_partitions(name, counts[name], n_tasks)

    async def emit(self, records: Mapping[Lane, Sequence[OutputRecord]]) -> Awaitable[None]:
        """Enqueues records; the awaitable ends when all of them are acknowledged.

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
            for batch in _batches_of(rows, emission):
                self._enqueue(lane, batch)
        if not emission.left:
            emission.acknowledged.set_result(None)
        return emission.acknowledged

    def _enqueue(self, lane: Lane, batch: OutputBatch) -> None:
        batch.emission.left += 1
        self._pending_bytes += batch.n_bytes
        self._lanes.setdefault(lane, deque()).append(batch)
        if lane not in self._sending:
            self._sending[lane] = asyncio.create_task(self._send_lane(lane))

    async def stop(self) -> None:
        """Waits for acknowledgements for a limited time, then closes; idempotent."""
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
        """Ends every open emission with *error*."""
        for batch in (each for lane in self._lanes.values() for each in lane):
            if not batch.emission.acknowledged.done():
                batch.emission.acknowledged.set_exception(error)
                discard_result(batch.emission.acknowledged)
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

    async def _deliver(self, lane: Lane, queue: deque[OutputBatch]) -> None:
        """Sends the head of the queue until it is acknowledged."""
        pauses = backoff_seconds()
        while True:
            try:
                await self._send(lane, queue[0])
            except TOO_LARGE:
                self._shrink(lane, queue)
                return
            except SourceUnavailable as failure:
                if not self._delayed:
                    log.warning("output_delayed", reason=describe(failure))
                self._delayed.add(lane)
                await asyncio.sleep(next(pauses))
                continue
            if self._delayed == {lane}:
                log.info("output_resumed")
            self._delayed.discard(lane)
            self._acknowledge(queue.popleft())
            return

    def _acknowledge(self, batch: OutputBatch) -> None:
        self._pending_bytes -= batch.n_bytes
        self._drained.set()
        batch.emission.left -= 1
        if not batch.emission.left and not batch.emission.acknowledged.done():
            batch.emission.acknowledged.set_result(None)

    def _shrink(self, lane: Lane, queue: deque[OutputBatch]) -> None:
        """Replaces the head, which is too large for the topic, by smaller batches or records."""
        batch = queue[0]
        if len(batch.records) > 1:
            middle, half = len(batch.records) // 2, batch.n_bytes // 2
            batch.emission.left += 1
            queue[0] = OutputBatch(batch.records[middle:], batch.n_bytes - half, batch.emission)
            queue.appendleft(OutputBatch(batch.records[:middle], half, batch.emission))
            return
        (record,), (output, partition) = batch.records, lane
        topic = self._topics[output]
        self._log_refusal(topic, record)
        smaller, letter = found = refused(record, output, topic=topic, partition=partition)
        self.refused += found.counts
        if letter is not None:
            self._enqueue(self.letter_lane(partition), OutputBatch((letter,), 0, batch.emission))
        if smaller is None:
            self._acknowledge(queue.popleft())
        else:
            queue[0] = OutputBatch((smaller,), batch.n_bytes, batch.emission)

    def letter_lane(self, partition: int) -> Lane:
        """The lane of dead letters about a partition."""
        return "dead-letters", partition

    def _log_refusal(self, topic: str, record: OutputRecord) -> None:
        """Logs the first record that a topic refuses; `refused` counts all."""
        if topic not in self._refusing:
            self._refusing.add(topic)
            n_bytes = len(record.value) + len(record.key or b"")
            log.error("output_too_large", topic=topic, bytes=n_bytes)

    async def _send(self, lane: Lane, batch: OutputBatch) -> None:
        """Sends once. Raises SourceUnavailable if it may be repeated, or that it is too large."""
        producer = await self._current_producer()
        output, partition = lane
        topic = self._topics[output]
        try:
            with translated(f"writing to {topic}"):
                built = build_batch(producer.client, batch.records)
                send = producer.client.send_batch(built, topic, partition=partition)
                sent = await self._complete(asyncio.ensure_future(send), producer)
                sent.add_done_callback(discard_result)
                await self._complete(sent, producer)
        except SourceUnavailable as failure:
            await self._replace(producer)
            if isinstance(failure.__cause__, TOO_LARGE):
                raise failure.__cause__ from failure
            raise

    async def _complete(self, future: "asyncio.Future[T]", producer: _Producer) -> T:
        """The result of *future*. Raises ProducerClosed if the producer cannot complete it.

        A producer reconnects with the secrets that it was created with, and one that is closed
        while it waits for metadata waits without end.
        """
        ends: set[asyncio.Future[Any]] = {future, producer.retired}
        first = asyncio.FIRST_COMPLETED
        while not future.done():
            await asyncio.wait(ends, timeout=SILENCE_SECONDS, return_when=first)
            if future.done():
                break
            if producer.retired.done() or producer.secrets != self._connection.secrets():
                future.cancel()
                raise kafka_errors.ProducerClosed
        return future.result()

    # The producer

    async def _current_producer(self) -> _Producer:
        async with self._producing:
            if self._producer is None:
                self._producer = await self._new_producer()
            return self._producer

    async def _new_producer(self) -> _Producer:
        await self._check_topics()  # aiokafka treats a deleted topic as a delay
        secrets = self._connection.secrets()
        client = await start_producer(
            self._connection,
            close_timeout_seconds=CLOSE_TIMEOUT_SECONDS,
            enable_idempotence=True,
            compression_type="zstd",
            max_batch_size=BATCH_BYTES,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        return _Producer(client, secrets)

    async def _replace(self, failed: _Producer) -> None:
        """Retires *failed*: its sequence numbers are invalid after a batch was refused."""
        async with self._producing:
            if self._producer is failed:
                self._producer = None
                await _retire(failed)


def _batches_of(rows: Sequence[OutputRecord], emission: Emission) -> list[OutputBatch]:
    """Batches of up to BATCH_BYTES, at least one record each."""
    ends = np.cumsum(_estimated_bytes(rows))  # of each record, in bytes
    batches: list[OutputBatch] = []
    first, start = 0, 0
    while first < len(rows):
        last = max(first + 1, int(np.searchsorted(ends, start + BATCH_BYTES, side="right")))
        end = int(ends[last - 1])
        batches.append(OutputBatch(rows[first:last], end - start, emission))
        first, start = last, end
    return batches


def _estimated_bytes(rows: Sequence[OutputRecord]) -> IntArray | list[int]:
    if isinstance(rows, OutputRows):
        return rows.n_bytes() + _overhead_bytes(rows.headers)
    return [len(key or b"") + len(value) + _overhead_bytes(headers) for key, value, headers in rows]


def _overhead_bytes(headers: Headers) -> int:
    return RECORD_OVERHEAD_BYTES + sum(len(name) + len(content) + 8 for name, content in headers)


async def _retire(producer: _Producer) -> None:
    """Closes a producer with a short timeout; lanes send unacknowledged batches again."""
    await close(producer.client, timeout_seconds=CLOSE_TIMEOUT_SECONDS)
    if not producer.retired.done():
        producer.retired.set_result(None)
