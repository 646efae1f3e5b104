"""The topics of the weights for who is no leader: reading all that was said, and a word to it."""

from aiokafka import AIOKafkaProducer

from evaluator.adapters.kafka.admin import leader_topics
from evaluator.adapters.kafka.checkpoints import partitions_of
from evaluator.adapters.kafka.clients import closed, started
from evaluator.adapters.kafka.connection import ANSWER_TIMEOUT_MS, Connection
from evaluator.adapters.kafka.refusals import translated
from evaluator.adapters.kafka.topic_reader import TopicReader
from evaluator.wire.records import LeaderOutput, OutputRecord


async def read_weights(
    connection: Connection, topic_prefix: str, output: LeaderOutput
) -> list[OutputRecord]:
    """Everything that one of the topics has, in order; a deleted key has the value b"".

    Raises SourceUnavailable, SourceUnusable.
    """
    topic = leader_topics(topic_prefix)[output]
    await partitions_of(connection, topic)
    tail = TopicReader(connection, topic)
    try:
        await tail.begin((0,))
        return [OutputRecord(row.key, row.value or b"") async for row in tail.rest((0,))]
    finally:
        await tail.close()


async def write_to_weights(
    connection: Connection, topic_prefix: str, key: bytes, value: bytes | None
) -> None:
    """One record for the leader as the leader, or for the next one; None deletes the key.

    Raises SourceUnavailable, SourceUnusable.
    """
    producer = AIOKafkaProducer(
        **connection.arguments(), acks="all", request_timeout_ms=ANSWER_TIMEOUT_MS
    )
    await started(producer, timeout_seconds=ANSWER_TIMEOUT_MS / 1000)
    try:
        topic = leader_topics(topic_prefix)["weights"]
        with translated(f"writing to {topic}"):
            await producer.send_and_wait(topic, value, key, partition=0)
    finally:
        await closed(producer)
