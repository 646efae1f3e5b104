"""The two input logs, read as a member of a consumer group."""

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from evaluator.adapters.kafka.answers import KEEPING, answered, fetched, records_of
from evaluator.adapters.kafka.checkpoints import checkpoints_topic, read_checkpoints
from evaluator.adapters.kafka.clients import closed, started
from evaluator.adapters.kafka.connection import (
    READING,
    Connection,
    Requests,
    equal_partitions,
    input_topics,
    requests,
)
from evaluator.adapters.kafka.damaged import skip
from evaluator.adapters.kafka.heartbeats import Heartbeats
from evaluator.adapters.kafka.liveness import LivenessProbe
from evaluator.adapters.kafka.membership import (
    HEARTBEAT_INTERVAL_MS,
    MAX_POLL_INTERVAL_MS,
    REBALANCE_TIMEOUT_MS,
    RELEASE_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    Membership,
    tell_at_work,
    timing,
)
from evaluator.adapters.kafka.outside import Outside
from evaluator.adapters.kafka.refusals import translated
from evaluator.adapters.kafka.singly import read_singly
from evaluator.core.types.records import Log
from evaluator.core.types.skips import OffsetRange
from evaluator.ports import Assignment, Committed, Partition, SourceUnavailable, SourceUnusable
from evaluator.wire.records import Records

FETCH_BYTES = 32 * 1024 * 1024
PROBE_KEY = b"clock"
NO_TIMESTAMP = -1


