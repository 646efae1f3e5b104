"""Stores that are lost, and restored from snapshots in a folder."""

import copy
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio
from fsspec import core
from fsspec.implementations.local import LocalFileSystem
from structlog.testing import capture_logs

from evaluator.adapters.files import snapshots
from evaluator.adapters.files.snapshots import SnapshotFolder
from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.ports import SourceUnusable, StateUnusable
from evaluator.wire.state import task_rows
from evaluator.wire.state.snapshots import SnapshotFailed
from evaluator.worker import loop, ownership, store_snapshots
from evaluator.worker.ownership import Ownership
from evaluator.worker.store_snapshots import place_of
from tests.repeats import first_quick
from tests.s3 import SECRET, s3_server
from tests.tidy.tree import ROOT
from tests.waiting import PATIENCE_SECONDS, eventually
from tests.worker.harness import WorkerHarness, totals
from tests.worker.traffic import traffic

N_QUERIES = 20


UNFINISHED = shutil.ignore_patterns("snapshot-*")
"""A thread may still delete one."""


def commit_after_every_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def _commit_after_every_batch(monkeypatch):
    commit_after_every_batch(monkeypatch)


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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def written_once(tmp_path_factory):
    """With two snapshots, of the first quarter and of the first half of the records."""
    rig = Rig(tmp_path_factory.mktemp("rig"))
    rig.append(0, 0.25)
    with pytest.MonkeyPatch.context() as patch:
        commit_after_every_batch(patch)
        async with rig.working() as worker:
            await rig.written(worker)
            rig.append(0.25, 0.5)
            await rig.written(worker)
    return rig


@pytest.fixture
def rig(written_once, tmp_path):
    """A copy of `written_once`."""
    rig = Rig(tmp_path)
    rig.harness = copy.deepcopy(written_once.harness)
    for name in ("disk", "snapshots"):
        shutil.copytree(written_once.path / name, tmp_path / name, ignore=UNFINISHED)
    return rig


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


@pytest.mark.slow(alone=False)
async def test_a_lost_store_is_restored_from_its_snapshot(rig):
    events, counts, again, restored = await back_without_disk(rig)
    fetched = events["snapshot_fetched"]
    loaded = events["state_loaded"]
    assert fetched["positions"] == loaded["positions"], "nothing before it is read"
    assert counts["snapshot_bytes", "fetched"] == fetched["bytes"] > 0
    assert counts["snapshot_failures", "fetch"] == 0
    assert again == 0
    assert not restored, "no checkpoint was rebuilt"
    await eventually(lambda: not list((rig.path / "empty").glob("snapshot-*")))
    rig.harness.truth().check_outputs(rig.harness.outputs(), once=True)


async def test_a_finished_task_whose_snapshot_was_fetched_is_opened_with_until_end(rig):
    """It belongs to this worker, unlike a task that another one has finished."""
    states = rig.disk("empty")
    states.hold()
    try:
        worker = await rig.harness.until_end(states=states, snapshot_url=f"file://{rig.folder}")
    finally:
        states.release()
    assert worker.snapshot.process_counts["snapshot_bytes", "fetched"] > 0
    assert rig.right(worker)


@pytest.mark.slow(alone=False)
async def test_without_snapshots_a_worker_reads_all_records_again(tmp_path):
    rig = Rig(tmp_path)
    rig.append(0, 0.5)
    async with rig.working(snapshot_url=None):
        pass
    events, _, _, restored = await back_without_disk(rig, snapshot_url=None)
    assert restored
    assert "snapshot_fetched" not in events


@pytest.mark.slow(alone=False)
async def test_a_second_snapshot_writes_only_new_files_and_two_manifests_are_kept(rig):
    for end in (0.6, 0.7, 0.8):
        rig.append(end - 0.1, end)
        async with rig.working() as worker:
            await rig.written(worker)
    await eventually(lambda: len(rig.manifests()) == 2)  # deleted after the last was written
    sizes = [json.loads(path.read_bytes())["files"] for path in rig.manifests()]
    first, second = ({each["sha256"] for each in files} for files in sizes)
    assert first & second, "files in common are stored once"
    stored = {path.name for path in (rig.place / "files").iterdir()}
    assert first | second < stored, "files of earlier manifests stay for a day"


