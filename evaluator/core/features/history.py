"""How reliable tools and types of graphs have been: a table relearned from settled grades."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.types.candidates import CandidateKind, Described

MAX_NAMES: Final = 10_000
"""Tools and types that are remembered. A further one stays unknown, and is counted."""

_PRIOR_QUERIES: Final = 10
_PRIOR_UNITS: Final = _PRIOR_QUERIES * UNITS_PER_ONE // 2
_FORMAT: Final = 1

SuccessKind = Literal["graded", "binary"]
Judged = tuple[Described, Mapping[str, float]]
"""A settled query: its candidates, and their grades by candidate id."""


class Success(NamedTuple):
    """What a tool or a type of graphs has earned, in units of 2^-40, over so many queries."""

    units: int = 0
    queries: int = 0

    @property
    def success_rate(self) -> float:
        """Success per query, after 10 imagined queries of 0.5; so 0.5 where nothing is known.

        >>> Success().success_rate, Success(units=10 << 40, queries=10).success_rate
        (0.5, 0.75)
        """
        units = self.units + _PRIOR_UNITS
        return units / ((self.queries + _PRIOR_QUERIES) * UNITS_PER_ONE)


@dataclass(frozen=True, slots=True)
class History:
    """The table: success by kind and name (of a tool) or type (of graphs).

    `over_limit` counts queries of names that it has no room for: beyond MAX_NAMES, or `shortened`.
    """

    successes: Mapping[tuple[CandidateKind, str], Success] = field(default_factory=dict)
    over_limit: int = 0

    def success_rates(self, kind: CandidateKind, names: Sequence[str]) -> list[float]:
        """Of each name; 0.5 where it is unknown."""
        unknown = Success()
        return [self.successes.get((kind, name), unknown).success_rate for name in names]

    def state(self) -> dict[str, Any]:
        """Everything, as JSON can hold it without loss: names and whole numbers, sorted."""
        rows = [[*key, *success] for key, success in sorted(self.successes.items())]
        return {"format": _FORMAT, "successes": rows, "over_limit": self.over_limit}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "History":
        """The very same table.

        Raises:
            ValueError: if `state` has not written this.
        """
        if state.get("format") != _FORMAT:
            raise ValueError(f"a history of format {state.get('format')!r} cannot be read here")
        table: dict[tuple[CandidateKind, str], Success] = {}
        for kind, name, units, queries in state["successes"]:
            if kind not in get_args(CandidateKind) or not 0 <= units <= queries * UNITS_PER_ONE:
                raise ValueError(f"the history has an impossible row for {kind!r} {name!r}")
            table[cast("CandidateKind", kind), name] = Success(units, queries)
        return cls(table, state["over_limit"])


def success_units(grade: float, *, success: SuccessKind, max_grade: float) -> int:
    """What a grade earns, in units of 2^-40: min(grade, max_grade)/max_grade, or relevance.

    >>> success_units(1, success="graded", max_grade=2) / 2**40
    0.5
    >>> success_units(1, success="binary", max_grade=2) / 2**40
    1.0
    """
    if success == "binary":
        return UNITS_PER_ONE if grade > 0 else 0
    return round(Fraction(min(grade, max_grade)) / Fraction(max_grade) * UNITS_PER_ONE)


class Ledger:
    """A table in the making: `history` is as it stands, and changes with every example.

    Args:
        history: what it begins with; it stays as it was.
        success, max_grade: as of `learned`.
    """

    def __init__(
        self,
        history: History | None = None,
        *,
        success: SuccessKind = "graded",
        max_grade: float = 2,
    ) -> None:
        if not 0 < max_grade < float("inf"):
            raise ValueError(f"max_grade is {max_grade}; it must be a finite number above 0")
        self._success: SuccessKind = success
        self._max_grade = max_grade
        self._table = {} if history is None else dict(history.successes)
        self._over_limit = 0 if history is None else history.over_limit

    @property
    def history(self) -> History:
        """The table. It is good until the next example."""
        return History(self._table, self._over_limit)

    def learn(self, described: Described, grades: Mapping[str, float]) -> None:
        """From one query, by the grades of those of its candidates that have one."""
        earned_by_name = _earned(described, grades, self._success, self._max_grade)
        for name, earned in earned_by_name.items():
            key = described.kind, name
            if key not in self._table and len(self._table) >= MAX_NAMES:
                self._over_limit += 1
                continue
            before = self._table.get(key, Success())
            units = round(Fraction(sum(earned), len(earned)))
            self._table[key] = Success(before.units + units, before.queries + 1)


def learned(
    history: History,
    queries: Iterable[Judged],
    *,
    success: SuccessKind = "graded",
    max_grade: float = 2,
) -> History:
    """The table after these settled queries; the one before stays as it was.

    A query counts once for each name with a grade, by the mean where several graphs of one type
    have grades. A negative grade is none. Their order changes nothing below MAX_NAMES. Features of
    a query must come from the table *before* it: measure first, then learn.
    """
    ledger = Ledger(history, success=success, max_grade=max_grade)
    for described, grades in queries:
        ledger.learn(described, grades)
    return ledger.history


def shortened(history: History, max_bytes: int) -> History:
    """The names with the most queries, as many as *max_bytes* of `state` in JSON can hold.

    Of the others nothing is known any more; their queries count as over the limit.

    >>> table = History({("tool", "a"): Success(0, 1), ("tool", "b"): Success(0, 2)})
    >>> shortened(table, 30)
    History(successes={('tool', 'b'): Success(units=0, queries=2)}, over_limit=1)
    """
    order = sorted(history.successes.items(), key=lambda row: (-row[1].queries, row[0]))
    sizes = accumulate(_n_bytes(*key, *success) for key, success in order)
    n_kept = sum(size <= max_bytes for size in sizes)
    if n_kept == len(order):
        return history
    dropped = sum(success.queries for _, success in order[n_kept:])
    return History(dict(order[:n_kept]), history.over_limit + dropped)


def _n_bytes(*row: str | int) -> int:
    """Of a row and the comma behind it."""
    return len(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()) + 1


def _earned(
    described: Described, grades: Mapping[str, float], success: SuccessKind, max_grade: float
) -> dict[str, list[int]]:
    """The successes of one query by name; a candidate that is listed twice counts once."""
    names = dict(zip(reversed(described.candidate_ids), reversed(described.types()), strict=True))
    earned: dict[str, list[int]] = {}
    for candidate_id, name in names.items():
        grade = grades.get(candidate_id, -1.0)
        if grade >= 0:
            units = success_units(grade, success=success, max_grade=max_grade)
            earned.setdefault(name, []).append(units)
    return earned
