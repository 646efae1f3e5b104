"""Producers of single records, of heartbeats, and of the transactions of the leader."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors

from evaluator.adapters.kafka.administration import (
    LARGEST_BATCH,
    described,
    leader_group,
    leader_topics,
    transactional_id,
)
from evaluator.adapters.kafka.aiokafka_internals import (
    fail_batches,
    has_fatal_error,
    transaction_error,
)
from evaluator.adapters.kafka.assignment import subscribed
from evaluator.adapters.kafka.clients import (
    Requests,
    close,
    complete,
    discard_result,
    requests,
    start_producer,
)
from evaluator.adapters.kafka.connection import RETRY_BACKOFF_MS, Connection, probe
from evaluator.adapters.kafka.errors import TOO_LARGE, describe, translated
from evaluator.ports import Fenced, SourceUnavailable, SourceUnusable

TRANSACTION_TIMEOUT_MS: Final = 30_000
"""After this time the broker aborts an open transaction."""
REQUEST_BYTES: Final = 64 * 1024 * 1024
"""More than any topic accepts in a record: the limit of the topic applies."""
CLOSE_TIMEOUT_SECONDS: Final = 1.0
MAX_GROUPS: Final = 1_000
"""Most groups of leaders that are described."""
LOG_APPEND_TIME: Final = 1
"""The protocol's number for timestamps that the broker has set."""
_FENCED: Final = (kafka_errors.ProducerFenced, kafka_errors.InvalidProducerEpoch)

TopicRecord = tuple[str, bytes | None, bytes | None, Sequence[tuple[str, bytes]]]
"""Topic, key, value and headers of a record for partition 0."""


async def write_to_weights(
    connection: Connection, topic_prefix: str, key: bytes, value: bytes | None
) -> None:
    """Writes one record for the leader; None deletes the key.

    Raises SourceUnavailable, SourceUnusable.
    """
    producer = await start_producer(connection)
    try:
        topic = leader_topics(topic_prefix)["weights"]
        with translated(f"writing to {topic}"):
            await producer.send_and_wait(topic, value, key, partition=0)
    finally:
        await close(producer)


@asynccontextmanager
async def leader_fenced(
    connection: Connection, topic_prefix: str, group_id: str, session_timeout_ms: int
) -> AsyncIterator[Callable[[bytes, bytes | None], Awaitable[None]]]:
    """Fences the leader, and gives a function that writes one record of `weights` in its place.

    No leader publishes anything in between, else the function raises Fenced. The leader continues
    from the record. Raises SourceUnavailable, SourceUnusable, also for a leader of another group.
    """
    publisher = Publisher(connection, transactional_id(topic_prefix, group_id))
    topic = leader_topics(topic_prefix)["weights"]
    await _require_no_other(connection, group_id, topic, session_timeout_ms)

    async def write(key: bytes, value: bytes | None) -> None:
        await publisher.publish([(topic, key, value, ())])

    await publisher.begin()
    try:
        yield write
    finally:
        await publisher.abandon()


async def _require_no_other(
    connection: Connection, group_id: str, topic: str, session_timeout_ms: int
) -> None:
    """Raises SourceUnusable if the leader of another group is running, as far as this user may see.

    It has another transactional id, so it would not be fenced. While a group assigns, subscriptions
    are not visible: such groups are described again for a session.
    """
    own, suffix = leader_group(group_id), leader_group("")
    deadline = time.monotonic() + session_timeout_ms / 1000
    async with requests(connection) as asking:
        groups = sorted(of for of in await asking.groups() if of != own and of.endswith(suffix))
        if len(groups) > MAX_GROUPS:
            raise SourceUnusable(
                f"There are {len(groups)} groups with {suffix} at their end, more than the "
                f"{MAX_GROUPS} that are searched for another leader of {topic}, so nothing was "
                "changed. Use a login that may describe only the groups of this evaluator."
            )
        while groups := [of for of in groups if await _is_assigning(asking, of, group_id, topic)]:
            if time.monotonic() > deadline:
                raise SourceUnusable(
                    f"Group {groups[0]} has been assigning for {session_timeout_ms} ms, so it is "
                    f"unknown whether its leader publishes to {topic}; nothing was changed. Repeat "
                    "the command when its members have started, or stop them."
                )
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)


async def _is_assigning(asking: Requests, group: str, group_id: str, topic: str) -> bool:
    """Whether a group assigns. Raises SourceUnusable if its leader publishes to *topic*."""
    subscriptions = [sent for _, sent in await asking.members(group)]
    if any(topic in subscribed(sent) for sent in subscriptions):
        raise SourceUnusable(
            f"The leader of group {group.removesuffix(leader_group(''))} publishes to {topic}, and "
            f"group_id is {group_id}, so nothing was changed. Set group_id to that of the workers."
        )
    return bool(subscriptions) and not any(subscriptions)


