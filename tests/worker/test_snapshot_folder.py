"""The folder of snapshots by itself: two writers, ages, limits."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from fsspec import core

from evaluator.adapters.files import snapshots
from evaluator.adapters.files.snapshots import SnapshotFolder
from evaluator.ports import SourceUnusable
from evaluator.wire.state.snapshots import SnapshotFailed
from tests.worker.snapshots import flip


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