@pytest.mark.slow(alone=False)
async def test_a_snapshot_that_lacks_few_records_is_kept_for_some_intervals(rig, monkeypatch):
    monkeypatch.setattr(store_snapshots, "RARELY", 10**9)
    async with rig.working(snapshot_interval_ms=1) as worker:
        kept = worker._snapshots
        await eventually(lambda: kept.written and kept.written[0].n_bytes)
        earlier = rig.manifests()
        rig.append(0.5, 0.6)
        await eventually(lambda: rig.read_by(worker))
        read_ms = time.time_ns() // 1_000_000
        await eventually(lambda: kept.written[0].written_ms > read_ms)  # a look later
        assert rig.manifests() == earlier
        for name, value in (("FEW", 1), ("RARELY", 0)):
            with monkeypatch.context() as patch:
                patch.setattr(store_snapshots, name, value)
                await rig.written(worker)
            rig.append(0.6, 0.7)
            await eventually(lambda: rig.read_by(worker))


@pytest.mark.slow(alone=False)
async def test_a_crash_between_files_and_manifest_keeps_the_earlier_snapshot(rig, monkeypatch):
    earlier = rig.manifests()
    rig.append(0.5, 0.8)

    def crash(*_):
        raise OSError("the process ended")

    with monkeypatch.context() as patch:
        n_files = len(list((rig.place / "files").iterdir()))
        patch.setattr(LocalFileSystem, "pipe_file", crash)
        with capture_logs() as logs:
            async with rig.working() as worker:
                await eventually(lambda: worker._snapshots.counts["snapshot_failures", "write"])
    assert {line["operation"] for line in logs if line["event"] == "snapshot_failed"} == {"write"}
    assert rig.manifests() == earlier
    assert len(list((rig.place / "files").iterdir())) > n_files
    positions = json.loads(earlier[-1].read_bytes())["positions"]
    events, *_ = await back_without_disk(rig)
    assert events["snapshot_fetched"]["positions"] == positions


@pytest.mark.parametrize(
    ("where", "name", "operation"),
    first_quick(
        (SnapshotFolder, "manifests", "fetch"),
        (RocksStateDirectory, "copy", "write"),
        (SnapshotFolder, "write", "write"),
    ),
)
async def test_no_failure_of_a_snapshot_ends_a_worker(rig, monkeypatch, where, name, operation):
    def fail(*_):
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(where, name, fail)
    rig.append(0.5, 1)
    async with rig.working("empty") as worker:
        await eventually(lambda: worker._snapshots.counts["snapshot_failures", operation])
        assert rig.right(worker)


def files_of(manifest):
    return {each["sha256"] for each in json.loads(manifest.read_bytes())["files"]}


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("all_of_them", first_quick(False, True))
async def test_a_damaged_snapshot_is_counted_and_not_used(rig, all_of_them):
    earlier, last = rig.manifests()
    positions = json.loads(earlier.read_bytes())["positions"]
    for name in files_of(last) if all_of_them else files_of(last) - files_of(earlier):
        if (rig.place / "files" / name).stat().st_size:
            flip(rig.place / "files" / name)
    events, counts, *_ = await back_without_disk(rig)
    assert "has other bytes" in events["snapshot_failed"]["error"]
    assert counts["snapshot_failures", "fetch"] == 1 + all_of_them
    if all_of_them:
        assert "task_restored" in events, "as without snapshots"
    else:
        assert events["snapshot_fetched"]["positions"] == positions


@pytest.mark.slow(alone=False)
async def test_a_torn_manifest_is_ignored(rig):
    earlier, last = rig.manifests()
    positions = json.loads(earlier.read_bytes())["positions"]
    last.write_bytes(last.read_bytes()[:-9])
    events, counts, *_ = await back_without_disk(rig)
    assert events["snapshot_fetched"]["positions"] == positions
    assert counts["snapshot_failures", "fetch"] == 0


