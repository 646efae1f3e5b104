"""Features of described queries, computed from the table of success rates in force.

A table, like weights, is in force for rankings from the settled time of its last query on. So no
feature of a query depends on the judgments of that query.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from evaluator.core.features import (
    FEATURE_NAMES,
    Embedder,
    SuccessTable,
    features_of,
    learned,
    shortened,
)
from evaluator.core.online.ordered_merge import SettledQuery

MOST_TABLES: Final = 3
"""Limit of the tables that are in force or will be; at the limit no further one begins."""
_HIST: Final = FEATURE_NAMES.index("phi_hist")
_UNKNOWN: Final = SuccessTable()


def featured(query: SettledQuery, embedder: Embedder) -> SettledQuery:
    """The query with computed features and the prior success rate, if it is described."""
    if query.described is None:
        return query
    features = features_of(query.described, embedder=embedder, history=_UNKNOWN)
    return query._replace(feature_names=FEATURE_NAMES, features=features)


def with_rates(query: SettledQuery, history: SuccessTable | None) -> SettledQuery:
    """A featured query with the success rates of a table, or with the prior without a table."""
    described = query.described
    if described is None or history is None:
        return query
    features = query.features.copy()
    features[:, _HIST] = history.success_rates(described.kind, described.types())
    return query._replace(features=features)


class SuccessRates(Struct):
    """The tables of one model.

    `now` is the table of all settled queries; None before the first described one. Each of
    `tables` is in force from its event time on, until that of the next.
    """

    now: SuccessTable | None = None
    tables: list[tuple[int, SuccessTable]] = field(default_factory=list)

    def at(self, event_time_ms: int) -> SuccessTable | None:
        """The table in force for a ranking of this event time; None before the first one."""
        in_force = [table for from_ms, table in self.tables if from_ms <= event_time_ms]
        return in_force[-1] if in_force else None

    @property
    def _last(self) -> SuccessTable | None:
        return self.tables[-1][1] if self.tables else None

    def learn(self, queries: Iterable[SettledQuery], *, max_grade: float) -> None:
        """Updates `now`, which is not in force yet; *max_grade* is the grade that counts fully."""
        judged = [
            (query.described, query.grades) for query in queries if query.described is not None
        ]
        if judged:
            self.now = learned(self.now or _UNKNOWN, judged, max_grade=max_grade)

    def end_interval(self, now_ms: int, *, max_bytes: int) -> None:
        """Puts `now` in force, and shortens each table to *max_bytes*."""
        self.tables = [(from_ms, shortened(table, max_bytes)) for from_ms, table in self.tables]
        if self.now is None:
            return
        self.now = shortened(self.now, max_bytes)
        if len(self.tables) < MOST_TABLES and self.now != self._last:
            self.tables.append((now_ms, self.now))

    def drop_before(self, event_time_ms: int) -> None:
        """Drops the tables that are no longer needed: no ranking before this event time follows."""
        while len(self.tables) > 1 and self.tables[1][0] <= event_time_ms:
            del self.tables[0]

    def state(self) -> dict[str, Any] | None:
        """Everything, as JSON stores it exactly; None before the first described query."""
        if self.now is None:
            return None
        return {
            "now": None if self.now == self._last else self.now.state(),  # None: the last table
            "tables": [[from_ms, table.state()] for from_ms, table in self.tables],
        }

    @classmethod
    def load(cls, state: Mapping[str, Any] | None) -> "SuccessRates":
        if state is None:
            return cls()
        tables = [(from_ms, SuccessTable.load(table)) for from_ms, table in state["tables"]]
        now = state["now"]
        return cls(tables[-1][1] if now is None else SuccessTable.load(now), tables)
