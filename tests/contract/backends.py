"""The media of the contract suite: their Source and Sink, and control over their logs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from msgspec.structs import replace

from evaluator.adapters.kafka import (
    Connection,
    GroupSettings,
    KafkaLeadership,
    KafkaSink,
    KafkaSource,
    create_topics,
    plan_topics,
)
from evaluator.adapters.kafka.administration import TopicPlan
from evaluator.adapters.kafka.clients import requests
from evaluator.adapters.memory import MemoryLeadership, MemorySink, MemorySource
from evaluator.core.types.records import Log
from evaluator.ports import Leadership, Partition, Sink, Source
from evaluator.wire.records import LeaderOutput, Output, OutputRecord, Records
from tests.faulty_broker import FaultyBroker
from tests.kafka.broker import Broker
from tests.waiting import eventually, patience

RELEASE_TIMEOUT_MS = 20_000


class Backend(Protocol):
    """A medium with two input logs and its outputs, which a test can change."""

    def source(self, *, release_timeout_ms: int = RELEASE_TIMEOUT_MS) -> Source:
        """A member of the group, which awaits releases for longer than any takes."""

    def sink(self) -> Sink: ...

    def leadership(self) -> Leadership: ...

    async def append(self, log: Log, partition: int, values: list[bytes]) -> None:
        """Appends values with the key b"k" and the record timestamps 1000, 1001 ..."""

    async def gap(self, log: Log, partition: int) -> None:
        """Appends offsets that no reader sees."""

    async def expire(self, log: Log, partition: int, before: int) -> None: ...

    async def expire_output(self, output: Output, partition: int, before: int) -> None: ...

    async def recreate(self, log: Log) -> None:
        """Deletes an input and creates it again, with one partition."""

    async def grow(self, log: Log, partitions: int) -> None: ...

    async def disconnect(self) -> None:
        """Makes the medium unavailable until `reconnect`."""

    async def reconnect(self) -> None: ...

    async def bound_timestamps(self, ahead_ms: int) -> None:
        """Makes `rankings` refuse records that are further ahead, at once or soon."""

    async def hide_clock(self) -> None:
        """Makes the medium hide its clock, at once or soon."""

    async def output(self, output: Output, partition: int, count: int) -> list[OutputRecord]:
        """Waits for the first *count* records of an output partition, and returns them."""

    async def published(self, topic: LeaderOutput, count: int) -> list[OutputRecord]:
        """Waits for the first *count* committed records of leaders, and returns them."""

    async def close(self) -> None: ...


class MemoryBackend:
    def __init__(
        self, partitions: dict[Log, int], prefix: str, room: dict[Output, int] | None = None
    ) -> None:
        self.broker = FaultyBroker(partitions, identity=prefix)
        self.broker.max_bytes = room or {}

    def source(self, *, release_timeout_ms=RELEASE_TIMEOUT_MS) -> MemorySource:
        self.broker.release_timeout_seconds = release_timeout_ms / 1000
        return MemorySource(self.broker)

    def sink(self) -> MemorySink:
        return MemorySink(self.broker)

    def leadership(self) -> MemoryLeadership:
        return MemoryLeadership(self.broker)

    async def append(self, log, partition, values):
        for index, value in enumerate(values):
            self.broker.append(log, partition, b"k", value, 1000 + index)

    async def gap(self, log, partition):
        self.broker.skip(log, partition, 3)

    async def expire(self, log, partition, before):
        self.broker.expire(log, partition, before)

    async def expire_output(self, output, partition, before):
        self.broker.expire_output(output, partition, before)

    async def recreate(self, log):
        self.broker.recreate(log)

    async def grow(self, log, partitions):
        self.broker.grow(log, partitions)

    async def disconnect(self):
        self.broker.disconnect()

    async def reconnect(self):
        self.broker.reconnect()

    async def bound_timestamps(self, ahead_ms):
        self.broker.timestamp_bound_ms = ahead_ms

    async def hide_clock(self):
        self.broker.ahead_ms = None

    async def output(self, output, partition, count):
        await eventually(lambda: len(self.broker.output(output, partition)) >= count)
        return self.broker.output(output, partition)[:count]

    async def published(self, topic, count):
        return self.broker.leader.written[topic][:count]

    async def close(self):
        pass


class KafkaBackend:
    def __init__(
        self, connection: Connection, topic_prefix: str, broker: Broker | None = None
    ) -> None:
        self.connection = connection
        self.prefix = topic_prefix
        self._broker = broker
        self._producer: AIOKafkaProducer | None = None
        self._made: list[KafkaSource | KafkaSink | KafkaLeadership] = []

    @classmethod
    async def open(
        cls,
        connection: Connection,
        topic_prefix: str,
        partitions: dict[Log, int],
        broker: Broker | None = None,
        room: dict[Output, int] | None = None,
    ) -> "KafkaBackend":
        """Creates the topics, some of them with *room* for records of so many bytes.

        With *broker*, which no other test may use, it can become unavailable.
        """
        if partitions["rankings"] == partitions["judgments"]:
            plan = await plan_topics(
                connection, topic_prefix=topic_prefix, partitions=partitions["rankings"]
            )
            await create_topics(connection, with_room(plan, room or {}))
        else:
            async with admin(connection) as client:
                await client.create_topics(
                    [NewTopic(f"{topic_prefix}{log}", n, 1) for log, n in partitions.items()]
                )
            await visible(connection, [f"{topic_prefix}{log}" for log in partitions])
        return cls(connection, topic_prefix, broker)

    def source(self, **timing) -> KafkaSource:
        settings = {
            "heartbeat_interval_ms": 100,
            "session_timeout_ms": 10_000,
            "release_timeout_ms": RELEASE_TIMEOUT_MS,
            **timing,
        }
        source = KafkaSource(self.connection, self._group(settings))
        self._made.append(source)
        return source

    def sink(self, **settings) -> KafkaSink:
        sink = KafkaSink(self.connection, topic_prefix=self.prefix, **settings)
        self._made.append(sink)
        return sink

    def leadership(self, **timing) -> KafkaLeadership:
        settings = {"heartbeat_interval_ms": 100, "session_timeout_ms": 10_000, **timing}
        leadership = KafkaLeadership(self.connection, self._group(settings))
        self._made.append(leadership)
        return leadership

    def _group(self, settings) -> GroupSettings:
        return GroupSettings(f"{self.prefix}evaluator", self.prefix, **settings)

    async def producer(self) -> AIOKafkaProducer:
        if self._producer is None:
            self._producer = AIOKafkaProducer(**self.connection.arguments(), acks="all")
            await self._producer.start()
        return self._producer

    async def append(self, log, partition, values):
        producer = await self.producer()
        sent = [
            await producer.send(
                f"{self.prefix}{log}", value, b"k", partition, timestamp_ms=1000 + index
            )
            for index, value in enumerate(values)
        ]
        await asyncio.gather(*sent)

    async def gap(self, log, partition):
        partitions = [TopicPartition(f"{self.prefix}{log}", partition)] * 2
        await abort_transaction(self.connection, f"{self.prefix}gap", partitions)

    async def expire(self, log, partition, before):
        await self.expire_output(log, partition, before)

    async def recreate(self, log):
        await recreate_topic(self.connection, f"{self.prefix}{log}", 1)

    async def grow(self, log, partitions):
        async with admin(self.connection) as client:
            await client.create_partitions({f"{self.prefix}{log}": NewPartitions(partitions)})

    async def disconnect(self):
        await asyncio.to_thread(self._broker.stop)

    async def reconnect(self):
        self._broker.launch()  # here, because a broker ends with the thread that launched it
        await asyncio.to_thread(self._broker.wait_until_ready)

    async def bound_timestamps(self, ahead_ms):
        await self._configure("rankings", {"message.timestamp.after.max.ms": str(ahead_ms)})

    async def hide_clock(self):
        settings = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}
        await self._configure("checkpoints", settings)

    async def _configure(self, topic, settings):
        named = ConfigResource(ConfigResourceType.TOPIC, f"{self.prefix}{topic}", configs=settings)
        async with admin(self.connection) as client:
            await client.alter_configs([named])

    async def expire_output(self, log, partition, before):
        async with admin(self.connection) as client:
            named = TopicPartition(f"{self.prefix}{log}", partition)
            await client.delete_records({named: RecordsToDelete(before_offset=before)})

    async def published(self, topic, count):
        return await self.output(topic, 0, count)

    async def output(self, output, partition, count):
        consumer = AIOKafkaConsumer(
            **self.connection.arguments(),
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        try:
            consumer.assign([TopicPartition(f"{self.prefix}{output}", partition)])
            rows: list[OutputRecord] = []
            async with patience():
                while len(rows) < count:
                    for found in (await consumer.getmany(timeout_ms=100)).values():
                        rows += [OutputRecord(row.key, row.value, row.headers) for row in found]
            return rows[:count]
        finally:
            await consumer.stop()

    async def close(self):
        for made in self._made:  # a test that failed midway leaves nothing behind
            await made.stop()
        if self._producer is not None:
            await self._producer.stop()


def with_room(plan: list[TopicPlan], room: Mapping[str, int]) -> list[TopicPlan]:
    """The plan with another limit of record sizes, in bytes, for some topics."""
    limits = {kind: {"max.message.bytes": str(n_bytes)} for kind, n_bytes in room.items()}
    return [replace(each, settings={**each.settings, **limits.get(each.kind, {})}) for each in plan]


@contextlib.asynccontextmanager
async def admin(connection: Connection) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(**connection.arguments())
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def recreate_topic(connection: Connection, topic: str, partitions: int) -> None:
    """Deletes a topic and creates it again."""
    async with admin(connection) as client:
        await client.delete_topics([topic])
        async with patience(), requests(connection) as asking:
            while topic in await asking.topics([topic]):
                pass
        await client.create_topics([NewTopic(topic, partitions, 1)])
    await visible(connection, [topic])


async def visible(connection: Connection, topics: list[str]) -> None:
    """Waits until new topics are visible: the broker answers before that."""
    async with patience(), requests(connection) as asking:
        while None in (await asking.partition_counts(topics)).values():
            pass


async def abort_transaction(
    connection: Connection, transactional_id: str, partitions: list[TopicPartition]
) -> None:
    """Appends an aborted record to each of these partitions, and the mark of its transaction."""
    arguments, last_offsets = connection.arguments(), dict[TopicPartition, int]()
    async with AIOKafkaProducer(**arguments, transactional_id=transactional_id) as producer:
        await producer.begin_transaction()
        for name in partitions:
            sent = await producer.send_and_wait(name.topic, b"never seen", b"k", name.partition)
            last_offsets[name] = sent.offset
        await producer.abort_transaction()
    # The broker answers before the marks are in the logs: a record sent now may come before them.
    client = AIOKafkaConsumer(**arguments, isolation_level="read_committed")
    async with patience(), client as consumer:
        while any(
            end < last_offsets[name] + 2
            for name, end in (await consumer.end_offsets(partitions)).items()
        ):
            pass


async def owned(source: Source, tasks: set[int], *, after_generation: int = 0) -> int:
    """Waits until *source* owns exactly *tasks* in a later generation, polling; returns it."""
    async with patience():
        while True:
            if source.revoking:
                source.release()
            now = source.assignment
            if now is not None and now.generation > after_generation and now.tasks == tasks:
                return now.generation
            await source.poll([], max_records=1, timeout_ms=20)


async def read(
    source: Source, partitions: list[Partition], count: int, *, max_records: int = 1000
) -> list[Records]:
    """Polls until *count* records have come."""
    batches: list[Records] = []
    async with patience():
        while sum(map(len, batches)) < count:
            batches += await source.poll(partitions, max_records=max_records, timeout_ms=100)
    return batches


def values(batches: list[Records], log: Log, partition: int) -> list[bytes | None]:
    """The values of one partition, in order of arrival."""
    return [
        value
        for batch in batches
        if (batch.log, batch.partition) == (log, partition)
        for value in batch.values
    ]


PARAMS = ["memory", pytest.param("kafka", marks=pytest.mark.kafka)]
