"""Exact sums. A value enters as an integer, so sums add, subtract and merge without error."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from evaluator.core.event_time.clock import LONGEST_MS
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.types.records import VALUE_BOUNDS, FinalWindow, IntArray, Stratum, Tally

DELAY_BOUNDS_SECONDS = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 21600, 43200, 86400)
"""Upper bounds of the judgment delay histogram; one more bucket lies past the last."""

_VALUE_BOUNDS_UNITS = np.array([round(bound * UNITS_PER_ONE) for bound in VALUE_BOUNDS])


def add_tally(total: Tally, part: Mapping[tuple[str, ...], int], *, sign: int = 1) -> Tally:
    """Adds *part* to *total*, key by key, in place; with `sign=-1` subtracts it.

    >>> add_tally({("a",): 1}, {("a",): 2, ("b",): 3})
    {('a',): 3, ('b',): 3}
    """
    for key, amount in part.items():
        total[key] = total.get(key, 0) + sign * amount
    return total


@dataclass(slots=True)
class Sums:
    """Count and sums of values by column (ranker and measure), unbounded integers.

    `lacking`, if it is not empty, says how many of the queries lack the value of each column.
    """

    queries: int
    units: list[int]
    lacking: list[int] = field(default_factory=list)

    @classmethod
    def zero(cls, n_columns: int) -> "Sums":
        """No query yet."""
        return cls(0, [0] * n_columns)

    def add(self, queries: int, units: Sequence[int], lacking: Sequence[int] = ()) -> None:
        """Adds a batch's part; negative numbers take it away again."""
        self.queries += queries
        self.units = [old + new for old, new in zip(self.units, units, strict=True)]
        if lacking:
            before = self.lacking or [0] * len(units)
            self.lacking = [old + new for old, new in zip(before, lacking, strict=True)]

    def counted(self) -> Iterator[tuple[int, int]]:
        """Queries with a value and the sum of the values, column by column."""
        for units, lacking in zip_longest(self.units, self.lacking, fillvalue=0):
            yield self.queries - lacking, units


def squares_of(units: IntArray) -> IntArray:
    """Squares of values given in units, in units: round-half-even(value x value x 2^40).

    In integers, for a product of doubles is rounded before it can be rounded to units.

    >>> squares_of(np.array([(1 << 38) + 137])) - (1 << 36)  # 68.5 and a little more
    array([69])
    """
    high, low = units >> 20, units & ((1 << 20) - 1)
    below = (high * low << 21) + low * low  # of the square, what is left of high x high x 2^40
    squares: IntArray = high * high + (below >> 40)
    rest, half = below & (UNITS_PER_ONE - 1), UNITS_PER_ONE >> 1
    squares += (rest > half) | ((rest == half) & (squares & 1 == 1))
    return squares


def value_buckets(units: IntArray) -> IntArray:
    """Places of values in VALUE_BOUNDS: the first bound that is not below it, elementwise."""
    return np.searchsorted(_VALUE_BOUNDS_UNITS, units)


@dataclass(slots=True)
class StratumTotals:
    """Everything summed for one stratum; columns are rankers x measures, ranker-major."""

    running: Sums
    settled: Sums
    settled_squares: Sums
    settled_judged: int = 0
    settled_unjudged: int = 0


class Totals:
    """Lifetime sums by stratum."""

    def __init__(self, measures: Sequence[str]) -> None:
        self._measures = tuple(measures)
        self._strata: dict[Stratum, StratumTotals] = {}
        self._touched: dict[Stratum, None] = {}

    def of(self, stratum: Stratum) -> StratumTotals:
        """The totals of a stratum, to add to; at zero when it is new."""
        self._touched[stratum] = None
        totals = self._strata.get(stratum)
        if totals is None:
            n_columns = len(stratum.rankers) * len(self._measures)
            totals = self._strata[stratum] = StratumTotals(
                Sums.zero(n_columns), Sums.zero(n_columns), Sums.zero(n_columns)
            )
        return totals

    def touched(self) -> dict[Stratum, StratumTotals]:
        """The totals that were asked for since this was asked last."""
        touched, self._touched = self._touched, {}
        return {stratum: self._strata[stratum] for stratum in touched}

    def everything(self) -> dict[Stratum, StratumTotals]:
        """The totals of every stratum."""
        return dict(self._strata)

    def restore(self, strata: Mapping[Stratum, StratumTotals]) -> None:
        """Takes up these totals in the place of its own."""
        self._strata = dict(strata)
        self._touched = dict.fromkeys(strata)

    def n_settled(self, *, judged: bool) -> int:
        """Queries settled with a grade in time, or without."""
        return sum(
            totals.settled_judged if judged else totals.settled_unjudged
            for totals in self._strata.values()
        )

    def add_to(self, tally: Tally) -> None:
        """Adds these sums to *tally* under ("running"|"settled", model, variant, ...)."""
        for stratum, totals in self._strata.items():
            pair = (stratum.model, stratum.variant)
            add_tally(
                tally,
                {
                    ("settled_queries", *pair, "yes"): totals.settled_judged,
                    ("settled_queries", *pair, "no"): totals.settled_unjudged,
                },
            )
            self._add_sums(tally, "running", stratum, totals.running, "sum_units", count=True)
            self._add_sums(tally, "settled", stratum, totals.settled, "sum_units", count=True)
            self._add_sums(
                tally, "settled", stratum, totals.settled_squares, "square_units", count=False
            )

    def _add_sums(
        self, tally: Tally, kind: str, stratum: Stratum, sums: Sums, name: str, *, count: bool
    ) -> None:
        counted = sums.counted()
        for ranker in stratum.rankers:
            for measure in self._measures:
                path = (kind, stratum.model, stratum.variant, ranker, measure)
                queries, units = next(counted)
                tally[*path, name] = tally.get((*path, name), 0) + units
                if count:
                    tally[*path, "queries"] = tally.get((*path, "queries"), 0) + queries


