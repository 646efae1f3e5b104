"""What it takes to unpack fetches of the inputs, without a broker: CPU microseconds per record.

`python -m benchmarks.fetches --records 20000 --rounds 9`. Record sets of 1 MB are built by
aiokafka: batches of 16 KiB without compression, and of 512 KiB with lz4.
"""

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from evaluator.adapters.kafka.aiokafka_fetches import replace_unpacking
from evaluator.adapters.kafka.topic_reader import records_of
from evaluator.tables import format_table
from evaluator.wire.records import kept

PARTITION = TopicPartition("rankings", 0)
TRAFFIC = {"no compression, 16 KiB": (0, 16 << 10), "lz4, 512 KiB": (3, 512 << 10)}
SIZES = {"ranking": 1490, "judgment": 250}
FETCH_BYTES = 1 << 20
MAX_RECORDS = 5_000
READ_COMMITTED = 1


def main() -> None:
    """Median of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    replace_unpacking()
    rows = []
    for traffic, (codec, n_bytes) in TRAFFIC.items():
        for name, size in SIZES.items():
            sets = list(fetches(codec, n_bytes, arguments.records, size))
            seconds = [unpack(sets, arguments.records) for _ in range(arguments.rounds)]
            cost = statistics.median(seconds) / arguments.records * 1e6
            rows.append([traffic, name, f"{cost:.2f}"])
    print(format_table(["batches", "record", "us"], rows, numbers=[2]))


def fetches(codec: int, batch_bytes: int, n_records: int, size: int) -> Iterator[bytes]:
    """The record sets that a broker would answer with."""
    rng = random.Random(1)
    words = [b"%x" % rng.getrandbits(32) for _ in range(500)]
    values = [b" ".join(rng.choices(words, k=size // 9)) for _ in range(1_000)]
    first, found = 0, b""
    while first < n_records:
        builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, batch_bytes)
        n = 0
        while first + n < n_records:
            at = first + n
            if not builder.append(n, 1_000 + at, b"trace-%09d" % at, values[at % 1_000], []):
                break
            n += 1
        batch = first.to_bytes(8, "big") + bytes(builder.build())[8:]
        if found and len(found) + len(batch) > FETCH_BYTES:
            yield found
            found = b""
        first, found = first + n, found + batch
    yield found


def unpack(sets: list[bytes], n_records: int) -> float:
    """CPU seconds to the last `Records`."""
    position: Any = SimpleNamespace(active=True, paused=False, position=0)
    position.state_value = lambda _: position
    position.consumed_to = lambda offset: setattr(position, "position", offset)
    module: Any = fetcher
    n_read, begun = 0, time.process_time()
    for data in sets:
        arguments = ([], position.position, kept, kept, True, READ_COMMITTED)
        records = module.PartitionRecords(PARTITION, module.MemoryRecords(data), *arguments)
        found = module.FetchResult(
            PARTITION, assignment=position, partition_records=records, backoff=0
        )
        while found.has_more():
            rows = found.getall(MAX_RECORDS)
            n_read += len(records_of("rankings", PARTITION, rows, position.position))
    seconds = time.process_time() - begun
    if n_read != n_records:
        raise AssertionError(f"{n_read} of {n_records} records were read")
    return seconds


if __name__ == "__main__":
    main()
