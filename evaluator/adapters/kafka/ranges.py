"""Pinned ranges of the input logs, read without any consumer group."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as kafka_errors

from evaluator.adapters.kafka.answers import KEEPING, records_of
from evaluator.adapters.kafka.clients import closed, started
from evaluator.adapters.kafka.connection import (
    ANSWER_TIMEOUT_MS,
    READING,
    Connection,
    equal_partitions,
    input_topics,
    probe,
)
from evaluator.adapters.kafka.damaged import skip
from evaluator.adapters.kafka.refusals import translated
from evaluator.core.types.records import LOGS, Log
from evaluator.core.types.skips import Skips
from evaluator.ports import SourceUnavailable, SourceUnusable
from evaluator.wire.records import Records

REQUEST_TIMEOUT_MS = 20_000
FETCH_BYTES = 8 * 1024 * 1024
POLL_TIMEOUT_MS = 200
EMPTY_ANSWERS = 3
"""After so many empty answers at an offset below the end, nothing is left there to be read."""
SILENCE_SECONDS = 10.0
"""How long the broker may not answer a fetch at all."""

T = TypeVar("T")


class KafkaRange:
    """The two input logs as ranges of offsets, for replay.

    Every `read` has a consumer of its own, so that open iterators do not disturb each other.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        topic_prefix: str = "",
        skips: Skips | None = None,
    ) -> None:
        self._connection = connection
        self._topics = input_topics(topic_prefix)
        for (log, number), ranges in (skips or {}).items():
            skip(TopicPartition(self._topics[log], number), ranges)
        self._asking: AIOKafkaConsumer | None = None
        self._bounds: dict[TopicPartition, tuple[int, int]] = {}

    async def open(self) -> int:
        """Pins first and end offsets; returns the partition count.

        Raises SourceUnusable, SourceUnavailable.
        """
        count = await equal_partitions(self._connection, self._topics)
        self._asking = await self._consumer()
        partitions = [TopicPartition(self._topics[log], p) for log in LOGS for p in range(count)]
        first = await self._answer(self._asking.beginning_offsets(partitions))
        end = await self._answer(self._asking.end_offsets(partitions))
        self._bounds = {each: (first[each], end[each]) for each in partitions}
        return count

    async def bounds(self, log: Log, partition: int) -> tuple[int, int]:
        """First and end offset, as they were at `open`."""
        return self._bounds[TopicPartition(self._topics[log], partition)]

    async def seek_hint(self, log: Log, partition: int, record_timestamp_ms: int) -> int:
        """The first offset whose record timestamp is that or later; the end if there is none."""
        named = TopicPartition(self._topics[log], partition)
        first, end = self._bounds[named]
        if self._asking is None:
            raise SourceUnavailable("The range is closed.")
        wanted_ms = min(max(record_timestamp_ms, 0), 2**63 - 1)
        found = (await self._answer(self._asking.offsets_for_times({named: wanted_ms})))[named]
        return end if found is None else min(max(found.offset, first), end)

    async def read(
        self, log: Log, partition: int, start: int, end: int, *, max_records: int
    ) -> AsyncIterator[Records]:
        """The records of [start, end), in batches of up to *max_records*.

        The `next_offset` of the last batch is *end*, which may make it a batch without records.
        Raises SourceUnusable if records have expired meanwhile, SourceUnavailable.
        """
        named = TopicPartition(self._topics[log], partition)
        if start >= end:
            return
        consumer = await self._consumer()
        try:
            consumer.assign([named])
            consumer.seek(named, start)
            reading = _Reading(consumer, named, end)
            position = start
            while position < end:
                rows = await reading.next_rows(max_records)
                position = end if reading.exhausted else min(reading.position, end)
                if rows or position >= end:
                    yield records_of(log, partition, rows, position)
        finally:
            await closed(consumer)

    async def close(self) -> None:
        """Closes; also twice."""
        asking, self._asking = self._asking, None
        if asking is not None:
            await closed(asking)

    async def _consumer(self) -> AIOKafkaConsumer:
        await probe(self._connection)
        consumer = AIOKafkaConsumer(
            **self._connection.arguments(),
            **READING,
            **KEEPING,
            group_id=None,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            fetch_max_bytes=FETCH_BYTES,
        )
        await started(consumer)
        return consumer

    async def _answer(self, question: Awaitable[T]) -> T:
        with translated("reading offsets"):
            return await asyncio.wait_for(question, ANSWER_TIMEOUT_MS / 1000)


class _Reading:
    """One pass over a partition towards *end*."""

    def __init__(self, consumer: AIOKafkaConsumer, partition: TopicPartition, end: int) -> None:
        self._consumer = consumer
        self._partition = partition
        self._end = end
        self._answered_ms: int | None = None
        self._answered_at = time.monotonic()
        self._empty_answers = 0
        self.position = 0
        self.exhausted = False

    async def next_rows(self, max_records: int) -> list[Any]:
        """The next records below the end; [] when none came this time."""
        fetched = await self._fetch(max_records)
        rows: list[Any] = fetched.get(self._partition, [])
        before, self.position = self.position, await self._consumer.position(self._partition)
        if rows or self.position > before:
            self._empty_answers = 0
        self._listen()
        return (
            [row for row in rows if row.offset < self._end] if self.position > self._end else rows
        )

    async def _fetch(self, max_records: int) -> dict[TopicPartition, list[Any]]:
        try:
            with translated("reading"):
                fetched: dict[TopicPartition, list[Any]] = await self._consumer.getmany(
                    self._partition, max_records=max_records, timeout_ms=POLL_TIMEOUT_MS
                )
                return fetched
        except SourceUnavailable as away:
            if isinstance(away.__cause__, kafka_errors.OffsetOutOfRangeError):
                raise SourceUnusable(
                    f"Records of {self._partition.topic}-{self._partition.partition} expired "
                    "while they were being replayed. Start again, from a later time, or give the "
                    "topic a longer retention.ms."
                ) from away
            raise

    def _listen(self) -> None:
        """Counts answers without news: compaction may leave nothing before the end."""
        answered_ms = self._consumer.last_poll_timestamp(self._partition)
        if answered_ms != self._answered_ms:
            self._answered_ms = answered_ms
            self._answered_at = time.monotonic()
            stable = self._consumer.last_stable_offset(self._partition)
            if stable is not None and stable >= self._end:
                self._empty_answers += 1
                self.exhausted = self._empty_answers > EMPTY_ANSWERS
        elif time.monotonic() - self._answered_at > SILENCE_SECONDS:
            raise SourceUnavailable(f"The broker does not answer about {self._partition.topic}.")
