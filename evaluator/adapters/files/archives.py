"""Archives of topics: objects of a connector or folders by day, on a disk or in a store.

Each object is fetched as a whole into a temporary file, so one object of each log is on the disk at
a time, and one more while a repeat is compared.
"""

import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from evaluator.adapters.files.logs import MAX_BATCH_BYTES, MAX_PARTITIONS, NAMES
from evaluator.adapters.files.remote import file_system, reason_of
from evaluator.adapters.files.streams import (
    MAX_KEPT_LINE_BYTES,
    Lines,
    blocks,
    open_stream,
    records_of,
)
from evaluator.core.types.records import LOGS, Log
from evaluator.ports import UNKNOWN_END, Partition, SourceAmbiguous, SourceUnusable
from evaluator.wire.records import MAX_MESSAGE_BYTES, Records

MAX_GAPS: Final = 1_000
"""Gaps of one partition that are listed; the last one then reaches over all later ones."""
_SUFFIX: Final = r"\.(?:json|ndjson|jsonl)(\.gz|\.zst)?"


class _Object(NamedTuple):
    """A part of a log; `first` is the offset of its first record, None if its name has none."""

    first: int | None
    path: str
    size_bytes: int


class _Piece(NamedTuple):
    """Records of an object that were read: offsets `start` to before `end`."""

    of: _Object
    base: int
    start: int
    end: int


