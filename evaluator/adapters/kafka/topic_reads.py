"""Bounded reads without a group: ranges, checkpoints, weights, single records."""

from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, ClassVar

from aiokafka import AIOKafkaConsumer, TopicPartition

from evaluator.adapters.kafka.administration import leader_topics
from evaluator.adapters.kafka.clients import (
    equal_partitions,
    existing_counts,
    input_topics,
    read_topic_ids,
    requests,
)
from evaluator.adapters.kafka.connection import Connection, probe
from evaluator.adapters.kafka.errors import BatchDamaged, skip, skipped
from evaluator.adapters.kafka.topic_reader import Fetched, TopicReader, input_settings, records_of
from evaluator.core.types.records import LOGS, Log
from evaluator.core.types.skips import Skips, covered
from evaluator.ports import Partition, Place, Prepare, RecordAt, SourceUnusable
from evaluator.wire.records import CHECKPOINTS, LeaderOutput, Output, OutputRecord, Records
from evaluator.wire.state.checkpoint import CheckpointSets


async def _read_topic(
    connection: Connection, topic: str, partitions: Collection[int], from_ms: int | None = None
) -> AsyncIterator[Any]:
    """The rows of partitions, from the first record timestamp *from_ms* or later."""
    async with TopicReader(connection, topic) as reader:
        await reader.begin(partitions)
        if from_ms is not None:
            times = dict.fromkeys((TopicPartition(topic, each) for each in partitions), from_ms)
            found = await reader.offsets(AIOKafkaConsumer.offsets_for_times, times)
            ends = await reader.offsets(AIOKafkaConsumer.end_offsets, list(times))
            for each, first in found.items():
                reader.seek(each.partition, ends[each] if first is None else first.offset)
        async for row in reader.rest(partitions):
            yield row


async def read_checkpoints(
    connection: Connection, topic_prefix: str, tasks: Collection[int] | None
) -> dict[int, Mapping[bytes, bytes]]:
    """The latest checkpoint of each key in the partitions of *tasks*; of all partitions for None.

    Raises SourceUnavailable, SourceUnusable.
    """
    topic = f"{topic_prefix}{CHECKPOINTS}"
    count = (await existing_counts(connection, [topic]))[topic]
    wanted = range(count) if tasks is None else sorted(tasks)
    found = {task: CheckpointSets() for task in wanted}
    async for row in _read_topic(connection, topic, wanted):
        found[row.partition].take(row.key, row.value)
    return {task: sets.latest() for task, sets in found.items()}


async def read_weights(
    connection: Connection, topic_prefix: str, output: LeaderOutput
) -> list[OutputRecord]:
    """All records of a topic of the leader, in order; a deleted key has the value b"".

    Raises SourceUnavailable, SourceUnusable.
    """
    topic = leader_topics(topic_prefix)[output]
    await existing_counts(connection, [topic])
    rows = _read_topic(connection, topic, (0,))
    return [OutputRecord(row.key, row.value or b"") async for row in rows]


async def read_output(
    connection: Connection,
    topic_prefix: str,
    output: Output,
    partitions: Collection[int],
    from_ms: int | None,
) -> AsyncIterator[tuple[bytes | None, dict[str, str]]]:
    """Values and headers of an output's records, of the first record timestamp *from_ms* or later.

    Raises SourceUnavailable, SourceUnusable.
    """
    topic = f"{topic_prefix}{output}"
    count = (await existing_counts(connection, [topic]))[topic]
    wanted = [each for each in partitions if each < count]
    async for row in _read_topic(connection, topic, wanted, from_ms):
        headers = {name: (value or b"").decode(errors="replace") for name, value in row.headers}
        yield row.value, headers


async def read_records_at(
    connection: Connection, topics: Mapping[Log, str], places: Collection[RecordAt]
) -> dict[RecordAt, Records | None]:
    """The records at single offsets; None for skipped or damaged ones.

    Raises SourceUnavailable, SourceUnusable.
    """
    found: dict[RecordAt, Records | None] = {}
    for name, topic in topics.items():
        offsets: dict[int, list[int]] = {}
        for (each, number), offset in sorted(places):
            if each != name:
                continue
            if covered(skipped(TopicPartition(topic, number)), offset, offset):
                found[(name, number), offset] = None
            else:
                offsets.setdefault(number, []).append(offset)
        if offsets:
            async with TopicReader(connection, topic) as reader:
                for (number, offset), row in (await _rows_at(reader, offsets)).items():
                    partition = TopicPartition(topic, number)
                    record = row and records_of(name, partition, Fetched([row], offset + 1))
                    found[(name, number), offset] = record
    return found


