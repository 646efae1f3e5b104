"""Text of plain and compressed files, in blocks and lines."""

import gzip
import os
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import cramjam

from evaluator.core.types.records import Log
from evaluator.ports import SourceUnusable
from evaluator.wire.reading import compression_of
from evaluator.wire.records import MAX_MESSAGE_BYTES, Records

BLOCK_BYTES: Final = 1 << 20
MAX_BATCH_BYTES: Final = 16 << 20
"""A batch ends at about this much text, even with fewer records than requested."""
MAX_KEPT_LINE_BYTES: Final = 16 << 20
"""A longer line is truncated; it is oversize in any case."""


def size_of(path: Path) -> int:
    """Size of the stored file. Raises SourceUnusable."""
    try:
        if path.is_file():
            return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error
    raise SourceUnusable(f"{path} is not a file. Name a file that exists.")


def unreadable(path: Path | str, error: OSError) -> SourceUnusable:
    """The error of a file that cannot be read."""
    return SourceUnusable(f"{path} cannot be read: {error.strerror or error}.")


class Stream(Protocol):
    """The decompressed text of a file. `position` counts stored bytes."""

    @property
    def position(self) -> int: ...

    def read(self, size: int) -> bytes:
        """At most *size* bytes; none at the end."""

    def close(self) -> None: ...


class DamagedError(Exception):
    """A compressed stream is truncated or corrupt."""


def blocks(stream: Stream, path: Path | str) -> Iterator[bytes]:
    """The text of a file. Raises SourceUnusable if it is damaged."""
    text_bytes = 0
    try:
        while block := stream.read(BLOCK_BYTES):
            text_bytes += len(block)
            yield block
    except (DamagedError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceUnusable(
            f"{path} is damaged near byte {stream.position}, after {text_bytes} bytes of text: "
            f"{error}. It is incomplete or has changed: copy it again, or create it again."
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def open_stream(path: Path, size_bytes: int, shown: Path | str = "") -> Stream:
    """Opens a file; the suffix selects the decompression.

    Raises SourceUnusable, with the path *shown*, also if the file has another compression.
    """
    openers: Mapping[str, type[_PlainStream | _GzipStream | _ZstdStream]] = {
        ".gz": _GzipStream,
        ".zst": _ZstdStream,
    }
    try:
        with path.open("rb") as file:
            _require_compression(file.read(10), shown or path, _SUFFIXES.get(path.suffix, ""))
        return openers.get(path.suffix, _PlainStream)(path, size_bytes)
    except OSError as error:
        raise unreadable(path, error) from error


_SUFFIXES: Final = {".gz": "gzip", ".zst": "zstd"}


def _require_compression(begin: bytes, path: Path | str, named: str) -> None:
    """Raises SourceUnusable if the compression of a file differs from the one in its name."""
    found = compression_of(begin)
    is_text = begin.lstrip().startswith(b"{")
    if found == named or not (found or (named and is_text)):
        return
    suffix = {of: suffix for suffix, of in _SUFFIXES.items()}.get(found, "")
    name = str(path).removesuffix(Path(path).suffix if named else "") + suffix
    todo = f"Rename it to {name}" if suffix or is_text else "Compress it with gzip or zstd instead"
    has, states = (f"has {of} data" if of else "is not compressed" for of in (found, named))
    raise SourceUnusable(f"{path} {has}, and its name states that it {states}. {todo}.")


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
    """A thread decompresses from file to file, where the output is a pipe."""

    def __init__(self, path: Path, size_bytes: int) -> None:  # noqa: ARG002  # one signature for all
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
        self._pipe.close()  # ends a thread that still writes, with a broken pipe
        self._thread.join()

    def _decompress(self, write_end: int) -> None:
        try:
            _decompress_zstd(self._source, write_end)
        except Exception as error:  # noqa: BLE001  # raised again by `read`
            self._failure = str(error)
        finally:
            os.close(write_end)


def _decompress_zstd(source: cramjam.File, write_end: int) -> None:
    target = cramjam.File(f"/dev/fd/{write_end}", read=False, write=True, append=True)
    cramjam.zstd.decompress_into(source, target)


class Lines:
    r"""Splits blocks into lines, without `\n` and one `\r` before it.

    Lines are truncated to *max_line_bytes*.

    >>> lines = Lines(max_line_bytes=100)
    >>> lines.feed(b"a\r\nb\n\nc"), lines.finish()
    ([b'a', b'b', b''], [b'c'])
    """

    def __init__(self, *, max_line_bytes: int) -> None:
        self._max = max_line_bytes
        self._tail = b""
        self._dropping = False  # to the end of the line that begins in _tail

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


def batches_of(stream: Stream, path: Path | str, max_records: int) -> Iterator[list[bytes]]:
    """The lines of a file in batches. Raises SourceUnusable if it is damaged."""
    pending: list[bytes] = []
    n_bytes = 0
    lines = Lines(max_line_bytes=MAX_KEPT_LINE_BYTES)
    for block in blocks(stream, path):
        pending += lines.feed(block)
        n_bytes += len(block)
        full = len(pending) - len(pending) % max_records
        if n_bytes >= MAX_BATCH_BYTES:
            full, n_bytes = len(pending), 0
        for first in range(0, full, max_records):
            yield pending[first : min(first + max_records, full)]
        pending = pending[full:]
    pending += lines.finish()
    for first in range(0, len(pending), max_records):
        yield pending[first : first + max_records]


def records_of(
    log: Log,
    partition: int,
    first: int,
    lines: list[bytes],
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> Records:
    """Records without keys and timestamps, one per line; *first* is the offset of the first."""
    end = first + len(lines)
    offsets, keys = range(first, end), [None] * len(lines)
    return Records.of(log, partition, offsets, keys, lines, None, end, max_bytes)
