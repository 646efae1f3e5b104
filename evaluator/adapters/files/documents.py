"""Single files that are read or written at once."""

import os
from pathlib import Path

from evaluator.adapters.files.streams import size_of, unreadable
from evaluator.ports import ResultsUnusable


def read_file(path: Path) -> bytes:
    """The bytes of a file. Raises SourceUnusable."""
    size_of(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


class NewFile:
    """A file that is written completely or not at all; creates its parents.

    Raises ResultsUnusable if the file exists and is not empty, unless *force*, and if it cannot be
    written.
    """

    def __init__(self, path: Path, *, force: bool) -> None:
        self._path = path
        try:
            if path.is_dir():
                raise ResultsUnusable(f"--out {path} is a directory. Name a file.")
            if not force and path.exists() and path.stat().st_size:
                raise ResultsUnusable(
                    f"--out {path} is not empty. Name another file, or add --force to replace it."
                )
        except OSError as error:
            raise self._unusable(error) from error

    def write(self, text: bytes) -> None:
        """Writes a hidden file beside the path, and renames it."""
        hidden = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                hidden.write_bytes(text)
                hidden.replace(self._path)
            finally:
                hidden.unlink(missing_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> ResultsUnusable:
        return ResultsUnusable(
            f"--out {self._path} cannot be written: {error.strerror or error}. Name another file."
        )
