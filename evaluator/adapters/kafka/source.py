"""The two input logs, read as a member of a consumer group."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as kafka_errors

from evaluator.adapters.kafka.aiokafka_internals import (
    call_when_fenced,
    client_of,
    mark_polled,
    raise_group_errors,
    request_rejoin,
)
from evaluator.adapters.kafka.assignment import Claims, StoreAssignor, require_alike
from evaluator.adapters.kafka.clients import (
    Requests,
    complete,
    equal_partitions,
    input_topics,
    requests,
)
from evaluator.adapters.kafka.connection import Connection
from evaluator.adapters.kafka.errors import skip, translated
from evaluator.adapters.kafka.membership import (
    MAX_POLL_INTERVAL_MS,
    GroupSettings,
    Membership,
    PositionBounds,
)
from evaluator.adapters.kafka.producers import Heartbeats
from evaluator.adapters.kafka.topic_reader import PartitionReader, input_settings, records_of
from evaluator.adapters.kafka.topic_reads import read_checkpoints, read_records_at
from evaluator.core.types.records import Log
from evaluator.core.types.skips import OffsetRange
from evaluator.ports import (
    Assignment,
    Committed,
    Partition,
    Place,
    Prepare,
    RecordAt,
    SourceUnavailable,
)
from evaluator.wire.records import CHECKPOINTS, Records

FETCH_BYTES: Final = 32 * 1024 * 1024
MIN_FETCH_BYTES: Final = 4 * 1024 * 1024
"""The broker waits for this many bytes, at most `fetch_max_wait_ms`: larger batches cost less."""
PROBE_KEY: Final = b"clock"
NO_TIMESTAMP: Final = -1
REJOIN_SECONDS: Final = 2.0

ClaimsOfTopics = Callable[[Mapping[Log, str]], Claims]
"""Progress of the stores of a process for the topics with these ids."""


class KafkaSource(PartitionReader):
    """Implements `evaluator.ports.Source` on a Kafka consumer group.

    After SourceUnavailable the same object recovers: call the method again. `start` may be repeated
    too. Positions belong to this object, not to the group: after a rebalance the tasks that stay
    continue where `poll` left them, new ones wait for `seek`. A task counts as new if an
    assignment without it could be read before.

    With *prepare*, records are delivered after it has returned, and read again if it raises. `poll`
    raises SourceUnusable if the next record has expired, the partition counts have changed,
    or a right is missing.
    """

    def __init__(
        self,
        connection: Connection,
        group: GroupSettings,
        topics: Mapping[Log, str] | None = None,
        prepare: Prepare | None = None,
        claims: ClaimsOfTopics | None = None,
    ) -> None:
        super().__init__(connection)
        self._assignor = StoreAssignor(self._store_claims, self._compare_count, group)
        self._claims = claims
        self._alike = not group.fingerprint
        self._topic_ids: Mapping[Log, str] = {}
        self._prepare = prepare
        self._group = group
        self._topics = topics or input_topics(group.topic_prefix, connection)
        self._logs: dict[str, Log] = {topic: log for log, topic in self._topics.items()}
        self._member = Membership(group, self._topics, self.positions, self.ends)
        self._heartbeats = Heartbeats(connection)
        self.bounds = PositionBounds()

    # Joining and leaving

    async def start(self) -> None:
        """Connects, checks topics, joins the group. Raises SourceUnavailable or SourceUnusable."""
        n_partitions = await self._equal_partitions()
        if self._group.fingerprint:
            async with requests(self._connection) as asking:
                require_alike(self._group, await asking.members(self._group.group_id))
        consumer = await self._start_consumer(
            **input_settings(self._connection),
            **self._group.times(),
            group_id=self._group.group_id,
            group_instance_id=self._group.group_instance_id,
            partition_assignment_strategy=(self._assignor,),
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            fetch_max_bytes=FETCH_BYTES,
            fetch_min_bytes=MIN_FETCH_BYTES,
        )
        if self._group.group_instance_id is not None:
            call_when_fenced(consumer, self._group.group_instance_id, self._member.fence)
        try:
            self._topic_ids = {} if self._claims is None else await self.topic_ids()
        except BaseException:
            await self.close()  # it has not joined
            raise
        self._member.join(consumer, n_partitions)

    def _store_claims(self) -> Claims:
        """Progress of the stores of this process, sent to the group whenever it assigns."""
        return {} if self._claims is None else self._claims(self._topic_ids)

    def _compare_count(self, count: int) -> None:
        """Lets the group assign again if it has assigned by another partition count.

        A static member that restarts gets its old assignment, without the partitions that were
        added. It waits, because the leader of the group may have old metadata.
        """
        consumer = self._consumer
        if consumer is None or self._member.n_partitions in {0, count}:
            return

        def rejoin() -> None:
            if consumer is self._consumer:
                self._assignor.n_rejoins += 1
                request_rejoin(consumer)

        asyncio.get_running_loop().call_later(REJOIN_SECONDS, rejoin)

    async def _equal_partitions(self) -> int:
        """The partition count of both topics. Raises SourceUnusable, SourceUnavailable."""
        n_partitions = await equal_partitions(self._connection, self._topics)
        self._member.check_counts(dict.fromkeys(self._topics.values(), n_partitions))
        return n_partitions

    async def stop(self) -> None:
        """Leaves the group and closes; idempotent, at any time."""
        self._member.stop()
        await asyncio.gather(self.close(), self._heartbeats.close())

    # The group

    @property
    def assignment(self) -> Assignment | None:
        """The tasks of this member, None until its group was compared (`require_alike`).

        Reading it forgets the positions of tasks that are lost.
        """
        return self._member.assignment if self._alike else None

    async def _compare_group(self, consumer: AIOKafkaConsumer) -> None:
        """Compares the other members after the first assignment, before it is handed out.

        While a group assigns, as often at `start`, the brokers return no subscriptions.
        """
        group = self._group.group_id
        asking = self._requests(consumer)
        doing = f"reading the members of group {group}"
        members = await complete(self._connection, doing, asking.members(group))
        require_alike(self._group, members)
        self._alike = not members or any(subscription for _, subscription in members)
        if self._alike:
            self._member.changed.set()

    @property
    def revoking(self) -> bool:
        """Whether the group waits for this member to release its tasks."""
        return self._member.revoking

    def release(self) -> None:
        """Lets the group assign the tasks again."""
        self._member.release()

    def stay_in_group(self) -> None:
        """Keeps the membership while the owner does not poll."""
        if self._consumer is not None:
            mark_polled(self._consumer)

    # The topics

    async def place(self) -> Place:
        """The cluster and the topics."""
        asking = self._requests(await self._live())
        doing = "reading the cluster's metadata"
        cluster = await complete(self._connection, doing, asking.cluster_id())
        ids, topics = await self.topic_ids(), dict(self._topics)
        return Place(cluster, topics, ids, self._member.n_partitions)

    async def topic_ids(self) -> Mapping[Log, str]:
        """The ids of the topics."""
        topics = self._requests(await self._live()).topics(list(self._logs))
        found = await complete(self._connection, "reading topic metadata", topics)
        self._member.check_counts({name: topic.n_partitions for name, topic in found.items()})
        return {self._logs[name]: topic.topic_id for name, topic in found.items() if topic.topic_id}

    async def records_at(self, places: Collection[RecordAt]) -> Mapping[RecordAt, Records | None]:
        """The single records at these offsets; None if they are skipped or damaged."""
        return await read_records_at(self._connection, self._topics, places)

    async def checkpoints(self, tasks: Collection[int]) -> Mapping[int, Mapping[bytes, bytes]]:
        """The latest checkpoint of each key, of each task."""
        return await read_checkpoints(self._connection, self._group.topic_prefix, tasks)

    async def beginning(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """The first available offset of each partition."""
        return await self._bounds(partitions, AIOKafkaConsumer.beginning_offsets)

    async def end(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """The last stable offset of each partition."""
        return await self._bounds(partitions, AIOKafkaConsumer.end_offsets)

    async def _bounds(self, partitions: Sequence[Partition], find: Any) -> dict[Partition, int]:
        named = self._named(partitions)
        found = await self.offsets(find, list(named))
        bounds = {each: int(found[name]) for name, each in named.items()}
        self.bounds.note(bounds, ends=find is AIOKafkaConsumer.end_offsets)
        return bounds

    async def committed(self, partitions: Sequence[Partition]) -> Mapping[Partition, Committed]:
        """The commits of the group; counts those outside the bounds of their logs."""
        wanted = self._named(partitions)
        async with requests(self._connection) as asking:
            found = await asking.committed(self._group.group_id, list(wanted))
        committed = {wanted[each]: commit for each, commit in found.items()}
        self.bounds.compare(committed)
        return committed

    def seek(self, partition: Partition, offset: int) -> None:
        """Sets the next offset to read of *partition*."""
        named = self._name(partition)
        self.positions[named] = offset
        if self._consumer is not None and self._member.may_seek(named):
            self._consumer.seek(named, offset)
        self._member.changed.set()

    def skip(self, partition: Partition, ranges: Sequence[OffsetRange]) -> None:
        """Skips these offsets, and batches without other offsets."""
        skip(self._name(partition), ranges)

    def known_end(self, partition: Partition) -> int | None:
        """End offset as of the last fetch."""
        return self.ends.get(self._name(partition))

    # Reading

    async def poll(
        self, partitions: Sequence[Partition], *, max_records: int, timeout_ms: int
    ) -> list[Records]:
        """Up to *max_records* records of these partitions, or [] after the timeout.

        A batch without records moves `next_offset` past ends of transactions. Raises
        SourceUnavailable and SourceUnusable.
        """
        consumer = await self._live()
        mark_polled(consumer)  # as `getmany` does, but there may be nothing to read
        deadline = time.monotonic() + timeout_ms / 1000
        changed = self._member.changed
        changed.clear()
        if self._member.revoking:
            await asyncio.sleep(0)
            return []
        if not self._alike and self._member.assignment is not None:
            await self._compare_group(consumer)
        wanted = [each for each in self._named(partitions) if self._may_read(each)]
        if not wanted:
            self._check_group(consumer)
            await self._wait(changed, deadline)
            return []
        # aiokafka has one fetch per broker on its way, and a fetch of partitions at their ends
        # alone would delay all others until the broker answers it: only known records are
        # fetched ahead.
        ahead = [
            each
            for each, position in self.positions.items()
            if each in self._member.assigned and self.ends.get(each, 0) > position
        ]
        self._open_only(consumer, self._member.assigned, (*wanted, *ahead))
        before = {each: self.positions[each] for each in wanted}
        found = await self._read(consumer, wanted, max_records, deadline, changed)
        batches = [
            records_of(self._logs[each.topic], each, fetched, self._connection.mapped)
            for each, fetched in found.items()
        ]
        if self._prepare is not None and batches:
            try:
                await self._prepare(batches)
            except BaseException:
                for each in filter(self._may_read, found):  # they are read again
                    self.seek((self._logs[each.topic], each.partition), before[each])
                raise
        return batches

    def _may_read(self, partition: TopicPartition) -> bool:
        return self._member.may_read(partition)

    def _check_group(self, consumer: AIOKafkaConsumer) -> None:
        """Raises the errors of the group; `getmany` does so if it reads something."""
        try:
            with translated(f"joining group {self._group.group_id}"):
                raise_group_errors(consumer)
        except SourceUnavailable as failure:
            self._note_failure(failure)
            raise

    async def _position_gone(self, partition: TopicPartition, offset: int) -> None:
        named = (self._logs[partition.topic], partition.partition)
        with suppress(SourceUnavailable):
            await self.beginning([named])
            await self.end([named])
        raise self.bounds.unusable(named, partition.topic, offset)

    async def _check_silence(self) -> None:
        if not self._member.stopping:
            await super()._check_silence()

    # Writing

    async def commit(self, commits: Mapping[Partition, Committed]) -> bool:
        """Commits; False if the group no longer accepts commits from this member."""
        consumer = await self._live()
        offsets = {self._name(each): (it.offset, it.metadata) for each, it in commits.items()}
        if not all(map(self._member.may_seek, offsets)):
            return False
        try:
            await complete(self._connection, "committing offsets", consumer.commit(offsets))
        except SourceUnavailable as failure:
            refused = kafka_errors.CommitFailedError | kafka_errors.IllegalStateError
            if isinstance(failure.__cause__, refused):
                return False
            raise
        return True

    async def append_heartbeat(self, partition: Partition, timestamp_ms: int) -> bool:
        """Appends a record without key and value at *timestamp_ms*. Raises SourceUnavailable."""
        try:
            await self._heartbeats.append(self._name(partition), timestamp_ms)
        except SourceUnavailable as failure:
            if isinstance(failure.__cause__, kafka_errors.InvalidTimestampError):
                return False
            raise
        return True

    async def broker_time_ms(self) -> int | None:
        """The broker's time, from its answer to a probe: a deletion of a key without a task.

        Compaction keeps one. No topic refuses a record without a timestamp.
        """
        topic = TopicPartition(f"{self._group.topic_prefix}{CHECKPOINTS}", 0)
        return await self._heartbeats.append(topic, NO_TIMESTAMP, key=PROBE_KEY)

    def _requests(self, consumer: AIOKafkaConsumer) -> Requests:
        """Single requests over the connections of the consumer."""
        return Requests(client_of(consumer), self._connection.security())

    async def _live(self) -> AIOKafkaConsumer:
        """The consumer, recreated if it is broken. Raises errors of callbacks."""
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