@dataclass(slots=True)
class Windows:
    """Running sums by event-time window and stratum, until no correction can reach them."""

    measures: tuple[str, ...]
    window_ms: int
    retention_ms: int
    _open: dict[int, dict[Stratum, Sums]] = field(default_factory=dict)
    _starts: list[int] = field(default_factory=list)  # heap of the keys of _open
    _touched: dict[int, None] = field(default_factory=dict)

    def add(
        self,
        start_ms: int,
        stratum: Stratum,
        queries: int,
        units: Sequence[int],
        lacking: Sequence[int] = (),
    ) -> None:
        """Adds a batch's part to a window; negative numbers take it away again."""
        self._touched[start_ms] = None
        strata = self._open.get(start_ms)
        if strata is None:
            strata = self._open[start_ms] = {}
            heapq.heappush(self._starts, start_ms)
        if stratum not in strata:
            strata[stratum] = Sums.zero(len(units))
        strata[stratum].add(queries, units, lacking)

    def pop_final(self, watermark_ms: int) -> list[FinalWindow]:
        """Removes the windows that are final at this watermark, earliest first."""
        final: list[FinalWindow] = []
        while self._starts and self.deadline_ms(self._starts[0]) < watermark_ms:
            start_ms = heapq.heappop(self._starts)
            self._touched[start_ms] = None
            final += self._rows(start_ms, self._open.pop(start_ms))
        return final

    def touched(self) -> dict[int, dict[Stratum, Sums]]:
        """The windows that changed since this was asked last, by start; empty if it is final."""
        touched, self._touched = self._touched, {}
        return {start_ms: self._open.get(start_ms, {}) for start_ms in touched}

    def restore(self, windows: Mapping[int, dict[Stratum, Sums]]) -> None:
        """Takes up these windows in the place of its own."""
        self._open = dict(windows)
        self._starts = sorted(windows)

    def sums_of_open(self) -> tuple[int, int, int]:
        """Queries in the open windows, their values in units, and those times their start."""
        queries = units = weighted = 0
        for start_ms, strata in self._open.items():
            for sums in strata.values():
                in_window = sum(sums.units)
                queries += sums.queries
                units += in_window
                weighted += in_window * start_ms
        return queries, units, weighted

    def deadline_ms(self, start_ms: int) -> int:
        """A window is final when the watermark is past this."""
        return start_ms + min(self.window_ms, LONGEST_MS) - 1 + self.retention_ms

    def still_open(self) -> list[FinalWindow]:
        """The windows that can still change, as they stand, earliest first."""
        return [
            row
            for start_ms in sorted(self._open)
            for row in self._rows(start_ms, self._open[start_ms])
        ]

    def _rows(self, start_ms: int, strata: Mapping[Stratum, Sums]) -> Iterable[FinalWindow]:
        merged: dict[tuple[str, str, str, str], tuple[int, int]] = {}
        for stratum, sums in strata.items():
            counted = sums.counted()
            for ranker in stratum.rankers:
                for measure in self.measures:
                    path = (stratum.model, stratum.variant, ranker, measure)
                    queries, sum_units = merged.get(path, (0, 0))
                    more_queries, more_units = next(counted)
                    merged[path] = (queries + more_queries, sum_units + more_units)
        return [
            FinalWindow(start_ms, *path, *merged[path])
            for path in sorted(merged)
            if merged[path][0]
        ]


class DelayHistogram:
    """Delays between ranking and applied judgment."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(DELAY_BOUNDS_SECONDS) + 1, np.int64)
        self._sum_ms = 0
        self._bounds_ms = np.array(DELAY_BOUNDS_SECONDS) * 1000

    def add(self, delays_ms: IntArray) -> None:
        """Counts delays `[n_judgments]`; an early judgment has none, 0."""
        delays_ms = np.maximum(delays_ms, 0)
        buckets = np.searchsorted(self._bounds_ms, delays_ms)
        self._counts += np.bincount(buckets, minlength=len(self._counts))
        self._sum_ms += sum(delays_ms.tolist())

    def as_list(self) -> list[int]:
        """The counts, then the sum in ms."""
        return [*self._counts.tolist(), self._sum_ms]

    def restore(self, counts: Sequence[int]) -> None:
        """Takes up what `as_list` said."""
        self._counts = np.array(counts[:-1], np.int64)
        self._sum_ms = counts[-1]

    def add_to(self, tally: Tally) -> None:
        """Adds the counts under ("delay", bucket) and the sum under ("delay_sum_ms",)."""
        add_tally(tally, {("delay", str(i)): n for i, n in enumerate(self._counts.tolist())})
        add_tally(tally, {("delay_sum_ms",): self._sum_ms})
