"""Readers of Kafka topics: the base of the source, and a reader without a group."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Self

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as kafka_errors
from msgspec import Struct

from evaluator.adapters.kafka.aiokafka_fetches import columns_of
from evaluator.adapters.kafka.clients import (
    ANSWER_TIMEOUT_MS,
    SILENCE_MS,
    close,
    complete,
    end,
    start_consumer,
)
from evaluator.adapters.kafka.connection import Connection, probe
from evaluator.adapters.kafka.errors import skipped, translated
from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.types.records import Log
from evaluator.ports import SourceUnavailable
from evaluator.waiting import is_set_within
from evaluator.wire.native.record_sets import RecordColumns
from evaluator.wire.records import (
    MAX_MESSAGE_BYTES,
    MAX_RECORD_BYTES,
    Records,
    kept,
    kept_to_map,
    without,
)

INPUT_SETTINGS: Final[Mapping[str, Any]] = {"key_deserializer": kept, "value_deserializer": kept}
"""Settings of a consumer of the inputs: it keeps the beginning of records that are too large."""
EMPTY_ANSWERS: Final = 3
"""After more empty answers at an offset below the end, compaction has left no record there."""
_STEPS_TO_NEXT_FETCH: Final = 4
"""Steps of the event loop until aiokafka has requested the next records."""
_TIMEOUT_MS: Final = 500

log = structlog.get_logger()


class Fetched(Struct, frozen=True):
    """Consecutive records of a partition, and the offset after them.

    The rows are of aiokafka, or columns if the consumer has INPUT_SETTINGS.
    """

    rows: Any
    next_offset: int


class PartitionReader(ABC):
    """Reads partitions with one consumer after another; `positions` outlive the consumers.

    `ends` are the ends of the partitions in the latest answers. `_broken` is set if the consumer
    has to be replaced.
    """

    silence_ms: ClassVar[int] = SILENCE_MS

    def __init__(self, connection: Connection, doing: str = "reading") -> None:
        self.positions: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self._connection = connection
        self._doing = doing
        self._consumer: AIOKafkaConsumer | None = None
        self._broken = False
        self._secrets: object = None
        self._answered_at = 0.0
        self._answered_ms: dict[TopicPartition, int] = {}
        self._empty_answers: Counter[TopicPartition] = Counter()

    @abstractmethod
    async def _live(self) -> AIOKafkaConsumer:
        """The consumer, replaced if it is broken. Raises SourceUnavailable, SourceUnusable."""

    async def _start_consumer(self, **settings: Any) -> AIOKafkaConsumer:
        """Replaces the consumer. Raises SourceUnavailable, SourceUnusable."""
        await self.close()
        self._secrets = self._connection.secrets()
        self._answered_at = time.monotonic()
        self._consumer = await start_consumer(self._connection, **settings)
        return self._consumer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the consumer; positions stay."""
        consumer, self._consumer = self._consumer, None
        self._broken = False
        if consumer is not None:
            await close(consumer)

    def _may_read(self, partition: TopicPartition) -> bool:
        return partition in self.positions

    @abstractmethod
    async def _position_gone(self, partition: TopicPartition, offset: int) -> None:
        """Called for a position outside its log."""

    async def offsets(self, method: Any, of: Any) -> Any:
        """The answer of a method of the consumer that finds offsets.

        Raises SourceUnavailable, SourceUnusable.
        """
        return await complete(self._connection, "reading offsets", method(await self._live(), of))

    def _open_only(
        self,
        consumer: AIOKafkaConsumer,
        assigned: Collection[TopicPartition],
        wanted: Iterable[TopicPartition],
    ) -> None:
        """Limits the fetches of aiokafka to *wanted* partitions."""
        opened, paused = set(wanted), consumer.paused()
        if pausing := set(assigned) - opened - paused:
            consumer.pause(*pausing)
        if resuming := opened & paused:
            consumer.resume(*resuming)

    async def _read(
        self,
        consumer: AIOKafkaConsumer,
        wanted: Sequence[TopicPartition],
        max_records: int | None,
        deadline: float,
        changed: asyncio.Event,
    ) -> dict[TopicPartition, Fetched]:
        """Further records of partitions; waits for them until *deadline* or *changed*.

        Raises SourceUnavailable, SourceUnusable.
        """
        rows: Mapping[TopicPartition, list[Any]] = {}
        try:
            with translated(self._doing):
                rows = await _fetch(consumer, wanted, max_records, deadline, changed)
                for _ in range(_STEPS_TO_NEXT_FETCH if rows else 0):
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            for each in filter(self._may_read, wanted):
                consumer.seek(each, self.positions[each])
            raise
        except SourceUnavailable as failure:
            if not isinstance(failure.__cause__, kafka_errors.OffsetOutOfRangeError):
                self._note_failure(failure)
                raise
            for each, offset in failure.__cause__.args[0].items():
                await self._position_gone(each, offset)
        if not all(map(self._may_read, wanted)):
            return {}  # assigned to another member meanwhile; kept partitions are sought again
        found = {}
        for each in wanted:
            self._note_answer(consumer, each, alone=len(wanted) == 1)
            position = await consumer.position(each)  # known since `seek`, so without a request
            if position > self.positions[each]:
                self.positions[each] = position
                self._empty_answers[each] = 0
                found[each] = Fetched(rows.get(each, []), position)
        if not found:
            await self._check_silence()
        return found

    def _note_answer(
        self, consumer: AIOKafkaConsumer, partition: TopicPartition, *, alone: bool
    ) -> None:
        """Updates the end of a partition if the broker has answered a fetch.

        If other partitions are fetched too, their records may fill an answer, so that one without
        records of this partition does not count as empty.
        """
        answered_ms = consumer.last_poll_timestamp(partition)
        if answered_ms is None or self._answered_ms.get(partition) == answered_ms:
            return
        self._answered_ms[partition] = answered_ms
        self._answered_at = time.monotonic()
        stable_end = consumer.last_stable_offset(partition)
        if stable_end is not None and stable_end >= 0:
            self.ends[partition] = stable_end
            self._empty_answers[partition] += alone

    def _note_failure(self, failure: SourceUnavailable) -> None:
        """Marks the consumer as broken if aiokafka does not recover from its error."""
        cause = failure.__cause__
        if isinstance(cause, kafka_errors.KafkaError) and not cause.retriable:
            self._broken = True

    async def _wait(self, changed: asyncio.Event, deadline: float) -> None:
        """Waits for *changed* until *deadline*, if there is nothing to read."""
        await is_set_within(changed, deadline - time.monotonic())
        await self._check_silence()

    async def _check_silence(self) -> None:
        """Probes the brokers after a silence. Raises SourceUnavailable, SourceUnusable.

        A consumer reconnects with the secrets that it was created with, so it is replaced if they
        have changed.
        """
        if time.monotonic() - self._answered_at <= self.silence_ms / 1000:
            return
        await probe(self._connection)
        self._answered_at = time.monotonic()
        if self._connection.secrets() != self._secrets:
            self._broken = True
            raise SourceUnavailable("The password or certificate in the files has changed.")


