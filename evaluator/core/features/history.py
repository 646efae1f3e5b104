"""The table of success rates of tools and of types of graphs, learned from settled grades."""

import json
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.types.candidates import CandidateKind, Described

MAX_NAMES: Final = 10_000
"""Tools and types of a table; further ones stay unknown and are counted."""

_PRIOR_QUERIES: Final = 10
_PRIOR_UNITS: Final = _PRIOR_QUERIES * UNITS_PER_ONE // 2
_FORMAT: Final = 1


class Success(NamedTuple):
    """Sum of success of a tool or a type of graphs, in units of 2^-40, over *queries*."""

    units: int = 0
    queries: int = 0

    @property
    def success_rate(self) -> float:
        """Success per query, with a prior of 10 queries of 0.5.

        >>> Success().success_rate, Success(units=10 << 40, queries=10).success_rate
        (0.5, 0.75)
        """
        units = self.units + _PRIOR_UNITS
        return units / ((self.queries + _PRIOR_QUERIES) * UNITS_PER_ONE)


class SuccessTable(Struct, frozen=True):
    """The table: success by kind and name (of a tool) or type (of graphs).

    `over_limit` counts queries of names outside the table: beyond MAX_NAMES, or dropped by
    `shortened`.
    """

    successes: Mapping[tuple[CandidateKind, str], Success] = field(default_factory=dict)
    over_limit: int = 0

    def success_rates(self, kind: CandidateKind, names: Sequence[str]) -> list[float]:
        """The success rate of each name; 0.5 for an unknown name."""
        unknown = Success()
        return [self.successes.get((kind, name), unknown).success_rate for name in names]

    def state(self) -> dict[str, Any]:
        """Everything, as JSON stores it exactly: names and whole numbers, sorted."""
        rows = [[*key, *success] for key, success in sorted(self.successes.items())]
        return {"format": _FORMAT, "successes": rows, "over_limit": self.over_limit}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "SuccessTable":
        """The same table. Raises ValueError for an impossible row."""
        table: dict[tuple[CandidateKind, str], Success] = {}
        for kind, name, units, queries in state["successes"]:
            if not 0 <= units <= queries * UNITS_PER_ONE:
                raise ValueError(f"the history has an impossible row for {kind!r} {name!r}")
            table[kind, name] = Success(units, queries)
        return cls(table, state["over_limit"])


def learned(
    history: SuccessTable,
    queries: Iterable[tuple[Described, Mapping[str, float]]],
    *,
    max_grade: float = 2,
) -> SuccessTable:
    """The table after settled queries with their grades by candidate id; *history* is not changed.

    A query counts once for each name with a grade, by the mean of the graphs of one type; a
    negative grade is ignored. The order of queries changes nothing below MAX_NAMES. Features of a
    query must not come from a table that has learned from it.
    """
    table, over_limit = dict(history.successes), history.over_limit
    for described, grades in queries:
        for name, units in _success_by_name(described, grades, max_grade).items():
            key = described.kind, name
            if key not in table and len(table) >= MAX_NAMES:
                over_limit += 1
                continue
            before = table.get(key, Success())
            mean = round(Fraction(sum(units), len(units)))
            table[key] = Success(before.units + mean, before.queries + 1)
    return SuccessTable(table, over_limit)


def _success_by_name(
    described: Described, grades: Mapping[str, float], max_grade: float
) -> dict[str, list[int]]:
    """The successes of one query in units; a candidate that is listed twice counts once."""
    names = dict(zip(reversed(described.candidate_ids), reversed(described.types()), strict=True))
    units: dict[str, list[int]] = {}
    for candidate_id, name in names.items():
        grade = grades.get(candidate_id, -1.0)
        if grade >= 0:
            share = Fraction(min(grade, max_grade)) / Fraction(max_grade)
            units.setdefault(name, []).append(round(share * UNITS_PER_ONE))
    return units


def shortened(history: SuccessTable, max_bytes: int) -> SuccessTable:
    """The names with the most queries, limited to *max_bytes* of `state` in JSON.

    Queries of other names count as over the limit.

    >>> table = SuccessTable({("tool", "a"): Success(0, 1), ("tool", "b"): Success(0, 2)})
    >>> shortened(table, 30)
    SuccessTable(successes={('tool', 'b'): Success(units=0, queries=2)}, over_limit=1)
    """
    order = sorted(history.successes.items(), key=lambda row: (-row[1].queries, row[0]))
    sizes = accumulate(_n_bytes(*key, *success) for key, success in order)
    n_kept = sum(size <= max_bytes for size in sizes)
    if n_kept == len(order):
        return history
    dropped = sum(success.queries for _, success in order[n_kept:])
    return SuccessTable(dict(order[:n_kept]), history.over_limit + dropped)


def _n_bytes(*row: str | int) -> int:
    """The size of a row and the comma after it."""
    return len(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()) + 1
