"""The recent queries with the lowest settled values, for the live page."""

from collections.abc import Collection, Sequence
from itertools import product
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


class WorstQueries:
    """The lowest values of the served order, by pair and measure, of all tasks of a process.

    Of each batch the lowest query, the last of equals; those that are more than an hour of event
    time older than a new one are removed.

    Args:
        measures: the canonical names of all value columns, in order.
    """

    def __init__(self, measures: Collection[str]) -> None:
        self._measures = tuple(measures)
        self.found: dict[tuple[str, str, str], tuple[WorstQuery, ...]] = {}

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
        lowest: list[int] = []
        for number in chosen:
            rows = np.flatnonzero(part.strata.numbers == number)[::-1]
            values = units[rows].view(np.uint64)  # so that MISSING, -1, is the largest
            lowest += rows[values.argmin(axis=0)].tolist()
        texts, times_ms = part.texts.picked(np.array(lowest)), part.event_times_ms[lowest].tolist()
        queries = zip(lowest, times_ms, texts.column(0), texts.column(1), strict=True)
        pairs = (part.strata.names[number][:2] for number in chosen)
        cells = product(pairs, enumerate(self._measures))
        for (pair, (column, measure)), (row, *query) in zip(cells, queries, strict=True):
            if (value := int(units[row, column])) != MISSING:
                self._insert((*pair, measure), WorstQuery(value, *query))
        return len(chosen)

    def _insert(self, series: tuple[str, str, str], query: WorstQuery) -> None:
        since_ms = query.event_time_ms - _RECENT_MS
        kept = [each for each in self.found.pop(series, ()) if each.event_time_ms >= since_ms]
        kept = [query, *(each for each in kept if each[1:] != query[1:])]
        self.found[series] = tuple(sorted(kept, key=_by_value)[:MAX_WORST])
        if len(self.found) > MAX_WORST_SERIES:
            del self.found[next(iter(self.found))]


def _by_value(query: WorstQuery) -> tuple[int, int]:
    """The lowest first, of equals the newest."""
    return query.value_units, -query.event_time_ms
