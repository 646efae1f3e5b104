"""The election of the leader: the member of a group that is assigned its only partition."""

import time
from asyncio import Event
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka import errors as kafka_errors
from msgspec.structs import replace

from evaluator.adapters.kafka.administration import leader_group
from evaluator.adapters.kafka.aiokafka_internals import (
    MemberAssignment,
    MemberMetadata,
    RangeAssignor,
    call_after_heartbeats,
    mark_polled,
    raise_group_errors,
)
from evaluator.adapters.kafka.clients import close, start_consumer
from evaluator.adapters.kafka.connection import Connection
from evaluator.adapters.kafka.errors import translated
from evaluator.adapters.kafka.membership import MAX_POLL_INTERVAL_MS, GroupSettings
from evaluator.ports import SourceUnavailable, SourceUnusable

_LEADER: Final = b"leader"


class LeaderAssignor(RangeAssignor):  # type: ignore[misc] # untyped in the library
    """Assigns a partition to the member that already has it; else by range.

    Range alone prefers the smallest member id, and ids are random. Members with the plain range
    assignor may be in the same group, as the protocol is the same. aiokafka expects a class; it
    uses only these methods, so each member passes an instance.

    Args:
        is_leader: whether this member is the leader now.
    """

    def __init__(self, is_leader: Callable[[], bool]) -> None:
        self._is_leader = is_leader

    def metadata(self, topics: Iterable[str]) -> Any:
        user_data = _LEADER if self._is_leader() else b""
        return MemberMetadata(self.version, list(topics), user_data)

    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        """Assigns by range among the members that are leader now, if there are any."""
        leaders = {name: each for name, each in members.items() if each.user_data == _LEADER}
        chosen = super().assign(cluster, leaders or members)
        nothing = MemberAssignment(self.version, [], b"")
        return {name: chosen.get(name, nothing) for name in members}


class Election(ConsumerRebalanceListener):  # type: ignore[misc] # untyped in the library
    """A member of the group of eligible processes; it reads no records of the topic.

    The leader keeps its election during a rebalance, because the group elects it again if other
    members join or leave. A leader without an answered heartbeat for a session counts as not
    elected: it was frozen, or is disconnected.

    Args:
        workers: the group of the workers, whose times apply.
        topic: a topic of one partition.
    """

    def __init__(self, connection: Connection, workers: GroupSettings, topic: str) -> None:
        self.changed = Event()
        self.broken = False
        self._connection = connection
        self._group = replace(workers, group_id=leader_group(workers.group_id))
        self._topic = topic
        self._consumer: AIOKafkaConsumer | None = None
        self._assigned = False
        self._confirmed_at = 0.0
        self._problem: SourceUnusable | None = None

    @property
    def elected(self) -> bool:
        """Whether the group has elected this process and answered within a session."""
        return self._assigned and self.confirmed

    @property
    def confirmed(self) -> bool:
        """Whether the group has answered within a session."""
        silence_seconds = time.monotonic() - self._confirmed_at
        return silence_seconds < self._group.session_timeout_ms / 1000

    async def join(self) -> None:
        """Joins the group, at first or again. Raises SourceUnavailable, SourceUnusable."""
        await self.leave()
        consumer = await start_consumer(
            self._connection,
            **self._group.times(),
            group_id=self._group.group_id,
            partition_assignment_strategy=(LeaderAssignor(lambda: self.elected),),
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
        )
        self._consumer, self.broken = consumer, False
        call_after_heartbeats(consumer, self._confirm)
        consumer.subscribe([self._topic], listener=self)

    async def poll(self) -> None:
        """Keeps the membership, which ends after MAX_POLL_INTERVAL_MS; raises its errors."""
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
        if self._consumer is None:
            return
        try:
            with translated(f"joining group {self._group.group_id}"):
                mark_polled(self._consumer)  # `getmany` would wait while the group assigns
                raise_group_errors(self._consumer)
        except SourceUnavailable as failure:
            cause = failure.__cause__
            self.broken = not (isinstance(cause, kafka_errors.KafkaError) and cause.retriable)
            raise

    async def leave(self) -> None:
        """Leaves the group; idempotent."""
        consumer, self._consumer = self._consumer, None
        self._elect(assigned=False)
        self._problem = None
        if consumer is not None:
            await close(consumer)

    def _confirm(self, at: float) -> None:
        self._confirmed_at = max(self._confirmed_at, at)

    def _elect(self, *, assigned: bool) -> None:
        if self._assigned != assigned:
            self._assigned = assigned
            self.changed.set()

    # Called by aiokafka

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Does nothing: a successor fences this process before it publishes."""

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Stores the result of the election; keeps errors of the topic for the owner."""
        consumer, chosen = self._consumer, list(assigned)
        if consumer is None:
            return
        for partition in chosen:
            # Sets a position, because aiokafka would request one.
            consumer.seek(partition, 0)
            consumer.pause(partition)
        self._confirm(time.monotonic())
        self._elect(assigned=bool(chosen))
        count = len(consumer.partitions_for_topic(self._topic) or ())
        if count != 1:
            self._problem = SourceUnusable(not_one_partition(self._topic, count))
            self.changed.set()


def not_one_partition(topic: str, count: int) -> str:
    """The error text for a topic of the leader that has more or fewer partitions than one."""
    if not count:
        return (
            f"Topic {topic} no longer exists. Create missing topics with `evaluator topics "
            "create`, and start again."
        )
    return (
        f"Topic {topic} has {count} partitions; it needs one, so that one process is elected and "
        "all read in one order. Delete it, and create it again with `evaluator topics create`."
    )
