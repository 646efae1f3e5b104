"""Results as a directory: every file complete, or none.

Files are written aside, in a hidden directory within the target, and renamed at the end.
Rows that have to be sorted are sorted in bounded memory.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from evaluator.ports import ResultFile, ResultsUnusable, SortKey

MEMORY_BYTES: Final = 64 << 20
"""Page cache of one table; a table that fits is never written to its file."""

_PAGE_BYTES: Final = 32 << 10
_INTEGER_END: Final = 1 << 63
_LONG_INTEGER_DIGITS: Final = 2_500
"""Integers that SQLite does not have are padded texts, which it orders after every integer."""

ROWS_PER_BLOCK: Final = 1_000


class SortedRows:
    """(key, line) rows that are read once, ordered by key, then by line.

    All keys have the same length and types. The file is made with the first row and removed with
    `close`, or when all rows have been read. Everything raises OSError if the disk refuses.
    """

    def __init__(self, path: Path, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._path = path
        self._memory_bytes = memory_bytes
        self._database: sqlite3.Connection | None = None
        self._columns: list[str] = []
        self._types: list[type[int] | type[str]] = []
        self._has_long_integers = False
        self._n_rows = 0

    def add(self, rows: Iterable[tuple[SortKey, bytes]]) -> None:
        """Inserts rows."""
        numbered = [(*key, line, n) for n, (key, line) in enumerate(rows, self._n_rows)]
        if not numbered:
            return
        self._n_rows += len(numbered)
        with _disk_errors():
            database = self._database or self._new_database(numbered[0][:-2])
            replace = f"REPLACE INTO sorted VALUES ({','.join('?' * len(numbered[0]))})"  # noqa: S608  # no values in it
            try:
                database.executemany(replace, numbered)
            except OverflowError:  # rows before the long integer are there, and are replaced
                self._has_long_integers = True
                database.executemany(replace, [tuple(map(_padded, row)) for row in numbered])

    def drain(self) -> Iterator[tuple[SortKey, bytes]]:
        """All rows in order, once."""
        if self._database is None:
            return
        columns = ",".join(self._columns)
        query = f"SELECT {columns}, line FROM sorted ORDER BY {columns}, line, n"  # noqa: S608  # names of this module
        with contextlib.closing(self), _disk_errors():
            for *key, line in self._database.execute(query):
                if self._has_long_integers:
                    key = [read(part) for read, part in zip(self._types, key, strict=True)]  # noqa: PLW2901  # the same key
                yield tuple(key), line

    def close(self) -> None:
        """Removes the file; safe to call twice."""
        if self._database is not None:
            self._database.close()
            self._database = None
            self._path.unlink(missing_ok=True)

    def _new_database(self, key: Sequence[object]) -> sqlite3.Connection:
        self._columns = [f"key{n}" for n in range(len(key))]
        self._types = [int if isinstance(part, int) else str for part in key]
        columns = ",".join((*self._columns, "line", "n"))
        self._database = database = sqlite3.connect(self._path, isolation_level=None)
        for pragma in (
            f"page_size = {_PAGE_BYTES}",
            f"cache_size = -{max(1, self._memory_bytes >> 10)}",
            "journal_mode = OFF",
            "synchronous = OFF",
            "locking_mode = EXCLUSIVE",
        ):
            database.execute(f"PRAGMA {pragma}")
        database.execute("BEGIN")  # without a commit pages leave the cache only if it is full
        database.execute(f"CREATE TABLE sorted ({columns}, PRIMARY KEY ({columns})) WITHOUT ROWID")
        return database


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise OSError(errno.ENOSPC, str(error)) from error


def _padded(value: object) -> object:
    if isinstance(value, int) and value >= _INTEGER_END:
        return f"{value:0{_LONG_INTEGER_DIGITS}}"
    return value


class _ResultWriter:
    """One file of results; counts and hashes what it writes."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._hash = hashlib.sha256()
        self._rows = 0
        self._size_bytes = 0

    def write(self, lines: Iterable[bytes]) -> None:
        lines = iter(lines)
        while block := list(islice(lines, ROWS_PER_BLOCK)):
            text = b"\n".join(block) + b"\n"
            self._file.write(text)
            self._hash.update(text)
            self._rows += len(block)
            self._size_bytes += len(text)

    def finish(self) -> ResultFile:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        return ResultFile(self._rows, self._size_bytes, self._hash.hexdigest())

    def close(self) -> None:
        self._file.close()