class KafkaSource:
    """Implements `evaluator.ports.Source` on a Kafka consumer group.

    After SourceUnavailable the same object goes on by itself: call the method again. `start` may be
    repeated too. Positions belong to this object, not to the group: after a rebalance the
    tasks that stay go on where `poll` left them, new ones wait for `seek`. A task counts as
    new if an assignment without it was there to be read.

    SourceUnusable from `poll` means that a record to be read next has expired, that the
    topics have changed their partition counts, or that a right is missing.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        group_id: str,
        topic_prefix: str = "",
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS,
        rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS,
        release_timeout_ms: int = RELEASE_TIMEOUT_MS,
    ) -> None:
        self._connection = connection
        self._group_id = group_id
        self._topics = input_topics(topic_prefix)
        self._checkpoints_topic = checkpoints_topic(topic_prefix)
        self._logs: dict[str, Log] = {topic: log for log, topic in self._topics.items()}
        self._timing = timing(session_timeout_ms, heartbeat_interval_ms, rebalance_timeout_ms)
        self._member = Membership(group_id, self._topics, release_timeout_ms / 1000)
        self._consumer: AIOKafkaConsumer | None = None
        self._heartbeats = Heartbeats(connection)
        self._broken = False
        self._liveness = LivenessProbe(connection)
        self.outside = Outside()

    # Joining and leaving

    async def start(self) -> None:
        """Connects, checks topics, joins the group. Raises SourceUnavailable or SourceUnusable."""
        n_partitions = await equal_partitions(self._connection, self._topics)
        self._member.check_counts(dict.fromkeys(self._topics.values(), n_partitions))
        await self._leave()
        self._liveness.begin()
        consumer = AIOKafkaConsumer(
            **self._connection.arguments(),
            **READING,
            **KEEPING,
            **self._timing,
            group_id=self._group_id,
            partition_assignment_strategy=(RangePartitionAssignor,),
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            fetch_max_bytes=FETCH_BYTES,
        )
        await started(consumer)
        self._consumer = consumer
        self._broken = False
        self._member.join(consumer, n_partitions)

    async def stop(self) -> None:
        """Leaves the group and closes; safe to call at any moment, also twice."""
        self._member.stop()
        await self._leave()
        await self._heartbeats.close()

    async def _leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await closed(consumer)

    # What the group says

    @property
    def assignment(self) -> Assignment | None:
        """The tasks of this member. Reading it is what makes the loss of a task known."""
        return self._member.assignment

    @property
    def revoking(self) -> bool:
        """Whether the group waits for this member to let go."""
        return self._member.revoking

    def release(self) -> None:
        """Lets go: the handover goes on."""
        self._member.release()

    def at_work(self) -> None:
        """Stays in the group, which the client leaves for whoever does not read for so long."""
        if self._consumer is not None:
            tell_at_work(self._consumer)

    # What is there

    async def identity(self) -> Mapping[str, str]:
        """The cluster and the topics."""
        async with requests(self._connection) as asking:
            topics = {str(log): topic for log, topic in self._topics.items()}
            return {"cluster": await asking.cluster_id(), **topics}

    async def topic_ids(self) -> Mapping[Log, str]:
        """The ids of the topics, asked of the brokers by the connections of the consumer."""
        consumer = await self._live()
        asking = Requests(consumer._client, self._connection.security())
        found = await answered(
            self._connection, "reading topic metadata", asking.topics(list(self._logs))
        )
        self._member.check_counts({name: topic.n_partitions for name, topic in found.items()})
        return {self._logs[name]: topic.topic_id for name, topic in found.items() if topic.topic_id}

    async def records_at(
        self, places: Collection[tuple[Partition, int]]
    ) -> Mapping[tuple[Partition, int], Records | None]:
        """The single records at these offsets; None of what is skipped or damaged."""
        return await read_singly(self._connection, self._topics, places)

    async def checkpoints(self, tasks: Collection[int]) -> Mapping[int, Mapping[bytes, bytes]]:
        """The latest checkpoint of each key, of each task."""
        return await read_checkpoints(self._connection, self._checkpoints_topic, tasks)

    async def beginning(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """The first offset still there, of each partition."""
        return await self._bounds(partitions, AIOKafkaConsumer.beginning_offsets)

    async def end(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """The last stable offset of each partition."""
        return await self._bounds(partitions, AIOKafkaConsumer.end_offsets)

    async def _bounds(self, partitions: Sequence[Partition], ask: Any) -> dict[Partition, int]:
        named, consumer = self._named(partitions), await self._live()
        found = await answered(self._connection, "reading offsets", ask(consumer, list(named)))
        bounds = {named[each]: int(offset) for each, offset in found.items()}
        self.outside.note(bounds, ends=ask is AIOKafkaConsumer.end_offsets)
        return bounds

    async def committed(self, partitions: Sequence[Partition]) -> Mapping[Partition, Committed]:
        """What the group has committed; says what is not in the bounds that were asked before."""
        wanted = self._named(partitions)
        async with requests(self._connection) as asking:
            found = await asking.committed(self._group_id, list(wanted))
        committed = {wanted[each]: mark for each, mark in found.items()}
        self.outside.compare(committed)
        return committed

    def seek(self, partition: Partition, offset: int) -> None:
        """Sets the offset that the next poll of *partition* reads first."""
        named = self._name(partition)
        self._member.positions[named] = offset
        if self._consumer is not None and self._member.may_seek(named):
            self._consumer.seek(named, offset)
        self._member.changed.set()

    def skip(self, partition: Partition, ranges: Sequence[OffsetRange]) -> None:
        """Delivers no record of these offsets, nor unpacks a batch that has no others."""
        skip(self._name(partition), ranges)

    def known_end(self, partition: Partition) -> int | None:
        """End offset as of the last fetch."""
        return self._member.ends.get(self._name(partition))

    # Reading

    async def poll(
        self, partitions: Sequence[Partition], *, max_records: int, timeout_ms: int
    ) -> list[Records]:
        """Up to *max_records* records of these partitions, or [] after the timeout.

        A batch without records moves `next_offset` past what is no record (ends of
        transactions). Raises SourceUnavailable and SourceUnusable.
        """
        consumer = await self._live()
        tell_at_work(consumer)  # as `getmany` does, but there may be nothing to read
        deadline = time.monotonic() + timeout_ms / 1000
        self._member.changed.clear()
        if self._member.revoking:
            await asyncio.sleep(0)
            return []
        named = [self._name(partition) for partition in partitions]
        wanted = [each for each in named if self._member.may_read(each)]
        if not wanted:
            self._check_group(consumer)
            await self._member.wait_for_change(deadline)
            await self._check_silence()
            return []
        self._pause_all_but(consumer, wanted)
        fetched = await self._fetch(consumer, wanted, max_records, deadline)
        batches = await self._delivered(consumer, wanted, fetched)
        if not batches:
            await self._check_silence()
        return batches

    def _check_group(self, consumer: AIOKafkaConsumer) -> None:
        """Raises what the group has refused; `getmany` does this where something is read."""
        try:
            with translated(f"joining group {self._group_id}"):
                consumer._coordinator.check_errors()
        except SourceUnavailable as away:
            raise self._judge(away) from away.__cause__

    def _pause_all_but(self, consumer: AIOKafkaConsumer, wanted: list[TopicPartition]) -> None:
        """Lets the library fetch what is wanted, and ahead what is known to have more.

        It keeps one fetch per broker in flight, and a fetch of partitions that stand at their
        end alone would hold up all others for as long as the broker waits for news.
        """
        member = self._member
        open_now = set(wanted)
        for each, position in member.positions.items():
            if each in member.assigned and member.ends.get(each, 0) > position:
                open_now.add(each)
        closing = member.assigned - open_now - member.paused
        opening = open_now & member.paused
        if closing:
            consumer.pause(*closing)
        if opening:
            consumer.resume(*opening)
        member.paused = set(member.assigned - open_now)

    async def _fetch(
        self,
        consumer: AIOKafkaConsumer,
        wanted: list[TopicPartition],
        max_records: int,
        deadline: float,
    ) -> dict[TopicPartition, list[Any]]:
        """Waits for records, but not longer than for a change of the assignment."""
        changed = self._member.changed
        try:
            with translated("reading"):
                return await fetched(
                    consumer, wanted, max_records=max_records, deadline=deadline, changed=changed
                )
        except asyncio.CancelledError:
            for each in filter(self._member.may_read, wanted):
                consumer.seek(each, self._member.positions[each])
            raise
        except SourceUnavailable as away:
            if isinstance(away.__cause__, kafka_errors.OffsetOutOfRangeError):
                raise await self._out_of_range(away.__cause__) from away.__cause__
            raise self._judge(away) from away.__cause__

    def _judge(self, away: SourceUnavailable) -> Exception:
        """Finds what an error of the library means for the owner."""
        cause = away.__cause__
        if isinstance(cause, kafka_errors.KafkaError) and not cause.retriable:
            self._broken = True
        return away

    async def _out_of_range(self, error: kafka_errors.OffsetOutOfRangeError) -> SourceUnusable:
        """What became of a position that was to be read next."""
        (topic, number), offset = next(iter(error.args[0].items()))
        partition = (self._logs[topic], number)
        with contextlib.suppress(SourceUnavailable):
            await self.beginning([partition])
            await self.end([partition])
        return self.outside.unusable(partition, topic, offset)

    async def _delivered(
        self,
        consumer: AIOKafkaConsumer,
        wanted: list[TopicPartition],
        fetched: Mapping[TopicPartition, list[Any]],
    ) -> list[Records]:
        """Records of what was fetched, and how far each partition is read by now."""
        if not all(map(self._member.may_read, wanted)):
            return []  # overtaken by a handover; the rest is sought again
        batches = []
        for each in wanted:
            end = self._liveness.end_of(consumer, each)
            if end is not None:
                self._member.ends[each] = end
            rows = fetched.get(each, ())
            position = await consumer.position(each)  # known since `seek`: nothing to wait for
            if position <= self._member.positions[each]:
                continue
            self._member.positions[each] = position
            batches.append(records_of(self._logs[each.topic], each.partition, rows, position))
        return batches

    async def _check_silence(self) -> None:
        if not self._member.stopping and not await self._liveness.check():
            self._broken = True
            raise SourceUnavailable("The password or certificate in the files has changed.")

    # Writing

    async def commit(self, commits: Mapping[Partition, Committed]) -> bool:
        """Commits; False if the group no longer takes commits from this member."""
        consumer = await self._live()
        marks = {self._name(each): (mark.offset, mark.metadata) for each, mark in commits.items()}
        if not all(map(self._member.may_seek, marks)):
            return False
        try:
            await answered(self._connection, "committing offsets", consumer.commit(marks))
        except SourceUnavailable as away:
            refused = kafka_errors.CommitFailedError | kafka_errors.IllegalStateError
            if isinstance(away.__cause__, refused):
                return False
            raise
        return True

    async def append_heartbeat(self, partition: Partition, timestamp_ms: int) -> bool:
        """Appends a record without key and value at *timestamp_ms*. Raises SourceUnavailable."""
        topic, number = self._name(partition)
        try:
            await self._append(topic, number, timestamp_ms)
        except SourceUnavailable as away:
            if isinstance(away.__cause__, kafka_errors.InvalidTimestampError):
                return False
            raise
        return True

    async def broker_time_ms(self) -> int | None:
        """The broker's time, from its answer to a probe: a deletion of a key that no task has.

        Compaction keeps one. Without a timestamp of its own no topic refuses it.
        """
        return await self._append(self._checkpoints_topic, 0, NO_TIMESTAMP, key=PROBE_KEY)

    async def _append(
        self, topic: str, number: int, timestamp_ms: int, key: bytes | None = None
    ) -> int | None:
        try:
            append = self._heartbeats.append(topic, number, timestamp_ms, key=key)
            return await answered(self._connection, f"writing to {topic}", append)
        except (SourceUnavailable, SourceUnusable):
            await self._heartbeats.close()
            raise

    # Small things

    async def _live(self) -> AIOKafkaConsumer:
        """The consumer, recreated if it broke. Raises what happened in the background."""
        problem, self._member.problem = self._member.problem, None
        if problem is not None:
            raise problem
        if self._member.stopping:
            raise SourceUnavailable("The source is stopped.")
        if self._consumer is None or self._broken:
            await self.start()
        if self._consumer is None:
            raise SourceUnavailable("The source was stopped meanwhile.")
        return self._consumer

    def _name(self, partition: Partition) -> TopicPartition:
        log, number = partition
        return TopicPartition(self._topics[log], number)

    def _named(self, partitions: Sequence[Partition]) -> dict[TopicPartition, Partition]:
        return {self._name(partition): partition for partition in partitions}
