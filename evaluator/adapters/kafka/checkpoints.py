"""Reading the compacted topic `checkpoints`: what the workers have said to each other."""

import contextlib
from collections.abc import Collection, Mapping

from evaluator.adapters.kafka.connection import Connection, input_topics, requests
from evaluator.adapters.kafka.topic_reader import TopicReader
from evaluator.core.types.records import Log
from evaluator.ports import SourceUnusable
from evaluator.wire.state.checkpoint import CheckpointSets


def checkpoints_topic(topic_prefix: str) -> str:
    """The name of the topic."""
    return f"{topic_prefix}checkpoints"


async def read_checkpoints(
    connection: Connection, topic: str, tasks: Collection[int] | None
) -> dict[int, Mapping[bytes, bytes]]:
    """The latest checkpoint of each key in the partitions of *tasks*; of all partitions for None.

    Raises SourceUnavailable, SourceUnusable.
    """
    n_partitions = await partitions_of(connection, topic)
    wanted = range(n_partitions) if tasks is None else sorted(tasks)
    found = {task: CheckpointSets() for task in wanted}
    tail = TopicReader(connection, topic)
    try:
        await tail.begin(wanted)
        async for row in tail.rest(wanted):
            found[row.partition].take(row.key, row.value)
    finally:
        await tail.close()
    return {task: sets.latest() for task, sets in found.items()}


async def partitions_of(connection: Connection, topic: str) -> int:
    """Partition count of a topic. Raises SourceUnavailable; SourceUnusable if it is missing."""
    async with requests(connection) as asking:
        n_partitions = (await asking.partition_counts([topic]))[topic]
    if n_partitions is None:
        raise SourceUnusable(
            f"Topic {topic} not found. Create what is missing with `evaluator topics create`."
        )
    return n_partitions


async def read_topic_ids(connection: Connection, topic_prefix: str) -> dict[Log, str]:
    """The ids of the inputs that this user may see. Raises SourceUnavailable, SourceUnusable."""
    found: dict[Log, str] = {}
    async with requests(connection) as asking:
        for log, name in input_topics(topic_prefix).items():
            with contextlib.suppress(SourceUnusable):  # no right to see it
                topic = (await asking.topics([name])).get(name)
                if topic is not None and topic.topic_id is not None:
                    found[log] = topic.topic_id
    return found
