"""Stores that are lost, and restored from snapshots in a folder."""

import copy
import errno
import hashlib
import json
import shutil
import threading
import time
from pathlib import Path

import pytest
import pytest_asyncio
from fsspec.implementations.local import LocalFileSystem
from structlog.testing import capture_logs

from evaluator.adapters.files.snapshots import SnapshotFolder
from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.ports import StateUnusable
from evaluator.wire.state import task_rows
from evaluator.wire.state.snapshots import SnapshotFailed
from evaluator.worker import ownership, store_snapshots
from evaluator.worker.ownership import Ownership
from evaluator.worker.store_snapshots import place_of
from tests.repeats import first_quick
from tests.s3 import SECRET, s3_server
from tests.waiting import PATIENCE_SECONDS, eventually
from tests.worker.harness import WorkerHarness, totals
from tests.worker.snapshots import (
    N_QUERIES,
    UNFINISHED,
    Rig,
    back_without_disk,
    commit_after_every_batch,
    flip,
    keeps_snapshots,
)
from tests.worker.traffic import traffic


@pytest.fixture(autouse=True)
def _commit_after_every_batch(monkeypatch):
    commit_after_every_batch(monkeypatch)


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


@pytest.mark.slow
@pytest.mark.xdist_group("s3")  # its server is imported once
def test_snapshots_are_kept_on_an_s3_server(tmp_path):
    with s3_server("snapshots") as environment:
        printed = keeps_snapshots(tmp_path, "s3", environment, "bucket does not exist")
    assert SECRET not in printed
