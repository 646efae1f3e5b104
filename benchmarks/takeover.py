"""A task without its disk: seconds and records until it has caught up, with and without snapshot.

`python -m benchmarks.takeover --open 100000`: a worker in this process on a broker in memory, so
that only the worker is measured; its store and the folder of snapshots are on one disk. The
snapshot is of the moment at which that many queries are open; `--behind` more pairs come after it.
`--no-rebuild` leaves out the worker without a snapshot, which reads all again.
"""

import argparse
import asyncio
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from benchmarks.open_queries import Traffic
from evaluator.adapters.files.snapshots import SnapshotFolder
from evaluator.adapters.memory import MemoryBroker, MemorySink, MemorySource
from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.cli.live import new_worker
from evaluator.cli.wiring import fingerprint_of
from evaluator.config import Settings
from evaluator.core.types.records import LOGS
from evaluator.tables import format_table
from evaluator.worker import StoreSnapshots, Worker

SETTINGS = Settings(heartbeats=False, alarms=False)
PAIRS_AT_ONCE = 5_000


TICK_SECONDS = 0.001


class TimedStates(RocksStateDirectory):
    """Measures copies of stores, and the time for which they hold the interpreter."""

    seconds = 0.0
    longest_pause = 0.0

    def copy(self, task: int, folder: Path) -> bytes | None:
        ended = threading.Event()
        ticker = threading.Thread(target=self._tick, args=[ended])
        ticker.start()
        started_at = time.perf_counter()
        head = super().copy(task, folder)
        self.seconds = max(self.seconds, time.perf_counter() - started_at)
        ended.set()
        ticker.join()
        return head

    def _tick(self, ended: threading.Event) -> None:
        """The longest time between two turns of an idle thread."""
        before = time.perf_counter()
        while not ended.is_set():
            time.sleep(TICK_SECONDS)
            now = time.perf_counter()
            self.longest_pause, before = max(self.longest_pause, now - before), now


class Run:
    """A broker, a folder of snapshots, and workers one after the other."""

    def __init__(self, folder: Path, n_queries: int) -> None:
        self.folder = folder
        self.broker = MemoryBroker(1)
        self.traffic = Traffic(SETTINGS.retention_ms / 2 / n_queries)  # no query expires
        self.n_pairs = 0

    def append(self, n_pairs: int) -> None:
        """Appends rankings, each with its judgment."""
        end = self.n_pairs + n_pairs
        for first in range(self.n_pairs, end, PAIRS_AT_ONCE):
            last = min(first + PAIRS_AT_ONCE, end)
            at_ms = self.traffic.time_ms(last)
            judgments = self.traffic.judgments(first, list(range(first, last)), at_ms)
            for records in (self.traffic.rankings(first, last), judgments):
                for value in records.values:
                    self.broker.append(records.log, 0, None, value, at_ms)
        self.n_pairs = end

    async def work(self, name: str, *, snapshots: bool, write: bool = False) -> dict[str, Any]:
        """Runs a worker with its own disk until it has read all records; with *write*, until a
        snapshot is written."""
        states = TimedStates(self.folder / name)
        states.hold()
        kept = None
        if snapshots:
            url = f"file://{self.folder / 'snapshots'}"
            interval_ms = 1_000 if write else 1 << 40
            fingerprint = fingerprint_of(SETTINGS)
            kept = StoreSnapshots(
                SnapshotFolder(url), states, interval_ms=interval_ms, fingerprint=fingerprint
            )
        source, sink = MemorySource(self.broker), MemorySink(self.broker)
        worker = new_worker(source, sink, states, SETTINGS, snapshots=kept)
        started_at = time.perf_counter()
        with capture_logs() as logs:
            running = asyncio.create_task(worker.run())
            while not (self.has_read(worker) and (not write or self.is_written())):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        seconds = time.perf_counter() - started_at
        counts = worker.snapshot.process_counts
        parts = {line["event"]: line["seconds"] for line in logs if "seconds" in line}
        found = {
            "seconds": seconds,
            "records": worker._n_read,
            "fetch, s": parts.get("snapshot_fetched", 0.0),
            "load, s": parts.get("state_loaded", 0.0),
            "MB fetched": counts.get(("snapshot_bytes", "fetched"), 0) / 1e6,
            "MB written": counts.get(("snapshot_bytes", "written"), 0) / 1e6,
            "open": sum(view.n_open for view in worker.snapshot),
            "copy, s": states.seconds,
            "pause, s": states.longest_pause,
        }
        worker.stop()
        await running
        states.release()
        return found

    def has_read(self, worker: Worker) -> bool:
        ends = {log: self.broker.logs[log, 0].end for log in LOGS}
        return any(view.positions == ends and not view.restoring for view in worker.snapshot)

    def is_written(self) -> bool:
        return any((self.folder / "snapshots").rglob(f"{2 * self.n_pairs}.json"))


async def measure(folder: Path, n_open: int, n_behind: int, *, rebuild: bool) -> None:
    run = Run(folder, n_open + n_behind)
    run.append(n_open - n_behind)
    rows = {"first worker": await run.work("first", snapshots=False)}
    run.append(n_behind)
    rows["the same, with a snapshot"] = await run.work("first", snapshots=True, write=True)
    run.append(n_behind)
    rows["the rest, same worker"] = await run.work("first", snapshots=False)
    if rebuild:
        rows["disk lost, no snapshot"] = await run.work("without", snapshots=False)
    rows["disk lost, snapshot"] = await run.work("with", snapshots=True)
    columns = list(next(iter(rows.values())))
    cells = [[name, *(f"{row[each]:,.2f}" for each in columns)] for name, row in rows.items()]
    print(format_table(["", *columns], cells))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--open", type=int, default=100_000)
    parser.add_argument("--behind", type=int, default=5_000)
    parser.add_argument("--no-rebuild", action="store_true")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="takeover-", dir="/var/tmp"))
    try:
        asyncio.run(measure(place, options.open, options.behind, rebuild=not options.no_rebuild))
    finally:
        shutil.rmtree(place)