async def test_a_manifest_beyond_the_log_is_not_used(rig):
    path = rig.manifests()[-1]
    document = json.loads(path.read_bytes())
    document["positions"]["rankings"] += 10**6
    (rig.place / f"{sum(document['positions'].values())}.json").write_text(json.dumps(document))
    events, *_ = await back_without_disk(rig)
    assert events["snapshot_fetched"]["positions"]["rankings"] < 10**6


async def test_snapshots_of_another_fingerprint_or_topic_have_another_place(rig):
    with capture_logs() as logs:
        async with rig.working("other", measures=("mrr",)):
            pass
    assert "snapshot_fetched" not in {line["event"] for line in logs}
    ids = {"rankings": "a", "judgments": "b"}
    places = {
        place_of("c", ids, 0, 0, "f"),
        place_of("c", {**ids, "rankings": "x"}, 0, 0, "f"),
        place_of("d", ids, 0, 0, "f"),
        place_of("c", ids, 1, 0, "f"),
        place_of("c", ids, 0, 1, "f"),
        place_of("c", ids, 0, 0, "g"),
    }
    assert len(places) == 6
    assert place_of("../..", ids, 0, 0, "f") == f"_____/a+b/0/f-{task_rows.FORMAT}"
    with pytest.raises(SnapshotFailed, match="ids"):
        place_of("c", {"rankings": "a", "judgments": None}, 0, 0, "f")


@pytest.mark.slow(alone=False)
async def test_a_new_format_of_stores_has_other_snapshots(rig, monkeypatch):
    """A store that would be quarantined does not replace the local one."""
    for module in (task_rows, store_snapshots):
        monkeypatch.setattr(module, "FORMAT", task_rows.FORMAT + 1)
    rig.append(0.5, 1)
    with capture_logs() as logs:
        async with rig.working() as worker:
            assert rig.right(worker)
    assert "snapshot_fetched" not in {line["event"] for line in logs}
    assert [line["event"] for line in logs].count("store_quarantined") == 1


async def test_a_recreated_topic_has_other_snapshots(rig):
    for log in ("rankings", "judgments"):
        rig.harness.broker.recreate(log)
    rig.append(0, 0.3)
    with capture_logs() as logs:
        async with rig.working("empty") as worker:
            assert rig.right(worker)
    assert "snapshot_fetched" not in {line["event"] for line in logs}


def forge(rig):
    """Replaces the sorted files of all snapshots; their hashes are right."""
    for manifest in rig.manifests():
        document = json.loads(manifest.read_bytes())
        for each in document["files"]:
            if each["name"].endswith(".sst"):
                content = b"forged" * 100
                each.update(sha256=hashlib.sha256(content).hexdigest(), n_bytes=len(content))
                (rig.place / "files" / each["sha256"]).write_bytes(content)
        manifest.write_text(json.dumps(document))


@pytest.mark.slow(alone=False)
async def test_a_forged_store_is_quarantined_and_not_fetched_again(rig):
    """Hashes are right and the files are not those of a store: nothing is counted from them."""
    rig.manifests()[0].unlink()
    forge(rig)
    events, counts, *_ = await back_without_disk(rig)
    assert "orruption" in events["store_quarantined"]["reason"]
    assert counts["quarantined_stores", "0"] == 1
    assert "task_restored" in events, "as without snapshots"


@pytest.fixture
def blocked(monkeypatch):
    """Lists of manifests wait until this is set."""
    free = threading.Event()
    manifests = SnapshotFolder.manifests

    def wait(self, place):
        free.wait(PATIENCE_SECONDS)
        return manifests(self, place)

    monkeypatch.setattr(SnapshotFolder, "manifests", wait)
    yield free
    free.set()


