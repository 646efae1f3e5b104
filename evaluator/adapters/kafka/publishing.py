"""Records that become visible together or not at all, of one publisher at a time."""

import asyncio
import itertools
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors

from evaluator.adapters.kafka.admin import described
from evaluator.adapters.kafka.answers import answered
from evaluator.adapters.kafka.clients import closed, started
from evaluator.adapters.kafka.connection import ANSWER_TIMEOUT_MS, Connection, probe
from evaluator.adapters.kafka.refusals import describe, translated
from evaluator.ports import Fenced, SourceUnavailable, SourceUnusable

TRANSACTION_TIMEOUT_MS: Final = 30_000
"""After so long the broker ends a transaction that its publisher has left open."""
REQUEST_BYTES: Final = 64 * 1024 * 1024
"""More than any topic takes of a record: the topic's own limit is what counts."""
CLOSE_TIMEOUT_SECONDS: Final = 1.0
_FENCED: Final = (kafka_errors.ProducerFenced, kafka_errors.InvalidProducerEpoch)
_TOO_LARGE: Final = (
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
)

Said = tuple[str, bytes | None, bytes | None, Sequence[tuple[str, bytes]]]
"""Topic, key, value and headers of a record; it goes to partition 0."""


class Publisher:
    """A transactional producer, created by `begin` and unusable after any error.

    Whoever begins under the same id fences all that began before: they raise Fenced.
    """

    def __init__(self, connection: Connection, transactional_id: str) -> None:
        self._connection = connection
        self._transactional_id = transactional_id
        self._producer: AIOKafkaProducer | None = None

    async def begin(self) -> None:
        """Fences everybody else; what they left open is undone by then.

        Raises SourceUnavailable, SourceUnusable.
        """
        await self.abandon()
        await probe(self._connection)
        producer = AIOKafkaProducer(
            **self._connection.arguments(),
            transactional_id=self._transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            acks="all",
            compression_type=None,  # what the topic's limit is compared with is what was written
            max_request_size=REQUEST_BYTES,
            request_timeout_ms=ANSWER_TIMEOUT_MS,
        )
        try:
            await started(
                producer,
                timeout_seconds=ANSWER_TIMEOUT_MS / 1000,
                close_timeout_seconds=CLOSE_TIMEOUT_SECONDS,
                doing=f"publishing as transactional id {self._transactional_id}",
            )
        except SourceUnavailable as away:
            if isinstance(away.__cause__, TimeoutError):
                raise SourceUnavailable(
                    "The brokers did not begin a transaction in time. If that goes on: on fewer "
                    "than three brokers transaction.state.log.replication.factor and "
                    "transaction.state.log.min.isr must not be more than there are."
                ) from away
            raise
        self._producer = producer

    async def publish(self, said: Sequence[Said]) -> None:
        """Makes all of this visible, in this order within a topic, or nothing.

        Raises Fenced, SourceUnusable, and SourceUnavailable where it is not known which.
        """
        producer = self._producer
        if producer is None:
            raise Fenced("This leader is not the leader.")
        doing = f"writing to {' and '.join(sorted({topic for topic, *_ in said}))}"
        try:
            with _judged(producer):
                await answered(self._connection, doing, self._send(producer, said))
            with _judged(producer, ending=True):
                await answered(self._connection, doing, producer.commit_transaction())
        except SourceUnavailable as away:
            await self.abandon()
            if isinstance(away.__cause__, _TOO_LARGE):
                raise await self._too_large(said) from away.__cause__
            raise
        except BaseException:
            await self.abandon()
            raise

    async def abandon(self) -> None:
        """Lets go of the producer; what it has not ended is undone by the brokers."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await closed(producer, timeout_seconds=CLOSE_TIMEOUT_SECONDS)
            _end(producer)

    async def _send(self, producer: AIOKafkaProducer, said: Sequence[Said]) -> None:
        if producer._txn_manager.is_fatal_error():
            raise kafka_errors.ProducerClosed
        await producer.begin_transaction()
        sent: list[asyncio.Future[object]] = []
        try:
            for topic, key, value, headers in said:
                sent.append(
                    await producer.send(topic, value, key, partition=0, headers=list(headers))
                )
            for each in sent:
                await each
        finally:
            for each in sent:
                each.add_done_callback(_heard)

    async def _too_large(self, said: Sequence[Said]) -> SourceUnavailable:
        """Names the largest record that its topic does not take; the topic can be given room."""
        limits = await self._limits({topic for topic, *_ in said})
        topic, key, value, _ = max(said, key=lambda each: len(each[2] or b"") - limits[each[0]])
        size = len(key or b"") + len(value or b"")
        limit = f", which takes {limits[topic]}" if limits[topic] else ""
        return SourceUnavailable(
            f"A record of {size} bytes is too large for topic {topic}{limit}. Set its "
            f"max.message.bytes to at least {2 * size}."
        )

    async def _limits(self, topics: Collection[str]) -> dict[str, int]:
        """The largest record that each topic takes, as far as this user may see it; else 0."""
        try:
            found = await described(self._connection, list(topics))
        except (SourceUnavailable, SourceUnusable):
            found = {}
        return {name: int(found.get(name, {}).get("max.message.bytes", 0)) for name in topics}


@contextmanager
def _judged(producer: AIOKafkaProducer, *, ending: bool = False) -> Iterator[None]:
    """Finds out what an error means. At the *ending* the library may have asked twice.

    Once it has been told to end a transaction, being fenced no longer says that nothing has
    become visible: the first answer may have been lost.
    """
    try:
        yield
    except (SourceUnavailable, kafka_errors.IllegalOperation) as error:
        cause = _reason(producer) or error.__cause__ or error
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


def _reason(producer: AIOKafkaProducer) -> BaseException | None:
    """Why the transaction cannot go on: errors after the first one only say that it cannot."""
    ending = producer._txn_manager.wait_for_transaction_end()
    if ending is None or not ending.done() or ending.cancelled():
        return None
    reason: BaseException | None = ending.exception()
    return reason


def _end(producer: AIOKafkaProducer) -> None:
    """Lets nobody wait any more for what a producer left behind."""
    _reason(producer)
    accumulator = producer._message_accumulator
    waiting = itertools.chain(accumulator._pending_batches, *accumulator._batches.values())
    for batch in list(waiting):
        batch.future.add_done_callback(_heard)
        batch._drain_waiter.add_done_callback(_heard)
    accumulator.fail_all(kafka_errors.ProducerClosed())


def _heard(future: "asyncio.Future[object]") -> None:
    if not future.cancelled():
        future.exception()
