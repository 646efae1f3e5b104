"""Single files, read and written whole."""

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
    """A file that appears whole, or not at all; its folder is made with its parents.

    Raises:
        ResultsUnusable: at once if it is there already and not empty, unless *force*; and when it
            cannot be written.
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
        """Writes the file aside, then puts it in its place."""
        aside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                aside.write_bytes(text)
                aside.replace(self._path)
            finally:
                aside.unlink(missing_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> ResultsUnusable:
        return ResultsUnusable(
            f"--out {self._path} cannot be written: {error.strerror or error}. Name another file."
        )
