"""Which of several processes is to be leader: whoever the group gives the one partition to."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka import errors as kafka_errors

from evaluator.adapters.kafka.clients import closed, started
from evaluator.adapters.kafka.connection import READING, Connection
from evaluator.adapters.kafka.leader_assignor import LeaderAssignor
from evaluator.adapters.kafka.membership import (
    MAX_POLL_INTERVAL_MS,
    REQUEST_TIMEOUT_MS,
    timing,
)
from evaluator.adapters.kafka.refusals import translated
from evaluator.ports import SourceUnavailable, SourceUnusable

N_PARTITIONS: Final = 1


class Election(ConsumerRebalanceListener):  # type: ignore[misc] # untyped in the library
    """A member of the group of those who stand; it reads nothing of the topic.

    Between letting go and the next assignment who was elected stays so: where others come and go
    the group elects the same one again. Who has not been confirmed for as long as a session
    lasts counts as not elected, whatever it knows: it was frozen, or is alone.

    Args:
        connection: where the brokers are.
        group_id: of those who stand.
        topic: of one partition.
        session_timeout_ms: after so long without a sign of life another one is elected.
        heartbeat_interval_ms: between signs of life.
        rebalance_timeout_ms: how long the group waits for a member.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        group_id: str,
        topic: str,
        session_timeout_ms: int,
        heartbeat_interval_ms: int,
        rebalance_timeout_ms: int,
    ) -> None:
        self.changed = asyncio.Event()
        self.broken = False
        self._connection = connection
        self._group_id = group_id
        self._topic = topic
        self._timing = timing(session_timeout_ms, heartbeat_interval_ms, rebalance_timeout_ms)
        self._session_seconds = session_timeout_ms / 1000
        self._consumer: AIOKafkaConsumer | None = None
        self._assigned = False
        self._confirmed_at = 0.0
        self._problem: SourceUnusable | None = None

    @property
    def elected(self) -> bool:
        """Whether the group has chosen this one, and has confirmed it within a session."""
        return self._assigned and self.confirmed

    @property
    def confirmed(self) -> bool:
        """Whether the group has answered within a session."""
        return time.monotonic() - self._confirmed_at < self._session_seconds

    async def stand(self) -> None:
        """Joins the group, at first or again. Raises SourceUnavailable, SourceUnusable."""
        await self.withdraw()
        consumer = AIOKafkaConsumer(
            **self._connection.arguments(),
            **READING,
            **self._timing,
            group_id=self._group_id,
            partition_assignment_strategy=(LeaderAssignor(lambda: self.elected),),
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        await started(consumer)
        self._consumer, self.broken = consumer, False
        confirm_by_heartbeats(consumer, self._confirmed)
        consumer.subscribe([self._topic], listener=self)

    async def show_up(self) -> None:
        """Shows the group that this process is alive, and raises the errors of the group.

        Who does not come by for `MAX_POLL_INTERVAL_MS` leaves the group until it does.
        """
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
        if self._consumer is None:
            return
        try:
            with translated(f"joining group {self._group_id}"):
                await self._consumer.getmany(timeout_ms=0)
        except SourceUnavailable as away:
            cause = away.__cause__
            self.broken = not (isinstance(cause, kafka_errors.KafkaError) and cause.retriable)
            raise

    async def withdraw(self) -> None:
        """Leaves the group; also twice."""
        consumer, self._consumer = self._consumer, None
        self._choose(assigned=False)
        self._problem = None
        if consumer is not None:
            await closed(consumer)

    def _confirmed(self, at: float) -> None:
        self._confirmed_at = max(self._confirmed_at, at)

    def _choose(self, *, assigned: bool) -> None:
        if self._assigned != assigned:
            self._assigned = assigned
            self.changed.set()

    # Called by the library

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Nothing needs to be let go of: a successor makes sure that nobody else publishes."""

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Takes note of the choice; what is wrong with the topic is kept for the owner."""
        consumer, chosen = self._consumer, list(assigned)
        if consumer is None:
            return
        for partition in chosen:
            # A position for it: otherwise the library looks one up by itself.
            consumer.seek(partition, 0)
            consumer.pause(partition)
        self._confirmed(time.monotonic())
        self._choose(assigned=bool(chosen))
        count = len(consumer.partitions_for_topic(self._topic) or ())
        if count != N_PARTITIONS:
            self._problem = SourceUnusable(other_count(self._topic, count))
            self.changed.set()


def other_count(topic: str, count: int) -> str:
    """What to do about a topic that has another count of partitions than one."""
    if not count:
        return (
            f"Topic {topic} is not there any more. Make what is missing with `evaluator topics "
            "create`, and start again."
        )
    return (
        f"Topic {topic} has {count} partitions; it needs one, so that one process is elected and "
        "all read in one order. Delete it, and make it again with `evaluator topics create`."
    )


def confirm_by_heartbeats(consumer: AIOKafkaConsumer, confirmed: Any) -> None:
    """Has *confirmed* called with the monotonic time at which an answered heartbeat was sent.

    The inside of the client is no promise: its version is bounded in pyproject.toml, and
    tests/adapters/test_kafka_client.py fails where another one differs.
    """
    coordinator = consumer._coordinator
    beat = coordinator._do_heartbeat

    async def beat_and_confirm() -> bool:
        at = time.monotonic()
        answered: bool = await beat()
        if answered:
            confirmed(at)
        return answered

    coordinator._do_heartbeat = beat_and_confirm
