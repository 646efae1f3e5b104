"""Columns of JSON items -> rows of JSON text.

A row is, column by column, a fixed text and the next item of a *source*. A source holds plain
values and can be written in two ways that give the same bytes: as one text per item, and packed
for the compiled part, which writes whole rows. Columns may share a source and take turns.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final, Protocol, cast

import msgspec
import numpy as np

from evaluator.core.columns.grades import GradeColumns
from evaluator.wire.native import library
from evaluator.wire.native.rows import Kind, Packed, packed_strings, packed_texts, written_rows
from evaluator.wire.outputs.texts import Texts, grades_of, integers, lines_of, ranks_or_null, tuples

_encode: Final = msgspec.json.Encoder().encode
_MOST_ESCAPED: Final = 6
"""Bytes that one byte of a string may become: `\\u001e`."""
_MOST_DIGITS: Final = 20
"""Of an int64, with its sign."""


class Source(Protocol):
    """Items of one kind, in the order in which they are written."""

    def __len__(self) -> int:
        """How many items."""
        ...

    def texts(self) -> Texts:
        """The JSON text of each item."""
        ...

    def packed(self) -> Packed | None:
        """The items for the compiled part; None for what it does not write."""
        ...


@dataclass(frozen=True, slots=True)
class Strings:
    """Strings of any kind."""

    values: Sequence[str]

    def __len__(self) -> int:
        return len(self.values)

    def texts(self) -> Texts:
        return lines_of(self.values)

    def packed(self) -> Packed | None:
        text = packed_strings(self.values)
        if text is None:
            return None
        return Packed(Kind.STRINGS, _MOST_ESCAPED * len(text) + 2 * len(self.values), text)


@dataclass(frozen=True, slots=True)
class Ready:
    """Texts that are JSON already."""

    values: Texts

    def __len__(self) -> int:
        return len(self.values)

    def texts(self) -> Texts:
        return self.values

    def packed(self) -> Packed:
        text = packed_texts(self.values)
        return Packed(Kind.TEXTS, len(text), text)


@dataclass(frozen=True, slots=True)
class Integers:
    """Integers of any size."""

    values: Sequence[int]

    def __len__(self) -> int:
        return len(self.values)

    def texts(self) -> Texts:
        return integers(self.values)

    def packed(self) -> Packed | None:
        try:
            numbers = np.array(self.values, np.int64)
        except OverflowError:  # durations may be of any size
            return None
        return Packed(Kind.INTEGERS, _MOST_DIGITS * len(numbers), numbers=numbers)


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks; null for 0."""

    values: Sequence[int]

    def __len__(self) -> int:
        return len(self.values)

    def texts(self) -> Texts:
        return ranks_or_null(self.values)

    def packed(self) -> Packed:
        numbers = np.array(self.values, np.int64)
        return Packed(Kind.RANKS, _MOST_DIGITS * len(numbers), numbers=numbers)


@dataclass(frozen=True, slots=True)
class Grades:
    """Objects of grades by candidate id, whole grades as integers."""

    rows: GradeColumns

    def __len__(self) -> int:
        return len(self.rows)

    def texts(self) -> Texts:
        return grades_of(cast("list[Mapping[str, float]]", list(self.rows)))

    def packed(self) -> Packed | None:
        counts, grades = np.ascontiguousarray(self.rows.counts, np.int64), self.rows.grades
        ids = self.rows.candidates.strings()
        if not len(ids) == len(grades) == counts.sum():
            raise ValueError(f"{len(ids)} ids and {len(grades)} grades for {counts.sum()} items")
        whole = grades.astype(np.int64)
        text = packed_strings(ids)
        if text is None or (whole != grades).any():
            return None
        n_bytes = _MOST_ESCAPED * len(text) + (_MOST_DIGITS + 4) * len(whole) + 2 * len(counts)
        return Packed(Kind.GRADES, n_bytes, text, numbers=counts, grades=whole)


@dataclass(frozen=True, slots=True)
class Tops:
    """Lists of *n* pairs of an id and a score, which may be None; ids and scores are flat."""

    ids: Sequence[str]
    scores: Sequence[float | None]
    n: int
    n_lists: int

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.scores) == self.n * self.n_lists:
            raise ValueError(
                f"{len(self.ids)} ids and {len(self.scores)} scores are not the items of "
                f"{self.n_lists} lists of {self.n}"
            )

    def __len__(self) -> int:
        return self.n_lists

    def texts(self) -> Texts:
        if not self.n:
            return [b"[]"] * self.n_lists
        return lines_of(tuples(zip(self.ids, self.scores, strict=True), self.n))

    def packed(self) -> Packed | None:
        text = packed_strings(self.ids)
        if text is None:
            return None
        scores = _encode(self.scores)[1:-1] + b","
        n_bytes = _MOST_ESCAPED * len(text) + len(scores) + 6 * len(self.ids) + 2 * self.n_lists
        return Packed(Kind.TOPS, n_bytes, text, scores=scores, n_top=self.n)


Column = tuple[bytes, Source]
"""A fixed text, and the source of what follows it in each row."""


def rows_of(columns: Iterable[Column], end: bytes, *, n_rows: int) -> Texts:
    """One text per row: each fixed text followed by the next item of its source, then *end*.

    Raises:
        ValueError: if a source has not one item for each row and column that takes from it.
    """
    columns = list(columns)
    sources = {id(source): source for _, source in columns}
    turns = Counter(id(source) for _, source in columns)
    for key, source in sources.items():  # the compiled part would read on behind the last item
        if len(source) != n_rows * turns[key]:
            raise ValueError(f"{len(source)} items for {n_rows} rows of {turns[key]} columns")
    if library.BUILT is None:
        return _joined(columns, turns, end)
    places = {key: place for place, key in enumerate(sources)}
    return written_rows(
        library.BUILT,
        [(fixed, places[id(source)]) for fixed, source in columns],
        [each.packed() or Ready(each.texts()).packed() for each in sources.values()],
        n_rows,
        end,
    )


def _joined(columns: Sequence[Column], turns: Mapping[int, int], end: bytes) -> Texts:
    texts = {id(source): source.texts() for _, source in columns}
    taken: Counter[int] = Counter()
    parts: list[Iterable[bytes]] = []
    for fixed, source in columns:
        key = id(source)
        parts += (repeat(fixed), texts[key][taken[key] :: turns[key]])
        taken[key] += 1
    parts.append(repeat(end))
    return list(map(b"".join, zip(*parts, strict=False)))