async def _fetch(
    consumer: AIOKafkaConsumer,
    wanted: Sequence[TopicPartition],
    max_records: int | None,
    deadline: float,
    changed: asyncio.Event,
) -> dict[TopicPartition, list[Any]]:
    """Raises the errors of aiokafka. After a cancellation positions have to be sought again."""
    get = partial(consumer.getmany, *wanted, max_records=max_records)
    rows: dict[TopicPartition, list[Any]] = await get(timeout_ms=0)
    if rows or time.monotonic() >= deadline:
        return rows
    timeout_ms = max(1, int((deadline - time.monotonic()) * 1000))
    getting = asyncio.ensure_future(get(timeout_ms=timeout_ms))
    changing = asyncio.ensure_future(changed.wait())
    try:
        await asyncio.wait({getting, changing}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        changing.cancel()
        await end(getting)
    return {} if getting.cancelled() else getting.result()


class TopicReader(PartitionReader):
    """Reads one topic without a group; partitions are identified by number.

    A position outside its log moves to the first record: the records have expired, or the topic was
    recreated. `settings` are further ones of the consumer.
    """

    settings: ClassVar[Mapping[str, Any]] = {
        "request_timeout_ms": ANSWER_TIMEOUT_MS,
        "max_partition_fetch_bytes": 1024 * 1024,
    }

    def __init__(self, connection: Connection, topic: str) -> None:
        super().__init__(connection, f"reading {topic}")
        self._topic = topic
        self._never = asyncio.Event()
        self._silent_ms = 0

    def seek(self, partition: int, offset: int) -> None:
        """Sets the next offset to read."""
        named = TopicPartition(self._topic, partition)
        self.positions[named] = offset
        if self._consumer is not None and named in self._consumer.assignment():
            self._consumer.seek(named, offset)

    def forget(self) -> None:
        """Discards all positions; reading continues after the next `seek`."""
        self.positions.clear()

    async def begin(self, partitions: Collection[int]) -> None:
        """Seeks the first records of partitions."""
        found = await self._bounds(AIOKafkaConsumer.beginning_offsets, partitions)
        for partition, offset in found.items():
            self.seek(partition, offset)

    async def _bounds(self, find: Any, partitions: Collection[int]) -> dict[int, int]:
        named = [TopicPartition(self._topic, each) for each in partitions]
        found = await self.offsets(find, named)
        return {each.partition: int(found[each]) for each in named}

    async def rest(self, partitions: Collection[int]) -> AsyncIterator[Any]:
        """The rows of partitions up to the current stable end, in order by partition.

        Raises SourceUnavailable, SourceUnusable.
        """
        ends = await self._bounds(AIOKafkaConsumer.end_offsets, partitions)
        async for _, fetched in self.until(ends):
            for row in fetched.rows:
                yield row

    async def until(
        self, ends: Mapping[int, int], *, max_records: int | None = None
    ) -> AsyncIterator[tuple[int, Fetched]]:
        """Fetched rows by partition, until all positions have reached *ends* or exceed them.

        Raises SourceUnavailable, SourceUnusable.
        """
        bounds = {TopicPartition(self._topic, each): end for each, end in ends.items()}
        while left := [each for each, end in bounds.items() if self.positions[each] < end]:
            numbers = [each.partition for each in left]
            found = await self.answers(numbers, max_records=max_records)
            for each in left:
                if self._has_no_more(each, bounds[each]):
                    self.positions[each] = bounds[each]
                    found = {**found, each.partition: Fetched([], bounds[each])}
            for partition, fetched in found.items():
                yield partition, fetched

    async def answers(
        self, partitions: Collection[int], *, max_records: int | None
    ) -> Mapping[int, Fetched]:
        """As `more`, for a limited time; raises SourceUnavailable after a longer silence."""
        found = await self.more(
            partitions, timeout_ms=_TIMEOUT_MS, changed=self._never, max_records=max_records
        )
        self._silent_ms = 0 if found else self._silent_ms + _TIMEOUT_MS
        if self._silent_ms > ANSWER_TIMEOUT_MS:
            raise SourceUnavailable(f"The broker does not answer about {self._topic}.")
        return found

    def _has_no_more(self, partition: TopicPartition, bound: int) -> bool:
        """Whether compaction has left no record between the position and *bound*."""
        answered = self._empty_answers[partition] > EMPTY_ANSWERS
        return answered and self.positions[partition] < bound <= self.ends[partition]

    async def more(
        self,
        partitions: Collection[int],
        *,
        timeout_ms: int,
        changed: asyncio.Event,
        max_records: int | None = None,
    ) -> Mapping[int, Fetched]:
        """Further records of those *partitions* that were sought, by partition.

        Returns {} after the timeout, and if *changed* is set meanwhile. Raises SourceUnavailable,
        SourceUnusable.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        asked = {TopicPartition(self._topic, each) for each in partitions}
        wanted = sorted(self.positions.keys() & asked)
        consumer = await self._live()
        if not wanted:
            await self._wait(changed, deadline)
            return {}
        if consumer.assignment() != self.positions.keys():
            consumer.assign(list(self.positions))
            for each, offset in self.positions.items():
                consumer.seek(each, offset)
        self._open_only(consumer, self.positions, wanted)
        found = await self._read(consumer, wanted, max_records, deadline, changed)
        return {each.partition: fetched for each, fetched in found.items()}

    async def _live(self) -> AIOKafkaConsumer:
        if self._consumer is None or self._broken:
            return await self._start_consumer(group_id=None, **self.settings)
        return self._consumer

    async def _position_gone(self, partition: TopicPartition, offset: int) -> None:
        await self.begin((partition.partition,))
        log.warning(
            "position_gone",
            topic=self._topic,
            task=partition.partition,
            offset=offset,
            first=self.positions[partition],
        )


def input_settings(connection: Connection) -> Mapping[str, Any]:
    """Settings of a consumer of the inputs; for mappings it keeps larger records, and headers."""
    return {**INPUT_SETTINGS, **({"value_deserializer": kept_to_map} if connection.mapped else {})}


def records_of(
    name: Log, partition: TopicPartition, fetched: Fetched, mapped: Collection[Log] = ()
) -> Records:
    """The records of a consumer with `input_settings` without skipped offsets."""
    rows, is_mapped = fetched.rows, name in mapped
    columns = rows if isinstance(rows, RecordColumns) else columns_of(rows, is_foreign=is_mapped)
    offsets, sizes, values = columns.offsets, columns.value_sizes, columns.values
    large = sizes > (MAX_RECORD_BYTES if is_mapped else MAX_MESSAGE_BYTES)
    if columns.headers is not None and not is_mapped and large.any():  # beside a mapped log
        values = ByteStrings.of(list(map(kept, values)))
    records = Records(
        log=name,
        partition=partition.partition,
        offsets=offsets,
        keys=columns.keys,
        values=values,
        timestamps_ms=columns.timestamps_ms,
        next_offset=fetched.next_offset,
        oversize=dict(zip(offsets[large].tolist(), sizes[large].tolist(), strict=True)),
        headers=columns.headers if is_mapped else None,
    )
    return without(records, skipped(partition))
