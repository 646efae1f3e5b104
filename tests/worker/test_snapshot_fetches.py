"""Fetches of snapshots: those that stall, are cancelled, wait or are repeated."""

import threading

import pytest

from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.core.types.records import LOGS
from evaluator.wire.state.snapshots import Manifest, SnapshotFile
from evaluator.worker import store_snapshots
from evaluator.worker.store_snapshots import StoreSnapshots
from tests.repeats import sized
from tests.waiting import PATIENCE_SECONDS, eventually
from tests.worker.harness import WorkerHarness
from tests.worker.traffic import traffic

BOUNDS = dict.fromkeys(LOGS, (0, 10))


class SlowSnapshots:
    """A SnapshotStore with one snapshot, whose fetches write a file and wait for `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun: list[str] = []

    def manifests(self, _place):
        names = ("CURRENT", "MANIFEST-000001")
        return [Manifest(1, dict.fromkeys(LOGS, 1), [SnapshotFile(n, "0" * 64, 1) for n in names])]

    def fetch(self, place, _manifest, folder, check):
        folder.mkdir()
        (folder / "000001.sst").write_bytes(b"content")
        self.begun.append(place)
        self.go.wait(PATIENCE_SECONDS)
        check()


class Rig:
    def __init__(self, path) -> None:
        self.path = path / "state"
        self.states = RocksStateDirectory(self.path)
        self.states.hold()
        self.slow = SlowSnapshots()
        self.snapshots = StoreSnapshots(self.slow, self.states, interval_ms=1, fingerprint="f")

    def begin(self, *tasks: int) -> None:
        for task in tasks:
            assert self.snapshots.begin_fetch(task, str(task), least=0, bounds=BOUNDS)

    async def all_begun(self, n: int) -> None:
        await eventually(lambda: len(self.slow.begun) == n)

    async def is_empty(self) -> None:
        await eventually(lambda: [each.name for each in self.path.iterdir()] == ["in-use"])


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    yield rig
    rig.slow.go.set()
    rig.states.release()


async def test_a_stalled_fetch_deletes_its_folder_when_it_ends(rig, monkeypatch):
    rig.begin(0)
    await rig.all_begun(1)
    monkeypatch.setattr(store_snapshots, "STALLED_SECONDS", 0.0)
    await eventually(rig.snapshots.ended)
    assert rig.snapshots.adopt([0]) == {0: False}
    assert list(rig.path.glob("snapshot-*/store/000001.sst")), "its thread still writes"
    rig.slow.go.set()
    await rig.is_empty()


async def test_the_fetch_of_a_revoked_task_is_cancelled(rig):
    rig.begin(0, 1)
    await rig.all_begun(2)
    rig.snapshots.give_up_others([1])
    assert rig.snapshots.fetching == [1]
    rig.slow.go.set()
    await eventually(rig.snapshots.ended)
    assert rig.snapshots.adopt([1]) == {1: True}
    await eventually(lambda: sorted(p.name for p in rig.path.iterdir()) == ["in-use", "task-1"])
    assert rig.snapshots.counts["snapshot_failures", "fetch"] == 0, "that is no failure"


async def test_a_worker_is_ready_after_the_task_that_it_fetches_is_revoked(tmp_path):
    harness = WorkerHarness(2)
    harness.append(
        {task: traffic(task, n_queries=sized(60, quick=30)).part(0, 0.5) for task in (0, 1)}
    )
    slow, states = SlowSnapshots(), RocksStateDirectory(tmp_path / "first")
    first = harness.worker(states=states, snapshot_url=f"file://{tmp_path}", max_poll_records=20)
    first._snapshots._store = slow
    async with harness.working(first):
        await eventually(lambda: first.readiness() == ["fetching snapshots of [0, 1]"])
        async with harness.working(harness.worker(max_poll_records=20)) as second:
            await eventually(lambda: second.snapshot.tasks and not second.readiness())
            (theirs,) = (view.task for view in second.snapshot)
            await eventually(lambda: first.readiness() == [f"fetching snapshots of [{1 - theirs}]"])
        slow.go.set()


async def test_two_fetches_run_at_a_time_and_waiting_ones_do_not_count_as_stalled(rig, monkeypatch):
    rig.begin(0, 1, 2, 3)
    await rig.all_begun(2)
    assert rig.snapshots.fetching == [0, 1, 2, 3]
    rig.snapshots.give_up_others([0, 1, 2])
    with monkeypatch.context() as patch:
        patch.setattr(store_snapshots, "STALLED_SECONDS", 0.0)
        await eventually(rig.snapshots.ended)
    assert rig.snapshots.counts["snapshot_failures", "fetch"] == 2
    assert rig.snapshots.fetching == [2]
    assert rig.snapshots.adopt([0, 1, 2]) == {0: False, 1: False}
    rig.slow.go.set()
    await eventually(rig.snapshots.ended)
    assert rig.snapshots.adopt([2]) == {2: True}
    assert sorted(rig.slow.begun) == ["0", "1", "2"]
    await eventually(lambda: sorted(p.name for p in rig.path.iterdir()) == ["in-use", "task-2"])


async def test_a_discarded_snapshot_is_fetched_again_and_a_used_one_is_not(rig):
    rig.slow.go.set()
    for owned, n_fetched in ((1, 1), (0, 2), (0, 2)):
        rig.begin(0)
        await eventually(rig.snapshots.ended)
        rig.snapshots.adopt([owned])
        assert len(rig.slow.begun) == n_fetched
