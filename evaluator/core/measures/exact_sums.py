"""Exact sums. A value enters as an integer, so sums add, subtract and merge without error."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final

import numpy as np
from msgspec import Struct, field

from evaluator.core.columns.table import Groups
from evaluator.core.event_time.clock import LONGEST_MS, MAX_TIMESTAMP_MS
from evaluator.core.types.records import (
    VALUE_BOUNDS,
    AnyStratum,
    FinalWindow,
    FloatArray,
    IntArray,
    LevelStratum,
    Stratum,
)
from evaluator.core.types.tally import Group, Tally

UNITS_PER_ONE: Final = 1 << 40
"""A value is summed as an integer of this resolution."""
MISSING: Final = -1
"""Units of a missing value."""

DELAY_BOUNDS_SECONDS = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 21600, 43200, 86400)
"""Upper bounds of the judgment delay histogram; one more bucket lies past the last."""

_VALUE_BOUNDS_UNITS = np.array([round(bound * UNITS_PER_ONE) for bound in VALUE_BOUNDS])


def to_units(values: FloatArray) -> IntArray:
    """Values of 0 to 10^6 in units of 2^-40, rounded half to even; MISSING for NaN.

    >>> to_units(np.array([0.5, np.nan]))
    array([549755813888,           -1])
    """
    units = np.rint(values * UNITS_PER_ONE)
    return np.where(np.isnan(units), MISSING, units).astype(np.int64)


def add_tally(total: Tally, part: Mapping[tuple[str, ...], int]) -> Tally:
    """Adds *part* to *total*, key by key, in place.

    >>> add_tally({("a",): 1}, {("a",): 2, ("b",): 3})
    {('a',): 3, ('b',): 3}
    """
    for key, amount in part.items():
        total[key] = total.get(key, 0) + amount
    return total


class Sums(Struct):
    """Count and sums of values by column (ranker and measure, ranker-major), unbounded integers.

    `lacking`, if not empty, counts the queries without a value, by column.
    """

    queries: int
    units: list[int]
    lacking: list[int] = field(default_factory=list)

    def add(self, queries: int, units: Sequence[int], lacking: Sequence[int] = ()) -> None:
        """Adds a batch, or other sums; negative numbers remove it."""
        self.queries += queries
        self.units = [old + new for old, new in zip(self.units, units, strict=True)]
        if lacking:
            before = self.lacking or [0] * len(units)
            self.lacking = [old + new for old, new in zip(before, lacking, strict=True)]

    def add_counted(self, sums: Sequence[int]) -> None:
        """Adds sums of the columns of `QueryValues.counted`."""
        width = len(self.units)
        self.add(sums[-1], sums[:width], sums[width:-1])

    def valued(self) -> list[int]:
        """Queries with a value, by column."""
        return [self.queries - n for n in self.lacking] or [self.queries] * len(self.units)


def squares_of(units: IntArray) -> IntArray:
    """Squares of values in units, in units: round-half-even(value x value x 2^40).

    In integers, because the product of doubles would be rounded twice.

    >>> squares_of(np.array([(1 << 38) + 137])) - (1 << 36)  # 68.5 and a little more
    array([69])
    """
    high, low = units >> 20, units & ((1 << 20) - 1)
    below = (high * low << 21) + low * low  # the square is high x high x 2^40 + below
    squares: IntArray = high * high + (below >> 40)
    rest, half = below & (UNITS_PER_ONE - 1), UNITS_PER_ONE >> 1
    squares += (rest > half) | ((rest == half) & (squares & 1 == 1))
    return squares


def sums_of_columns(units: IntArray, groups: Groups) -> tuple[list[list[int]], list[list[int]]]:
    """By group the sums of columns and of their squares: `[n_queries, n_columns]`, none MISSING.

    In Python integers where a value is above 1: 64 bits hold no sum of many of these.

    >>> units = np.array([[1 << 40, 1 << 60]] * 9)
    >>> sums_of_columns(units, Groups.of(np.zeros(9)))[0] == [[9 << 40, 9 << 60]]
    True
    """
    sums, squares = (groups.sums(each).tolist() for each in (units, squares_of(units)))
    for column in np.flatnonzero((units > UNITS_PER_ONE).any(axis=0)).tolist():
        exact = units[:, column].astype(object)
        for found, values in ((sums, exact), (squares, squares_of(exact))):
            for of_group, total in zip(found, groups.sums(values).tolist(), strict=True):
                of_group[column] = total
    return sums, squares


def exactly(units: IntArray) -> IntArray:
    """The same numbers, as Python integers if a value is above 1: sums of all of them are exact."""
    return units.astype(object) if units.max(initial=0) > UNITS_PER_ONE else units


def value_buckets(units: IntArray) -> IntArray:
    """Index in VALUE_BOUNDS of the first bound that is not below each value."""
    return np.searchsorted(_VALUE_BOUNDS_UNITS, units)


SETTLED_AS: Final = ("yes", "silent", "no")
"""With a grade; silent; unjudged."""


class StratumTotals(Struct):
    """All sums of one stratum; of a level without squares."""

    running: Sums
    settled: Sums
    settled_squares: Sums
    settled_judged: int = 0
    settled_silent: int = 0
    settled_unjudged: int = 0

    @classmethod
    def zero(cls, n_columns: int, n_squares: int) -> "StratumTotals":
        """Empty sums of *n_columns* columns, with *n_squares* squares."""
        running, settled, squares = (Sums(0, [0] * n) for n in (n_columns, n_columns, n_squares))
        return cls(running, settled, squares)

    def sums(self) -> tuple[Sums, Sums, Sums]:
        """All sums, in order."""
        return self.running, self.settled, self.settled_squares

    def add(self, other: "StratumTotals") -> None:
        """Adds the sums of another level."""
        for mine, more in zip(self.sums(), other.sums(), strict=True):
            mine.add(more.queries, more.units, more.lacking)
        self.count(other.settled_judged, other.settled_silent, other.settled_unjudged)

    def count(self, judged: int, silent: int, unjudged: int) -> None:
        """Counts settled queries."""
        self.settled_judged += judged
        self.settled_silent += silent
        self.settled_unjudged += unjudged

    def figures(self) -> list[int]:
        """All sums, in the order of `paths_of`."""
        running, settled = self.running, self.settled
        return [
            *(self.settled_judged, self.settled_silent, self.settled_unjudged),
            *(*running.units, *running.valued(), *settled.units, *settled.valued()),
            *self.settled_squares.units,
        ]


def paths_of(stratum: AnyStratum, measures: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The paths of the sums of a stratum: ("running"|"settled", model, variant, ...).

    Of a level: ("segment_running"|"segment_settled", model, variant, segment, level, ...).
    """
    group, of_level = group_of_stratum(stratum), isinstance(stratum, LevelStratum)
    before, squares = ("segment_", ()) if of_level else ("", ("square_units",))
    yield from ((f"{before}settled_queries", *group, judged) for judged in SETTLED_AS)
    columns = tuple(product(stratum.rankers, measures))
    for kind, names in (
        ("running", ("sum_units", "queries")),
        ("settled", ("sum_units", "queries", *squares)),
    ):
        yield from ((before + kind, *group, *column, name) for name in names for column in columns)


