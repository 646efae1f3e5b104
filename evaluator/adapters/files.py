"""Logs as files: `rankings.ndjson` and `judgments.ndjson`, plain or compressed, per partition.

A line is a record and its number from 0 the offset. Files have no keys, no record timestamps
and no heartbeats. They are read in blocks, so memory is bounded by a block and the longest line.
"""

import contextlib
import gzip
import os
import re
import threading
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import cramjam

from evaluator.core.types import LOGS, Log
from evaluator.ports import UNKNOWN_END, Partition, SourceAmbiguous, SourceUnusable
from evaluator.wire.records import Records

BLOCK_BYTES: Final = 1 << 20
MAX_BATCH_BYTES: Final = 16 << 20
"""A batch ends early at about this much text, however many records were asked for."""
MAX_KEPT_LINE_BYTES: Final = 16 << 20
"""Of a longer line only so much is kept; it is refused as oversize all the same."""
MAX_PARTITIONS: Final = 10_000

_NAME = re.compile(r"(rankings|judgments)(?:-([0-9]+))?\.ndjson(?:\.(gz|zst))?")


class FileRange:
    """The logs in a directory, as a `RangeSource`. Files are as long as they were at `open`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[Partition, Path] = {}
        self._sizes: dict[Partition, int] = {}
        self._streams: dict[Partition, _Stream] = {}
        self._finished_bytes = 0

    async def open(self) -> int:
        """Finds the files; their partition count. Raises SourceUnusable."""
        self._files = find_logs(self._directory)
        self._sizes = {partition: _size(path) for partition, path in self._files.items()}
        return 1 + max(partition for _, partition in self._files)

    async def bounds(self, log: Log, partition: int) -> tuple[int, int]:
        """From 0 to UNKNOWN_END; a missing file is an empty log."""
        return 0, UNKNOWN_END if (log, partition) in self._files else 0

    async def seek_hint(self, log: Log, partition: int, record_timestamp_ms: int) -> int:  # noqa: ARG002  # lines have no timestamps
        """Always 0: lines have no timestamps of their own."""
        return 0

    async def read(
        self, log: Log, partition: int, start: int, end: int, *, max_records: int
    ) -> AsyncIterator[Records]:
        """Lines *start* to *end* in batches. Raises SourceUnusable where a file is damaged."""
        if (log, partition) not in self._files:
            return
        offset = 0
        for lines in self._batches((log, partition), max_records):
            wanted = lines[max(start - offset, 0) : max(end - offset, 0)]
            first = max(offset, start)
            offset += len(lines)
            if wanted:
                yield _records(log, partition, first, wanted)
            if offset >= end:
                break

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together, as they are stored."""
        return sum(self._sizes.values())

    @property
    def bytes_read(self) -> int:
        """How many of those have been read; of a file in .zst only when it ends."""
        return self._finished_bytes + sum(s.position for s in self._streams.values())

    async def close(self) -> None:
        """Closes what is still open."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()

    def _batches(self, key: Partition, max_records: int) -> Iterator[list[bytes]]:
        path = self._files[key]
        pending: list[bytes] = []
        pending_bytes = 0
        with self._stream(key) as stream:
            lines = Lines(max_line_bytes=MAX_KEPT_LINE_BYTES)
            for block in _blocks(stream, path):
                pending += lines.feed(block)
                pending_bytes += len(block)
                full = len(pending) - len(pending) % max_records
                if pending_bytes >= MAX_BATCH_BYTES:
                    full, pending_bytes = len(pending), 0
                if full:
                    yield from _slices(pending[:full], max_records)
                    pending = pending[full:]
            pending += lines.finish()
            yield from _slices(pending, max_records)

    @contextlib.contextmanager
    def _stream(self, key: Partition) -> Iterator["_Stream"]:
        stream = self._streams[key] = _open_stream(self._files[key], self._sizes[key])
        try:
            yield stream
        finally:
            stream.close()
            self._streams.pop(key, None)
            self._finished_bytes += self._sizes[key]


def _slices(lines: list[bytes], size: int) -> Iterator[list[bytes]]:
    for start in range(0, len(lines), size):
        yield lines[start : start + size]


def _records(log: Log, partition: int, first: int, lines: list[bytes]) -> Records:
    next_offset = first + len(lines)
    return Records(
        log=log,
        partition=partition,
        offsets=list(range(first, next_offset)),
        keys=[None] * len(lines),
        values=list(lines),
        timestamps_ms=None,
        next_offset=next_offset,
    )


# --- which file is which log -----------------------------------------------------------------


def find_logs(directory: Path) -> dict[Partition, Path]:
    """The file of each log and partition.

    Raises:
        SourceAmbiguous: if two files are the same log and partition.
        SourceUnusable: if there is no directory, or no log in it.
    """
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except OSError as error:
        raise SourceUnusable(
            f"{directory} cannot be read: {error.strerror}. Name a directory with "
            "rankings.ndjson and judgments.ndjson."
        ) from error
    files: dict[Partition, Path] = {}
    for name in names:
        key = _partition_of(name)
        if key in files:
            raise SourceAmbiguous(
                f"{files[key].name} and {name} in {directory} are both {key[0]}, partition "
                f"{key[1]}. Move one of them away."
            )
        if key is not None:
            files[key] = directory / name
    if not files:
        raise SourceUnusable(
            f"{directory} holds no log. Put rankings.ndjson and judgments.ndjson there "
            "(or rankings-0.ndjson, rankings-1.ndjson, ...; each also as .gz or .zst)."
        )
    return files


def _partition_of(name: str) -> Partition | None:
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    log = LOGS[LOGS.index(match[1])]
    number = match[2] or "0"
    if str(int(number)) != number or int(number) >= MAX_PARTITIONS:
        raise SourceUnusable(
            f"{name} names no partition. Number the files 0, 1, 2 ... without leading zeros, "
            f"up to {MAX_PARTITIONS - 1}."
        )
    return log, int(number)


def _size(path: Path) -> int:
    try:
        if path.is_file():
            return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error
    raise SourceUnusable(f"{path} is not a file. Put a file with one message per line there.")


def _unreadable(path: Path, error: OSError) -> SourceUnusable:
    return SourceUnusable(f"{path} cannot be read: {error.strerror or error}.")


# --- bytes of a file -------------------------------------------------------------------------


class _Stream(Protocol):
    """The text of a file, decompressed. `position` counts its bytes as they are stored."""

    @property
    def position(self) -> int: ...

    def read(self, size: int) -> bytes:
        """Some bytes, at most *size*; none at the end."""

    def close(self) -> None: ...


class DamagedError(Exception):
    """A compressed stream ends early or makes no sense."""


def _blocks(stream: _Stream, path: Path) -> Iterator[bytes]:
    text_bytes = 0
    try:
        while block := stream.read(BLOCK_BYTES):
            text_bytes += len(block)
            yield block
    except (DamagedError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceUnusable(
            f"{path} is damaged near byte {stream.position}, after {text_bytes} bytes of text: "
            f"{error}. Restore it, or cut it off before that place."
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _open_stream(path: Path, size_bytes: int) -> _Stream:
    openers: Mapping[str, type[_PlainStream | _GzipStream | _ZstdStream]] = {
        ".gz": _GzipStream,
        ".zst": _ZstdStream,
    }
    try:
        return openers.get(path.suffix, _PlainStream)(path, size_bytes)
    except OSError as error:
        raise _unreadable(path, error) from error


class _PlainStream:
    def __init__(self, path: Path, size_bytes: int) -> None:
        self._file = path.open("rb", buffering=0)
        self._size_bytes = size_bytes
        self.position = 0

    def read(self, size: int) -> bytes:
        block: bytes = self._file.read(min(size, self._size_bytes - self.position)) or b""
        self.position += len(block)
        return block

    def close(self) -> None:
        self._file.close()


class _GzipStream:
    def __init__(self, path: Path, size_bytes: int) -> None:
        self._file = path.open("rb")
        self._text = gzip.GzipFile(fileobj=self._file)
        self._empty = size_bytes == 0

    @property
    def position(self) -> int:
        return 0 if self._file.closed else self._file.tell()

    def read(self, size: int) -> bytes:
        if self._empty:
            raise DamagedError("an empty file is not a gzip stream")
        return self._text.read(size)

    def close(self) -> None:
        self._text.close()
        self._file.close()


class _ZstdStream:
    """The library decompresses from file to file: a thread runs it, and a pipe is its output."""

    def __init__(self, path: Path, size_bytes: int) -> None:  # noqa: ARG002  # one shape for all
        self.position = 0
        self._failure: str | None = None
        self._source = cramjam.File(str(path))
        read_end, write_end = os.pipe()
        self._pipe = os.fdopen(read_end, "rb", buffering=BLOCK_BYTES)
        self._thread = threading.Thread(target=self._decompress, args=(write_end,), daemon=True)
        self._thread.start()

    def read(self, size: int) -> bytes:
        block = self._pipe.read(size)
        if not block:
            self._thread.join()
            if self._failure is not None:
                self.position = self._source.tell()
                raise DamagedError(self._failure)
        return block

    def close(self) -> None:
        self._pipe.close()  # the thread, if it still writes, ends with a broken pipe
        self._thread.join()

    def _decompress(self, write_end: int) -> None:
        try:
            _decompress_zstd(self._source, write_end)
        except Exception as error:  # noqa: BLE001  # told to the reader, who knows the file
            self._failure = str(error)
        finally:
            os.close(write_end)


def _decompress_zstd(source: cramjam.File, write_end: int) -> None:
    target = cramjam.File(f"/dev/fd/{write_end}", read=False, write=True, append=True)
    cramjam.zstd.decompress_into(source, target)


# --- lines -----------------------------------------------------------------------------------


class Lines:
    r"""Cuts blocks into lines, without `\n` and one `\r` before it.

    Of a line longer than *max_line_bytes* the first so many bytes are kept.

    >>> lines = Lines(max_line_bytes=100)
    >>> lines.feed(b"a\r\nb\n\nc"), lines.finish()
    ([b'a', b'b', b''], [b'c'])
    """

    def __init__(self, *, max_line_bytes: int) -> None:
        self._max = max_line_bytes
        self._tail = b""
        self._dropping = False  # the rest of the line whose beginning is in _tail

    def feed(self, block: bytes) -> list[bytes]:
        """The lines that end in this block."""
        long_line: list[bytes] = []
        if self._dropping:
            _, newline, block = block.partition(b"\n")
            if not newline:
                return []
            long_line, self._tail, self._dropping = [self._tail], b"", False
        text = self._tail + block
        lines = text.split(b"\n")
        self._tail = lines.pop()
        if len(self._tail) > self._max + 1:  # one more may be the \r
            self._tail, self._dropping = self._tail[: self._max], True
        return long_line + self._trimmed(lines, text)

    def finish(self) -> list[bytes]:
        r"""The last line, if the text does not end with `\n`."""
        tail, self._tail = self._tail, b""
        if self._dropping or not tail:
            return [tail] if tail else []
        return self._trimmed([tail], tail)

    def _trimmed(self, lines: list[bytes], text: bytes) -> list[bytes]:
        if b"\r" in text:
            lines = [line.removesuffix(b"\r") for line in lines]
        if len(text) > self._max:
            lines = [line[: self._max] for line in lines]
        return lines
