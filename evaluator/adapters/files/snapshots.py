"""Snapshots of task stores in a folder of fsspec: `PLACE/files/HASH` and `PLACE/PROGRESS.json`."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple
from uuid import uuid4

from evaluator.adapters.files.remote import file_system, reason_of
from evaluator.core.types.records import Log
from evaluator.wire.state.snapshots import (
    FORMAT,
    MAX_FILES,
    MAX_MANIFEST_BYTES,
    Manifest,
    ManifestUnreadable,
    SnapshotFailed,
    SnapshotFile,
    decode_manifest,
    encode_manifest,
    manifest_name,
    progress_of,
)

MAX_LISTED: Final = 20 * MAX_FILES
"""Most objects of a folder to which snapshots are written."""
KEPT_MANIFESTS: Final = 2
UNUSED_SECONDS: Final = 86_400.0
"""Age at which a file that no kept manifest names is deleted."""
MAX_UPLOAD_SECONDS: Final = UNUSED_SECONDS / 4
_REUSED_SECONDS: Final = UNUSED_SECONDS / 2
"""Age up to which such a file is used again: it is not deleted before its manifest is written."""
_MAX_MANIFESTS_READ: Final = 8
_MAX_DELETED: Final = 1_000
_MAX_FILES_AT_ONCE: Final = 32
_MAX_BYTES_AT_ONCE: Final = 16 << 20
_MAX_PLACES: Final = 1_000
_FREE_BYTES: Final = 256 << 20
"""Free disk space that a fetch leaves."""
_LEFT_OUT: Final = ("OPTIONS-", "rocksdict-config")
"""Files that a store writes again when it is opened."""

_MODIFIED: Final = ("mtime", "LastModified", "last_modified", "updated", "created")
"""Members of a listing that have the time of a file, by file system."""

_FileId = tuple[int, int, int]


class _Object(NamedTuple):
    """A file of the folder; the age is 0 if it is not known."""

    n_bytes: int
    age_seconds: float


class SnapshotFolder:
    """Implements `SnapshotStore` of the worker; raises SourceUnusable without the packages."""

    def __init__(self, url: str, *, max_store_bytes: int = 0) -> None:
        self._files, root = file_system(url, "snapshots")
        self._root = root.rstrip("/")
        self._max_store_bytes = max_store_bytes
        self._hashes: dict[str, dict[_FileId, str]] = {}  # of the last copy, by place
        self._coming: dict[Path, int] = {}  # bytes that running fetches still write
        self._reserving = Lock()

    # Reading

    def manifests(self, place: str) -> list[Manifest]:
        with _failures("read"):
            read = self._read(place, self._names(place))
            return [each for each in read.values() if each is not None]

    def fetch(
        self, place: str, manifest: Manifest, folder: Path, check: Callable[[], None]
    ) -> None:
        with _failures("read"):
            there = self._listed(self._path(place, "files"))
            for each in manifest.files:
                if each.sha256 not in there or there[each.sha256].n_bytes != each.n_bytes:
                    raise SnapshotFailed(f"{each.sha256} is missing or has another size")
            if 0 < self._max_store_bytes < manifest.n_bytes:
                raise SnapshotFailed(f"it has {manifest.n_bytes} bytes, more than max_store_bytes")
            folder.mkdir(mode=0o700)
            with self._room(folder, manifest.n_bytes):
                for some in _portions(manifest.files):
                    check()
                    sources = [self._path(place, "files", each.sha256) for each in some]
                    self._files.get(sources, [str(folder / each.name) for each in some])
                    for each in some:
                        _require_hash(folder / each.name, each.sha256)
                        self._coming[folder] -= each.n_bytes

    @contextmanager
    def _room(self, folder: Path, n_bytes: int) -> Iterator[None]:
        """Reserves disk space for a fetch, in addition to that of running fetches."""
        with self._reserving:
            free = shutil.disk_usage(folder).free - sum(self._coming.values())
            if n_bytes + _FREE_BYTES > free:
                raise SnapshotFailed(f"it has {n_bytes} bytes, and the disk has {free}")
            self._coming[folder] = n_bytes
        try:
            yield
        finally:
            with self._reserving:
                del self._coming[folder]

    # Writing

    def write(
        self, place: str, folder: Path, positions: Mapping[Log, int], check: Callable[[], None]
    ) -> tuple[Manifest, int]:
        deadline = time.monotonic() + MAX_UPLOAD_SECONDS
        with _failures("written"):
            manifest = Manifest(FORMAT, positions, self._hashed(place, folder))
            decode_manifest(encode_manifest(manifest), manifest.progress)
            there = self._listed(self._path(place, "files"))
            if len(there) > MAX_LISTED:
                self._delete_unused(place, there)
                raise SnapshotFailed(
                    f"its folder has {len(there)} files, more than {MAX_LISTED}. Every attempt "
                    f"deletes up to {_MAX_DELETED} that are a day old and unused; raise "
                    "snapshot_interval_ms, so that fewer are written in a day."
                )
            used = _hashes_of(self._read(place, self._names(place)))
            new: dict[str, SnapshotFile] = {}
            for each in manifest.files:
                known = there.get(each.sha256)
                kept = known is not None and (
                    each.sha256 in used or known.age_seconds < _REUSED_SECONDS
                )
                if known is None or not kept or known.n_bytes != each.n_bytes:
                    new[each.sha256] = each
            for some in _portions(new.values()):
                check()
                if time.monotonic() > deadline:
                    raise SnapshotFailed(f"it took more than {MAX_UPLOAD_SECONDS:.0f} s")
                targets = [self._path(place, "files", each.sha256) for each in some]
                self._files.put([str(folder / each.name) for each in some], targets)
            self._write_manifest(place, manifest)
            self._delete_unused(place, there)
            return manifest, sum(each.n_bytes for each in new.values())

    def _write_manifest(self, place: str, manifest: Manifest) -> None:
        """Writes a manifest unless there is a readable one: of equal progress both are valid."""
        target = self._path(place, manifest_name(manifest.progress))
        value = encode_manifest(manifest)
        try:
            self._files.pipe_file(target, value, mode="create")
        except FileExistsError:
            if self._manifest(place, self._names(place), manifest.progress) is None:  # torn
                with suppress(FileNotFoundError):
                    self._files.rm_file(target)
                self._files.pipe_file(target, value, mode="create")

    def _hashed(self, place: str, folder: Path) -> list[SnapshotFile]:
        """The files of a copy; files that the last copy had are not read again."""
        known, hashes, found = self._hashes.pop(place, {}), {}, []
        for path in sorted(folder.iterdir()):
            if path.name.startswith(_LEFT_OUT):
                continue
            status = path.stat()
            identity = status.st_ino, status.st_size, status.st_mtime_ns
            if identity not in known:
                with path.open("rb") as file:
                    known[identity] = hashlib.file_digest(file, "sha256").hexdigest()
            hashes[identity] = known[identity]
            found.append(SnapshotFile(path.name, known[identity], status.st_size))
        if len(found) > MAX_FILES:
            raise SnapshotFailed(f"the store has {len(found)} files; at most {MAX_FILES}")
        while len(self._hashes) >= _MAX_PLACES:
            self._hashes.pop(next(iter(self._hashes)))
        self._hashes[place] = hashes
        return found

    def _delete_unused(self, place: str, files: Mapping[str, _Object]) -> None:
        """Deletes earlier manifests, and files that are old and in none of the kept ones."""
        names = self._names(place)
        read = self._read(place, names)
        kept = [progress for progress, each in read.items() if each is not None]
        unreadable = [progress for progress, each in read.items() if each is None]
        old = [manifest_name(each) for each in unreadable]
        old = [name for name in old if names[name].age_seconds > UNUSED_SECONDS]
        if len(kept) == KEPT_MANIFESTS:
            old += [
                manifest_name(each)
                for each in sorted(_progresses(names) - set(unreadable))
                if each < kept[-1]
            ]
        if kept:
            used = _hashes_of(read)
            unused = {name: each for name, each in files.items() if name not in used}
            old += [f"files/{n}" for n, o in unused.items() if o.age_seconds > UNUSED_SECONDS]
        for name in old[:_MAX_DELETED]:
            with suppress(FileNotFoundError):  # another writer was faster
                self._files.rm_file(self._path(place, name))

    # The folder

    def probe(self) -> None:
        """Writes, lists, reads and deletes a small file, as a worker does. Raises SnapshotFailed.

        A file that cannot be deleted is left.
        """
        name = f"check-{uuid4().hex}"
        path = self._path(name)
        for action, call in (
            ("written", lambda: self._files.pipe_file(path, name.encode(), mode="create")),
            ("listed", lambda: self._names("")[name]),
            ("read", lambda: self._files.cat_file(path)),
            ("deleted", lambda: self._files.rm_file(path)),
        ):
            with _failures(action):
                call()

    def _path(self, *parts: str) -> str:
        return "/".join((self._root, *parts))

    def _listed(self, folder: str) -> dict[str, _Object]:
        """Sizes of the files of a folder by name; empty if it does not exist."""
        self._files.invalidate_cache()
        try:
            found = self._files.ls(folder, detail=True)
        except FileNotFoundError:
            return {}
        now = time.time()
        return {
            each["name"].rpartition("/")[2]: _Object(
                int(each.get("size") or 0), now - _time(each, now)
            )
            for each in found
            if each["type"] == "file"
        }

    def _names(self, place: str) -> dict[str, _Object]:
        return self._listed(self._path(place))

    def _read(self, place: str, names: Mapping[str, _Object]) -> dict[int, Manifest | None]:
        """The furthest manifests by progress, furthest first; None for an unreadable one.

        At most KEPT_MANIFESTS are readable.
        """
        found: dict[int, Manifest | None] = {}
        for progress in sorted(_progresses(names), reverse=True):
            found[progress] = self._manifest(place, names, progress)
            n_read = sum(each is not None for each in found.values())
            if len(found) == _MAX_MANIFESTS_READ or n_read == KEPT_MANIFESTS:
                break
        return found

    def _manifest(self, place: str, names: Mapping[str, _Object], progress: int) -> Manifest | None:
        """The manifest of that progress; None if it is missing or unreadable."""
        name = manifest_name(progress)
        with suppress(ManifestUnreadable, FileNotFoundError):
            if name in names and 0 < names[name].n_bytes <= MAX_MANIFEST_BYTES:
                return decode_manifest(self._files.cat_file(self._path(place, name)), progress)
        return None


def _portions(files: Iterable[SnapshotFile]) -> Iterator[list[SnapshotFile]]:
    """Files that are transferred at a time: a large one, or small ones, whose requests overlap."""
    some: list[SnapshotFile] = []
    for each in files:
        n_bytes = sum(file.n_bytes for file in some) + each.n_bytes
        if some and (len(some) == _MAX_FILES_AT_ONCE or n_bytes > _MAX_BYTES_AT_ONCE):
            yield some
            some = []
        some.append(each)
    if some:
        yield some


def _require_hash(path: Path, sha256: str) -> None:
    """Raises SnapshotFailed if a file that was fetched has another hash; else syncs it."""
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        os.fsync(opened.fileno())
    if digest != sha256:
        raise SnapshotFailed(f"{sha256} has other bytes")


def _hashes_of(manifests: Mapping[int, Manifest | None]) -> set[str]:
    """Hashes of the files of readable manifests."""
    return {file.sha256 for each in manifests.values() if each is not None for file in each.files}


def _progresses(names: Iterable[str]) -> set[int]:
    return {progress for name in names if (progress := progress_of(name)) is not None}


def _time(detail: Mapping[str, Any], unknown: float) -> float:
    """When a file was written."""
    found = next((detail[name] for name in _MODIFIED if detail.get(name)), unknown)
    if isinstance(found, str):
        found = datetime.fromisoformat(found)
    return float(found.timestamp() if isinstance(found, datetime) else found)


@contextmanager
def _failures(action: str) -> Iterator[None]:
    """Errors of a file system become SnapshotFailed."""
    try:
        yield
    except SnapshotFailed:
        raise
    except Exception as error:  # noqa: BLE001 - every file system has its own
        raise SnapshotFailed(f"it cannot be {action}: {reason_of(error)}") from None
