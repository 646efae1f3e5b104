"""The progress of the stores of a directory, across processes."""

from types import SimpleNamespace

import pytest

from evaluator.adapters import claims as module
from evaluator.adapters.claims import StoreClaims
from tests.waiting import eventually

IDS = {"rankings": "r1", "judgments": "j1"}


def view(task, reach, *, restoring=False):
    positions = {"rankings": reach - 1, "judgments": 1}
    return SimpleNamespace(task=task, positions=positions, restoring=restoring)


class Disk:
    """A state directory, and the views of the process that has it."""

    def __init__(self, path):
        self.path, self.views = path, []

    def claims(self, fingerprint="f"):
        return StoreClaims(self.path, fingerprint, lambda: tuple(self.views))

    async def live(self, views, ids=IDS):
        """A process that owned these tasks, and ends."""
        self.views = views
        claims = self.claims()
        async with claims.kept():
            claims.of(ids)
        for each in views:
            (self.path / f"task-{each.task}").mkdir(exist_ok=True)
        self.views = []


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path)


async def test_the_next_process_claims_the_tasks_of_its_stores(disk):
    await disk.live([view(0, 7), view(3, 9)])
    assert disk.claims().of(IDS) == {0: 7, 3: 9}


async def test_open_tasks_are_claimed_with_their_current_progress(disk):
    await disk.live([view(0, 7), view(1, 5)])
    claims = disk.claims()
    disk.views = [view(0, 8)]
    assert claims.of(IDS) == {0: 8, 1: 5}
    disk.views = []  # moved away: its store stays
    assert claims.of(IDS) == {0: 8, 1: 5}


async def test_a_store_that_is_being_rebuilt_is_claimed_by_its_process_only(disk):
    disk.views = [view(0, 7, restoring=True)]
    assert disk.claims().of(IDS) == {0: 7}
    await disk.live(disk.views)
    assert disk.claims().of(IDS) == {}


async def test_stores_of_other_settings_or_topics_and_missing_stores_are_not_claimed(disk):
    await disk.live([view(0, 7), view(1, 5)])
    assert disk.claims("other").of(IDS) == {}
    assert disk.claims().of({**IDS, "rankings": "r2"}) == {}
    (disk.path / "task-0").rmdir()
    assert disk.claims().of(IDS) == {1: 5}


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 100_000, b'{"claims": {"0": 7}}'])
async def test_a_damaged_claims_file_is_ignored(disk, content):
    await disk.live([view(0, 7)])
    (disk.path / "claims.json").write_bytes(content)
    assert disk.claims().of(IDS) == {}


async def test_the_file_is_written_while_the_process_runs(disk, monkeypatch):
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.001)
    disk.views = [view(0, 7)]
    claims = disk.claims()
    async with claims.kept():
        claims.of(IDS)
        await eventually((disk.path / "claims.json").exists)


async def test_writing_claims_to_a_full_disk_raises_no_error(disk):
    disk.views = [view(0, 7)]
    claims = disk.claims()
    async with claims.kept():
        claims.of(IDS)
        (disk.path / "claims.new").mkdir()  # cannot be written
    assert not (disk.path / "claims.json").exists()