class Heartbeats:
    """Appends records without value to the inputs, so that event time advances in all partitions.

    The producer is created when the first heartbeat is due.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._producer: AIOKafkaProducer | None = None

    async def append(
        self, partition: TopicPartition, timestamp_ms: int, *, key: bytes | None = None
    ) -> int | None:
        """Appends one record; returns its timestamp if the broker has set it.

        Raises SourceUnavailable, SourceUnusable.
        """
        doing = f"writing to {partition.topic}"
        try:
            append = self._append(partition, timestamp_ms, key, doing)
            return await complete(self._connection, doing, append)
        except (SourceUnavailable, SourceUnusable):
            await self.close()  # sequence numbers are invalid after a batch was refused
            raise

    async def _append(
        self, partition: TopicPartition, timestamp_ms: int, key: bytes | None, doing: str
    ) -> int | None:
        if self._producer is None:
            await probe(self._connection)
            self._producer = await start_producer(
                self._connection, doing=doing, enable_idempotence=True
            )
        # `send` of aiokafka refuses a record without key and value; a batch may have one.
        batch = self._producer.create_batch()
        batch.append(key=key, value=None, timestamp=timestamp_ms)
        topic, number = partition
        sending = await self._producer.send_batch(batch, topic, partition=number)
        sending.add_done_callback(discard_result)
        sent = await sending
        return int(sent.timestamp) if sent.timestamp_type == LOG_APPEND_TIME else None

    async def close(self) -> None:
        """Closes; the next `append` creates a producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await close(producer)


class Publisher:
    """A transactional producer, created by `begin` and unusable after any error.

    `begin` fences all producers that began with the same id before: they raise Fenced.
    """

    def __init__(self, connection: Connection, transactional_id: str) -> None:
        self._connection = connection
        self._transactional_id = transactional_id
        self._producer: AIOKafkaProducer | None = None

    async def begin(self) -> None:
        """Fences all earlier producers; their open transactions are aborted on return.

        Raises SourceUnavailable, SourceUnusable.
        """
        await self.abandon()
        await probe(self._connection)
        try:
            self._producer = await start_producer(
                self._connection,
                close_timeout_seconds=CLOSE_TIMEOUT_SECONDS,
                doing=f"publishing as transactional id {self._transactional_id}",
                transactional_id=self._transactional_id,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                compression_type=None,  # brokers compare the size as written with the limit
                max_request_size=REQUEST_BYTES,
            )
        except SourceUnavailable as failure:
            if isinstance(failure.__cause__, TimeoutError):
                raise SourceUnavailable(
                    "The brokers did not begin a transaction in time. If this repeats: on fewer "
                    "than three brokers transaction.state.log.replication.factor and "
                    "transaction.state.log.min.isr must not be more than there are."
                ) from failure
            raise

    async def publish(self, records: Sequence[TopicRecord]) -> None:
        """Makes all of these visible, in this order within a topic, or none.

        Raises Fenced, SourceUnusable, and SourceUnavailable if the outcome is unknown.
        """
        producer = self._producer
        if producer is None:
            raise Fenced("This process is not the leader.")
        doing = f"writing to {' and '.join(sorted({topic for topic, *_ in records}))}"
        try:
            with _transaction_errors(producer):
                await complete(self._connection, doing, _send(producer, records))
            with _transaction_errors(producer, ending=True):
                await complete(self._connection, doing, producer.commit_transaction())
        except BaseException as failure:
            await self.abandon()
            if isinstance(failure.__cause__, TOO_LARGE):
                raise await self._too_large(records) from failure.__cause__
            raise

    async def abandon(self) -> None:
        """Closes the producer; the brokers abort its open transaction."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await close(producer, timeout_seconds=CLOSE_TIMEOUT_SECONDS)
            transaction_error(producer)  # otherwise the event loop logs it
            fail_batches(producer, discard_result)

    async def _too_large(self, records: Sequence[TopicRecord]) -> SourceUnavailable:
        """Error for the largest record that exceeds the limit of its topic."""
        limits = await self._limits({topic for topic, *_ in records})
        topic, key, value, _ = max(records, key=lambda row: len(row[2] or b"") - limits[row[0]])
        size = len(key or b"") + len(value or b"")
        limit = f", which takes {limits[topic]}" if limits[topic] else ""
        return SourceUnavailable(
            f"A record of {size} bytes is too large for topic {topic}{limit}. Set its "
            f"max.message.bytes to at least {2 * size}."
        )

    async def _limits(self, topics: Collection[str]) -> dict[str, int]:
        """The largest record that each topic accepts; 0 if this user may not see it."""
        try:
            found = await described(self._connection, list(topics))
        except (SourceUnavailable, SourceUnusable):
            found = {}
        return {name: int(found.get(name, {}).get(LARGEST_BATCH, 0)) for name in topics}


async def _send(producer: AIOKafkaProducer, records: Sequence[TopicRecord]) -> None:
    if has_fatal_error(producer):
        raise kafka_errors.ProducerClosed
    await producer.begin_transaction()
    sent: list[asyncio.Future[object]] = []
    try:
        for topic, key, value, headers in records:
            sent.append(await producer.send(topic, value, key, partition=0, headers=list(headers)))
        for each in sent:
            await each
    finally:
        for each in sent:
            each.add_done_callback(discard_result)


@contextmanager
def _transaction_errors(producer: AIOKafkaProducer, *, ending: bool = False) -> Iterator[None]:
    """Raises the first error of a transaction as Fenced, SourceUnavailable or SourceUnusable.

    At the *ending* aiokafka may have sent its request twice: being fenced then does not mean that
    nothing has become visible, because the first answer may have been lost.
    """
    try:
        yield
    except (SourceUnavailable, kafka_errors.IllegalOperation) as error:
        cause = transaction_error(producer) or error.__cause__ or error
        if isinstance(cause, _FENCED):
            if ending:
                raise SourceUnavailable("Fenced while it was publishing.") from cause
            raise Fenced("Another leader has taken leadership.") from cause
        if isinstance(error, SourceUnavailable) and cause in {error, error.__cause__}:
            raise
        if cause is error:
            raise SourceUnavailable(f"publishing failed: {describe(error)}.") from error
        with translated("publishing"):
            raise cause from None
