"""The manifest of a replay: its inputs, settings, code and files."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from evaluator.ports import Place
from evaluator.replay.results import ResultFile
from evaluator.version import __version__
from evaluator.wire.canonical import encode_document

MANIFEST_FORMAT: Final = 2


def manifest(
    settings: Mapping[str, object],
    ranges: Mapping[str, tuple[int, int]],
    counts: Mapping[str, int],
    files: Mapping[str, ResultFile],
    *,
    meaning: str,
    place: Place | None,
) -> dict[str, object]:
    """The document of manifest.json; it does not depend on time, speed or the path of files.

    `chain` is a hash of all members before `counts`, and of the hashes of all files: two replays
    with the same chain had the same input ranges, settings, code and results.
    """
    origin: dict[str, object] = {
        "format": MANIFEST_FORMAT,
        "version": __version__,
        "code_sha256": code_sha256(),
        "meaning": meaning,
        "place": None if place is None else place.as_document(),
        "settings": dict(settings),
        "ranges": {name: {"start": start, "end": end} for name, (start, end) in ranges.items()},
    }
    chain = hashlib.sha256(encode_document(origin)).hexdigest()
    for name, file in files.items():
        chain = hashlib.sha256(f"{chain} {name} {file.sha256}".encode()).hexdigest()
    return {
        **origin,
        "counts": dict(counts),
        "files": {
            name: {"rows": file.rows, "bytes": file.size_bytes, "sha256": file.sha256}
            for name, file in files.items()
        },
        "chain": chain,
    }


def code_sha256() -> str:
    """Hash of the package's sources: paths within it and bytes, in the order of the paths."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(source)}\n".encode())
        digest.update(source)
    return digest.hexdigest()
