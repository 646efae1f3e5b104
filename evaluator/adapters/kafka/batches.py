"""Batches of output records on their way to a topic."""

import asyncio
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, repeat
from typing import Final

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors
from aiokafka.producer.message_accumulator import BatchBuilder

from evaluator.wire.records import OutputRecord

BATCH_BYTES: Final = 512 * 1024  # before compression; half of what a broker accepts by default
RECORD_OVERHEAD_BYTES: Final = 64


@dataclass(slots=True, eq=False)
class Emission:
    """One call of `emit`: done when none of its batches is left."""

    acknowledged: "asyncio.Future[None]"
    left: int


@dataclass(slots=True, eq=False)
class Batch:
    """Records that are sent together. `n_bytes` is an estimate before compression."""

    records: Sequence[OutputRecord]
    n_bytes: int
    emission: Emission


def batches_of(rows: Sequence[OutputRecord], emission: Emission) -> list[Batch]:
    """Cuts *rows* into batches below the size that is sent at once."""
    ends = list(accumulate(_sizes(rows)))  # where each record ends, in bytes
    batches: list[Batch] = []
    first, start = 0, 0
    while first < len(rows):
        last = max(first + 1, bisect_right(ends, start + BATCH_BYTES))
        batches.append(Batch(rows[first:last], ends[last - 1] - start, emission))
        first, start = last, ends[last - 1]
    return batches


def _sizes(records: Iterable[OutputRecord]) -> list[int]:
    """Bytes of each record, estimated."""
    return [
        RECORD_OVERHEAD_BYTES
        + len(key or b"")
        + len(value)
        + (_bytes_of(headers) if headers else 0)
        for key, value, headers in records
    ]


def _bytes_of(headers: Iterable[tuple[str, bytes]]) -> int:
    return sum(len(name) + len(value) + 8 for name, value in headers)


def built(client: AIOKafkaProducer, records: Sequence[OutputRecord]) -> BatchBuilder:
    """A batch of the library. Raises RecordListTooLargeError if not all of them go into one.

    Goes past `BatchBuilder.append`, which only adds half a microsecond a record to the method
    of the compiled builder inside. The inside of the client is no promise: its version is bounded
    in pyproject.toml, and tests/adapters/test_kafka_client.py fails where another one differs.
    """
    batch = client.create_batch()
    keys, values, headers = zip(*records, strict=True)
    lists = map(list, headers) if any(headers) else repeat([])
    now_ms = repeat(int(time.time() * 1000))
    if not all(map(batch._builder.append, count(), now_ms, keys, values, lists)):
        raise kafka_errors.RecordListTooLargeError
    batch._relative_offset = len(records)
    batch.close()
    return batch