@pytest.mark.slow
@pytest.mark.parametrize("stalls", first_quick(False, True))
async def test_other_tasks_are_read_while_one_is_fetched(rig, monkeypatch, blocked, stalls):
    harness = rig.harness = WorkerHarness(2)
    harness.append({task: traffic(task, n_queries=N_QUERIES).part(0, 0.5) for task in (0, 1)})
    blocked.set()
    settings = {"snapshot_url": f"file://{rig.path / 'two'}", "max_poll_records": 20}
    states = RocksStateDirectory(rig.path / "both")
    worker = harness.worker(states=states, **settings)
    async with harness.working(worker):
        await eventually(lambda: len(worker.snapshot.store_snapshots) == 2)
        await eventually(lambda: all(each.n_bytes for _, each in shown(worker)))
    blocked.clear()
    shutil.rmtree(rig.path / "both" / "task-0")
    harness.append({task: traffic(task, n_queries=N_QUERIES).part(0.5, 1) for task in (0, 1)})
    worker = harness.worker(states=RocksStateDirectory(rig.path / "both"), **settings)
    with capture_logs() as logs:
        async with harness.working(worker):
            ends = {log: harness.broker.end_of(log, 1) for log in ("rankings", "judgments")}
            await eventually(
                lambda: [v.positions for v in worker.snapshot if v.task == 1] == [ends]
            )
            assert [view.task for view in worker.snapshot] == [1]
            assert worker.readiness() == ["fetching snapshots of [0]"]
            if stalls:
                monkeypatch.setattr(store_snapshots, "STALLED_SECONDS", 0.0)
            else:
                blocked.set()
            await eventually(lambda: not worker.readiness())
            await eventually(lambda: harness.committed() == harness.ends())
            await eventually(lambda: totals(harness.settings, worker) == harness.truth().totals)
    events = {line["event"]: line for line in logs}
    assert ("snapshot_fetched" in events) != stalls
    if stalls:
        assert "no file was fetched" in events["snapshot_failed"]["error"]
    harness.truth().check_outputs(harness.outputs(), once=False)


def shown(worker):
    return worker.snapshot.store_snapshots.items()


async def test_the_fetched_files_of_a_revoked_task_are_deleted(rig):
    states = rig.disk("left")
    states.hold()
    folder = SnapshotFolder(f"file://{rig.folder}")
    kept = store_snapshots.StoreSnapshots(folder, states, interval_ms=1, fingerprint="f")
    bounds = dict.fromkeys(("rankings", "judgments"), (0, 10**9))
    place = str(rig.place.relative_to(rig.folder))
    assert kept.begin_fetch(0, place, least=0, bounds=bounds)
    assert kept.begin_fetch(0, place, least=0, bounds=bounds), "there is one already"
    await eventually(kept.ended)
    assert kept.adopt([1]) == {}
    assert sorted(path.name for path in (rig.path / "left").iterdir()) == ["in-use"]
    states.release()


@pytest.mark.parametrize(("much", "replaced"), first_quick((5, True), (10**6, False)))
async def test_a_store_that_is_much_older_is_replaced(rig, monkeypatch, much, replaced):
    rig.copy_disk()
    rig.append(0.5, 0.9)
    async with rig.working() as worker:
        await rig.written(worker)
    for module in (ownership, store_snapshots):
        monkeypatch.setattr(module, "MUCH_OLDER", much)
    with capture_logs() as logs:
        async with rig.working("old") as worker:
            assert rig.right(worker)
    events = {line["event"]: line for line in logs}
    assert ("snapshot_fetched" in events) == replaced
    assert ("task_restored" in events) != replaced
    await eventually(
        lambda: sorted(path.name for path in (rig.path / "old").iterdir()) == ["in-use", "task-0"]
    )


@pytest.fixture
async def old(rig, monkeypatch):
    """The disk `old` has a healthy store, and the snapshots are much further."""
    rig.copy_disk()
    rig.append(0.5, 0.9)
    async with rig.working() as worker:
        await rig.written(worker)
    for module in (ownership, store_snapshots):
        monkeypatch.setattr(module, "MUCH_OLDER", 5)


