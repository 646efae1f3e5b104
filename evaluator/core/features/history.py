"""How reliable tools and types of graphs have been: a table relearned from settled grades."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from evaluator.core.described import CandidateKind, Described
from evaluator.core.measures import UNITS_PER_ONE

MAX_NAMES: Final = 10_000
"""Tools and types that are remembered. A further one stays unknown, and is counted."""

_PRIOR_QUERIES: Final = 10
_PRIOR_UNITS: Final = _PRIOR_QUERIES * UNITS_PER_ONE // 2
_FORMAT: Final = 1

CreditKind = Literal["graded", "binary"]
Judged = tuple[Described, Mapping[str, float]]
"""A settled query: its candidates, and their grades by candidate id."""


class Credit(NamedTuple):
    """What a tool or a type of graphs has earned, in units of 2^-40, over so many queries."""

    units: int = 0
    queries: int = 0

    @property
    def reliability(self) -> float:
        """Credit per query, after 10 imagined queries of 0.5; so 0.5 where nothing is known.

        >>> Credit().reliability, Credit(units=10 << 40, queries=10).reliability
        (0.5, 0.75)
        """
        units = self.units + _PRIOR_UNITS
        return units / ((self.queries + _PRIOR_QUERIES) * UNITS_PER_ONE)


@dataclass(frozen=True, slots=True)
class History:
    """The table: credit by kind and name (of a tool) or type (of graphs).

    `over_limit` counts queries of names that it has no room for: beyond MAX_NAMES, or `shortened`.
    """

    credits: Mapping[tuple[CandidateKind, str], Credit] = field(default_factory=dict)
    over_limit: int = 0

    def reliabilities(self, kind: CandidateKind, names: Sequence[str]) -> list[float]:
        """Of each name; 0.5 where it is unknown."""
        unknown = Credit()
        return [self.credits.get((kind, name), unknown).reliability for name in names]

    def state(self) -> dict[str, Any]:
        """Everything, as JSON can hold it without loss: names and whole numbers, sorted."""
        rows = [[*key, *credit] for key, credit in sorted(self.credits.items())]
        return {"format": _FORMAT, "credits": rows, "over_limit": self.over_limit}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "History":
        """The very same table.

        Raises:
            ValueError: if `state` has not written this.
        """
        if state.get("format") != _FORMAT:
            raise ValueError(f"a history of format {state.get('format')!r} cannot be read here")
        table: dict[tuple[CandidateKind, str], Credit] = {}
        for kind, name, units, queries in state["credits"]:
            if kind not in get_args(CandidateKind) or not 0 <= units <= queries * UNITS_PER_ONE:
                raise ValueError(f"the history has an impossible row for {kind!r} {name!r}")
            table[cast("CandidateKind", kind), name] = Credit(units, queries)
        return cls(table, state["over_limit"])


def credit_units(grade: float, *, credit: CreditKind, max_grade: float) -> int:
    """What a grade earns, in units of 2^-40: min(grade, max_grade)/max_grade, or relevance.

    >>> credit_units(1, credit="graded", max_grade=2) / 2**40
    0.5
    >>> credit_units(1, credit="binary", max_grade=2) / 2**40
    1.0
    """
    if credit == "binary":
        return UNITS_PER_ONE if grade > 0 else 0
    return round(Fraction(min(grade, max_grade)) / Fraction(max_grade) * UNITS_PER_ONE)


class Ledger:
    """A table in the making: `history` is as it stands, and changes with every lesson.

    Args:
        history: what it begins with; it stays as it was.
        credit, max_grade: as of `learned`.
    """

    def __init__(
        self,
        history: History | None = None,
        *,
        credit: CreditKind = "graded",
        max_grade: float = 2,
    ) -> None:
        if not 0 < max_grade < float("inf"):
            raise ValueError(f"max_grade is {max_grade}; it must be a finite number above 0")
        self._credit: CreditKind = credit
        self._max_grade = max_grade
        self._table = {} if history is None else dict(history.credits)
        self._over_limit = 0 if history is None else history.over_limit

    @property
    def history(self) -> History:
        """The table. It is good until the next lesson."""
        return History(self._table, self._over_limit)

    def learn(self, described: Described, grades: Mapping[str, float]) -> None:
        """From one query, by the grades of those of its candidates that have one."""
        earned_by_name = _earned(described, grades, self._credit, self._max_grade)
        for name, earned in earned_by_name.items():
            key = described.kind, name
            if key not in self._table and len(self._table) >= MAX_NAMES:
                self._over_limit += 1
                continue
            before = self._table.get(key, Credit())
            units = round(Fraction(sum(earned), len(earned)))
            self._table[key] = Credit(before.units + units, before.queries + 1)


def learned(
    history: History,
    queries: Iterable[Judged],
    *,
    credit: CreditKind = "graded",
    max_grade: float = 2,
) -> History:
    """The table after these settled queries; the one before stays as it was.

    A query counts once for each name with a grade, by the mean where several graphs of one type
    have grades. A negative grade is none. Their order changes nothing below MAX_NAMES. Features of
    a query must come from the table *before* it: measure first, then learn.
    """
    ledger = Ledger(history, credit=credit, max_grade=max_grade)
    for described, grades in queries:
        ledger.learn(described, grades)
    return ledger.history


def shortened(history: History, max_bytes: int) -> History:
    """The names with the most queries, as many as *max_bytes* of `state` in JSON can hold.

    Of the others nothing is known any more; their queries count as over the limit.

    >>> table = History({("tool", "a"): Credit(0, 1), ("tool", "b"): Credit(0, 2)})
    >>> shortened(table, 30)
    History(credits={('tool', 'b'): Credit(units=0, queries=2)}, over_limit=1)
    """
    order = sorted(history.credits.items(), key=lambda row: (-row[1].queries, row[0]))
    sizes = accumulate(_n_bytes(*key, *credit) for key, credit in order)
    n_kept = sum(size <= max_bytes for size in sizes)
    if n_kept == len(order):
        return history
    dropped = sum(credit.queries for _, credit in order[n_kept:])
    return History(dict(order[:n_kept]), history.over_limit + dropped)


def _n_bytes(*row: str | int) -> int:
    """Of a row and the comma behind it."""
    return len(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()) + 1


def _earned(
    described: Described, grades: Mapping[str, float], credit: CreditKind, max_grade: float
) -> dict[str, list[int]]:
    """The credits of one query by name; a candidate that is listed twice counts once."""
    names = dict(zip(reversed(described.candidate_ids), reversed(described.types()), strict=True))
    earned: dict[str, list[int]] = {}
    for candidate_id, name in names.items():
        grade = grades.get(candidate_id, -1.0)
        if grade >= 0:
            units = credit_units(grade, credit=credit, max_grade=max_grade)
            earned.setdefault(name, []).append(units)
    return earned
