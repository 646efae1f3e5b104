"""Memory of a worker that reads one highly compressed record of zeros, on a real broker.

python -m benchmarks.bomb --megabytes 400
"""

import argparse
import asyncio
import re
import sys
import tempfile
import time
from pathlib import Path

from aiokafka import AIOKafkaProducer

from evaluator.adapters.kafka import Connection
from tests.kafka.broker import Broker
from tests.kafka.process import Worker, arguments_of
from tests.kafka.world import World
from tests.worker.traffic import traffic

CODECS = ("gzip", "lz4", "zstd")


def main() -> None:
    """Runs a worker for each codec."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    n_bytes = parser.parse_args().megabytes * 1_000_000
    properties = {"message.max.bytes": str(4 << 20)}  # lz4 needs more than the default of 1 MB
    with (
        tempfile.TemporaryDirectory() as home,
        Broker(Path(home) / "broker", heap_mb=3_000, properties=properties) as broker,
    ):
        for codec in CODECS:
            before, peak, after, sent, seconds = measured(broker, Path(home), codec, n_bytes)
            print(
                f"{codec}: {sent:,} bytes on the wire; RSS {before:.0f} MB before, {peak:.0f} MB "
                f"at the peak, {after:.0f} MB after; {seconds:.1f} s",
                flush=True,
            )


def measured(
    broker: Broker, home: Path, codec: str, n_bytes: int
) -> tuple[float, float, float, int, float]:
    """RSS before, at the peak and after in MB, bytes of the batch, seconds until it was read."""
    world = World(Connection(broker.bootstrap), f"{codec}-", n_tasks=1)
    world.append({0: traffic(1, n_queries=20)})
    worker = Worker(home, broker.bootstrap, world.prefix, **arguments_of(world.settings))
    try:
        worker.until_read(world.ends())
        before = memory(worker.pid, "VmRSS")
        sent = asyncio.run(produce(world, codec, n_bytes))
        begun = time.monotonic()
        worker.until_read(world.ends(), seconds=300)
        seconds = time.monotonic() - begun
        world.append({0: traffic(2, n_queries=20)})
        time.sleep(5)
        peak, after = memory(worker.pid, "VmHWM"), memory(worker.pid, "VmRSS")
        reasons = worker.totals["ledger"]["judgments"]
        if reasons["malformed"] < 1:
            sys.exit("the record was not read as malformed")
        return before, peak, after, sent, seconds
    finally:
        worker.end()


async def produce(world: World, codec: str, n_bytes: int) -> int:
    """Writes one record of zeros, in a batch of its own; returns the size of the batch."""
    producer = AIOKafkaProducer(
        **world.connection.arguments(),
        compression_type=codec,
        max_request_size=1 << 30,
        max_batch_size=1 << 30,
        request_timeout_ms=120_000,
    )
    async with producer:
        batch = producer.create_batch()
        batch.append(key=b"k", value=bytes(n_bytes), timestamp=1_000)
        batch.close()
        sent = len(batch._build())
        await (await producer.send_batch(batch, f"{world.prefix}judgments", partition=0))
        return int(sent)


def memory(pid: int, name: str) -> float:
    """A figure of /proc/PID/status in MB."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1_000 if found else 0.0


if __name__ == "__main__":
    main()
