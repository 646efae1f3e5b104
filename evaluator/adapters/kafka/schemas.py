"""The topic of the schemas that records name: the recorded answers of registries."""

import uuid
from collections.abc import Mapping

import msgspec
import structlog

from evaluator.adapters.kafka.administration import schema_topics
from evaluator.adapters.kafka.clients import close, existing_counts, start_producer
from evaluator.adapters.kafka.connection import Connection
from evaluator.adapters.kafka.errors import translated
from evaluator.adapters.kafka.topic_reader import TopicReader
from evaluator.mapping.schemas import Answer
from evaluator.ports import SourceUnusable
from evaluator.wire.reading import Reader
from evaluator.wire.records import SCHEMAS

log = structlog.get_logger(__name__)


class _Key(msgspec.Struct):
    """The key of an answer; `record` makes it unique, so that compaction keeps the first one."""

    registry: str
    id: str
    record: str


class AnswerUnreadable(Exception):
    """A record that no evaluator of this version has written; the message has the reason."""


read_key: Reader[_Key] = Reader(_Key, AnswerUnreadable, "key")
read_answer: Reader[Answer] = Reader(Answer, AnswerUnreadable)


class KafkaAnswers:
    """Implements `evaluator.mapping.schemas.AnswerLog`.

    Args:
        connection: the brokers.
        topic_prefix: precedes the name of the topic.
        registry: its address; answers of others are ignored.
        may_be_missing: a missing topic counts as empty.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        topic_prefix: str = "",
        registry: str,
        may_be_missing: bool = False,
    ) -> None:
        self._connection = connection
        self._topic = schema_topics(topic_prefix, connection)[SCHEMAS]
        self._registry = registry
        self._may_be_missing = may_be_missing
        self._next_offset: int | None = None

    async def read(self) -> list[tuple[str, Answer]]:
        """The answers since the last call, in order; records of other programs are ignored.

        Raises SourceUnavailable, SourceUnusable.
        """
        if self._next_offset is None:
            required, optional = [self._topic], list[str]()
            if self._may_be_missing:
                required, optional = optional, required
            counts = await existing_counts(self._connection, required, optional=optional)
            if not counts[self._topic]:
                return []
        found: list[tuple[str, Answer]] = []
        n_unreadable, first = 0, (0, "")
        async with TopicReader(self._connection, self._topic) as reader:
            if self._next_offset is None:
                await reader.begin((0,))
            else:
                reader.seek(0, self._next_offset)
            next_offset = self._next_offset
            async for row in reader.rest((0,)):
                next_offset = row.offset + 1
                try:
                    key = read_key(row.key or b"")
                except AnswerUnreadable as error:
                    first = first if n_unreadable else (row.offset, str(error))
                    n_unreadable += 1
                    continue
                if key.registry == self._registry and row.value:
                    found.append((key.id, self._answer(row.offset, row.value)))
            self._next_offset = next_offset
        if n_unreadable:
            log.warning("schemas_unreadable", records=n_unreadable, offset=first[0], error=first[1])
        return found

    def _answer(self, offset: int, value: bytes) -> Answer:
        try:
            return read_answer(value)
        except AnswerUnreadable as error:  # the first answer counts, so none may be passed over
            raise SourceUnusable(
                f"The answer at offset {offset} of {self._topic} cannot be read ({error}). An "
                "evaluator of another version may have written it: use that version, or delete "
                "the topic with its records; schemas are then requested again."
            ) from None

    async def append(self, answers: Mapping[str, Answer]) -> None:
        """Writes answers. Raises SourceUnavailable, SourceUnusable."""
        producer = await start_producer(self._connection)
        try:
            with translated(f"writing to {self._topic}"):
                for schema_id, answer in answers.items():
                    key = msgspec.json.encode(_Key(self._registry, schema_id, uuid.uuid4().hex))
                    value = msgspec.json.encode(answer)
                    await producer.send_and_wait(self._topic, value, key, partition=0)
        finally:
            await close(producer)
