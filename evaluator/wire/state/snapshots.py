"""Manifests of snapshots: the files of the store of a task, by their hashes.

Any writer to the folder of snapshots can write a manifest, so its content is not trusted: names are
those of files of a store, without folders, and every list and size has a limit.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from evaluator.core.types.records import LOGS, Log
from evaluator.wire.reading import Count, Reader

FORMAT: Final = 1
MAX_FILES: Final = 10_000
MAX_MANIFEST_BYTES: Final = 4 << 20
FILE_NAME: Final = r"^([0-9]{6,20}\.(sst|log)|MANIFEST-[0-9]{6,20}|CURRENT)\Z"
_MANIFEST_NAME: Final = re.compile(r"(0|[1-9][0-9]{0,19})\.json", re.ASCII)


class SnapshotFailed(Exception):
    """A snapshot cannot be written or fetched now; the message has the reason."""


class ManifestUnreadable(ValueError):
    """A manifest that cannot be read, or that contradicts itself."""


class SnapshotFile(msgspec.Struct, frozen=True):
    """A file of a store; it is stored under its hash."""

    name: Annotated[str, msgspec.Meta(pattern=FILE_NAME)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    n_bytes: Count


class Manifest(msgspec.Struct, frozen=True):
    """The files of a store, and the next offsets that it reads."""

    format: Literal[1]
    positions: Mapping[Log, Count]
    files: Annotated[list[SnapshotFile], msgspec.Meta(min_length=2, max_length=MAX_FILES)]

    @property
    def progress(self) -> int:
        """The sum of the positions: of two snapshots the one with the larger sum is further."""
        return sum(self.positions.values())

    @property
    def n_bytes(self) -> int:
        """Size of the store."""
        return sum(each.n_bytes for each in self.files)


_read: Final[Reader[Manifest]] = Reader(Manifest, ManifestUnreadable, max_bytes=MAX_MANIFEST_BYTES)


def manifest_name(progress: int) -> str:
    """The name of the manifest of that progress."""
    return f"{progress}.json"


def progress_of(name: str) -> int | None:
    """The progress in the name of a manifest; None for other names."""
    match = _MANIFEST_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest."""
    return msgspec.json.encode(manifest)


def decode_manifest(value: bytes, progress: int) -> Manifest:
    """The manifest of that progress. Raises ManifestUnreadable."""
    manifest = _read(value)
    names = {each.name for each in manifest.files}
    if manifest.positions.keys() != set(LOGS) or manifest.progress != progress:
        raise ManifestUnreadable("its positions are not those of its name")
    n_lists = sum(name.startswith("MANIFEST-") for name in names)
    if len(names) < len(manifest.files) or "CURRENT" not in names or n_lists != 1:
        raise ManifestUnreadable("its files are not those of one store")
    return manifest
