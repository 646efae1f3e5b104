"""Grades of many queries or judgments, in columns."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from math import isnan

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.columns.table import IntArray, span_indices

Grades = Mapping[str, float | None]


class GradeColumns(Struct, eq=False):
    """One row of grades by candidate id per query or judgment, in order of first use.

    `counts` is `[n_rows]`, `ends` its running sum; `candidates` and `grades` are flat, row after
    row, no candidate twice in a row; a grade is NaN where it is withdrawn. The items are dicts,
    with None for a withdrawn grade.
    """

    counts: IntArray
    candidates: DictionaryColumn
    grades: NDArray[np.float64]
    ends: IntArray = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        self.ends = np.cumsum(self.counts)

    @classmethod
    def of(cls, rows: Sequence[Grades]) -> "GradeColumns":
        """The same grades.

        >>> GradeColumns.of([{"a": 2.0}, {}])[0]
        {'a': 2.0}
        """
        flat = list(chain.from_iterable(row.values() for row in rows))
        return cls(
            np.fromiter(map(len, rows), np.int64, len(rows)),
            DictionaryColumn.of(list(chain.from_iterable(rows))),
            np.array(flat, np.float64),  # None becomes NaN
        )

    @classmethod
    def joined(cls, parts: Sequence["GradeColumns"]) -> "GradeColumns":
        """The rows of all parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([np.empty(0, np.int64), *(part.counts for part in parts)]),
            DictionaryColumn.joined([part.candidates for part in parts]),
            np.concatenate([np.empty(0), *(part.grades for part in parts)]),
        )

    def __len__(self) -> int:
        return len(self.counts)

    def __iter__(self) -> Iterator[Grades]:
        grades: list[float | None] = self.grades.tolist()
        for index in np.flatnonzero(np.isnan(self.grades)).tolist():
            grades[index] = None
        pairs = zip(self.candidates.values(), grades, strict=True)
        return (dict(islice(pairs, n)) for n in self.counts.tolist())

    def __getitem__(self, row: int) -> Grades:
        last = int(self.ends[row])
        span = slice(last - int(self.counts[row]), last)
        names, numbers = self.candidates.names, self.candidates.numbers[span].tolist()
        grades = [None if isnan(grade) else grade for grade in self.grades[span].tolist()]
        return dict(zip(map(names.__getitem__, numbers), grades))  # noqa: B905  # strict costs much

    def picked(self, rows: IntArray) -> "GradeColumns":
        """Some of the rows."""
        counts = self.counts[rows]
        spans = span_indices(self.ends[rows] - counts, counts)
        return GradeColumns(counts, self.candidates[spans], self.grades[spans])

    def placed(self, places: IntArray, n_rows: int) -> "GradeColumns":
        """Moves row i to row `places[i]` of *n_rows*; all other rows are empty."""
        order = np.argsort(places)
        moved = self.picked(order)
        counts = np.zeros(n_rows, np.int64)
        counts[places[order]] = moved.counts
        return GradeColumns(counts, moved.candidates, moved.grades)
