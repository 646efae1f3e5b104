"""Files as text: plain or compressed, in blocks, cut into lines."""

import gzip
import os
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import cramjam

from evaluator.ports import SourceUnusable

BLOCK_BYTES: Final = 1 << 20
MAX_KEPT_LINE_BYTES: Final = 16 << 20
"""Of a longer line only so much is kept; it is refused as oversize all the same."""


def size_of(path: Path) -> int:
    """Bytes as stored. Raises SourceUnusable."""
    try:
        if path.is_file():
            return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error
    raise SourceUnusable(f"{path} is not a file. Put a file with one message per line there.")


def unreadable(path: Path, error: OSError) -> SourceUnusable:
    """The refusal of a file that cannot be read."""
    return SourceUnusable(f"{path} cannot be read: {error.strerror or error}.")


# --- bytes of a file -------------------------------------------------------------------------


class Stream(Protocol):
    """The text of a file, decompressed. `position` counts its bytes as they are stored."""

    @property
    def position(self) -> int: ...

    def read(self, size: int) -> bytes:
        """Some bytes, at most *size*; none at the end."""

    def close(self) -> None: ...


class DamagedError(Exception):
    """A compressed stream ends early or makes no sense."""


def blocks(stream: Stream, path: Path) -> Iterator[bytes]:
    """The text of a file. Raises SourceUnusable where it is damaged."""
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
        raise unreadable(path, error) from error


def open_stream(path: Path, size_bytes: int) -> Stream:
    """The file, decompressed if its name says so. Raises SourceUnusable."""
    openers: Mapping[str, type[_PlainStream | _GzipStream | _ZstdStream]] = {
        ".gz": _GzipStream,
        ".zst": _ZstdStream,
    }
    try:
        return openers.get(path.suffix, _PlainStream)(path, size_bytes)
    except OSError as error:
        raise unreadable(path, error) from error


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
