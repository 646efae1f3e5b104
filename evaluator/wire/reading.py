"""The strict JSON reader of stored documents: bounded, typed, one exception."""

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec

from evaluator.core.types.candidates import CandidateKind

T = TypeVar("T")

MAX_NESTING: Final = 64

MAX_DOCUMENT_BYTES: Final = 64 << 20
"""Default limit of a document."""

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A count, an offset or a timestamp."""
Sum = int
"""An exact sum, possibly beyond int64; `checked_sums` bounds it."""
_MAX_SUM: Final = 1 << 192

UNREADABLE: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    struct.error,
    msgspec.MsgspecError,
)
"""Exceptions of reading for invalid bytes."""

_BRACKETS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


class HistoryTable(msgspec.Struct):
    """`SuccessTable.state` in records."""

    format: Literal[1]
    successes: list[tuple[CandidateKind, str, Sum, Count]]
    over_limit: Sum


@contextmanager
def refused_as(refused: type[Exception], what: str) -> Iterator[None]:
    """Converts exceptions of reading to *refused*; *what* begins the message."""
    try:
        yield
    except refused:
        raise
    except UNREADABLE as error:
        raise refused(f"{what}: {str(error) or repr(error)}") from None


class Reader(Generic[T]):
    """Reads one kind of document, and raises one exception.

    A document is strict JSON of at most *max_bytes*, nested at most MAX_NESTING deep, of the type
    *kind*. Unknown members are ignored unless the type forbids them; of a repeated member the last
    counts.

    Args:
        kind: the type that `msgspec` decodes to.
        refused: the exception.
        what: the beginning of its message.
    """

    def __init__(
        self,
        kind: Any,
        refused: type[Exception],
        what: str = "",
        *,
        max_bytes: int = MAX_DOCUMENT_BYTES,
    ) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._refused = refused
        self._before = f"{what}: " if what else ""
        self._max_bytes = max_bytes

    def __call__(self, value: bytes) -> T:
        """The document. Raises the exception of this reader."""
        if len(value) > self._max_bytes:
            raise self._refused(f"{self._before}{len(value)} bytes; at most {self._max_bytes}")
        if too_deep(value):
            raise self._refused(f"{self._before}nested more than {MAX_NESTING} deep")
        try:
            document: T = self._decode(value)
        except UNREADABLE as error:
            raise self._refused(f"{self._before}{error}") from None
        return document


def too_deep(text: bytes) -> bool:
    """Whether brackets nest more than MAX_NESTING deep outside of strings.

    >>> too_deep(b"[" * 65), too_deep(b"[[1],[2]]")
    (True, False)
    """
    opened = text.count(b"[") + text.count(b"{")
    for siblings in (b"],[", b"},{"):  # a bracket right after a closing one is no deeper
        if opened <= MAX_NESTING:
            return False
        opened -= text.count(siblings)
    if opened <= MAX_NESTING:
        return False
    depth = 0
    for token in _BRACKETS.finditer(text):
        if token[0] in b"[{":
            depth += 1
            if depth > MAX_NESTING:
                return True
        elif token[0] in b"]}":
            depth -= 1
    return False


_MAGIC: Final[dict[bytes, str]] = {
    b"\x1f\x8b\x08": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh91AY&SY": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x04\x22\x4d\x18": "LZ4",
}


def compression_of(begin: bytes) -> str:
    """The compression of a file by its first ten bytes, "" if none is recognised."""
    return next((name for magic, name in _MAGIC.items() if begin.startswith(magic)), "")


def checked_sums(sums: list[Sum]) -> list[Sum]:
    """The sums. Raises ValueError for one beyond all possible sums."""
    if any(abs(each) > _MAX_SUM for each in sums):
        raise ValueError("a sum is beyond all possible sums")
    return sums
