"""The manifest of a replay: its inputs, settings, code and files."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from evaluator.replay.results import ResultFile
from evaluator.version import __version__
from evaluator.wire.canonical import encode_document

MANIFEST_FORMAT: Final = 2


class Code(NamedTuple):
    """Version and hash of the code that wrote results; None if parts come from other code."""

    version: str | None
    sha256: str | None


def manifest(
    members: Mapping[str, object],
    counts: Mapping[str, int],
    files: Mapping[str, ResultFile],
    *,
    meaning: str,
    code: Code | None,
) -> dict[str, object]:
    """The document of manifest.json; it does not depend on time, speed or the path of files.

    *members* have settings, place, ranges and tasks. *code* is this one with None.
    """
    code = code or Code(__version__, code_sha256())
    origin: dict[str, object] = {
        "format": MANIFEST_FORMAT,
        "version": code.version,
        "code_sha256": code.sha256,
        "meaning": meaning,
        "place": members["place"],
        **members,
    }
    entries = described(files)
    return {
        **origin,
        "counts": dict(counts),
        "files": entries,
        "chain": chain_of(origin, entries),
    }


def described(files: Mapping[str, ResultFile]) -> dict[str, dict[str, object]]:
    """The entries of files in the manifest."""
    return {name: msgspec.to_builtins(file) for name, file in files.items()}


def chain_of(origin: Mapping[str, object], files: Mapping[str, Mapping[str, object]]) -> str:
    """A hash of all members before `counts`, and of the hashes of all files.

    Two replays with the same chain had the same input ranges, settings, code and results.
    """
    chain = hashlib.sha256(encode_document(origin)).hexdigest()
    for name, file in files.items():
        chain = hashlib.sha256(f"{chain} {name} {file['sha256']}".encode()).hexdigest()
    return chain


@cache
def code_sha256() -> str:
    """Hash of the package's sources: paths within it and bytes, in the order of the paths."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(source)}\n".encode())
        digest.update(source)
    return digest.hexdigest()
