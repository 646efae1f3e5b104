"""A node is lost with its disk while a task has many open queries: seconds until it is caught up.

`python -m benchmarks.lost_node --open 1000000`: a real broker and two workers with names, a task
each, and snapshots in a folder; store, snapshots and broker are on one disk. The first task is
given that many rankings of 20 candidates, each with its judgment, none of which expires. Once they
are in a snapshot, `--behind` more pairs follow, and `kill -9` ends the worker, which does not come
back. The result is the time until the other worker has read both tasks to their ends, the
session of the lost one included.
"""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from aiokafka import AIOKafkaProducer

from benchmarks.course import say
from benchmarks.fleet import DELAY, SESSION_MS
from benchmarks.open_queries import Traffic
from evaluator.adapters.kafka import Connection
from evaluator.config import Settings
from evaluator.tables import format_table
from tests.kafka.broker import Broker
from tests.kafka.process import Worker
from tests.kafka.world import World
from tests.waiting import until

PAIRS_AT_ONCE = 5_000
BATCH_BYTES = 1 << 19
SNAPSHOT_MS = 20_000
UNWRITTEN = 20_000
"""A snapshot is at most so many records behind while nothing is read (docs/snapshots.md)."""
SECONDS = 3_600.0


class Fleet:
    """A broker's topics with two tasks, and a worker for each."""

    def __init__(self, folder: Path, broker: Broker, n_queries: int) -> None:
        self.world = World(Connection(broker.bootstrap), "", n_tasks=2)
        self.traffic = Traffic(Settings().retention_ms / 2 / n_queries)  # no query expires
        self.n_pairs = 0
        self.snapshots = folder / "snapshots"
        self.workers = [
            Worker(
                folder,
                broker.bootstrap,
                "",
                heartbeats="off",
                group_instance_id=name,
                session_timeout_ms=SESSION_MS,
                snapshot_url=f"file://{self.snapshots}",
                snapshot_interval_ms=SNAPSHOT_MS,
                group_id="group",
            )
            for name in ("worker-0", "worker-1")
        ]

    async def append(self, n_pairs: int) -> None:
        """Appends rankings to the first task, and judgments of them."""
        end = self.n_pairs + n_pairs
        producer = AIOKafkaProducer(
            **self.world.connection.arguments(), max_batch_size=BATCH_BYTES, linger_ms=5
        )
        async with producer:
            for first in range(self.n_pairs, end, PAIRS_AT_ONCE):
                last = min(first + PAIRS_AT_ONCE, end)
                at_ms = self.traffic.time_ms(last)
                judgments = self.traffic.judgments(first, list(range(first, last)), at_ms)
                for records in (self.traffic.rankings(first, last), judgments):
                    for value in records.values:
                        await producer.send(records.log, value, partition=0)
                    await producer.flush()  # a judgment comes after its ranking
        self.n_pairs = end

    def has_read(self, worker: Worker, n_pairs: int) -> bool:
        positions = worker.positions
        return all(positions.get(f"{log}-0") == n_pairs for log in ("rankings", "judgments"))

    def written(self) -> int:
        """The furthest snapshot of the first task, as its sum of positions."""
        return max((int(each.stem) for each in self.snapshots.glob("*/*/0/*/*.json")), default=0)


def measure(fleet: Fleet, n_open: int, n_behind: int) -> list[str]:
    """A row of figures."""
    until(lambda: sorted(task for each in fleet.workers for task in each.tasks) == [0, 1])
    until(lambda: all(len(each.tasks) == 1 for each in fleet.workers), every=1.0)
    (lost,) = (each for each in fleet.workers if each.tasks == [0])
    (other,) = (each for each in fleet.workers if each is not lost)
    started_at = time.monotonic()
    asyncio.run(fleet.append(n_open - n_behind))
    until(lambda: fleet.has_read(lost, fleet.n_pairs), seconds=SECONDS, every=0.5)
    say(f"{fleet.n_pairs:,} pairs read in {time.monotonic() - started_at:.0f} s")
    enough = 2 * fleet.n_pairs - UNWRITTEN
    until(lambda: fleet.written() >= enough, seconds=SECONDS, every=0.5)
    asyncio.run(fleet.append(n_behind))
    until(lambda: fleet.has_read(lost, n_open), seconds=SECONDS)

    lost.signal(signal.SIGKILL)
    killed_at = time.monotonic()
    until(lambda: fleet.has_read(other, n_open), seconds=SECONDS, every=0.1)
    seconds = time.monotonic() - killed_at
    totals = other.totals
    found = totals["ledger"]["rankings"]["open"], totals["ledger"]["judgments"]["applied"]
    if totals["tasks"] != [0, 1] or found != (n_open, n_open):
        sys.exit(f"{totals['tasks']} with {found} instead of {n_open:,} open queries")
    fetched = [each for each in other.events("snapshot_fetched") if each["task"] == 0]
    if not fetched:
        sys.exit("the task was not continued from a snapshot")
    if other.stop() != 0:
        sys.exit(other.err)
    at = sum(fetched[-1]["positions"].values())
    loaded = [each["seconds"] for each in other.events("state_loaded") if each["task"] == 0]
    return [
        f"{n_open:,}",
        f"{seconds:.1f}",
        f"{fetched[-1]['bytes'] / 1e6:,.1f}",
        f"{fetched[-1]['seconds']:.1f}",
        f"{sum(loaded):.1f}",
        f"{2 * n_open - at:,}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lost_node", description=__doc__)
    parser.add_argument("--open", type=int, default=100_000)
    parser.add_argument("--behind", type=int, default=5_000)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lost-node-", dir="/var/tmp"))
    try:
        with Broker(folder / "broker", properties=DELAY) as broker:
            fleet = Fleet(folder, broker, options.open)
            try:
                row = measure(fleet, options.open, options.behind)
            finally:
                for worker in fleet.workers:
                    worker.end()
        header = ["open queries", "seconds until caught up", "MB fetched", "fetch, s", "load, s"]
        say(format_table([*header, "records read again"], [row], numbers=range(6)))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