def refuse_second_open(monkeypatch):
    """RocksDB refuses the fetched store with an error that is not of damage."""
    open_store, opened = RocksStateDirectory.open, []

    def refused(self, task):
        opened.append(task)
        if len(opened) == 2:
            raise StateUnusable("Invalid argument: an option of a later version")
        return open_store(self, task)

    monkeypatch.setattr(RocksStateDirectory, "open", refused)


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("found", first_quick("damaged", "unusable", "mismatch", "ends_lost"))
async def test_a_bad_snapshot_restores_the_store_that_it_replaced(rig, monkeypatch, found):
    if found == "damaged":
        forge(rig)
    if found == "unusable":
        refuse_second_open(monkeypatch)
    mismatches, checks = Ownership._mismatches, []

    async def mismatch(self, heads):
        if heads:
            checks.append(sum(heads[0].positions.values()))
        if heads and len(checks) == 2:
            if found == "mismatch":
                return {0: "it is of other logs"}
            if found == "ends_lost":
                heads[0].origin.ends_lost = -1
        return await mismatches(self, heads)

    monkeypatch.setattr(Ownership, "_mismatches", mismatch)
    with capture_logs() as logs:
        async with rig.working("old") as worker:
            assert rig.right(worker)
            assert worker.snapshot.process_counts["quarantined_stores", "0"] == 1
    events = {line["event"]: line for line in logs}
    loaded = [sum(line["positions"].values()) for line in logs if line["event"] == "state_loaded"]
    assert loaded[0] == loaded[-1] < sum(events["snapshot_fetched"]["positions"].values())
    assert len(loaded) == (2 if found in {"damaged", "unusable"} else 3), (
        "the local store is loaded twice"
    )
    assert loaded[0] in checks[1:], "and compared with the logs again"
    names = ["in-use", "task-0", "task-0-quarantine"]
    await eventually(lambda: sorted(path.name for path in (rig.path / "old").iterdir()) == names)


@pytest.mark.slow(alone=False)
@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("fails", first_quick(1, 2))
async def test_a_store_that_cannot_be_replaced_continues(rig, monkeypatch, fails):
    rename, calls = Path.rename, []

    def refuse(self, target):
        calls.append(target)
        if len(calls) == fails:
            raise OSError(errno.EACCES, "not permitted")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with capture_logs() as logs:
        async with rig.working("old") as worker:
            assert rig.right(worker)
    events = {line["event"]: line for line in logs}
    assert "cannot be replaced" in events["snapshot_failed"]["error"]
    assert "store_quarantined" not in events
    assert [line["event"] for line in logs].count("state_loaded") == 2
    await eventually(
        lambda: sorted(path.name for path in (rig.path / "old").iterdir()) == ["in-use", "task-0"]
    )


@pytest.mark.parametrize("second", [False, True])
def test_a_kill_before_the_check_restores_the_replaced_store(tmp_path, second):
    states = RocksStateDirectory(tmp_path / "state")
    states.hold()
    (tmp_path / "state" / "task-0-replaced").mkdir()
    (tmp_path / "state" / "task-0-replaced" / "CURRENT").write_bytes(b"replaced")
    if second:
        (tmp_path / "state" / "task-0").mkdir()
        (tmp_path / "state" / "task-0" / "CURRENT").write_bytes(b"fetched")
    states.release()
    states.hold()
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["in-use", "task-0"]
    assert (tmp_path / "state" / "task-0" / "CURRENT").read_bytes() == b"replaced"
    states.release()


# The folder by itself: two writers, ages, limits


