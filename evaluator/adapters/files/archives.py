"""Archives of topics: objects of a connector or folders by day, on a disk or in a store.

Each object is fetched as a whole into a temporary file, so one object of each log is on the disk at
a time, and one more while a repeat is compared.
"""

import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from evaluator.adapters.files.logs import MAX_PARTITIONS, NAMES
from evaluator.adapters.files.parquet import StoredRecord, read_parquet
from evaluator.adapters.files.remote import file_system, reason_of
from evaluator.adapters.files.streams import MAX_BATCH_BYTES, batches_of, open_stream, records_of
from evaluator.core.types.records import LOGS, Log
from evaluator.ports import UNKNOWN_END, Partition, SourceAmbiguous, SourceUnusable
from evaluator.version import how_to_install
from evaluator.wire.records import MAX_MESSAGE_BYTES, Records

MAX_GAPS: Final = 1_000
"""Most gaps listed for one partition; the last one then extends over all later ones."""
_SUFFIX: Final = r"(?:\.(?:json|ndjson|jsonl)(?:\.gz|\.zst)?|(?:\.[a-z0-9]{1,10})?\.parquet)"

_Rows = list[bytes] | list[StoredRecord]


class _Object(NamedTuple):
    """A part of a log; `first` is the offset of its first record, None if its name has none."""

    first: int | None
    path: str
    size_bytes: int
    partition: int


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

    place: None = None  # archives have no cluster and no topics

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
                objects.setdefault(partition, []).append(
                    _Object(first, path, size_bytes, partition[1])
                )
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
            first_of: dict[str, str] = {}
            for part in parts:
                other = first_of.setdefault(re.sub(f"{_SUFFIX}$", "", part.path), part.path)
                if part.first is None and other != part.path:
                    raise SourceAmbiguous(
                        f"{other} and {part.path} are the same part of {key[0]}, partition "
                        f"{key[1]}. Move one of them away."
                    )
            parts.sort(key=lambda part: (part.first or 0, _natural(part.path), part.path))
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
        expected: int | None = None  # the offset after the last record
        for of in self._objects.get((log, partition), ()):
            base = (expected or 0) if of.first is None else of.first
            if base >= end:
                self._gap(log, partition, expected, min(base, end), of)
                break
            before, repeated, next_offset = expected, None, -1
            for first, rows in _runs(self._batches(of, max_records), base):
                if first < next_offset:
                    raise SourceUnusable(
                        f"{of.path}: the offset {first} comes after {next_offset - 1}. Sort the "
                        "rows by offset."
                    )
                self._gap(log, partition, expected, min(first, end), of)
                if first >= end:
                    return
                next_offset = first + len(rows)
                known = 0 if expected is None else max(0, min(expected - first, len(rows)))
                repeated = repeated or self._rows_of(done, first)
                if list(islice(repeated, known)) != rows[:known]:
                    raise SourceUnusable(
                        f"{of.path} has other records than earlier objects between the offsets "
                        f"{first} and {first + known - 1} of {log}, partition {partition}. Remove "
                        "the objects of one of two topics of that name."
                    )
                begin = max(first + known, start)
                if wanted := rows[begin - first : max(end - first, 0)]:
                    yield _records(log, partition, begin, wanted, max_bytes)
                expected = max(expected or 0, next_offset)
            self.bytes_read += of.size_bytes
            if before is None or next_offset > before:
                done.append(_Piece(of, base, max(base, before or base), next_offset))

    def _gap(self, log: Log, partition: int, first: int | None, end: int, of: _Object) -> None:
        """Notes the offsets *first* to before *end*, if there are any, as missing."""
        if first is None or first >= end:
            return
        if self._strict:
            raise SourceUnusable(
                f"{log}, partition {partition}: the offsets {first} to {end - 1} are missing "
                f"before {of.path}. Restore the object, or leave --strict out."
            )
        add_gap(self.gaps.setdefault(f"{log}-{partition}", []), first, end)

    def _rows_of(self, pieces: list[_Piece], start: int) -> Iterator[bytes | StoredRecord]:
        """The rows that were read, from an offset on; fetches their objects again."""
        for piece in pieces:
            if piece.end > start:
                begin = max(piece.start, start)
                for first, rows in _runs(self._batches(piece.of, 1_000), piece.base):
                    yield from rows[max(begin - first, 0) : max(piece.end - first, 0)]

    def _batches(self, of: _Object, max_records: int) -> Iterator[_Rows]:
        """The rows of an object in batches."""
        self._folder = self._folder or tempfile.mkdtemp(prefix="evaluator-")
        self._n_fetched += 1
        path = Path(self._folder) / f"{self._n_fetched}-{of.path.rpartition('/')[2]}"
        try:
            self._files.get_file(of.path, str(path))
            if path.suffix == ".parquet":
                limits = {"max_records": max_records, "max_bytes": MAX_BATCH_BYTES}
                yield from read_parquet(path, of.partition, **limits)
                return
            with closing(open_stream(path, path.stat().st_size, of.path)) as stream:
                yield from batches_of(stream, of.path, max_records)
        except SourceUnusable:
            raise
        except ImportError as error:
            raise SourceUnusable(
                f"{of.path} needs a further package: {error}. {how_to_install('parquet')}"
            ) from None
        except Exception as error:
            raise self._unreadable(of.path, error) from error
        finally:
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


def _natural(path: str) -> list[int | str]:
    """A path by whose key `day=9` comes before `day=10`."""
    return [int(each) if n % 2 else each for n, each in enumerate(re.split("([0-9]+)", path))]


def add_gap(gaps: list[tuple[int, int]], first: int, end: int) -> None:
    """Adds missing offsets to those of one partition."""
    if len(gaps) >= MAX_GAPS:
        first = gaps.pop()[0]
    gaps.append((first, end))


def _runs(batches: Iterable[_Rows], first: int) -> Iterator[tuple[int, _Rows]]:
    """Rows with consecutive offsets, and the first of these: *first*, if rows have none."""
    for rows in batches:
        if rows and isinstance(rows[0], StoredRecord) and rows[0].offset is not None:
            offsets = np.array([row.offset for row in rows], np.int64)
            ends = [*(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(rows)]
            for begin, end in pairwise([0, *ends]):
                first = int(offsets[begin])
                yield first, rows[begin:end]
                first += end - begin
        elif rows:
            yield first, rows
            first += len(rows)


def _records(log: Log, partition: int, first: int, rows: _Rows, max_bytes: int) -> Records:
    """Records of rows with consecutive offsets."""
    if not isinstance(rows[0], StoredRecord):
        return records_of(log, partition, first, rows, max_bytes)
    end = first + len(rows)
    values, keys, times, _ = zip(*rows, strict=True)
    known = times if max(times) >= 0 else None
    return Records.of(log, partition, range(first, end), keys, values, known, end, max_bytes)