async def _rows_at(
    reader: TopicReader, offsets: Mapping[int, list[int]]
) -> dict[tuple[int, int], Any]:
    """The rows of one topic at single offsets, in parallel over partitions; None if damaged."""
    found: dict[tuple[int, int], Any] = {}
    left = {number: list(each) for number, each in offsets.items()}
    for number, each in left.items():
        reader.seek(number, each[0])
    while left:
        try:
            answers = await reader.answers(left, max_records=1)
        except BatchDamaged as damaged:
            number = damaged.partition.partition
            found[number, left[number][0]] = None
            answers = {number: Fetched([], 0)}
        for number, fetched in answers.items():
            offset = left[number].pop(0)
            if fetched.rows and fetched.rows[0].offset == offset:
                found[number, offset] = fetched.rows[0]
            if left[number]:
                reader.seek(number, left[number][0])
            else:
                del left[number]
    return found


class _RangeReader(TopicReader):
    """Reads an input; fails if records expire during the read."""

    silence_ms = 10_000
    settings: ClassVar[Mapping[str, Any]] = {
        "request_timeout_ms": 20_000,
        "fetch_max_bytes": 8 * 1024 * 1024,
    }

    async def _start_consumer(self, **arguments: Any) -> AIOKafkaConsumer:
        return await super()._start_consumer(**input_settings(self._connection), **arguments)

    async def _position_gone(self, partition: TopicPartition, offset: int) -> None:
        raise SourceUnusable(
            f"Records of {partition.topic}-{partition.partition} from offset {offset} on expired "
            "while they were being replayed. Start again, from a later time, or give the topic a "
            "longer retention.ms."
        )


class KafkaRange:
    """The two input logs as ranges of offsets, for replay.

    Each `read` has its own consumer, so that open iterators do not affect each other. `counts` are
    the partition counts after `open`; those of a sample *may_differ*. *bounds* are pinned already.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        topic_prefix: str = "",
        skips: Skips | None = None,
        may_differ: bool = False,
        bounds: Mapping[Partition, tuple[int, int]] | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        self._pinned = bounds or {}
        self._prepare = prepare
        self.counts: dict[Log, int] = {}
        self.place: Place | None = None
        self._may_differ = may_differ
        self._connection = connection
        self._topic_prefix = topic_prefix
        self._topics = input_topics(topic_prefix, connection)
        for (log, number), ranges in (skips or {}).items():
            skip(TopicPartition(self._topics[log], number), ranges)
        self._reader = _RangeReader(connection, self._topics["rankings"])  # of offsets
        self._bounds: dict[TopicPartition, tuple[int, int]] = {}

    async def open(self) -> int:
        if self._may_differ:
            counts = await existing_counts(self._connection, list(self._topics.values()))
            self.counts = {log: counts[topic] for log, topic in self._topics.items()}
        else:
            n_partitions = await equal_partitions(self._connection, self._topics)
            self.counts = dict.fromkeys(LOGS, n_partitions)
        partitions = [
            TopicPartition(self._topics[log], number)
            for log, count in self.counts.items()
            for number in range(count)
        ]
        first = await self._reader.offsets(AIOKafkaConsumer.beginning_offsets, partitions)
        end = await self._reader.offsets(AIOKafkaConsumer.end_offsets, partitions)
        self._bounds = {each: (first[each], end[each]) for each in partitions}
        for (log, number), pinned in self._pinned.items():
            self._bounds[TopicPartition(self._topics[log], number)] = pinned
        count = max(self.counts.values())
        async with requests(self._connection) as asking:
            cluster = await asking.cluster_id()
        ids = await read_topic_ids(self._connection, self._topic_prefix)
        self.place = Place(cluster, dict(self._topics), ids, count)
        return count

    async def bounds(self, log: Log, partition: int) -> tuple[int, int]:
        return self._bounds[TopicPartition(self._topics[log], partition)]

    async def seek_hint(self, log: Log, partition: int, record_timestamp_ms: int) -> int:
        named = TopicPartition(self._topics[log], partition)
        first, end = self._bounds[named]
        wanted = {named: min(max(record_timestamp_ms, 0), 2**63 - 1)}
        found = (await self._reader.offsets(AIOKafkaConsumer.offsets_for_times, wanted))[named]
        return end if found is None else min(max(found.offset, first), end)

    async def read(
        self, log: Log, partition: int, start: int, end: int, *, max_records: int
    ) -> AsyncIterator[Records]:
        """The records of [start, end), in batches of up to *max_records*.

        The `next_offset` of the last batch, which may have no records, is *end*. Raises
        SourceUnusable if records have expired meanwhile, SourceUnavailable.
        """
        if start >= end:
            return
        await probe(self._connection)
        named = TopicPartition(self._topics[log], partition)
        async with _RangeReader(self._connection, named.topic) as reader:
            reader.seek(partition, start)
            async for _, fetched in reader.until({partition: end}, max_records=max_records):
                records = records_of(log, named, fetched, self._connection.mapped)
                if records.next_offset > end:
                    records = records.rows(records.offsets < end, end)
                if self._prepare is not None:
                    await self._prepare([records])
                if len(records) or records.next_offset >= end:
                    yield records

    async def close(self) -> None:
        await self._reader.close()
