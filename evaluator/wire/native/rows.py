"""Rows of JSON text from packed columns, by the compiled part (`rows.h`)."""

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from evaluator.core.types.records import IntArray
from evaluator.wire.native.library import SEPARATOR, Library

_SEPARATOR: Final = SEPARATOR.encode()


class Kind(IntEnum):
    """`enum source_kind`."""

    STRINGS = 0
    TEXTS = 1
    INTEGERS = 2
    RANKS = 3
    GRADES = 4
    TOPS = 5


class Packed(NamedTuple):
    """A source of items: `struct source`, and how many bytes its items take at the most."""

    kind: Kind
    n_bytes: int
    text: bytes = b""
    numbers: IntArray | None = None
    grades: IntArray | None = None
    scores: bytes = b""
    n_top: int = 0


class _Source(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int64),
        ("text", ctypes.c_char_p),
        ("numbers", ctypes.c_void_p),
        ("grades", ctypes.c_void_p),
        ("scores", ctypes.c_char_p),
        ("n_top", ctypes.c_int64),
    )


class _Column(ctypes.Structure):
    _fields_ = (
        ("fixed", ctypes.c_char_p),
        ("size", ctypes.c_int64),
        ("source", ctypes.c_int64),
    )


def packed_strings(strings: Sequence[str]) -> bytes | None:
    """The strings in one text, each with its separator; None if one contains it."""
    text = SEPARATOR.join([*strings, ""]).encode()
    return text if text.count(_SEPARATOR) == len(strings) else None


def packed_texts(texts: Sequence[bytes]) -> bytes:
    """JSON texts, which contain no separator, in one text, each with its separator."""
    return _SEPARATOR.join([*texts, b""])


def written_rows(
    library: Library,
    columns: Sequence[tuple[bytes, int]],
    sources: Sequence[Packed],
    n_rows: int,
    end: bytes,
) -> list[bytes]:
    """One text per row: each fixed text and the next item of its source, by index; then *end*."""
    column_array = (_Column * len(columns))(
        *[_Column(fixed, len(fixed), source) for fixed, source in columns]
    )
    source_array = (_Source * len(sources))(
        *[
            _Source(
                each.kind,
                each.text,
                _address(each.numbers),
                _address(each.grades),
                each.scores,
                each.n_top,
            )
            for each in sources
        ]
    )
    fixed_bytes = sum(len(fixed) for fixed, _ in columns) + len(end) + 1
    out = np.empty(n_rows * fixed_bytes + sum(each.n_bytes for each in sources), np.uint8)
    size = library.write_rows(
        column_array, len(columns), source_array, n_rows, end, len(end), out.ctypes.data
    )
    return out[:size].tobytes().split(_SEPARATOR)[:-1]


def _address(array: IntArray | None) -> int | None:
    return None if array is None else array.ctypes.data
