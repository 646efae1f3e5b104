"""Topics of one test on the real broker: filled, read back, and their expected results."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from evaluator.adapters.kafka import Connection, create_topics, plan_topics
from evaluator.adapters.kafka.clients import requests
from evaluator.core.types.records import LOGS
from evaluator.ports import Partition, SourceUnavailable
from evaluator.wire.records import OUTPUTS, Output, OutputRecord
from tests.contract.backends import abort_transaction, admin, visible, with_room
from tests.oracle.messages import Raw
from tests.oracle.oracle import Settings
from tests.waiting import patience, until
from tests.worker.traffic import SETTINGS, Traffic
from tests.worker.truth import Inputs, Outputs, Truth

T = TypeVar("T")


def answered(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The answer of a broker; requested again if the machine paused meanwhile."""
    found: list[T] = []

    def look() -> bool:
        with contextlib.suppress(SourceUnavailable, KafkaError):
            found.append(asyncio.run(ask()))
        return bool(found)

    until(look)
    return found[0]


class World:
    """All topics under one prefix. Every method runs an event loop of its own."""

    def __init__(
        self,
        connection: Connection,
        prefix: str,
        *,
        n_tasks: int = 2,
        settings: Settings = SETTINGS,
        create: bool = True,
        room: Mapping[str, int] | None = None,
    ) -> None:
        self.connection = connection
        self.bootstrap = connection.bootstrap
        self.prefix = prefix
        self.n_tasks = n_tasks
        self.settings = settings
        self._room = room or {}  # bytes of a record, of topics that take less than usual
        if create:
            answered(self._create)

    async def _create(self) -> None:
        plan = await plan_topics(self.connection, topic_prefix=self.prefix, partitions=self.n_tasks)
        await create_topics(self.connection, with_room(plan, self._room))

    def recreate_inputs(self) -> None:
        """Deletes and recreates both inputs; outputs and offsets stay."""
        asyncio.run(self._recreate_inputs())

    async def _recreate_inputs(self) -> None:
        names = [f"{self.prefix}{log}" for log in LOGS]
        async with admin(self.connection) as client:
            await client.delete_topics(names)
        async with patience(), requests(self.connection) as asking:
            while any((await asking.partition_counts(names)).values()):
                pass
        await self._create()
        await visible(self.connection, names)

    # Filling

    def append(self, traffic: Mapping[int, Traffic]) -> None:
        """Appends the records of these tasks."""
        self.produce({
            (log, task): part.of(log) for task, part in traffic.items() for log in LOGS
        })  # fmt: skip

    def produce(self, records: Mapping[Partition, Sequence[Raw]]) -> None:
        asyncio.run(self._produce(records))

    async def _produce(self, records: Mapping[Partition, Sequence[Raw]]) -> None:
        async with AIOKafkaProducer(**self.connection.arguments(), acks="all") as producer:
            for (log, task), raws in records.items():
                left = list(raws)
                while left:
                    batch = producer.create_batch()
                    while left and batch.append(
                        key=left[0].key, value=left[0].value, timestamp=left[0].timestamp_ms
                    ):
                        left.pop(0)
                    sent = await producer.send_batch(batch, f"{self.prefix}{log}", partition=task)
                    await sent

    def abort_transaction(self, partitions: Iterable[Partition]) -> None:
        """Leaves records of an aborted transaction, and its marker, in each of these partitions."""
        names = [self._name(*partition) for partition in partitions]
        asyncio.run(abort_transaction(self.connection, f"{self.prefix}aborted", names))

    # Reading

    def _name(self, log: str, task: int) -> TopicPartition:
        return TopicPartition(f"{self.prefix}{log}", task)

    def inputs(self) -> Inputs:
        """All records of the inputs."""
        dump = answered(lambda: self._dump(LOGS))
        return {
            task: (dump[self._name("rankings", task)], dump[self._name("judgments", task)])
            for task in range(self.n_tasks)
        }

    def outputs(self) -> Outputs:
        """All records of the outputs."""
        dump = answered(lambda: self._dump(OUTPUTS, as_output=True))
        return {
            (output, task): dump[self._name(output, task)]
            for output in OUTPUTS
            for task in range(self.n_tasks)
        }

    async def _dump(self, topics, *, as_output=False):
        consumer = AIOKafkaConsumer(
            **self.connection.arguments(),
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            fetch_max_wait_ms=20,
        )
        async with consumer:
            named = [self._name(each, task) for each in topics for task in range(self.n_tasks)]
            consumer.assign(named)
            ends = await consumer.end_offsets(named)
            rows = {each: [] for each in named}
            while [each for each in named if await consumer.position(each) < ends[each]]:
                for each, found in (await consumer.getmany(timeout_ms=100)).items():
                    rows[each] += found
        make = _output_record if as_output else _raw
        return {each: [make(row) for row in found] for each, found in rows.items()}

    def ends(self) -> dict[str, int]:
        """The positions, under their names in `/totals`."""
        return answered(lambda: self._offsets(committed=False))

    def committed(self) -> dict[str, int | None]:
        """The commits of the group, under the same names."""
        return answered(lambda: self._offsets(committed=True))

    async def _offsets(self, *, committed: bool):
        consumer = AIOKafkaConsumer(
            **self.connection.arguments(),
            group_id=f"{self.prefix}group",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        async with consumer:
            named = [self._name(log, task) for log in LOGS for task in range(self.n_tasks)]
            if committed:
                found = {each: await consumer.committed(each) for each in named}
            else:
                found = await consumer.end_offsets(named)
        prefix = len(self.prefix)
        return {f"{each.topic[prefix:]}-{each.partition}": found[each] for each in named}

    # Expected results

    def truth(self, *, settings: Settings | None = None) -> Truth:
        """The oracle over all present records of the inputs."""
        return Truth(self.inputs(), settings or self.settings, self.prefix)


def _raw(row) -> Raw:
    return Raw(row.offset, row.timestamp, row.value, row.key)


def _output_record(row) -> OutputRecord:
    return OutputRecord(row.key, row.value, tuple(row.headers))


def lanes(outputs: Outputs, output: Output) -> list[OutputRecord]:
    """The records of all partitions of one output."""
    return [record for (each, _), lane in outputs.items() if each == output for record in lane]
