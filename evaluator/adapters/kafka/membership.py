"""What one member of the group owns, how it hands over, and where it reads on afterwards."""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

from evaluator.core.types.records import LOGS, Log
from evaluator.ports import Assignment, SourceUnusable

log = structlog.get_logger()

SESSION_TIMEOUT_MS = 20_000
HEARTBEAT_INTERVAL_MS = 1_000
HEARTBEATS_PER_SESSION = 4
"""A session is never so short that fewer than these fit into it."""
REBALANCE_TIMEOUT_MS = 30_000
MAX_POLL_INTERVAL_MS = 300_000
REQUEST_TIMEOUT_MS = REBALANCE_TIMEOUT_MS + 10_000
"""A join is answered when the slowest member has let go, so no request may give up earlier."""
RELEASE_TIMEOUT_MS = 20_000
"""How long the group waits for the owner to let go; less than the rebalance timeout."""


def timing(
    session_timeout_ms: int, heartbeat_interval_ms: int, rebalance_timeout_ms: int
) -> dict[str, int]:
    """What a consumer is told of its group, under the names of the library."""
    return {
        "session_timeout_ms": session_timeout_ms,
        "heartbeat_interval_ms": min(
            heartbeat_interval_ms, session_timeout_ms // HEARTBEATS_PER_SESSION
        ),
        "rebalance_timeout_ms": rebalance_timeout_ms,
    }


def tell_at_work(consumer: AIOKafkaConsumer) -> None:
    """Tells the client that somebody is at work with it.

    Where nobody has read for `MAX_POLL_INTERVAL_MS` it leaves the group, and joins no other before
    somebody reads. The inside of the client is no promise: its version is bounded in
    pyproject.toml, and tests/adapters/test_kafka_client.py fails where another one differs.
    """
    with consumer._subscription.fetch_context():
        pass


class Membership(ConsumerRebalanceListener):  # type: ignore[misc] # untyped in the library
    """Listens to the group for one source; the owner's knowledge outlives its consumers.

    `assigned` are the partitions of this member, `positions` what is read next of those that
    were sought, `between` is true from letting go until the next assignment, and `problem` is
    what went wrong here: the library would swallow it, so the source raises it.
    """

    def __init__(
        self, group_id: str, topics: Mapping[Log, str], release_timeout_seconds: float
    ) -> None:
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.positions: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.between = False
        self.revoking = False
        self.stopping = False
        self.problem: Exception | None = None
        self.n_partitions = 0
        self.changed = asyncio.Event()
        self._released = asyncio.Event()
        self._assignment: Assignment | None = None
        self._consumer: AIOKafkaConsumer | None = None
        self._group_id = group_id
        self._topics = topics
        self._release_timeout_seconds = release_timeout_seconds

    def join(self, consumer: AIOKafkaConsumer, n_partitions: int) -> None:
        """Subscribes a started consumer to topics of *n_partitions* each."""
        self._consumer = consumer
        self.n_partitions = n_partitions
        self.between = bool(self.assigned)  # of an earlier consumer
        consumer.subscribe(list(self._topics.values()), listener=self)

    def stop(self) -> None:
        """From now on nothing is waited for."""
        self.stopping = True
        self._released.set()
        self.changed.set()

    @property
    def assignment(self) -> Assignment | None:
        """The tasks of this member. Reading it is what makes the loss of a task known."""
        if self._assignment is not None:
            for partition in self.positions.keys() - self.assigned:
                del self.positions[partition]
        return self._assignment

    def release(self) -> None:
        """The owner lets go: the handover goes on."""
        if self.revoking:
            self.revoking, self.between = False, True
        self._released.set()

    def may_read(self, partition: TopicPartition) -> bool:
        """Whether *partition* belongs to this member just now and was sought."""
        return not self.between and partition in self.assigned and partition in self.positions

    def may_seek(self, partition: TopicPartition) -> bool:
        """Whether the consumer knows *partition* just now."""
        return not self.between and partition in self.assigned

    async def wait_for_change(self, deadline: float) -> None:
        """Until something has changed here, or *deadline* of the monotonic clock."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), max(0.0, deadline - time.monotonic()))

    # Called by the library

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Waits until the owner has released, but not for ever."""
        del revoked  # all of them: the protocol of the group is the eager one
        if not self.assigned or self.stopping:
            return
        self._released.clear()
        self.revoking = True
        self.changed.set()
        try:
            await asyncio.wait_for(self._released.wait(), self._release_timeout_seconds)
        except TimeoutError:
            seconds = self._release_timeout_seconds
            log.warning("handover_forced", group=self._group_id, after_seconds=seconds)
        finally:
            self.revoking = False
            self.between = True

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Takes an assignment over; what goes wrong is kept for the owner."""
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
        """What stays is sought to where the owner left it, what is new waits for `seek`."""
        had, self.assigned = self.assigned, frozenset(assigned)
        self.paused = set(self.assigned)
        self.ends.clear()
        for partition in self.assigned:
            # A position for all of them: otherwise the library looks one up by itself.
            consumer.seek(partition, self.positions.get(partition, 0))
        generation = 1 if self._assignment is None else self._assignment.generation + 1
        tasks = {log: self._tasks_of(log) for log in LOGS}
        self._assignment = Assignment(generation, frozenset(tasks["rankings"] & tasks["judgments"]))
        self.between = False
        gone = [each for each in self._topics.values() if not consumer.partitions_for_topic(each)]
        if gone and (had or self.assigned):
            self.problem = SourceUnusable(
                f"Topic {' and topic '.join(gone)} is not there any more. Make what is missing "
                "with `evaluator topics create`, and start again."
            )
        elif tasks["rankings"] != tasks["judgments"]:
            self.problem = SourceUnusable(
                f"The group gave partitions {sorted(tasks['rankings'])} of "
                f"{self._topics['rankings']} and {sorted(tasks['judgments'])} of "
                f"{self._topics['judgments']} to this worker. Equal partition counts, and no other "
                f"kind of consumer in group {self._group_id}, are needed."
            )
        counts = {each: consumer.partitions_for_topic(each) for each in self._topics.values()}
        self.check_counts({topic: len(found) for topic, found in counts.items() if found})

    def _tasks_of(self, log: Log) -> set[int]:
        topic = self._topics[log]
        return {partition for name, partition in self.assigned if name == topic}

    def check_counts(self, counts: Mapping[str, int]) -> None:
        """Raises SourceUnusable where a topic has not as many partitions as at the start."""
        for topic, count in counts.items():
            if count != self.n_partitions and self.n_partitions:
                raise SourceUnusable(
                    f"Topic {topic} had {self.n_partitions} partitions at the start and has "
                    f"{count} now, so new records of a key may go to another partition than "
                    "earlier ones. Give both inputs and the outputs the same partition count "
                    "(`evaluator check` prints the commands), then restart. Judgments of open "
                    "queries whose key has moved become orphans."
                )
