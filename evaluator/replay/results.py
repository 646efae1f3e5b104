"""The result files of a replay: written to a hidden directory and renamed into place at the end."""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import Struct

from evaluator.ports import ResultsUnusable
from evaluator.wire.reading import Count

MEMORY_BYTES: Final = 64 << 20
"""Page cache of one table; a table that fits is never written to its file."""

_PAGE_BYTES: Final = 32 << 10
_INTEGER_END: Final = 1 << 63
_LONG_INTEGER_DIGITS: Final = 2_500
"""Integers from 2^63 are padded texts in SQLite, which orders texts after integers."""

ROWS_PER_BLOCK: Final = 1_000
_HIDDEN: Final = ".evaluator-replay-"

DERIVED: Final = (
    "evaluations.parquet",
    "evaluations-values.parquet",
    "settled.parquet",
    "settled-values.parquet",
)
"""Files with the content of others; those of an earlier replay are removed."""

SortKey = tuple[int | str, ...]


class ResultFile(Struct, frozen=True, rename={"size_bytes": "bytes"}):
    """Size and hash of a finished file of results, as in the manifest."""

    rows: Count
    size_bytes: Count
    sha256: str


class SortedRows:
    """Sorts (key, line) rows by key, then by line; they are read once.

    All keys have the same length and types. The file exists from the first row until `close`, or
    until all rows are read. Methods raise OSError.
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
        numbered = [(*key, line, n) for n, (key, line) in enumerate(rows, self._n_rows)]
        if not numbered:
            return
        self._n_rows += len(numbered)
        with _disk_errors():
            database = self._database or self._new_database(numbered[0][:-2])
            replace = f"REPLACE INTO sorted VALUES ({','.join('?' * len(numbered[0]))})"  # noqa: S608  # no values in it
            try:
                database.executemany(replace, numbered)
            except OverflowError:  # replaces the rows that were inserted before the long integer
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
    """One file of results; counts and hashes its lines."""

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
    """The files of one replay, which appear completely or not at all.

    A context manager; an exit without `commit` leaves no files. The directory is created with its
    parents. *force* replaces existing files; without it the directory has to be empty. The results
    in *elsewhere* are written to those files instead. *derive* writes DERIVED into the directory of
    the finished files, and returns their numbers of rows. Methods raise ResultsUnusable.
    """

    def __init__(
        self,
        directory: Path,
        *,
        force: bool,
        memory_bytes: int = MEMORY_BYTES,
        elsewhere: Mapping[str, Path] | None = None,
        derive: Callable[[Path], Mapping[str, int]] | None = None,
    ) -> None:
        self._directory = directory
        self._derive = derive
        self._elsewhere = {  # a link stays, and its target is written
            name: path.resolve() if path.is_symlink() else path
            for name, path in (elsewhere or {}).items()
        }
        self._places: dict[str, Path] = {}  # hidden directories of the results in *elsewhere*
        self._force = force
        self._memory_bytes = memory_bytes
        self._created: list[Path] = []
        self._hidden: Path | None = None
        self._locks: list[int] = []  # of the hidden directories
        self._writers: dict[str, _ResultWriter] = {}
        self._sorting: dict[str, SortedRows] = {}
        self._finished: list[str] = []
        self._committed = False

    def __enter__(self) -> "ResultDirectory":
        try:
            with self._writing("Name a directory that can be created and written."):
                self._created = _create_directory(self._directory)
                _remove_abandoned(self._directory)
                if not self._force and any(self._directory.iterdir()):
                    raise ResultsUnusable(
                        f"{self._directory} is not empty. Name another directory, or replace what "
                        "is there with --force."
                    )
                self._hidden = self._hidden_in(self._directory)
            for name, path in self._elsewhere.items():
                with self._writing("Name a file that can be written.", where=path):
                    self._places[name] = self._hidden_beside(path)
        except ResultsUnusable:
            self._remove_hidden()
            self._remove_created()
            raise
        return self

    def _hidden_beside(self, path: Path) -> Path:
        """A hidden directory on the file system of a file."""
        if path.is_dir():
            raise ResultsUnusable(f"{path} is a directory. Name a file.")
        if path.exists() and not path.is_file():
            raise ResultsUnusable(f"{path} is a device or a pipe. Name a file.")
        if path.exists() and not self._force:
            raise ResultsUnusable(
                f"{path} exists already. Name another file, or replace it with --force."
            )
        self._created += _create_directory(path.parent)
        return self._hidden_in(path.parent)

    def _hidden_in(self, directory: Path) -> Path:
        """A new directory with a lock, which ends with the process."""
        hidden = Path(tempfile.mkdtemp(prefix=_HIDDEN, dir=directory))
        self._locks.append(os.open(hidden, os.O_RDONLY))
        with contextlib.suppress(OSError):  # of a file system without locks
            fcntl.flock(self._locks[-1], fcntl.LOCK_EX)
        return hidden

    def __exit__(self, *exc_info: object) -> None:
        for writer in self._writers.values():
            with contextlib.suppress(OSError):  # the file is deleted
                writer.close()
        for rows in self._sorting.values():
            rows.close()
        self._remove_hidden()
        if not self._committed:
            self._remove_created()

    def write(self, name: str, lines: Iterable[bytes]) -> None:
        """Appends lines (without their newline) to a file, created if needed."""
        with self._writing(where=self._elsewhere.get(name)):
            if name not in self._writers:
                self._writers[name] = _ResultWriter(self._place_of(name))
            self._writers[name].write(lines)

    def sort(self, name: str, rows: Iterable[tuple[SortKey, bytes]]) -> None:
        """Stores rows for `sorted_rows`; keys of one name have the same types."""
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

    def hidden_place(self, name: str) -> Path:
        """A path for files that are not results; they are removed at the exit."""
        return self._place / name

    def finish(self, name: str) -> ResultFile:
        self._finished.append(name)
        with self._writing(where=self._elsewhere.get(name)):
            return self._writers[name].finish()

    def derive(self) -> dict[str, ResultFile]:
        """Writes DERIVED, if there is *derive*, from the finished files."""
        if self._derive is None:
            return {}
        found: dict[str, ResultFile] = {}
        with self._writing():
            for name, n_rows in self._derive(self._place).items():
                with (self._place / name).open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    found[name] = ResultFile(n_rows, file.tell(), digest)
        return found

    def commit(self, names: Iterable[str] = ()) -> None:
        """Renames the finished files into place, in the order of `finish`.

        The last file of an earlier replay is deleted first, so the set is incomplete meanwhile;
        then those of its files that this one has not, of *names* and DERIVED.
        """
        stale = [name for name in names if name not in self._finished]
        with self._writing():
            for name in (self._finished[-1], *DERIVED, *stale):
                (self._directory / name).unlink(missing_ok=True)
            for name in (*(DERIVED if self._derive is not None else ()), *self._finished):
                self._place_of(name).replace(self._elsewhere.get(name, self._directory / name))
        self._committed = True

    @contextlib.contextmanager
    def _writing(
        self, action: str = "Make room, or name another place.", *, where: Path | None = None
    ) -> Iterator[None]:
        """Converts OSError to ResultsUnusable."""
        try:
            yield
        except OSError as error:
            raise ResultsUnusable(
                f"results cannot be written to {where or self._directory}: "
                f"{error.strerror or error}. {action}"
            ) from error

    @property
    def _place(self) -> Path:
        if self._hidden is None:
            raise RuntimeError("results are written inside `with`")
        return self._hidden

    def _place_of(self, name: str) -> Path:
        return self._places.get(name, self._place) / name

    def _remove_hidden(self) -> None:
        for place in (self._hidden, *self._places.values()):
            if place is not None:
                shutil.rmtree(place, ignore_errors=True)
        while self._locks:
            os.close(self._locks.pop())

    def _remove_created(self) -> None:
        for directory in reversed(self._created):
            if not any(directory.iterdir()):
                directory.rmdir()


def _remove_abandoned(directory: Path) -> None:
    """Removes the hidden directories of replays that were killed, which are not locked."""
    for path in directory.glob(f"{_HIDDEN}*"):
        with contextlib.suppress(OSError):  # BlockingIOError: it is in use
            handle = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


def _create_directory(directory: Path) -> list[Path]:
    """Creates a directory with its parents; returns the created ones, outermost first."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    return missing[::-1]
