"""Logs as files: `rankings.ndjson` and `judgments.ndjson`, plain or compressed, per partition.

A line is a record; its offset is its number from 0. Files have no keys, no record timestamps and
no heartbeats. Memory is bounded by a block and the longest line.
"""

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from evaluator.adapters.files.streams import Stream, batches_of, open_stream, records_of, size_of
from evaluator.core.types.records import LOGS, Log
from evaluator.ports import UNKNOWN_END, Partition, SourceAmbiguous, SourceUnusable
from evaluator.wire.records import MAX_MESSAGE_BYTES, Records

MAX_PARTITIONS: Final = 10_000

NAMES: Final[Mapping[Log, str]] = {log: log for log in LOGS}
"""The names of the files of each log, without partition and suffix."""


class FileRange:
    """The logs in a directory, as a `RangeSource`. Files are as long as they were at `open`.

    Args:
        directory: has the files.
        names: the name of the files of each log.
        max_bytes: limit of the records of a log, if it is not that of a message.
        bounds: first and end offsets of partitions that are not read as a whole.
    """

    place: None = None  # files have no cluster and no topics

    def __init__(
        self,
        directory: Path,
        names: Mapping[Log, str] = NAMES,
        max_bytes: Mapping[Log, int] | None = None,
        bounds: Mapping[Partition, tuple[int, int]] | None = None,
    ) -> None:
        self._bounds = bounds or {}
        self._directory = directory
        self._names = names
        self._max_bytes = max_bytes or {}
        self._files: dict[Partition, Path] = {}
        self._sizes: dict[Partition, int] = {}
        self._streams: dict[Partition, Stream] = {}
        self._finished_bytes = 0

    async def open(self) -> int:
        """Finds the files; returns the partition count. Raises SourceUnusable."""
        self._files = find_logs(self._directory, self._names)
        self._sizes = {partition: size_of(path) for partition, path in self._files.items()}
        return 1 + max(partition for _, partition in self._files)

    async def bounds(self, log: Log, partition: int) -> tuple[int, int]:
        """0 and UNKNOWN_END; a missing file is an empty log."""
        whole = 0, UNKNOWN_END if (log, partition) in self._files else 0
        return self._bounds.get((log, partition), whole)

    async def seek_hint(self, log: Log, partition: int, record_timestamp_ms: int) -> int:  # noqa: ARG002  # lines have no timestamps
        """Always 0: lines have no timestamps of their own."""
        return 0

    async def read(
        self, log: Log, partition: int, start: int, end: int, *, max_records: int
    ) -> AsyncIterator[Records]:
        """Lines *start* to *end* in batches. Raises SourceUnusable if the file is damaged."""
        if (log, partition) not in self._files:
            return
        offset = 0
        for lines in self._batches((log, partition), max_records):
            wanted = lines[max(start - offset, 0) : max(end - offset, 0)]
            first = max(offset, start)
            offset += len(lines)
            if wanted:
                max_bytes = self._max_bytes.get(log, MAX_MESSAGE_BYTES)
                yield records_of(log, partition, first, wanted, max_bytes)
            if offset >= end:
                break

    def size_bytes(self, partitions: Iterable[Partition]) -> int:
        """Stored bytes of the files of these partitions."""
        return sum(self._sizes.get(partition, 0) for partition in partitions)

    @property
    def bytes_read(self) -> int:
        """Stored bytes that were read; those of a .zst file are counted at its end."""
        return self._finished_bytes + sum(s.position for s in self._streams.values())

    async def close(self) -> None:
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()

    def _batches(self, key: Partition, max_records: int) -> Iterator[list[bytes]]:
        stream = self._streams[key] = open_stream(self._files[key], self._sizes[key])
        try:
            yield from batches_of(stream, self._files[key], max_records)
        finally:
            stream.close()
            self._streams.pop(key, None)
            self._finished_bytes += self._sizes[key]


def find_logs(directory: Path, of: Mapping[Log, str] = NAMES) -> dict[Partition, Path]:
    """The file of each log and partition; *of* has the names of the logs.

    Raises:
        SourceAmbiguous: if two files are the same log and partition.
        SourceUnusable: if the directory does not exist, or contains no log.
    """
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except OSError as error:
        raise SourceUnusable(
            f"{directory} cannot be read: {error.strerror}. Name a directory with "
            f"{of['rankings']}.ndjson and {of['judgments']}.ndjson."
        ) from error
    files: dict[Partition, Path] = {}
    for name in names:
        key = _partition_of(name, of)
        if key in files:
            raise SourceAmbiguous(
                f"{files[key].name} and {name} in {directory} are both {key[0]}, partition "
                f"{key[1]}. Move one of them away."
            )
        if key is not None:
            files[key] = directory / name
    if not files:
        raise SourceUnusable(
            f"{directory} contains no log. Put {of['rankings']}.ndjson and "
            f"{of['judgments']}.ndjson there (or {of['rankings']}-0.ndjson, "
            f"{of['rankings']}-1.ndjson, ...; each also as .gz or .zst)."
        )
    return files


def is_log_file(path: Path, of: Mapping[Log, str] = NAMES) -> bool:
    """Whether the name is that of a log."""
    return _matched(path.name, of) is not None


def _matched(name: str, of: Mapping[Log, str]) -> tuple[Log, re.Match[str]] | None:
    for log in LOGS:
        match = re.fullmatch(rf"{re.escape(of[log])}(?:-([0-9]+))?\.ndjson(?:\.(gz|zst))?", name)
        if match is not None:
            return log, match
    return None


def _partition_of(name: str, of: Mapping[Log, str]) -> Partition | None:
    matched = _matched(name, of)
    if matched is None:
        return None
    log, match = matched
    number = match[1] or "0"
    if str(int(number)) != number or int(number) >= MAX_PARTITIONS:
        raise SourceUnusable(
            f"{name} is not the name of a partition. Number the files 0, 1, 2 ... without leading "
            f"zeros, up to {MAX_PARTITIONS - 1}."
        )
    return log, int(number)
