"""Single records by their offsets, to see whether a log is still the one that was read."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from aiokafka import TopicPartition

from evaluator.adapters.kafka.answers import records_of
from evaluator.adapters.kafka.connection import ANSWER_TIMEOUT_MS, Connection
from evaluator.adapters.kafka.damaged import BatchDamaged, skipped
from evaluator.adapters.kafka.topic_reader import Stretch, TopicReader
from evaluator.core.types.records import Log
from evaluator.core.types.skips import covered
from evaluator.ports import Partition, SourceUnavailable
from evaluator.wire.records import Records

_PATIENCE_MS = 500

Place = tuple[Partition, int]


async def read_singly(
    connection: Connection, topics: Mapping[Log, str], places: Collection[Place]
) -> dict[Place, Records | None]:
    """The records that exist at *places*; None of what is skipped or damaged.

    Raises SourceUnavailable, SourceUnusable.
    """
    found: dict[Place, Records | None] = {}
    for log, topic in topics.items():
        offsets: dict[int, list[int]] = {}
        for (name, number), offset in sorted(places):
            if name != log:
                continue
            if covered(skipped(TopicPartition(topic, number)), offset, offset):
                found[(log, number), offset] = None
            else:
                offsets.setdefault(number, []).append(offset)
        if offsets:
            tail = TopicReader(connection, topic)
            try:
                for (number, offset), row in (await _rows(tail, topic, offsets)).items():
                    found[(log, number), offset] = row and records_of(
                        log, number, [row], offset + 1
                    )
            finally:
                await tail.close()
    return found


async def _rows(
    tail: TopicReader, topic: str, offsets: Mapping[int, list[int]]
) -> dict[tuple[int, int], Any]:
    """The rows of one topic, None of damaged ones; one after the other of each partition."""
    never, silent_ms = asyncio.Event(), 0
    found: dict[tuple[int, int], Any] = {}
    left = {number: list(each) for number, each in offsets.items()}
    for number, each in left.items():
        tail.seek(number, each[0])
    while left:
        try:
            stretches = await tail.more(left, timeout_ms=_PATIENCE_MS, changed=never, max_records=1)
        except BatchDamaged as damaged:
            found[damaged.partition, left[damaged.partition][0]] = None
            stretches = {damaged.partition: Stretch([], 0)}
        silent_ms = 0 if stretches else silent_ms + _PATIENCE_MS
        if silent_ms > ANSWER_TIMEOUT_MS:
            raise SourceUnavailable(f"The broker does not answer about {topic}.")
        for number, stretch in stretches.items():
            offset = left[number].pop(0)
            if stretch.rows and stretch.rows[0].offset == offset:
                found[number, offset] = stretch.rows[0]
            if left[number]:
                tail.seek(number, left[number][0])
            else:
                del left[number]
    return found
