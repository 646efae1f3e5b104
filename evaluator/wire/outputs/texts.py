"""Columns of values to columns of JSON texts. A batch is encoded column by column, without a step
of Python per value.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from operator import add
from typing import Final, TypeVar

import msgspec
import numpy as np

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.measures import MISSING, UNITS_PER_ONE
from evaluator.core.types.records import FloatArray
from evaluator.wire.outputs.rows import Objects, Texts

UNIT: Final = 1 / UNITS_PER_ONE
"""One unit of a value; exact as a double."""
MAX_CACHED_NUMBERS: Final = 100_000
MAX_CACHED_OBJECTS: Final = 30_000

ItemT = TypeVar("ItemT")

_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines
_rank_texts: Final = [b"null", *(str(rank).encode() for rank in range(1, 1001))]


def tuples(flat: Iterable[ItemT], width: int) -> Iterator[tuple[ItemT, ...]]:
    """Consecutive items, *width* at a time."""
    return zip(*[iter(flat)] * width, strict=True)


def strings(values: Iterable[object]) -> Texts:
    """The JSON text of each string, or of each JSON value."""
    return Texts(_encode_lines(values))


def integers(values: Sequence[int]) -> Texts:
    """The text of each integer, of any size."""
    try:
        return Texts(_encode(values)[1:-1] + b"," if values else b"", b",")
    except OverflowError:  # past 64 bits: durations may be of any size
        return Texts.of(str(value).encode() for value in values)


def ranks(values: Sequence[int]) -> Texts:
    """The text of each rank; null for 0."""
    try:
        return Texts.of(map(_rank_texts.__getitem__, values))
    except IndexError:  # a row may have more candidates than a message
        return Texts.of(str(rank).encode() if rank else b"null" for rank in values)


def grades(rows: GradeColumns) -> Objects:
    """The JSON object of each row, by candidate id; whole grades are integers."""
    counts = np.ascontiguousarray(rows.counts, np.int64)
    return Objects(counts, strings(rows.candidates.strings()), _grade_texts(rows.grades))


def _grade_texts(grades: FloatArray) -> Texts:
    whole = (grades == np.floor(grades)) & (grades < 1 << 53) & ~np.signbit(grades)
    if whole.all():  # faster, and most frequent
        return integers(grades.astype(np.int64).tolist())
    numbers: list[float | None] = grades.tolist()
    for index in np.flatnonzero(np.isnan(grades)).tolist():
        numbers[index] = None
    return Texts(_encode_lines(numbers).replace(b".0\n", b"\n"))


def tops(ids: Sequence[str], scores: Sequence[float | None], n: int, n_lists: int) -> Texts:
    """Lists of *n* pairs of id and score, from flat ids and scores.

    Raises:
        ValueError: if there are not *n* ids and scores for each list.
    """
    if not len(ids) == len(scores) == n * n_lists:
        raise ValueError(f"{len(ids)} items and {len(scores)} scores for {n_lists} lists of {n}")
    return strings(tuples(zip(ids, scores, strict=True), n)) if n else Texts(b"[]\n" * n_lists)


class _Values(dict[tuple[int, ...], bytes]):
    """JSON objects of the values of one ranker, by its units; values of MISSING are left out.

    Values repeat, so objects and numbers are cached.
    """

    def __init__(self, names: Sequence[str], places: Sequence[int]) -> None:
        super().__init__()
        self._before = [_encode(name) + b":" for name in names]
        self._places = places
        self._numbers: dict[int, bytes] = {}

    def of(self, units: Iterable[tuple[int, ...]]) -> Texts:
        """One object for each tuple of units."""
        if len(self) > MAX_CACHED_OBJECTS:
            self.clear()
        if len(self._numbers) > MAX_CACHED_NUMBERS:
            self._numbers.clear()
        return Texts.of(map(self.__getitem__, units))

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
