"""Columns of values to sources of JSON texts. A batch is encoded column by column, without a step
of Python per value.
"""

import functools
from collections.abc import Callable, Sequence
from itertools import chain, compress, count, filterfalse
from operator import add
from typing import Any, Final

import msgspec
import numpy as np

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn, Values
from evaluator.core.columns.texts import WORD, TextRows
from evaluator.core.measures import MISSING, UNITS_PER_ONE
from evaluator.core.types.records import FloatArray, IntArray
from evaluator.wire.outputs.rows import Members, Names, Numbers, TextPool, Texts

UNIT: Final = 1 / UNITS_PER_ONE
"""One unit of a value; exact as a double."""
MAX_CACHED_OBJECTS: Final = 30_000
_NEWLINE: Final = ord("\n")

_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines


def strings_of(rows: TextRows) -> list[Names]:
    """The JSON text of each column, without its quotes."""
    n_columns, bounds = rows.sizes.shape[1], rows.bounds
    text, odd = rows.words.view(np.uint8), np.flatnonzero(~rows.plain)
    if len(odd):
        own = rows.flat().view(np.uint8)
        bounds += WORD * (np.cumsum(rows.n_words) - rows.n_words - rows.starts)[:, None]
        columns = map(rows.picked(odd).column, range(n_columns))
        lines = _encode_lines(chain.from_iterable(zip(*columns, strict=True)))
        escaped = np.frombuffer(lines[1:-2].replace(b'"\n"', b"\n") + b"\n", np.uint8)
        ends = len(own) + np.flatnonzero(escaped == _NEWLINE) + 1
        bounds[odd, 1:] = ends.reshape(-1, n_columns)
        bounds[odd, 0] = np.append(len(own), ends)[:-1:n_columns]
        text = np.concatenate((own, escaped))
    pool = TextPool(text, np.append(bounds, len(text)))
    every = np.arange(len(rows), dtype=np.int32) * (n_columns + 1)
    return [Names(every + at, pool) for at in range(n_columns)]


def names(column: DictionaryColumn, as_json: Callable[[Any], object] | None = None) -> Names:
    """The JSON text of each entry; an interner keeps those of its values.

    *as_json* makes the JSON value of an entry that is none itself.
    """
    values, pool = column.names, TextPool()
    if isinstance(values, Values):
        pool = values.texts = pool if values.texts is None else values.texts
    if len(pool) < len(values):
        new = values[len(pool) :]
        pool.add(_encode_lines(new if as_json is None else map(as_json, new)))
    return Names(column.numbers, pool)


def levels(column: DictionaryColumn) -> Names:
    """The JSON object of each entry, level by segment."""
    return names(column, dict)


def strata(column: DictionaryColumn) -> Names:
    """The JSON text of each model, with the member `variant` after it."""
    return names(column, lambda each: msgspec.Raw(b'%b,"variant":%b' % (*map(_encode, each[:2]),)))


def integers(values: IntArray, *, plus: int = 0) -> Numbers | Texts:
    """The text of each integer with *plus* added, of any size."""
    if plus + int(values.max(initial=0)) <= np.iinfo(np.int64).max:
        return Numbers(values + plus)
    return Texts.of(b"%d" % (value + plus) for value in values.tolist())


def ranks(values: IntArray) -> Numbers:
    """The text of each rank; null for 0."""
    return Numbers(values, ranks=True)


def grades(rows: GradeColumns) -> Members:
    """The JSON object of each row, by candidate id; whole grades are integers."""
    given = rows.grades
    whole = (given == np.floor(given)) & (given < 1 << 53) & ~np.signbit(given)
    if whole.all():  # faster, and most frequent
        return Members(rows.counts, names(rows.candidates), Numbers(given.astype(np.int64)))
    numbers = Texts(_floats(given).joined.replace(b".0\n", b"\n"))
    return Members(rows.counts, names(rows.candidates), numbers)


def _floats(values: FloatArray) -> Texts:
    """The text of each number; null for NaN."""
    numbers: list[float | None] = values.tolist()
    for index in np.flatnonzero(np.isnan(values)).tolist():
        numbers[index] = None
    return Texts(_encode_lines(numbers))


def tops(ids: DictionaryColumn, scores: FloatArray, n: int, n_lists: int) -> Members:
    """Lists of *n* pairs of id and score, from flat ids and scores."""
    return Members(np.full(n_lists, n), names(ids), _floats(scores), pairs=True)


class _Values(dict[bytes, int]):
    """JSON objects of the values of one ranker: texts of a pool, by units; without MISSING ones.

    Values repeat, so objects are cached. A hash of the units finds most of them without a key.
    """

    _SLOT_BITS: Final = 16

    def __init__(self, names: Sequence[str], places: Sequence[int], width: int) -> None:
        super().__init__()
        self._before = [_encode(name) + b":" for name in names]
        self._whole = b"{%b}\n" % b",".join(before + b"%b" for before in self._before)
        self._places = list(places)
        self._factors = np.arange(1, 2 * width, 2).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self._empty()

    def _empty(self) -> None:
        self.clear()
        self._pool = TextPool()
        self._pool.add(b"\n")  # at the place that no units have
        self._units = np.full((1, len(self._factors)), MISSING - 1)
        self._object_at = np.zeros(1 << self._SLOT_BITS, np.int32)

    def of(self, units: IntArray) -> Names:
        """One object for each row of units."""
        if len(self) > MAX_CACHED_OBJECTS:
            self._empty()
        hashes = units.astype(np.uint64) @ self._factors
        slots = (hashes >> np.uint64(64 - self._SLOT_BITS)).astype(np.int64)
        objects = self._object_at[slots]
        missed = np.flatnonzero((self._units.take(objects, axis=0) != units).any(axis=1))
        if len(missed):
            keys = units[missed].view(f"V{units.itemsize * len(self._factors)}").ravel().tolist()
            if new := list(dict.fromkeys(filterfalse(self.__contains__, keys))):
                self.update(zip(new, count(len(self) + 1), strict=False))
                added = np.frombuffer(b"".join(new), np.int64).reshape(-1, len(self._factors))
                self._units = np.concatenate((self._units, added))
                self._pool.add(self._texts(added[:, self._places]))
            objects[missed] = self._object_at[slots[missed]] = [self[key] for key in keys]
        return Names(objects, self._pool)

    def _texts(self, units: IntArray) -> bytes:
        *numbers, _ = _encode_lines((units * UNIT).reshape(-1).tolist()).split(b"\n")
        is_present = units != MISSING
        if is_present.all():  # faster, and most frequent
            return self._whole * len(units) % tuple(numbers)
        objects, left = [], iter(numbers)
        for present in is_present.tolist():
            members = map(add, self._before, left)
            objects.append(b"{%b}\n" % b",".join(compress(members, present)))
        return b"".join(objects)


@functools.lru_cache(maxsize=8)
def values_under(names: tuple[str, ...], places: tuple[int, ...], width: int) -> _Values:
    """Texts of values: the member *names[i]* is the number at *places[i]* of *width* units."""
    return _Values(names, places, width)
