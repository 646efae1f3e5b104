"""The topics of the weights for who is no steward: reading all that was said, and a word to it."""

import asyncio
from typing import Final

from aiokafka import AIOKafkaProducer

from evaluator.adapters.kafka.admin import steward_topics
from evaluator.adapters.kafka.clients import closed, started
from evaluator.adapters.kafka.connection import ANSWER_TIMEOUT_MS, Connection, requests
from evaluator.adapters.kafka.refusals import translated
from evaluator.adapters.kafka.tails import Tail
from evaluator.ports import SourceAway, SourceUnusable
from evaluator.wire.records import OutputRecord, StewardOutput

_PATIENCE_MS: Final = 1000


async def read_weights(
    connection: Connection, topic_prefix: str, output: StewardOutput
) -> list[OutputRecord]:
    """Everything that one of the topics has, in order; a deleted key has the value b"".

    Raises SourceAway, SourceUnusable.
    """
    topic = steward_topics(topic_prefix)[output]
    async with requests(connection) as asking:
        if (await asking.partition_counts([topic]))[topic] is None:
            raise SourceUnusable(
                f"Topic {topic} not found. Create what is missing with `evaluator topics create`."
            )
    tail, never, found, silent_ms = Tail(connection, topic), asyncio.Event(), [], 0
    try:
        tail.seek(0, await tail.beginning(0))
        end = await tail.end(0)
        while tail.positions[0] < end:
            more = await tail.more((0,), timeout_ms=_PATIENCE_MS, changed=never)
            silent_ms = 0 if more else silent_ms + _PATIENCE_MS
            if silent_ms > ANSWER_TIMEOUT_MS:
                raise SourceAway(f"The broker does not answer about {topic}.")
            found += [
                OutputRecord(row.key, row.value or b"")
                for stretch in more.values()
                for row in stretch.rows
            ]
    finally:
        await tail.close()
    return found


async def write_to_weights(
    connection: Connection, topic_prefix: str, key: bytes, value: bytes | None
) -> None:
    """One record for the steward in office, or for the next one; None deletes the key.

    Raises SourceAway, SourceUnusable.
    """
    producer = AIOKafkaProducer(
        **connection.arguments(), acks="all", request_timeout_ms=ANSWER_TIMEOUT_MS
    )
    await started(producer, timeout_seconds=ANSWER_TIMEOUT_MS / 1000)
    try:
        topic = steward_topics(topic_prefix)["weights"]
        with translated(f"writing to {topic}"):
            await producer.send_and_wait(topic, value, key, partition=0)
    finally:
        await closed(producer)
