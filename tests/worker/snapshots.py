"""A worker that writes snapshots to a folder, and a store of others that keeps them."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.worker import loop
from tests.tidy.tree import ROOT
from tests.waiting import eventually
from tests.worker.harness import WorkerHarness, totals
from tests.worker.traffic import traffic

N_QUERIES = 20


UNFINISHED = shutil.ignore_patterns("snapshot-*")
"""A thread may still delete one."""


def commit_after_every_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 0.0)


class Rig:
    """A harness of one task, disks of workers, and a folder of snapshots."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.harness = WorkerHarness(1)
        self.folder = path / "snapshots"
        self.whole = traffic(1, n_queries=N_QUERIES)

    def append(self, begin: float, end: float) -> None:
        self.harness.append({0: self.whole.part(begin, end)})

    def disk(self, name: str = "disk") -> RocksStateDirectory:
        return RocksStateDirectory(self.path / name)

    def copy_disk(self) -> None:
        """The disk `old`, a copy of `disk`."""
        shutil.copytree(self.path / "disk", self.path / "old", ignore=UNFINISHED)

    @asynccontextmanager
    async def working(self, disk: str = "disk", **settings):
        """A worker with snapshots that has read all; the disk is held by it."""
        states = self.disk(disk)
        states.hold()
        settings = {"snapshot_url": f"file://{self.folder}", "max_poll_records": 100, **settings}
        worker = self.harness.worker(states=states, **settings)
        try:
            async with self.harness.working(worker):
                await eventually(lambda: self.read_by(worker))
                yield worker
        finally:
            states.release()

    def read_by(self, worker) -> bool:
        views = list(worker.snapshot)
        end = {log: self.harness.broker.end_of(log, 0) for log in ("rankings", "judgments")}
        return bool(views) and views[0].positions == end and not views[0].restoring

    async def written(self, worker) -> None:
        """Until all that is read is in a snapshot."""
        progress = sum(self.harness.broker.end_of(log, 0) for log in ("rankings", "judgments"))
        await eventually(lambda: list(self.folder.rglob(f"{progress}.json")))

    @property
    def place(self) -> Path:
        (manifest, *_) = self.folder.rglob("*.json")
        return manifest.parent

    def manifests(self) -> list[Path]:
        return sorted(self.place.glob("*.json"), key=lambda path: int(path.stem))

    def right(self, worker) -> bool:
        return totals(self.harness.settings, worker) == self.harness.truth().totals


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


async def back_without_disk(rig, **settings):
    """A worker with an empty disk: its log, and how many rankings it read beside the new ones."""
    before = rig.harness.broker.end_of("rankings", 0)
    rig.append(0.5, 1)
    with capture_logs() as logs:
        async with rig.working("empty", **settings) as worker:
            assert rig.right(worker)
            n_read = worker.snapshot.counters.get(("rankings", "read"), 0)
            counts = dict(worker.snapshot.process_counts)
    events = {line["event"]: line for line in logs}
    again = [line for line in logs if line["event"] == "task_restored"]
    return events, counts, n_read - (rig.harness.broker.end_of("rankings", 0) - before), again


ON_A_STORE = """
import sys
from pathlib import Path
from evaluator.adapters.files.snapshots import SnapshotFolder
from evaluator.wire.state.snapshots import SnapshotFailed

path, scheme = Path(sys.argv[1]), sys.argv[2]
folder = SnapshotFolder(f"{scheme}://snapshots/evaluator")
folder.probe()
for progress in (1, 2, 3):
    store = path / str(progress)
    store.mkdir()
    (store / "CURRENT").write_bytes(b"MANIFEST-000001")
    (store / "MANIFEST-000001").write_bytes(b"%d" % progress)
    (store / "000001.sst").write_bytes(b"common" * 1000)
    (store / "000002.sst").write_bytes(b"%d" % progress * 100)
    (store / "000003.log").write_bytes(b"")
    positions = {"rankings": progress, "judgments": 0}
    print(folder.write("c/t/0/f", store, positions, lambda: None)[1])
print(folder.write("c/t/0/f", path / "3", {"rankings": 3, "judgments": 0}, lambda: None)[1])
furthest, before = folder.manifests("c/t/0/f")
print(furthest.progress, before.progress, folder.manifests("c/t/1/f"))
folder.fetch("c/t/0/f", furthest, path / "fetched", lambda: None)
wanted = {each.name: each.read_bytes() for each in (path / "3").iterdir()}
assert {each.name: each.read_bytes() for each in (path / "fetched").iterdir()} == wanted
try:
    SnapshotFolder(f"{scheme}://nowhere").write("c/t/0/f", path / "3", positions, lambda: None)
except SnapshotFailed as error:
    print(error)

import asyncio
from tests.worker.snapshots import work_on_a_store

asyncio.run(work_on_a_store(path, f"{scheme}://snapshots/workers"))
print("fetched")
"""


async def work_on_a_store(path: Path, url: str) -> None:
    """A whole worker writes its snapshots there, and another one without its disk fetches them."""
    commit_after_every_batch(pytest.MonkeyPatch())
    rig = Rig(path / "rig")
    rig.append(0, 0.5)
    progress = sum(rig.harness.ends().values())
    with capture_logs() as logs:
        async with rig.working(snapshot_url=url):
            await eventually(
                lambda: [
                    line
                    for line in logs
                    if line["event"] == "snapshot_written"
                    and sum(line["positions"].values()) == progress
                ]
            )
    events, counts, again, restored = await back_without_disk(rig, snapshot_url=url)
    fetched = events["snapshot_fetched"]
    assert sum(fetched["positions"].values()) == progress, events.get("snapshot_failed")
    assert counts["snapshot_bytes", "fetched"] == fetched["bytes"] > 0
    assert (again, restored) == (0, []), "no record before the snapshot is read again"


def keeps_snapshots(path: Path, scheme: str, environment: Mapping[str, str], failure: str) -> str:
    """The bucket `snapshots` of a store keeps them; *failure*: there is no bucket `nowhere`.

    In its own process: these libraries close their sessions with the interpreter. Returns its
    output.
    """
    done = subprocess.run(
        [sys.executable, "-c", ON_A_STORE, str(path), scheme],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second, third, again, progress, of_nowhere, worker = done.stdout.splitlines()
    assert int(first) == 6_000 + 100 + 15 + 1
    assert int(second) == int(third) == 100 + 1, "only files that are new"
    assert int(again) == 0
    assert progress == "3 2 []"
    assert failure in of_nowhere
    assert worker == "fetched"
    return done.stdout + done.stderr
