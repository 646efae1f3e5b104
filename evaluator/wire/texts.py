"""Columns of values -> columns of JSON texts: one call of the encoder, one split at newlines."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

UNIT: Final = 2.0**-40
"""What one unit of a value is worth; exact as a double."""

MAX_REMEMBERED_NUMBERS: Final = 100_000

Texts = list[bytes]

_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines


class _Numbers(dict[int, bytes]):
    """Texts of values in units: few distinct ones occur, and looking up is cheaper."""

    def __missing__(self, units: int) -> bytes:
        text = self[units] = _encode(units * UNIT)
        return text

    def texts(self, units: Iterable[int]) -> Texts:
        """The text of each number."""
        if len(self) > MAX_REMEMBERED_NUMBERS:
            self.clear()
        return list(map(self.__getitem__, units))


_numbers = _Numbers()
_rank_texts: Texts = [b"null", *(str(rank).encode() for rank in range(1, 1001))]


def lines_of(values: Sequence[object]) -> Texts:
    """The JSON text of each value."""
    texts = _encode_lines(values).split(b"\n")
    texts.pop()
    return texts


def integers(values: Sequence[int]) -> Texts:
    """The text of each integer, of any size."""
    try:
        return _encode(values)[1:-1].split(b",") if values else []
    except OverflowError:  # past 64 bits: durations may be of any size
        return [str(value).encode() for value in values]


def grades_of(rows: Sequence[Mapping[str, float]]) -> Texts:
    """The JSON object of each row, whole grades as integers.

    `.0` before `}` at the end of a line or before `,"` ends a number, unless an id itself ends
    in `.0,`; only then is each grade looked at.
    """
    lines = _encode_lines(rows)
    if b'.0,":' in lines:
        return lines_of([{name: whole(grade) for name, grade in row.items()} for row in rows])
    texts = lines.replace(b'.0,"', b',"').replace(b".0}\n", b"}\n").split(b"\n")
    texts.pop()
    return texts


def whole(grade: float) -> int | float:
    """The same number, as an integer where it is one.

    >>> whole(2.0), whole(0.5)
    (2, 0.5)
    """
    return int(grade) if grade == int(grade) else grade


def ranks_or_null(ranks: Sequence[int]) -> Texts:
    """The text of each rank; null for 0."""
    try:
        return list(map(_rank_texts.__getitem__, ranks))
    except IndexError:  # more candidates than a message may have: still no reason to fail
        return [str(rank).encode() if rank else b"null" for rank in ranks]


def numbers_or_null(scores: Sequence[float | None]) -> Texts:
    """The shortest text of each number; null for None."""
    return _encode(scores)[1:-1].split(b",") if scores else []


def values_of(units: Iterable[int]) -> Texts:
    """The text of each value in units."""
    return _numbers.texts(units)
