"""Reading the compacted topic `checkpoints`: what the workers have said to each other."""

from collections.abc import Collection, Mapping
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from evaluator.adapters.kafka.clients import closed, started
from evaluator.adapters.kafka.connection import (
    ANSWER_TIMEOUT_MS,
    READING,
    Connection,
    requests,
)
from evaluator.adapters.kafka.refusals import translated
from evaluator.ports import SourceAway, SourceUnusable

_PATIENCE_MS: Final = 1000


def checkpoints_topic(topic_prefix: str) -> str:
    """The name of the topic."""
    return f"{topic_prefix}checkpoints"


async def read_checkpoints(
    connection: Connection, topic: str, tasks: Collection[int] | None
) -> dict[int, Mapping[bytes, bytes]]:
    """The latest record of each key in the partitions of *tasks*; of all partitions for None.

    Raises SourceAway, SourceUnusable.
    """
    async with requests(connection) as asking:
        n_partitions = (await asking.partition_counts([topic]))[topic]
    if n_partitions is None:
        raise SourceUnusable(
            f"Topic {topic} not found. Create what is missing with `evaluator topics create`."
        )
    wanted = range(n_partitions) if tasks is None else sorted(tasks)
    found: dict[int, dict[bytes, bytes]] = {task: {} for task in wanted}
    partitions = [TopicPartition(topic, task) for task in wanted]
    if not partitions:
        return dict(found)
    consumer = AIOKafkaConsumer(**connection.arguments(), **READING)
    await started(consumer)
    try:
        with translated(f"reading {topic}"):
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            ends = await consumer.end_offsets(partitions)
            await _read(consumer, partitions, ends, found)
    finally:
        await closed(consumer)
    return dict(found)


async def _read(
    consumer: AIOKafkaConsumer,
    partitions: Collection[TopicPartition],
    ends: Mapping[TopicPartition, int],
    found: Mapping[int, dict[bytes, bytes]],
) -> None:
    silent_ms = 0
    while any([await consumer.position(each) < ends[each] for each in partitions]):
        fetched = await consumer.getmany(timeout_ms=_PATIENCE_MS)
        silent_ms = 0 if fetched else silent_ms + _PATIENCE_MS
        if silent_ms > ANSWER_TIMEOUT_MS:
            raise SourceAway("The broker does not answer with the checkpoints.")
        for partition, rows in fetched.items():
            for row in rows:
                if row.key is None:
                    continue
                if row.value is None:
                    found[partition.partition].pop(row.key, None)
                else:
                    found[partition.partition][row.key] = row.value