def group_of_stratum(stratum: AnyStratum) -> Group:
    """The group of the paths of a stratum: without its rankers."""
    return (*stratum[:2], *stratum[3:])


class Totals:
    """Lifetime sums by stratum."""

    def __init__(self, measures: Sequence[str]) -> None:
        self._measures = tuple(measures)
        self._strata: dict[AnyStratum, StratumTotals] = {}
        self._touched: dict[AnyStratum, None] = {}
        self._groups: dict[Group, Tally] = {}
        self._strata_of: dict[Group, list[AnyStratum]] = {}
        self._changed: dict[AnyStratum, None] = {}  # since the last call of `groups`
        self._n_settled = dict.fromkeys(SETTLED_AS, 0)

    def __contains__(self, stratum: AnyStratum) -> bool:
        return stratum in self._strata

    def of(self, stratum: AnyStratum) -> StratumTotals:
        """The totals of a stratum, to add to at once; zero for a new one."""
        self._touched[stratum] = self._changed[stratum] = None
        totals = self._strata.get(stratum)
        if totals is None:
            n_columns = len(stratum.rankers) * len(self._measures)
            n_squares = 0 if isinstance(stratum, LevelStratum) else n_columns
            totals = self._strata[stratum] = StratumTotals.zero(n_columns, n_squares)
            self._strata_of.setdefault(group_of_stratum(stratum), []).append(stratum)
        return totals

    def pop(self, stratum: AnyStratum) -> StratumTotals:
        self._touched[stratum] = self._changed[stratum] = None
        self._strata_of[group_of_stratum(stratum)].remove(stratum)
        return self._strata.pop(stratum)

    def touched(self) -> dict[AnyStratum, StratumTotals | None]:
        """The totals that `of` returned since the last call; None for removed ones."""
        touched, self._touched = self._touched, {}
        return {stratum: self._strata.get(stratum) for stratum in touched}

    def everything(self) -> dict[AnyStratum, StratumTotals]:
        return dict(self._strata)

    def restore(self, strata: Mapping[AnyStratum, StratumTotals]) -> None:
        self._touched = dict.fromkeys((*self._touched, *self._strata, *strata))
        self._strata = dict(strata)
        self._groups, self._strata_of = {}, {}
        self._n_settled = dict.fromkeys(SETTLED_AS, 0)
        for stratum in strata:
            self._strata_of.setdefault(group_of_stratum(stratum), []).append(stratum)
        self._changed = dict.fromkeys(strata)

    def groups(self) -> tuple[dict[Group, Tally], dict[str, int]]:
        """These sums by group, and the number of queries that settled, by SETTLED_AS.

        Only groups that changed since the last call are summed; the others are the same objects.
        """
        for name in dict.fromkeys(map(group_of_stratum, self._changed)):
            before, strata = self._groups.get(name, {}), self._strata_of[name]
            if not strata:
                del self._strata_of[name]
                self._groups.pop(name, None)
                continue
            if len(strata) == 1:
                paths = before or paths_of(strata[0], self._measures)
                group = dict(zip(paths, self._strata[strata[0]].figures(), strict=True))
            else:
                group = {}
                for stratum in strata:
                    paths, figures = paths_of(stratum, self._measures), self._strata[stratum]
                    add_tally(group, dict(zip(paths, figures.figures(), strict=True)))
            for judged, path in zip(SETTLED_AS, group, strict=False):
                self._n_settled[judged] += group[path] - before.get(path, 0)
            self._groups[name] = group
        self._changed = {}
        return dict(self._groups), dict(self._n_settled)


