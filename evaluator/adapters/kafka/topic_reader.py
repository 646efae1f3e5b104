"""Partitions of a topic, read on and on from given positions, as a member of no group."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as kafka_errors

from evaluator.adapters.kafka.answers import answered, fetched
from evaluator.adapters.kafka.clients import closed, started
from evaluator.adapters.kafka.connection import ANSWER_TIMEOUT_MS, READING, Connection
from evaluator.adapters.kafka.liveness import LivenessProbe
from evaluator.adapters.kafka.refusals import translated
from evaluator.ports import SourceUnavailable

_PARTITION_BYTES: Final = 1024 * 1024
_PATIENCE_MS: Final = 1000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Stretch:
    """What was read of a partition: the records of the library, and where it is read on."""

    rows: list[Any]
    next_offset: int


class TopicReader:
    """Reads what is committed of one topic.

    A position outside its partition moves to the first record that is there: earlier records have
    expired, and a log that ends before the position was recreated.
    """

    def __init__(self, connection: Connection, topic: str) -> None:
        self.positions: dict[int, int] = {}
        self._connection = connection
        self._topic = topic
        self._liveness = LivenessProbe(connection)
        self._consumer: AIOKafkaConsumer | None = None

    def seek(self, partition: int, offset: int) -> None:
        """Sets what is read next of a partition."""
        self.positions[partition] = offset
        if self._consumer is not None and self._named(partition) in self._consumer.assignment():
            self._consumer.seek(self._named(partition), offset)

    def forget(self) -> None:
        """Forgets all positions: nothing is read until the next `seek`."""
        self.positions.clear()

    async def begin(self, partitions: Collection[int]) -> None:
        """Sets what is read next to the first record still there."""
        found = await self._bounds(AIOKafkaConsumer.beginning_offsets, partitions)
        for partition, offset in found.items():
            self.seek(partition, offset)

    async def _bounds(self, ask: Any, partitions: Collection[int]) -> dict[int, int]:
        named, consumer = list(map(self._named, partitions)), await self._opened()
        found = await answered(self._connection, "reading offsets", ask(consumer, named))
        return {each.partition: int(found[each]) for each in named}

    async def rest(self, partitions: Collection[int]) -> AsyncIterator[Any]:
        """The rows of these partitions up to what is stable now, in order by partition.

        Raises SourceUnavailable, SourceUnusable.
        """
        ends = await self._bounds(AIOKafkaConsumer.end_offsets, partitions)
        never, silent_ms = asyncio.Event(), 0
        while left := [each for each, end in ends.items() if self.positions[each] < end]:
            found = await self.more(left, timeout_ms=_PATIENCE_MS, changed=never)
            silent_ms = 0 if found else silent_ms + _PATIENCE_MS
            if silent_ms > ANSWER_TIMEOUT_MS:
                raise SourceUnavailable(f"The broker does not answer about {self._topic}.")
            for stretch in found.values():
                for row in stretch.rows:
                    yield row

    async def more(
        self,
        partitions: Collection[int],
        *,
        timeout_ms: int,
        changed: asyncio.Event,
        max_records: int | None = None,
    ) -> Mapping[int, Stretch]:
        """What comes next of those *partitions* that were sought, by partition.

        Nothing after the timeout, and when *changed* is set meanwhile. Without *max_records* it is
        as much as the library has at hand. Raises SourceUnavailable, SourceUnusable.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        wanted = [self._named(each) for each in sorted(self.positions.keys() & set(partitions))]
        consumer = await self._opened()
        if not wanted:
            await _wait(changed, deadline)
            await self._check_silence()
            return {}
        self._open_only(consumer, wanted)
        rows = await self._fetch(consumer, wanted, max_records, deadline, changed)
        found = {}
        for each in wanted:
            self._liveness.end_of(consumer, each)
            position = await consumer.position(each)  # known since `seek`: nothing to wait for
            if position > self.positions[each.partition]:
                self.positions[each.partition] = position
                found[each.partition] = Stretch(rows.get(each, []), position)
        if not rows:
            await self._check_silence()
        return found

    async def close(self) -> None:
        """Lets go of the brokers; positions stay, and the next read connects again."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await closed(consumer)

    def _named(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)

    async def _opened(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            self._liveness.begin()
            consumer = AIOKafkaConsumer(
                **self._connection.arguments(),
                **{**READING, "max_partition_fetch_bytes": _PARTITION_BYTES},
                group_id=None,
                request_timeout_ms=ANSWER_TIMEOUT_MS,
            )
            await started(consumer, timeout_seconds=ANSWER_TIMEOUT_MS / 1000)
            self._consumer = consumer
        return self._consumer

    def _open_only(self, consumer: AIOKafkaConsumer, wanted: Collection[TopicPartition]) -> None:
        """Lets the library fetch what is wanted, and nothing else."""
        known = {self._named(each) for each in self.positions}
        if consumer.assignment() != known:
            consumer.assign(list(known))
            for partition, offset in self.positions.items():
                consumer.seek(self._named(partition), offset)
        closing = known.difference(wanted) - consumer.paused()
        opening = consumer.paused().intersection(wanted)
        if closing:
            consumer.pause(*closing)
        if opening:
            consumer.resume(*opening)

    async def _fetch(
        self,
        consumer: AIOKafkaConsumer,
        wanted: list[TopicPartition],
        max_records: int | None,
        deadline: float,
        changed: asyncio.Event,
    ) -> dict[TopicPartition, list[Any]]:
        try:
            with translated(f"reading {self._topic}"):
                return await fetched(
                    consumer, wanted, max_records=max_records, deadline=deadline, changed=changed
                )
        except asyncio.CancelledError:
            for each in wanted:
                consumer.seek(each, self.positions[each.partition])
            raise
        except SourceUnavailable as away:
            if isinstance(away.__cause__, kafka_errors.OffsetOutOfRangeError):
                for each, offset in away.__cause__.args[0].items():
                    await self._begin_again(each, offset)
                return {}
            raise

    async def _begin_again(self, partition: TopicPartition, offset: int) -> None:
        await self.begin((partition.partition,))
        log.warning(
            "position_gone",
            topic=self._topic,
            task=partition.partition,
            offset=offset,
            first=self.positions[partition.partition],
        )

    async def _check_silence(self) -> None:
        if not await self._liveness.check():
            await self.close()
            raise SourceUnavailable("The password or certificate in the files has changed.")


async def _wait(changed: asyncio.Event, deadline: float) -> None:
    try:
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
            await changed.wait()
    except TimeoutError:
        return