class ArchiveRange:
    """The logs of an archive, as a `RangeSource`.

    Objects of a connector are named `T+N+OFFSET.json`, in any folder; folders by day have files
    named as those of a directory of logs, and their records are numbered in the order of the paths.
    A repeated record counts once; an offset that is missing is a gap, and with *strict* refused.

    Args:
        url: of the folder, for fsspec.
        names: the topics of the logs.
        max_bytes: limit of the records of a log, if it is not that of a message.
        bounds: first and end offsets of partitions that are not read as a whole.
        strict: whether gaps are refused.
    """

    def __init__(
        self,
        url: str,
        names: Mapping[Log, str] = NAMES,
        max_bytes: Mapping[Log, int] | None = None,
        bounds: Mapping[Partition, tuple[int, int]] | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self._url = url
        self._names = names
        self._max_bytes = max_bytes or {}
        self._bounds = bounds or {}
        self._strict = strict
        self._files: Any = None  # the file system
        self._objects: dict[Partition, list[_Object]] = {}
        self._folder: str | None = None  # of fetched objects
        self._n_fetched = 0
        self.bytes_read = 0
        self.gaps: dict[str, list[tuple[int, int]]] = {}

    @property
    def place(self) -> None:
        """Archives have no cluster and no topics."""

    async def open(self) -> int:
        """Lists the objects; returns the partition count. Raises SourceUnusable."""
        try:
            self._files, root = file_system(self._url, "archives")
            found = self._files.find(root, detail=True)
        except SourceUnusable:
            raise
        except Exception as error:
            raise self._unreadable(self._url, error) from error
        objects: dict[Partition, list[_Object]] = {}
        for path, detail in found.items():
            named = self._named(path)
            if named is not None:
                partition, first = named
                size_bytes = int(detail.get("size") or 0)
                objects.setdefault(partition, []).append(_Object(first, path, size_bytes))
        if not objects:
            topics = " or ".join(self._names.values())
            raise SourceUnusable(
                f"{self._url} has no object of {topics}, such as TOPIC+0+0000000000.json.gz or "
                "2026-10-01/TOPIC-0.ndjson.gz."
            )
        for key, parts in objects.items():
            if len({part.first is None for part in parts}) > 1:
                raise SourceAmbiguous(
                    f"{key[0]}, partition {key[1]}, has objects with offsets in their names and "
                    f"others without, e.g. {parts[0].path}. Name a folder with one kind."
                )
            parts.sort(key=lambda part: (part.first or 0, part.path))
        self._objects = objects
        return 1 + max(partition for _, partition in objects)

    def _named(self, path: str) -> tuple[Partition, int | None] | None:
        """Log, partition and first offset of an object; None if it is none of a log."""
        name = path.rpartition("/")[2]
        for log in LOGS:
            topic = re.escape(self._names[log])
            if match := re.fullmatch(rf"{topic}\+([0-9]{{1,9}})\+([0-9]{{1,19}}){_SUFFIX}", name):
                return (log, self._partition(path, match[1])), int(match[2])
            if match := re.fullmatch(rf"{topic}(?:-([0-9]{{1,9}}))?{_SUFFIX}", name):
                return (log, self._partition(path, match[1] or "0")), None
        return None

    def _partition(self, path: str, number: str) -> int:
        if int(number) >= MAX_PARTITIONS:
            raise SourceUnusable(f"{path}: partitions are numbered from 0 to {MAX_PARTITIONS - 1}.")
        return int(number)

    async def bounds(self, log: Log, partition: int) -> tuple[int, int]:
        """First offset, and UNKNOWN_END; a missing log is empty."""
        objects = self._objects.get((log, partition))
        whole = (objects[0].first or 0, UNKNOWN_END) if objects else (0, 0)
        return self._bounds.get((log, partition), whole)

    async def seek_hint(self, log: Log, partition: int, record_timestamp_ms: int) -> int:  # noqa: ARG002  # lines have no timestamps
        """The first offset: lines have no timestamps of their own."""
        return (await self.bounds(log, partition))[0]

    async def read(
        self, log: Log, partition: int, start: int, end: int, *, max_records: int
    ) -> AsyncIterator[Records]:
        """Records *start* to *end* in batches."""
        max_bytes = self._max_bytes.get(log, MAX_MESSAGE_BYTES)
        done: list[_Piece] = []
        expected = None  # the offset after the last record
        for of in self._objects.get((log, partition), ()):
            base = (expected or 0) if of.first is None else of.first
            if base >= end:
                break
            if expected is not None and base > expected:
                self._gap(log, partition, expected, base, of)
            next_offset, repeated = base, self._lines_of(done, base)
            for lines in self._batches(of, max_records):
                known = max(0, min((expected or base) - next_offset, len(lines)))
                if list(islice(repeated, known)) != lines[:known]:
                    raise SourceUnusable(
                        f"{of.path} has other records than earlier objects between the offsets "
                        f"{next_offset} and {next_offset + known - 1} of {log}, partition "
                        f"{partition}. Remove the objects of one of two topics of that name."
                    )
                first = next_offset + known
                next_offset += len(lines)
                wanted = lines[known:][max(start - first, 0) : max(end - first, 0)]
                if wanted:
                    yield records_of(log, partition, max(first, start), wanted, max_bytes)
            self.bytes_read += of.size_bytes
            if expected is None or next_offset > expected:
                done.append(_Piece(of, base, max(base, expected or base), next_offset))
                expected = next_offset

    def _gap(self, log: Log, partition: int, first: int, end: int, of: _Object) -> None:
        if self._strict:
            raise SourceUnusable(
                f"{log}, partition {partition}: the offsets {first} to {end - 1} are missing "
                f"before {of.path}. Restore the object, or leave --strict out."
            )
        gaps = self.gaps.setdefault(f"{log}-{partition}", [])
        if len(gaps) >= MAX_GAPS:
            first = gaps.pop()[0]
        gaps.append((first, end))

    def _lines_of(self, pieces: list[_Piece], start: int) -> Iterator[bytes]:
        """The lines that were read, from an offset on; fetches their objects again."""
        for piece in pieces:
            if piece.end > start:
                lines = (line for lines in self._batches(piece.of, 1_000) for line in lines)
                skipped = max(piece.start, start) - piece.base
                yield from islice(lines, skipped, piece.end - piece.base)

    def _batches(self, of: _Object, max_records: int) -> Iterator[list[bytes]]:
        """The lines of an object in batches."""
        self._folder = self._folder or tempfile.mkdtemp(prefix="evaluator-")
        self._n_fetched += 1
        path = Path(self._folder) / f"{self._n_fetched}-{of.path.rpartition('/')[2]}"
        try:
            self._files.get_file(of.path, str(path))
            stream = open_stream(path, path.stat().st_size)
        except Exception as error:
            path.unlink(missing_ok=True)
            raise self._unreadable(of.path, error) from error
        try:
            pending: list[bytes] = []
            n_bytes = 0
            lines = Lines(max_line_bytes=MAX_KEPT_LINE_BYTES)
            for block in blocks(stream, of.path):
                pending += lines.feed(block)
                n_bytes += len(block)
                while len(pending) >= max_records or n_bytes >= MAX_BATCH_BYTES:
                    yield pending[:max_records]
                    pending, n_bytes = pending[max_records:], 0
            pending += lines.finish()
            for first in range(0, len(pending), max_records):
                yield pending[first : first + max_records]
        finally:
            stream.close()
            path.unlink(missing_ok=True)

    def size_bytes(self, partitions: Iterable[Partition]) -> int:
        """Stored bytes of the objects of these partitions."""
        return sum(of.size_bytes for key in partitions for of in self._objects.get(key, ()))

    def _unreadable(self, path: str, error: Exception) -> SourceUnusable:
        return SourceUnusable(
            f"{path} cannot be read: {reason_of(error)}. Check the address and the credentials."
        )

    async def close(self) -> None:
        self._objects = {}
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
