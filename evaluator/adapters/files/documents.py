"""Single files that are read or written at once."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from evaluator.adapters.files.streams import batches_of, open_stream, size_of, unreadable
from evaluator.ports import ResultsUnusable, SourceAmbiguous, SourceUnusable

_LINES: Final = 1_000


def read_file(path: Path) -> bytes:
    """The bytes of a file. Raises SourceUnusable."""
    size_of(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


def result_lines(
    path: Path, on_read: Callable[[int, int], object] | None = None
) -> Iterator[bytes]:
    """The lines of a file of a replay, or of its compressed form beside it, `.gz` or `.zst`.

    *on_read* gets the stored bytes that were read, and all of them. Raises SourceUnusable.
    """
    forms = [path.with_name(path.name + suffix) for suffix in ("", ".gz", ".zst")]
    found = [each for each in forms if each.exists()]
    if not found:
        others = [each.name for each in sorted(path.parent.glob(f"{path.name}.*"))]
        todo = "Name the --out directory of `evaluator replay`"
        todo = f"Decompress {others[0]}" if others else todo
        raise SourceUnusable(f"{path} does not exist, with or without .gz or .zst. {todo}.")
    if len(found) > 1:
        names = " and ".join(each.name for each in found)
        raise SourceAmbiguous(f"{path.parent} has {names}. Move all but one of them away.")
    n_bytes = size_of(found[0])
    with closing(open_stream(found[0], n_bytes)) as stream:
        for lines in batches_of(stream, found[0], _LINES):
            yield from lines
            if on_read is not None:
                on_read(stream.position, n_bytes)


class NewFile:
    """A file that is written completely or not at all; creates its parents.

    Raises ResultsUnusable if the file exists and is not empty, unless *force*, if it is a device
    or a pipe, and if it cannot be written. A link stays, and its target is written.
    """

    def __init__(self, path: Path, *, force: bool) -> None:
        self._path = path
        try:
            if path.is_dir():
                raise ResultsUnusable(f"--out {path} is a directory. Name a file.")
            if path.exists() and not path.is_file():
                raise ResultsUnusable(f"--out {path} is a device or a pipe. Name a file.")
            if not force and path.exists() and path.stat().st_size:
                raise ResultsUnusable(
                    f"--out {path} is not empty. Name another file, or add --force to replace it."
                )
        except OSError as error:
            raise self._unusable(error) from error

    def write(self, text: bytes) -> None:
        """Writes a hidden file beside the path, and renames it."""
        path = Path(os.path.realpath(self._path))
        hidden = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                hidden.write_bytes(text)
                hidden.replace(path)
            finally:
                hidden.unlink(missing_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> ResultsUnusable:
        return ResultsUnusable(
            f"--out {self._path} cannot be written: {error.strerror or error}. Name another file."
        )
