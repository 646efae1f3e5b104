"""Membership in a consumer group: settings, assignment, handover, and lost positions."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from msgspec import Struct

from evaluator.core.types.records import Log
from evaluator.ports import Assignment, Committed, Partition, Side, SourceUnusable
from evaluator.waiting import is_set_within

MAX_POLL_INTERVAL_MS: Final = 300_000
HEARTBEATS_PER_SESSION: Final = 4
"""Minimum number of heartbeats in a session."""
REQUEST_TIMEOUT_MS: Final = 40_000
"""More than the rebalance timeout: a join is answered when the slowest member has released."""

log = structlog.get_logger()


class GroupSettings(Struct, frozen=True):
    """The group of the workers, the prefix of the topics that it writes, and its times.

    `release_timeout_ms` is how long a handover waits for the owner: less than the rebalance
    timeout. `group_instance_id` makes the member a static one. With `fingerprint` all members must
    have the same one and write to the same topics.
    """

    group_id: str
    topic_prefix: str = ""
    session_timeout_ms: int = 20_000
    heartbeat_interval_ms: int = 1_000
    rebalance_timeout_ms: int = 30_000
    release_timeout_ms: int = 20_000
    group_instance_id: str | None = None
    fingerprint: str = ""

    def times(self) -> dict[str, int]:
        """Arguments of a consumer in the group."""
        longest_ms = self.session_timeout_ms // HEARTBEATS_PER_SESSION
        return {
            "session_timeout_ms": self.session_timeout_ms,
            "heartbeat_interval_ms": min(self.heartbeat_interval_ms, longest_ms),
            "rebalance_timeout_ms": self.rebalance_timeout_ms,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
        }


class Membership(ConsumerRebalanceListener):  # type: ignore[misc] # untyped in the library
    """Listens to the group for one source; its state outlives the consumers.

    `assigned` are the partitions of this member, `between` is true from the release until the next
    assignment. `problem` is an error of a callback, which the source raises because aiokafka would
    only log it.

    Args:
        positions: the offsets that are read next, of the partitions that were sought.
        ends: the known ends of partitions, cleared by an assignment.
    """

    def __init__(
        self,
        group: GroupSettings,
        topics: Mapping[Log, str],
        positions: dict[TopicPartition, int],
        ends: dict[TopicPartition, int],
    ) -> None:
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.between = False
        self.revoking = False
        self.stopping = False
        self.problem: Exception | None = None
        self.n_partitions = 0
        self.changed = asyncio.Event()
        self._positions = positions
        self._ends = ends
        self._released = asyncio.Event()
        self._assignment: Assignment | None = None
        self._consumer: AIOKafkaConsumer | None = None
        self._group = group
        self._topics = topics

    def join(self, consumer: AIOKafkaConsumer, n_partitions: int) -> None:
        """Subscribes a started consumer to topics of *n_partitions* each; 0: their counts differ.

        Without equal counts there are no tasks.
        """
        self._consumer = consumer
        self.n_partitions = n_partitions
        self.between = bool(self.assigned)  # by an earlier consumer
        consumer.subscribe(list(self._topics.values()), listener=self)

    def stop(self) -> None:
        """Ends the waits of current and later handovers."""
        self.stopping = True
        self._released.set()
        self.changed.set()

    def fence(self) -> None:
        """Ends the source: a later process has the instance id of this one."""
        self.problem = SourceUnusable(
            f"Another process runs as {self._group.group_instance_id} in group "
            f"{self._group.group_id}, and was started later. Give each process a "
            "group_instance_id of its own, e.g. the name of its pod."
        )
        self.changed.set()

    @property
    def assignment(self) -> Assignment | None:
        """The tasks of this member. Reading it forgets the positions of tasks that are lost."""
        if self._assignment is not None:
            for partition in self._positions.keys() - self.assigned:
                del self._positions[partition]
        return self._assignment

    def release(self) -> None:
        """Lets the group assign the partitions again."""
        if self.revoking:
            self.revoking, self.between = False, True
        self._released.set()

    def may_seek(self, partition: TopicPartition) -> bool:
        """Whether *partition* is assigned to the consumer now."""
        return not self.between and partition in self.assigned

    def may_read(self, partition: TopicPartition) -> bool:
        """Whether *partition* is assigned to the consumer now and was sought."""
        return self.may_seek(partition) and partition in self._positions

    # Called by aiokafka

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Waits until the owner has released, for a limited time."""
        del revoked  # all of them: the rebalance protocol is the eager one
        if not self.assigned or self.stopping:
            return
        self._released.clear()
        self.revoking = True
        self.changed.set()
        seconds = self._group.release_timeout_ms / 1000
        try:
            if not await is_set_within(self._released, seconds):
                log.warning("handover_forced", group=self._group.group_id, after_seconds=seconds)
        finally:
            self.revoking = False
            self.between = True

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Adopts an assignment; keeps its error for the owner."""
        consumer = self._consumer
        if consumer is None:
            return
        consumer.pause(*assigned)
        try:
            self._adopt(consumer, assigned)
        except Exception as error:  # noqa: BLE001 - raised again by `poll`
            self.problem = error
        self.changed.set()

    def _adopt(self, consumer: AIOKafkaConsumer, assigned: Iterable[TopicPartition]) -> None:
        """Seeks the positions of kept partitions; new ones wait for `seek`."""
        had, self.assigned = self.assigned, frozenset(assigned)
        self._ends.clear()
        for partition in self.assigned:
            # Sets positions of all partitions, because aiokafka would request them.
            consumer.seek(partition, self._positions.get(partition, 0))
        generation = 1 if self._assignment is None else self._assignment.generation + 1
        of_topics = {topic: self._tasks_of(topic) for topic in self._topics.values()}
        tasks = frozenset.intersection(*of_topics.values()) if self.n_partitions else frozenset()
        self._assignment = Assignment(generation, tasks)
        self.between = False
        found = {each: consumer.partitions_for_topic(each) for each in self._topics.values()}
        gone = [each for each, numbers in found.items() if not numbers]
        if gone and (had or self.assigned):
            self.problem = SourceUnusable(
                f"Topic {' and topic '.join(gone)} no longer exists. Create missing topics with "
                "`evaluator topics create`, and start again."
            )
        elif self.n_partitions and len(set(of_topics.values())) > 1:
            given = " and ".join(f"{sorted(of_topics[topic])} of {topic}" for topic in of_topics)
            self.problem = SourceUnusable(
                f"The group gave partitions {given} to this worker. Equal partition counts, and no "
                f"other kind of consumer in group {self._group.group_id}, are needed."
            )
        self.check_counts({topic: len(numbers) for topic, numbers in found.items() if numbers})

    def _tasks_of(self, topic: str) -> frozenset[int]:
        return frozenset(partition for name, partition in self.assigned if name == topic)

    def check_counts(self, counts: Mapping[str, int]) -> None:
        """Raises SourceUnusable if the partition count of a topic has changed since the start."""
        for topic, count in counts.items():
            if count != self.n_partitions and self.n_partitions:
                raise SourceUnusable(
                    f"Topic {topic} had {self.n_partitions} partitions at the start and has "
                    f"{count} now, so new records of a key may go to another partition than "
                    "earlier ones. Give both inputs and the outputs the same partition count "
                    "(`evaluator check` prints the commands), then restart. Judgments of open "
                    "queries whose key has moved become orphans; docs/growth.md has a way "
                    "without losses."
                )


class PositionBounds:
    """Compares positions with the bounds of their logs.

    `counts` has the positions outside, `lost` the records that had expired before they were read;
    each position of a partition counts once.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[Log, Side]] = Counter()
        self.lost: Counter[Log] = Counter()
        self._begins: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._counted: set[tuple[Partition, int]] = set()

    def note(self, bounds: Mapping[Partition, int], *, ends: bool) -> None:
        """Updates the begin or end offsets of logs."""
        (self._ends if ends else self._begins).update(bounds)

    def compare(self, committed: Mapping[Partition, Committed]) -> None:
        """Counts committed offsets outside their logs; logs records that are lost."""
        for partition, commit in committed.items():
            side, n_lost = self._outside(partition, commit.offset)
            if side is None or (partition, commit.offset) in self._counted:
                continue
            self._count(partition, commit.offset, side, n_lost)
            if n_lost:
                name, number = partition
                log.warning(
                    "input_lost",
                    log=name,
                    partition=number,
                    records=n_lost,
                    committed=commit.offset,
                    first=self._begins[partition],
                )

    def unusable(self, partition: Partition, topic: str, offset: int) -> SourceUnusable:
        """The error of a position that the brokers refused, with the bounds and the action."""
        side, n_lost = self._outside(partition, offset)
        self._count(partition, offset, side or "beyond", n_lost)
        begin, end = self._begins.get(partition), self._ends.get(partition)
        bounds = "" if begin is None or end is None else f", which holds {begin} to {end}"
        if side == "before":
            why = (
                f"{n_lost} records have expired before they were read. Restart to continue with "
                "the first one that is left, and give the topic a longer retention.ms"
            )
        else:
            why = (
                "it was truncated, or the topic was recreated. Restart to read it from its "
                "beginning, and check the broker if the topic was not recreated"
            )
        return SourceUnusable(
            f"Offset {offset} of {topic}-{partition[1]} is the next to read, but not in its "
            f"log{bounds}: {why}."
        )

    def _outside(self, partition: Partition, offset: int) -> tuple[Side | None, int]:
        """The side on which an offset lies outside its log, and the number of lost records."""
        begin, end = self._begins.get(partition), self._ends.get(partition)
        if begin is not None and offset < begin:
            return "before", begin - offset
        if end is not None and offset > end:
            return "beyond", 0
        return None, 0

    def _count(self, partition: Partition, offset: int, side: Side, n_lost: int) -> None:
        self._counted.add((partition, offset))
        self.counts[partition[0], side] += 1
        self.lost[partition[0]] += n_lost
