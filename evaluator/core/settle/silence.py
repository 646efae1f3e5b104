"""Silence: an exposed candidate without a grade by maturity has grade 0."""

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.event_time.activity import Activity
from evaluator.core.join.open_queries import OpenQueries
from evaluator.core.types.records import IntArray

_PLACEHOLDER: Final = ""
"""The candidate of a silent query without candidates: never ranked; no id is empty."""


class Silenced(Struct, frozen=True):
    """By row the candidates that have got grade 0, and the rows of silent queries."""

    zero: dict[int, Collection[str]] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)

    def without_placeholders(self, grades: GradeColumns) -> GradeColumns:
        """The grades without those of queries that have no candidates."""
        if not any(_PLACEHOLDER in names for names in self.zero.values()):
            return grades
        return GradeColumns.of([{} if _PLACEHOLDER in row else row for row in grades])


class Silence:
    """Gives exposed candidates without a grade the grade 0, as their queries settle."""

    def __init__(self, open_queries: OpenQueries, activity: Activity, maturity_ms: int) -> None:
        self._queries = open_queries
        self._activity = activity
        self._maturity_ms = maturity_ms

    def zeros(
        self, rows: IntArray, running: NDArray[np.bool_], differing: dict[int, dict[str, float]]
    ) -> Silenced:
        """Adds the grades with zeros to *differing*, the grades by maturity by row.

        For a row that is not in it, *running* is whether the running grades are those by maturity,
        else it has none. Only queries with exposure, and with a judgment in the log between them
        and their maturity: clicks that no longer arrive are not silence.
        """
        found, served = Silenced(), self._queries.stated.served
        for row, is_running in zip(rows.tolist(), running.tolist(), strict=True):
            exposed = served[row].exposed if row in served else None
            since_ms = int(self._queries.table["event_ms"][row])
            until_ms = since_ms + self._maturity_ms
            if exposed is None or not self._activity.has_any(since_ms, until_ms):
                continue
            graded: Mapping[str, float | None] = differing.get(row, {})
            if is_running and row not in differing:
                graded = self._queries.grades_of(np.array([row]))[0]
            ranks = served_ranks(self._queries, row)
            zero = [name for name, rank in ranks.items() if exposed >> rank - 1 & 1]
            zero = [name for name in zero if name not in graded]
            if not ranks and not graded:
                zero = [_PLACEHOLDER]
            if zero:
                found.zero[row] = frozenset(zero)
                if not graded:
                    found.silent.add(row)
                given = {name: grade for name, grade in graded.items() if grade is not None}
                differing[row] = {**given, **dict.fromkeys(zero, 0.0)}
        return found


def served_ranks(queries: OpenQueries, row: int, ranker: int = 0) -> dict[str, int]:
    """Rank of each candidate of a query in the served order, or that of another *ranker*."""
    table, pools = queries.table, queries.pools
    first, rank, n = (
        int(table[name][row]) for name in ("candidate_start", "rank_start", "n_candidates")
    )
    ids = DictionaryColumn(queries.codes.values_by_number, pools.candidate_codes)
    rank += ranker * n
    ranks = pools.ranks[rank : rank + n].tolist()
    return dict(zip(ids.values(first, first + n), ranks, strict=True))
