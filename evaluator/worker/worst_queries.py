"""The recent queries with the lowest settled values, for the live page."""

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from evaluator.core.measures import MISSING
from evaluator.core.types.records import SERVED, SettledColumns
from evaluator.exposition.snapshot import WorstQuery

MAX_WORST: Final = 10
"""Queries of each pair of model and variant, and measure."""
MAX_WORST_SERIES: Final = 300
"""Pairs with a measure; the one whose queries settled longest ago is removed first."""
_MAX_PAIRS: Final = 4
"""Pairs of one batch, those that settled last, so that the time for a batch has a bound."""
_RECENT_MS: Final = 3_600_000
_Series = tuple[str, str, str]
"""Model, variant and measure."""


class WorstQueries:
    """The lowest values of the served order, by pair and measure, of all tasks of a process.

    Of each batch the lowest query, the last of equals, or as many as there is room for; those that
    are more than an hour of event time older than the newest are removed.

    Args:
        measures: the canonical names of all value columns, in order.
    """

    def __init__(self, measures: Collection[str]) -> None:
        self._measures = tuple(measures)
        self.found: dict[_Series, tuple[WorstQuery, ...]] = {}

    def add(self, settled: Sequence[SettledColumns]) -> None:
        """Adds the lowest queries of the parts of a batch."""
        left = _MAX_PAIRS
        for part in reversed(settled):
            if left and part.units is not None and SERVED in part.rankers:
                left -= self._add(part, left)

    def _add(self, part: SettledColumns, n_pairs: int) -> int:
        """Adds queries of at most *n_pairs* pairs; returns of how many."""
        shape = len(part), len(part.rankers), len(self._measures)
        units = np.asarray(part.units).reshape(shape)[:, part.rankers.index(SERVED)]
        chosen = part.strata.distinct(slice(None, None, -1))[:n_pairs].tolist()
        found: list[tuple[_Series, int, int]] = []
        for number in chosen:
            pair = part.strata.names[number][:2]
            rows = np.flatnonzero(part.strata.numbers == number)[::-1]
            since_ms = int(part.event_times_ms[rows].max()) - _RECENT_MS
            rows = rows[part.event_times_ms[rows] >= since_ms]
            values = units[rows].view(np.uint64)  # so that MISSING, -1, is the largest
            if self._has_room(pair, since_ms):
                places = values.argsort(axis=0, kind="stable")[:MAX_WORST]
            else:
                places = values.argmin(axis=0)[None]
            for column, measure in enumerate(self._measures):
                lowest = rows[places[:, column]]
                cells = zip(lowest.tolist(), units[lowest, column].tolist(), strict=True)
                found += [((*pair, measure), *cell) for cell in cells if cell[1] != MISSING]
        lowest = np.array([row for _, row, _ in found], np.intp)
        texts, times_ms = part.texts.picked(lowest), part.event_times_ms[lowest].tolist()
        queries = zip(times_ms, texts.column(0), texts.column(1), strict=True)
        for (series, _, value), query in zip(found, queries, strict=True):
            self._insert(series, WorstQuery(value, *query))
        return len(chosen)

    def _has_room(self, pair: tuple[str, str], since_ms: int) -> bool:
        """Whether no list of the pair is full of recent queries, as after a start."""
        lists = (self.found.get((*pair, measure), ()) for measure in self._measures)
        return all(sum(of.event_time_ms >= since_ms for of in each) < MAX_WORST for each in lists)

    def _insert(self, series: _Series, query: WorstQuery) -> None:
        kept = [*(of for of in self.found.pop(series, ()) if of[1:] != query[1:]), query]
        since_ms = max(of.event_time_ms for of in kept) - _RECENT_MS
        recent = (of for of in kept if of.event_time_ms >= since_ms)
        self.found[series] = tuple(sorted(recent, key=_by_value)[:MAX_WORST])
        if len(self.found) > MAX_WORST_SERIES:
            del self.found[next(iter(self.found))]


def _by_value(query: WorstQuery) -> tuple[int, int]:
    """The lowest first, of equals the newest."""
    return query.value_units, -query.event_time_ms