class ResultDirectory:
    """The files of one replay, as `Results`.

    The directory is made with its parents. If it holds anything it is refused unless *force*,
    which replaces files of the same names and leaves others alone. The results named in
    *elsewhere* become the files given there, which are refused and replaced alike.
    """

    def __init__(
        self,
        directory: Path,
        *,
        force: bool,
        memory_bytes: int = MEMORY_BYTES,
        elsewhere: Mapping[str, Path] | None = None,
    ) -> None:
        self._directory = directory
        self._elsewhere = dict(elsewhere or {})
        self._places: dict[str, Path] = {}  # where those of *elsewhere* are written aside
        self._force = force
        self._memory_bytes = memory_bytes
        self._made: list[Path] = []
        self._disk_tier: Path | None = None
        self._writers: dict[str, _ResultWriter] = {}
        self._sorting: dict[str, SortedRows] = {}
        self._finished: list[str] = []
        self._committed = False

    def __enter__(self) -> "ResultDirectory":
        """Makes the directory. Raises ResultsUnusable."""
        try:
            with self._writing("Name a directory that can be made and written to."):
                self._made = _make_directory(self._directory)
                if not self._force and any(self._directory.iterdir()):
                    raise ResultsUnusable(
                        f"{self._directory} is not empty. Name another directory, or replace what "
                        "is there with --force."
                    )
                self._disk_tier = Path(tempfile.mkdtemp(prefix=".replay-", dir=self._directory))
            for name, path in self._elsewhere.items():
                with self._writing("Name a file that can be written.", where=path):
                    self._places[name] = self._place_beside(path)
        except ResultsUnusable:
            self._remove_on_disk()
            self._remove_made()
            raise
        return self

    def _place_beside(self, path: Path) -> Path:
        """A hidden directory on the disk where a file shall be."""
        if path.is_dir():
            raise ResultsUnusable(f"{path} is a directory. Name a file.")
        if path.exists() and not self._force:
            raise ResultsUnusable(
                f"{path} is there already. Name another file, or replace it with --force."
            )
        self._made += _make_directory(path.parent)
        return Path(tempfile.mkdtemp(prefix=".replay-", dir=path.parent))

    def __exit__(self, *exc_info: object) -> None:
        for writer in self._writers.values():
            with contextlib.suppress(OSError):  # of a file that is thrown away
                writer.close()
        for rows in self._sorting.values():
            rows.close()
        self._remove_on_disk()
        if not self._committed:
            self._remove_made()

    def write(self, name: str, lines: Iterable[bytes]) -> None:
        """Appends lines (without their newline) to a file, which comes to be if need be."""
        with self._writing(where=self._elsewhere.get(name)):
            if name not in self._writers:
                self._writers[name] = _ResultWriter(self._place_of(name))
            self._writers[name].write(lines)

    def sort(self, name: str, rows: Iterable[tuple[SortKey, bytes]]) -> None:
        """Takes in rows that `sorted_rows` returns ordered by their keys."""
        if name not in self._sorting:
            path = self._place / f"{name}.sorting"
            self._sorting[name] = SortedRows(path, memory_bytes=self._memory_bytes)
        with self._writing():
            self._sorting[name].add(rows)

    def sorted_rows(self, name: str) -> Iterator[tuple[SortKey, bytes]]:
        """The rows of this name, ordered by key, then by line, once."""
        if name in self._sorting:
            with self._writing():
                yield from self._sorting[name].drain()

    def finish(self, name: str) -> ResultFile:
        """Ends a file and says what it is known by."""
        self._finished.append(name)
        with self._writing(where=self._elsewhere.get(name)):
            return self._writers[name].finish()

    def commit(self) -> None:
        """Renames the finished files into place, in the order in which they were finished.

        The last of an earlier replay goes first: while it is missing, the set is not complete.
        """
        with self._writing():
            (self._directory / self._finished[-1]).unlink(missing_ok=True)
            for name in self._finished:
                self._place_of(name).replace(self._elsewhere.get(name, self._directory / name))
        self._committed = True

    @contextlib.contextmanager
    def _writing(
        self, what_to_do: str = "Make room, or name another place.", *, where: Path | None = None
    ) -> Iterator[None]:
        """Raises ResultsUnusable for what the disk refuses."""
        try:
            yield
        except OSError as error:
            raise ResultsUnusable(
                f"results cannot be written to {where or self._directory}: "
                f"{error.strerror or error}. {what_to_do}"
            ) from error

    @property
    def _place(self) -> Path:
        if self._disk_tier is None:
            raise RuntimeError("results are written inside `with`")
        return self._disk_tier

    def _place_of(self, name: str) -> Path:
        return self._places.get(name, self._place) / name

    def _remove_on_disk(self) -> None:
        for place in (self._disk_tier, *self._places.values()):
            if place is not None:
                shutil.rmtree(place, ignore_errors=True)

    def _remove_made(self) -> None:
        for directory in reversed(self._made):
            if not any(directory.iterdir()):
                directory.rmdir()


def _make_directory(directory: Path) -> list[Path]:
    """Makes a directory with its parents; those that were made, outermost first."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    return missing[::-1]
