"""From fetches of the inputs to decoded columns, without a broker: CPU microseconds per record.

`python -m benchmarks.fetches --pairs 20000 --rounds 9`. Record sets of 1 MB are built by
aiokafka: batches of 16 KiB without compression, and of 512 KiB with lz4.
"""

import argparse
import gc
import statistics
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from benchmarks.pipeline import GC_THRESHOLD, SKEW_MS, Stopwatch
from benchmarks.world import Message, make_world
from evaluator.adapters.kafka.aiokafka_fetches import replace_unpacking
from evaluator.adapters.kafka.topic_reader import Fetched, records_of
from evaluator.core.types.records import Log
from evaluator.tables import format_table
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.wire.records import kept

TRAFFIC = {"no compression, 16 KiB": (0, 16 << 10), "lz4, 512 KiB": (3, 512 << 10)}
FETCH_BYTES = 1 << 20
MAX_RECORDS = 5_000
READ_COMMITTED = 1


def main() -> None:
    """Median of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    replace_unpacking()
    world = make_world(arguments.pairs)
    logs: dict[Log, list[Message]] = {"rankings": world.rankings, "judgments": world.judgments}
    gc.set_threshold(*GC_THRESHOLD)
    rows = []
    for traffic, (codec, n_bytes) in TRAFFIC.items():
        for log, messages in logs.items():
            sets = list(fetches(codec, n_bytes, messages))
            rounds = [read(log, sets) for _ in range(arguments.rounds)]
            for stage in rounds[0]:
                cost = statistics.median(watch[stage] for watch in rounds) / len(messages) * 1e6
                rows.append([traffic, log, stage, f"{cost:.2f}"])
    print(format_table(["batches", "log", "stage", "us"], rows, numbers=[3]))


def fetches(codec: int, batch_bytes: int, messages: list[Message]) -> Iterator[bytes]:
    """The record sets in the responses of a broker."""
    first, found = 0, b""
    while first < len(messages):
        builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, batch_bytes)
        n = 0
        for message in messages[first:]:
            if not builder.append(n, message.timestamp_ms, message.key, message.value, []):
                break
            n += 1
        batch = first.to_bytes(8, "big") + bytes(builder.build())[8:]
        if found and len(found) + len(batch) > FETCH_BYTES:
            yield found
            found = b""
        first, found = first + n, found + batch
    yield found


def read(log: Log, sets: list[bytes]) -> dict[str, float]:
    """CPU seconds to `Records`, and from there to columns."""
    partition, watch = TopicPartition(log, 0), Stopwatch()
    position: Any = SimpleNamespace(active=True, paused=False, position=0)
    position.state_value = lambda _: position
    position.consumed_to = lambda offset: setattr(position, "position", offset)
    module: Any = fetcher
    watch.start()
    for data in sets:
        arguments = ([], position.position, kept, kept, True, READ_COMMITTED)
        batches = module.PartitionRecords(partition, module.MemoryRecords(data), *arguments)
        found = module.FetchResult(
            partition, assignment=position, partition_records=batches, backoff=0
        )
        while found.has_more():
            rows = found.getall(MAX_RECORDS)
            records = records_of(log, partition, Fetched(rows, position.position))
            watch.lap("unpack")
            decode = decode_rankings if log == "rankings" else decode_judgments
            columns = decode(records, max_future_skew_ms=SKEW_MS)
            if len(columns) != len(records):
                raise AssertionError("messages are malformed")
            watch.lap("decode")
    return watch.seconds


if __name__ == "__main__":
    main()
