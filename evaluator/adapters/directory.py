"""Results as a directory: every file complete, or none.

Files are written aside, in a hidden directory within the target, and renamed at the end.
Rows that have to be sorted are sorted in bounded memory.
"""

import contextlib
import hashlib
import heapq
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Final

import msgspec

from evaluator.ports import ResultFile, ResultsUnusable, SortKey

SPOOL_BYTES: Final = 64 << 20
"""About as much memory as the rows of one file may take while they are put aside."""
ROW_OVERHEAD_BYTES: Final = 400
"""What a row costs in memory beside its line: a tuple, a key, their strings."""
MAX_RUNS: Final = 64
"""Sorted runs on disk that are read at once."""
ROWS_PER_BLOCK: Final = 1_000
RUN_BLOCK_BYTES: Final = 64 << 10
"""A block of a run ends at about so much text: one block of every run is in memory at once."""

_encode_lines = msgspec.json.Encoder().encode_lines
_decode_lines = msgspec.json.Decoder(list[int | str]).decode_lines


class SortedSpool:
    """An external merge sort of (key, line) rows; runs are spilled into *directory*."""

    def __init__(self, directory: Path, name: str, *, memory_bytes: int = SPOOL_BYTES) -> None:
        self._directory = directory
        self._name = name
        self._memory_bytes = memory_bytes
        self._rows: list[tuple[SortKey, bytes]] = []
        self._used_bytes = 0
        self._runs: list[Path] = []
        self._runs_made = 0

    def add(self, rows: Iterable[tuple[SortKey, bytes]]) -> None:
        """Puts rows aside. Lines hold no newline."""
        rows = list(rows)
        self._rows += rows
        self._used_bytes += sum(len(line) for _, line in rows) + len(rows) * ROW_OVERHEAD_BYTES
        if self._used_bytes >= self._memory_bytes:
            self._spill()

    def drain(self) -> Iterator[tuple[SortKey, bytes]]:
        """All rows, sorted by key, once; the runs are removed as they end."""
        rows, self._rows, self._used_bytes = self._rows, [], 0
        runs, self._runs = self._runs, []
        rows.sort()
        return heapq.merge(*map(_read_run, runs), rows) if runs else iter(rows)

    def _spill(self) -> None:
        self._rows.sort()
        self._write_run(self._rows)
        self._rows, self._used_bytes = [], 0
        if len(self._runs) >= MAX_RUNS:
            runs, self._runs = self._runs, []
            self._write_run(heapq.merge(*map(_read_run, runs)))

    def _write_run(self, rows: Iterable[tuple[SortKey, bytes]]) -> None:
        self._runs_made += 1
        path = self._directory / f"{self._name}.run-{self._runs_made}"
        with path.open("wb") as file:
            _write_rows(file, rows)
        self._runs.append(path)


def _write_rows(file: IO[bytes], rows: Iterable[tuple[SortKey, bytes]]) -> None:
    """Blocks of rows: the number of rows, their keys as JSON, their lines."""
    keys: list[SortKey] = []
    lines: list[bytes] = []
    size_bytes = 0
    for key, line in rows:
        keys.append(key)
        lines.append(line)
        size_bytes += len(line)
        if len(lines) >= ROWS_PER_BLOCK or size_bytes >= RUN_BLOCK_BYTES:
            _write_block(file, keys, lines)
            keys, lines, size_bytes = [], [], 0
    if lines:
        _write_block(file, keys, lines)


def _write_block(file: IO[bytes], keys: Sequence[SortKey], lines: Sequence[bytes]) -> None:
    file.write(b"%d\n" % len(lines))
    file.write(_encode_lines(keys))
    file.write(b"\n".join(lines) + b"\n")


def _read_run(path: Path) -> Iterator[tuple[SortKey, bytes]]:
    with path.open("rb") as file:
        while count := file.readline():
            n_rows = int(count)
            keys = _decode_lines(b"".join(islice(file, n_rows)))
            lines = [line[:-1] for line in islice(file, n_rows)]
            yield from zip(map(tuple, keys), lines, strict=True)
    path.unlink()


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
        memory_bytes: int = SPOOL_BYTES,
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
        self._spools: dict[str, SortedSpool] = {}
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
        """Puts rows aside to be sorted by their keys."""
        if name not in self._spools:
            self._spools[name] = SortedSpool(self._place, name, memory_bytes=self._memory_bytes)
        with self._writing():
            self._spools[name].add(rows)

    def sorted_rows(self, name: str) -> Iterator[tuple[SortKey, bytes]]:
        """The rows put aside under this name, sorted, once."""
        spool = self._spools.pop(name, None)
        return iter(()) if spool is None else spool.drain()

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
