"""Questions to a client of the library that end in time, whatever the brokers do."""

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition

from evaluator.adapters.kafka.connection import ANSWER_TIMEOUT_MS, Connection, ended, probe
from evaluator.adapters.kafka.damaged import skipped
from evaluator.adapters.kafka.liveness import SILENCE_MS
from evaluator.adapters.kafka.refusals import translated
from evaluator.core.types.records import Log
from evaluator.wire.records import MAX_MESSAGE_BYTES, Records, kept, without

T = TypeVar("T")

KEEPING: Mapping[str, Any] = {"key_deserializer": kept, "value_deserializer": kept}
"""Makes a consumer of the inputs drop what is beyond the limit of a message, record by record."""


def records_of(log: Log, partition: int, rows: Sequence[Any], next_offset: int) -> Records:
    """What a consumer with KEEPING has read, but for offsets that are skipped."""
    ranges = skipped(TopicPartition(rows[0].topic, partition)) if rows else ()
    records = Records(
        log=log,
        partition=partition,
        offsets=[row.offset for row in rows],
        keys=[row.key for row in rows],
        values=[row.value for row in rows],
        timestamps_ms=[row.timestamp for row in rows],
        next_offset=next_offset,
        oversize={
            row.offset: row.serialized_value_size
            for row in rows
            if row.serialized_value_size > MAX_MESSAGE_BYTES
        },
    )
    return without(records, ranges)


async def answered(connection: Connection, doing: str, question: Awaitable[T]) -> T:
    """The answer to *question*; the library would repeat it for as long as it takes.

    Raises SourceUnavailable, SourceUnusable.
    """
    asking = asyncio.ensure_future(question)
    try:
        await asyncio.wait({asking}, timeout=SILENCE_MS / 1000)
        if not asking.done():
            await probe(connection)
        with translated(doing):
            return await asyncio.wait_for(asking, ANSWER_TIMEOUT_MS / 1000)
    finally:
        await ended(asking)


async def fetched(
    consumer: AIOKafkaConsumer,
    wanted: Sequence[TopicPartition],
    *,
    max_records: int | None,
    deadline: float,
    changed: asyncio.Event,
) -> dict[TopicPartition, list[Any]]:
    """What there is to read, waiting for it until *deadline* or *changed*.

    Raises the library's errors. Who is cancelled here has to seek to where it was.
    """
    rows: dict[TopicPartition, list[Any]] = await consumer.getmany(
        *wanted, max_records=max_records, timeout_ms=0
    )
    if rows or time.monotonic() >= deadline:
        return rows
    timeout_ms = max(1, int((deadline - time.monotonic()) * 1000))
    getting = asyncio.ensure_future(
        consumer.getmany(*wanted, max_records=max_records, timeout_ms=timeout_ms)
    )
    changing = asyncio.ensure_future(changed.wait())
    try:
        await asyncio.wait({getting, changing}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        changing.cancel()
        await ended(getting)
    return {} if getting.cancelled() else getting.result()
