"""A column of byte strings in one buffer."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray


class ByteStrings(Sequence[bytes | None]):
    """Byte strings or None, each followed by a NUL byte in `buffer`.

    `starts` and `sizes` are `[n]`: where each begins, and its length; -1 for None.

    >>> strings = ByteStrings.of([b"ab", None, b""])
    >>> strings[0], strings[-1], list(strings[:2]), list(strings[[2, 0]])
    (b'ab', b'', [b'ab', None], [b'', b'ab'])
    """

    __slots__ = ("buffer", "sizes", "starts")

    def __init__(self, buffer: bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        self.buffer, self.starts, self.sizes = buffer, starts, sizes

    @classmethod
    def of(cls, strings: Sequence[bytes | None]) -> "ByteStrings":
        buffer = b"\0".join(chain((string or b"" for string in strings), (b"",)))
        lengths = (-1 if string is None else len(string) for string in strings)
        sizes = np.fromiter(lengths, np.int64, len(strings))
        ends = np.cumsum(np.maximum(sizes, 0) + 1)
        return cls(buffer, ends - np.maximum(sizes, 0) - 1, sizes)

    @classmethod
    def joined(cls, parts: Sequence["ByteStrings"]) -> "ByteStrings":
        """The strings of all parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        first, starts = 0, [np.zeros(0, np.int64)]
        for part in parts:
            starts.append(part.starts + first)
            first += len(part.buffer)
        sizes = np.concatenate([np.zeros(0, np.int64), *(part.sizes for part in parts)])
        return cls(b"".join(part.buffer for part in parts), np.concatenate(starts), sizes)

    def compact(self) -> "ByteStrings":
        """The same strings in a buffer with nothing else.

        >>> strings = ByteStrings.of([b"a", b"b", None])
        >>> [strings[at].compact().buffer.hex() for at in (slice(1, 2), [2, 0])]
        ['6200', '006100']
        """
        ends = self.starts + np.maximum(self.sizes, 0) + 1
        if not len(self) or (self.starts[1:] != ends[:-1]).any():
            buffer, spans = self.buffer, zip(self.starts.tolist(), ends.tolist(), strict=True)
            lengths = ends - self.starts
            parts = b"".join([buffer[first:end] for first, end in spans])
            return ByteStrings(parts, np.cumsum(lengths) - lengths, self.sizes)
        first, end = int(self.starts[0]), int(ends[-1])
        return ByteStrings(self.buffer[first:end], self.starts - first, self.sizes)

    @property
    def is_uniform(self) -> bool:
        """Whether there are strings, and all are the same.

        >>> ByteStrings.of([b"a", b"a"]).is_uniform, ByteStrings.of([b"a", b"b"]).is_uniform
        (True, False)
        """
        if not len(self) or (self.sizes != self.sizes[0]).any():
            return False
        text = self.compact().buffer
        return text == text[: len(text) // len(self)] * len(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByteStrings) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] # arrays can change, so there is no hash

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, at: int) -> bytes | None: ...
    @overload
    def __getitem__(self, at: slice | NDArray[Any] | list[int]) -> "ByteStrings": ...
    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice | list | np.ndarray):
            return ByteStrings(self.buffer, self.starts[at], self.sizes[at])
        start, size = int(self.starts[at]), int(self.sizes[at])
        return None if size < 0 else self.buffer[start : start + size]

    def __iter__(self) -> Iterator[bytes | None]:
        buffer = self.buffer
        for start, size in zip(self.starts.tolist(), self.sizes.tolist(), strict=True):
            yield None if size < 0 else buffer[start : start + size]
