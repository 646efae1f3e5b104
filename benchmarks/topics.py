"""The topics of a benchmark: created, filled, and read back."""

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.partitioner import murmur2

from benchmarks.naive import UNIT, Path
from benchmarks.world import Message, World

N_PARTITIONS = 2


class Traffic(NamedTuple):
    """Settings with which producers write the inputs."""

    batch_bytes: int
    compression: str | None


TRAFFIC = {"plain": Traffic(16 * 1024, None), "lz4": Traffic(512 * 1024, "lz4")}
"""The defaults of producers, and tuned settings."""
INPUTS = ("rankings", "judgments")
OUTPUTS = {
    "evaluations": "compact,delete",
    "settled": "delete",
    "windows": "compact,delete",
    "dead-letters": "delete",
    "checkpoints": "compact",
    "naive": "delete",
    "weights": "compact",
    "weights-log": "delete",
    "alarms": "compact",
    "alarm-commands": "delete",
    "schemas": "compact",
}
LONE = ("weights", "weights-log", "alarms", "alarm-commands", "schemas")


async def make_topics(bootstrap: str, prefix: str) -> None:
    """Creates inputs and outputs under *prefix* without retention, because timestamps are long
    past."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics(
            [
                NewTopic(
                    f"{prefix}{name}",
                    num_partitions=1 if name in LONE else N_PARTITIONS,
                    replication_factor=1,
                    topic_configs={"retention.ms": "-1", "cleanup.policy": cleanup},
                )
                for name, cleanup in ({**dict.fromkeys(INPUTS, "delete"), **OUTPUTS}).items()
            ]
        )
    finally:
        await admin.close()


def partition_of(key: bytes) -> int:
    """The partition of a key by the usual partitioner."""
    return int((murmur2(key) & 0x7FFFFFFF) % N_PARTITIONS)


async def load(
    bootstrap: str, prefix: str, world: World, traffic: Traffic = TRAFFIC["plain"]
) -> None:
    """Both logs in full batches, with their own timestamps."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # new topics have no leader at first
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        max_batch_size=traffic.batch_bytes,
        compression_type=traffic.compression,
        enable_idempotence=True,  # so that records that are sent again keep their place
    )
    await producer.start()
    try:
        for name, messages in zip(INPUTS, world, strict=True):
            await _load(producer, f"{prefix}{name}", messages)
    finally:
        await producer.stop()


async def _load(producer: AIOKafkaProducer, topic: str, messages: Iterable[Message]) -> None:
    batches = {partition: producer.create_batch() for partition in range(N_PARTITIONS)}
    sent: list[asyncio.Future[Any]] = []
    for timestamp_ms, key, value in messages:
        partition = partition_of(key)
        if batches[partition].append(timestamp=timestamp_ms, key=key, value=value) is None:
            batch, batches[partition] = batches[partition], producer.create_batch()
            sent.append(await producer.send_batch(batch, topic, partition=partition))
            batches[partition].append(timestamp=timestamp_ms, key=key, value=value)
        if len(sent) >= 1_000:
            await asyncio.gather(*sent)
            sent.clear()
    for partition, batch in batches.items():
        sent.append(await producer.send_batch(batch, topic, partition=partition))
    await asyncio.gather(*sent)


async def count_records(bootstrap: str, topic: str) -> int:
    """Number of offsets in a topic."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, p) for p in range(N_PARTITIONS)]
        return sum((await consumer.end_offsets(partitions)).values())
    finally:
        await consumer.stop()


async def empty(bootstrap: str, topic: str) -> None:
    """Deletes the records of a topic."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        partitions = [TopicPartition(topic, p) for p in range(N_PARTITIONS)]
        await admin.delete_records(dict.fromkeys(partitions, RecordsToDelete(-1)))
    finally:
        await admin.close()


async def read_totals(bootstrap: str, prefix: str) -> dict[Path, tuple[int, int]]:
    """Queries and sum of units per series, from the last revision of every evaluation written."""
    last: dict[bytes, Mapping[str, Any]] = {}
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    await consumer.start()
    try:
        partitions = [TopicPartition(f"{prefix}evaluations", p) for p in range(N_PARTITIONS)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(p) < end for p, end in ends.items()]):
            for rows in (await consumer.getmany(timeout_ms=500)).values():
                last.update((row.key, json.loads(row.value)) for row in rows)
    finally:
        await consumer.stop()
    totals: dict[Path, tuple[int, int]] = {}
    for query in last.values():
        for ranker, values in query["values"].items():
            for measure, value in values.items():
                path = (query["model"], query["variant"], ranker, measure)
                queries, units = totals.get(path, (0, 0))
                totals[path] = (queries + 1, units + int(value * UNIT))
    return totals
