"""Columns of values -> columns of JSON texts: one call of the encoder, one split at newlines."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import add
from typing import Final, TypeVar

import msgspec

from evaluator.core.measures import MISSING, UNITS_PER_ONE

UNIT: Final = 1 / UNITS_PER_ONE
"""What one unit of a value is worth; exact as a double."""

MAX_REMEMBERED_NUMBERS: Final = 100_000
MAX_REMEMBERED_OBJECTS: Final = 30_000

Texts = list[bytes]
ItemT = TypeVar("ItemT")

_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines


class _Values(dict[tuple[int, ...], bytes]):
    """JSON objects of the values of one ranker, by all its units.

    The same lists of values come again and again, so looking one up mostly is all there is to
    do; the text of each number is remembered too, for the others. A value that a query lacks is
    left out.
    """

    def __init__(self, names: Sequence[str], places: Sequence[int]) -> None:
        super().__init__()
        self._before = [_encode(name) + b":" for name in names]
        self._places = places
        self._numbers: dict[int, bytes] = {}

    def of(self, units: Iterable[tuple[int, ...]]) -> Texts:
        """One object for each tuple of units."""
        if len(self) > MAX_REMEMBERED_OBJECTS:
            self.clear()
        if len(self._numbers) > MAX_REMEMBERED_NUMBERS:
            self._numbers.clear()
        return list(map(self.__getitem__, units))

    def __missing__(self, units: tuple[int, ...]) -> bytes:
        numbers = [self._number(units[place]) for place in self._places]
        members = list(map(add, self._before, numbers))
        if MISSING in units:
            placed = zip(members, self._places, strict=True)
            members = [member for member, place in placed if units[place] != MISSING]
        text = b"{%b}" % b",".join(members)
        self[units] = text
        return text

    def _number(self, units: int) -> bytes:
        text = self._numbers.get(units)
        if text is None:
            text = self._numbers[units] = _encode(units * UNIT)
        return text


@functools.lru_cache(maxsize=8)
def values_under(names: tuple[str, ...], places: tuple[int, ...]) -> _Values:
    """Texts of values: the member *names[i]* is the number at *places[i]* of the units."""
    return _Values(names, places)


_rank_texts: Texts = [b"null", *(str(rank).encode() for rank in range(1, 1001))]


def tuples(flat: Iterable[ItemT], width: int) -> Iterator[tuple[ItemT, ...]]:
    """Neighbours together, *width* at a time."""
    return zip(*[iter(flat)] * width, strict=True)


def lines_of(values: Iterable[object]) -> Texts:
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