class Stores:
    """Folders with files of stores, written as snapshots of one place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = SnapshotFolder(f"file://{path / 'snapshots'}")
        self.there = path / "snapshots" / "place"

    def write(self, progress: int, *contents: bytes, by: SnapshotFolder | None = None) -> int:
        """Bytes written for a store with these sorted files."""
        store = self.path / f"store-{progress}-{contents}"[:60]
        shutil.rmtree(store, ignore_errors=True)
        store.mkdir(parents=True)
        (store / "CURRENT").write_bytes(b"MANIFEST-000001")
        (store / "MANIFEST-000001").write_bytes(b"%d" % progress)
        (store / "OPTIONS-000002").write_bytes(b"not needed")
        for number, content in enumerate(contents):
            (store / f"{number:06}.sst").write_bytes(content)
        positions = {"rankings": progress, "judgments": 0}
        return (by or self.folder).write("place", store, positions, lambda: None)[1]

    def has(self, content: bytes) -> bool:
        return (self.there / "files" / hashlib.sha256(content).hexdigest()).exists()

    def age(self, seconds: float) -> None:
        """Makes all files older."""
        for path in self.there.rglob("*"):
            modified = path.stat().st_mtime - seconds
            os.utime(path, (modified, modified))

    def kept(self) -> list[int]:
        return [each.progress for each in self.folder.manifests("place")]


@pytest.fixture
def stores(tmp_path):
    return Stores(tmp_path)


DAY = 86_400


def test_files_without_a_kept_manifest_are_deleted_after_a_day(stores):
    for progress, content in enumerate((b"a", b"b", b"c"), 1):
        stores.write(progress, b"common", content)
    assert stores.kept() == [3, 2]
    assert stores.has(b"a"), "it is younger than an upload may take"
    stores.age(DAY - 60)
    stores.write(4, b"common", b"d")
    assert stores.has(b"a")
    stores.age(120)
    stores.write(5, b"common", b"e")
    assert not stores.has(b"a")
    assert not stores.has(b"b")
    assert all(map(stores.has, (b"common", b"d", b"e"))), "files of the kept ones stay at any age"
    assert stores.kept() == [5, 4]


def test_a_writer_that_is_behind_does_not_change_the_furthest_snapshot(stores):
    other = SnapshotFolder(f"file://{stores.path / 'snapshots'}")
    stores.write(10, b"x")
    stores.write(11, b"y")
    stores.age(2 * DAY)
    stores.write(3, b"old", by=other)
    assert stores.kept() == [11, 10]
    assert all(map(stores.has, (b"x", b"y")))
    assert not (stores.there / "3.json").exists()


def test_an_unused_file_is_reused_only_while_no_writer_deletes_it(stores):
    for progress, content in enumerate((b"again", b"b", b"c"), 1):
        stores.write(progress, content)
    assert stores.write(4, b"again", b"b") < len(b"again") + len(b"MANIFEST-000001") + 1
    for progress in (5, 6):
        stores.write(progress, b"z")
    stores.age(DAY * 0.75)
    written = stores.write(7, b"again")
    assert written >= len(b"again"), "it is written again, so it is new for another writer"
    stores.write(8, b"again")
    assert stores.has(b"again")


def test_a_manifest_with_equal_sums_is_never_overwritten(stores):
    stores.write(5, b"first")
    before = (stores.there / "5.json").read_bytes()
    stores.write(5, b"second")
    assert (stores.there / "5.json").read_bytes() == before
    (only,) = stores.folder.manifests("place")
    stores.folder.fetch("place", only, stores.path / "fetched", lambda: None)
    assert (stores.path / "fetched" / "000000.sst").read_bytes() == b"first"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda file: os.truncate(file, file.stat().st_size - 1), "missing or has another size"),
        (flip, "has other bytes"),
        (Path.unlink, "missing or has another size"),
    ],
)
def test_damaged_files_are_not_fetched(stores, damage, reason):
    stores.write(1, b"content")
    (manifest,) = stores.folder.manifests("place")
    damage(stores.there / "files" / hashlib.sha256(b"content").hexdigest())
    with pytest.raises(SnapshotFailed, match=reason):
        stores.folder.fetch("place", manifest, stores.path / "fetched", lambda: None)


def with_name(name):
    def changed(document):
        first, *others = document["files"]
        return json.dumps({**document, "files": [{**first, "name": name}, *others]}).encode()

    return changed


def with_members(**changes):
    return lambda document: json.dumps({**document, **changes}).encode()


@pytest.mark.parametrize(
    "changed",
    [
        lambda _: b"",
        lambda _: b"[" * 100_000,
        lambda document: json.dumps(document).encode()[:-5],
        lambda document: json.dumps(document).encode() + b" " * snapshots.MAX_MANIFEST_BYTES,
        with_members(format=2),
        with_members(positions={"rankings": 2}),
        with_members(positions={"rankings": 1, "judgments": 2}),
        with_members(positions={"rankings": 3, "judgments": -1}),
        with_members(files=[]),
        with_name("../../000001.sst"),
        with_name("/etc/000001.sst"),
        with_name("000001.sst\n"),
        with_name("OPTIONS-000001"),
        with_name("CURRENT"),
        with_name("MANIFEST-000002"),
    ],
)
def test_a_hostile_manifest_is_not_read(stores, changed):
    stores.write(1, b"content")
    stores.write(2, b"content")
    assert stores.kept() == [2, 1]
    path = stores.there / "2.json"
    path.write_bytes(changed(json.loads(path.read_bytes())))
    assert stores.kept() == [1]
    stores.age(2 * DAY)
    stores.write(3, b"other")
    assert not path.exists(), "unreadable ones are deleted after a day"


def test_a_torn_upload_is_written_again(stores):
    stores.write(1, b"content")
    os.truncate(stores.there / "files" / hashlib.sha256(b"content").hexdigest(), 3)
    assert stores.write(2, b"content") >= len(b"content")


def test_small_files_are_transferred_together_and_large_ones_alone(stores, monkeypatch):
    """A request to an object store takes a tenth of a second."""
    monkeypatch.setattr(snapshots, "_MAX_FILES_AT_ONCE", 3)
    monkeypatch.setattr(snapshots, "_MAX_BYTES_AT_ONCE", 50)
    moved = []
    for name in ("get", "put"):
        original = getattr(stores.folder._files, name)

        def move(sources, targets, original=original):
            moved.append(len(sources))
            original(sources, targets)

        monkeypatch.setattr(stores.folder._files, name, move)
    contents = [b"a", b"b", b"l" * 51, b"c", b"c", b"d", b"e"]
    # 000000.sst ... and CURRENT with 15 bytes, MANIFEST-000001 with one.
    assert stores.write(1, *contents) == 5 + 51 + 15 + 1, "equal files are written once"
    assert moved == [2, 1, 3, 2]
    (manifest,) = stores.folder.manifests("place")
    moved.clear()
    stores.folder.fetch("place", manifest, stores.path / "fetched", lambda: None)
    assert moved == [2, 1, 3, 3]


def test_an_endless_upload_is_cancelled(stores, monkeypatch):
    monkeypatch.setattr(snapshots, "MAX_UPLOAD_SECONDS", -1.0)
    with pytest.raises(SnapshotFailed, match="took more than"):
        stores.write(1, b"content")
    assert not list(stores.there.glob("*.json"))


def test_sizes_and_numbers_have_limits(stores, monkeypatch):
    stores.write(1, b"content")
    (manifest,) = stores.folder.manifests("place")
    small = SnapshotFolder(f"file://{stores.path / 'snapshots'}", max_store_bytes=5)
    with pytest.raises(SnapshotFailed, match="max_store_bytes"):
        small.fetch("place", manifest, stores.path / "fetched", lambda: None)
    monkeypatch.setattr(snapshots, "_FREE_BYTES", 1 << 60)
    with pytest.raises(SnapshotFailed, match="the disk has"):
        stores.folder.fetch("place", manifest, stores.path / "fetched", lambda: None)
    monkeypatch.undo()
    monkeypatch.setattr(snapshots, "MAX_FILES", 2)
    with pytest.raises(SnapshotFailed, match="at most 2"):
        stores.write(2, b"other")


def test_a_folder_with_too_many_files_recovers(stores, monkeypatch):
    for progress in (1, 2, 3, 4):
        stores.write(progress, b"common", b"content %d" % progress)
    monkeypatch.setattr(snapshots, "MAX_LISTED", 9)
    monkeypatch.setattr(snapshots, "_MAX_DELETED", 2)
    assert len(list((stores.there / "files").iterdir())) == 10
    with pytest.raises(SnapshotFailed, match=r"10 files, more than 9.*raise snapshot_interval_ms"):
        stores.write(5, b"new")
    assert not stores.has(b"new")
    stores.age(DAY + 60)
    with pytest.raises(SnapshotFailed, match="more than 9"):
        stores.write(5, b"new")
    assert len(list((stores.there / "files").iterdir())) == 8
    assert stores.kept() == [4, 3]
    (furthest, _) = stores.folder.manifests("place")
    stores.folder.fetch("place", furthest, stores.path / "fetched", lambda: None)
    stores.write(5, b"new")
    assert stores.kept() == [5, 4]


@pytest.mark.parametrize("torn", [b"", b"{", b"[]"])
def test_a_torn_manifest_of_equal_progress_is_written_again(stores, torn):
    stores.write(1, b"content")
    (stores.there / "1.json").write_bytes(torn)
    stores.write(1, b"content")
    assert stores.kept() == [1]


def test_a_fetch_reserves_its_disk_space(stores, monkeypatch):
    stores.write(1, b"content", b"more")
    (manifest,) = stores.folder.manifests("place")
    free = snapshots._FREE_BYTES + 2 * manifest.n_bytes - 1
    monkeypatch.setattr(snapshots, "_MAX_FILES_AT_ONCE", 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))

    def fits(name, check=lambda: None) -> bool:
        try:
            stores.folder.fetch("place", manifest, stores.path / f"fetched-{name}", check)
        except SnapshotFailed as failed:
            assert "the disk has" in str(failed)
            return False
        return True

    found: list[bool] = []
    assert fits("first", lambda: found.append(fits(len(found))))
    assert found == [False, True, True, True], "there is space for writing again"
    assert fits("later")


def test_a_file_system_without_credentials_is_refused_with_a_remedy(monkeypatch):
    def refuse(*_, **__):
        raise ValueError("Must provide either a connection_string or account_name")

    monkeypatch.setattr(core, "url_to_fs", refuse)
    with pytest.raises(SourceUnusable, match=r"abfs://c/e .*account_name\. Check its credentials"):
        SnapshotFolder("abfs://c/e")


@pytest.mark.parametrize(
    ("call", "action"),
    [("pipe_file", "written"), ("ls", "listed"), ("cat_file", "read"), ("rm_file", "deleted")],
)
def test_a_probe_names_the_missing_permission(stores, monkeypatch, call, action):
    stores.folder.probe()
    assert not list(stores.path.glob("snapshots/*"))

    def refuse(*_, **__):
        raise PermissionError("refused")

    monkeypatch.setattr(stores.folder._files, call, refuse)
    with pytest.raises(SnapshotFailed, match=f"it cannot be {action}: PermissionError: refused"):
        stores.folder.probe()


def test_parameters_of_addresses_are_not_in_errors(stores, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("GET https://host/x?sig=secret&se=1 was refused")

    monkeypatch.setattr(stores.folder._files, "ls", refuse)
    with pytest.raises(SnapshotFailed) as failed:
        stores.folder.manifests("place")
    assert str(failed.value) == (
        "it cannot be read: PermissionError: GET https://host/x?*** was refused"
    )


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
from tests.worker.test_snapshots import work_on_a_store

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


@pytest.mark.slow
@pytest.mark.xdist_group("s3")  # its server is imported once
def test_snapshots_are_kept_on_an_s3_server(tmp_path):
    with s3_server("snapshots") as environment:
        printed = keeps_snapshots(tmp_path, "s3", environment, "bucket does not exist")
    assert SECRET not in printed