class Windows(Struct):
    """Running sums by event-time window and stratum, until no correction can reach them."""

    measures: tuple[str, ...]
    window_ms: int
    retention_ms: int
    _open: dict[int, dict[Stratum, Sums]] = field(default_factory=dict)
    _starts: list[int] = field(default_factory=list)  # heap of the keys of _open
    _touched: dict[int, None] = field(default_factory=dict)

    def add(self, start_ms: int, stratum: Stratum, counted: Sequence[int]) -> None:
        """Adds sums of the columns of `QueryValues.counted`."""
        self._touched[start_ms] = None
        if start_ms not in self._open:
            self._open[start_ms] = {}
            heapq.heappush(self._starts, start_ms)
        strata = self._open[start_ms]
        if (sums := strata.get(stratum)) is not None:
            sums.add_counted(counted)
            return
        width = len(stratum.rankers) * len(self.measures)
        strata[stratum] = Sums(counted[-1], list(counted[:width]), list(counted[width:-1]))

    def starts(self, event_times_ms: IntArray) -> IntArray:
        """Start of the window of each time."""
        if self.window_ms > MAX_TIMESTAMP_MS:
            return np.zeros_like(event_times_ms)
        return event_times_ms - event_times_ms % self.window_ms

    def pop_final(self, watermark_ms: int) -> list[FinalWindow]:
        """Removes the windows that are final at this watermark, earliest first."""
        final: list[FinalWindow] = []
        after_ms = min(self.window_ms, LONGEST_MS) - 1 + self.retention_ms  # its last query expires
        while self._starts and self._starts[0] + after_ms < watermark_ms:
            start_ms = heapq.heappop(self._starts)
            self._touched[start_ms] = None
            final += self._rows(start_ms, self._open.pop(start_ms))
        return final

    def touched(self) -> dict[int, dict[Stratum, Sums]]:
        """The changed windows since the last call, by start; a final one is empty."""
        touched, self._touched = self._touched, {}
        return {start_ms: self._open.get(start_ms, {}) for start_ms in touched}

    def restore(self, windows: Mapping[int, dict[Stratum, Sums]]) -> None:
        self._open = dict(windows)
        self._starts = sorted(windows)

    def sums_of_open(self) -> tuple[int, int, int]:
        """Sums over the open windows: queries, values in units, and values times window start."""
        queries = units = weighted = 0
        for start_ms, strata in self._open.items():
            for sums in strata.values():
                of_sums = sum(sums.units)
                queries += sums.queries
                units += of_sums
                weighted += of_sums * start_ms
        return queries, units, weighted

    def _rows(self, start_ms: int, strata: Mapping[Stratum, Sums]) -> Iterable[FinalWindow]:
        merged: dict[tuple[str, str, str, str], tuple[int, int]] = {}
        for stratum, sums in strata.items():
            columns = product((stratum.model,), (stratum.variant,), stratum.rankers, self.measures)
            for path, queries, units in zip(columns, sums.valued(), sums.units, strict=True):
                before = merged.get(path, (0, 0))
                merged[path] = (before[0] + queries, before[1] + units)
        return [
            FinalWindow(start_ms, *path, *sums) for path, sums in sorted(merged.items()) if sums[0]
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
        self._counts = np.array(counts[:-1], np.int64)
        self._sum_ms = counts[-1]

    def add_to(self, tally: Tally) -> None:
        """Adds the counts under ("delay", bucket) and the sum under ("delay_sum_ms",)."""
        add_tally(tally, {("delay", str(i)): n for i, n in enumerate(self._counts.tolist())})
        add_tally(tally, {("delay_sum_ms",): self._sum_ms})
