"""Sums of settled queries by minute of event time, in bounded memory."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.measures.exact_sums import exactly, squares_of, value_buckets
from evaluator.core.types.records import (
    SERVED,
    VALUE_BOUNDS,
    EvaluationColumns,
    IntArray,
    SettledColumns,
    Stratum,
)
from evaluator.core.types.skips import merged
from evaluator.exposition.label_limits import Block
from evaluator.replay.results import ResultDirectory, SortKey

MINUTE_MS: Final = 60_000
IDLE_MINUTES: Final = 1_440
"""Without a change for longer than this, samples pause until a minute before the next change. One
day is the longest range of the recording rules."""

BLOCKS: Final = "openmetrics-blocks"
PAIRS: Final = "openmetrics-pairs"
TERMS: Final = ("queries", "sum_units", "square_units")
"""The sums of a measure."""

Numbers = list[int]
Row = tuple[SortKey, bytes]


def minute_of(time_ms: int) -> int:
    """The first full minute since the epoch that is not before a time.

    >>> minute_of(60_000), minute_of(60_001)
    (1, 2)
    """
    return -(-time_ms // MINUTE_MS)


def _encoded(numbers: Sequence[int]) -> bytes:
    return " ".join(map(str, numbers)).encode()


class Busy:
    """Ranges of minutes with changes, joined across gaps of up to IDLE_MINUTES."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []  # first and last minute
        self._most = 1_000

    def add(self, minute: int) -> None:
        """Adds a minute with a change; most come in order."""
        if self._ranges:
            first, last = self._ranges[-1]
            if first <= minute <= last + IDLE_MINUTES:
                self._ranges[-1] = (first, max(last, minute))
                return
        self._ranges.append((minute, minute))
        if len(self._ranges) > self._most:
            self._ranges = merged(self._ranges, step=IDLE_MINUTES)
            self._most = 1_000 + 2 * len(self._ranges)

    def sampled(self, end: int) -> list[range]:
        """Disjoint ranges of minutes with samples; *end* is the last minute of the replay."""
        joined = merged(self._ranges, step=IDLE_MINUTES)
        ranges = []
        for number, (first, last) in enumerate(joined):
            until = joined[number + 1][0] - 2 if number + 1 < len(joined) else end
            begin = first - 1 if number else first
            ranges.append(range(begin, max(last, min(last + IDLE_MINUTES, until)) + 1))
        return ranges


class SettledHistory:
    """Exact sums of settled queries by minute and block (model, variant, ranker) or pair.

    The numbers of a block are, for each measure, queries, sum and sum of squares in units of
    2^-40; then, for each of *histograms*, the queries in each bucket of VALUE_BOUNDS. The numbers
    of a pair are the judged, the silent, the unjudged, and the judged queries without a relevant
    candidate.
    """

    def __init__(
        self,
        results: ResultDirectory,
        measures: Sequence[str],
        *,
        maturity_ms: int,
        histograms: Collection[str] = (),
    ) -> None:
        self.measures = tuple(measures)
        self.histograms = tuple(name for name in self.measures if name in histograms)
        self.busy = Busy()
        self.began_ms: dict[Block, int] = {}
        self._results = results
        self._maturity_ms = maturity_ms
        self._end = 0

    def settle(self, parts: Iterable[SettledColumns]) -> None:
        """Adds settled queries."""
        for part in parts:
            for stratum, rows in part.strata.groups():
                times_ms = part.event_times_ms[rows]
                self._begin(stratum, times_ms)
                settled = [minute_of(ms + self._maturity_ms) for ms in times_ms.tolist()]
                minutes, places = np.unique(settled, return_inverse=True)
                for minute in minutes.tolist():
                    self.busy.add(minute)
                silent = np.zeros(len(rows), bool) if part.silent is None else part.silent[rows]
                self._count(stratum, part.grades.picked(rows), silent, minutes.tolist(), places)
                if part.units is not None:
                    units = part.units.reshape(len(part), -1, len(self.measures))[rows]
                    self._sum(stratum, units, minutes.tolist(), places)

    def hold(self, part: EvaluationColumns) -> None:
        """Adds the times of queries that are open at the end."""
        for stratum, rows in part.strata.groups():
            self._begin(stratum, part.event_times_ms[rows])

    def last_until(self, time_ms: int) -> None:
        """Extends the range of the replay to this time."""
        self._end = max(self._end, time_ms // MINUTE_MS)

    def _begin(self, stratum: Stratum, event_times_ms: IntArray) -> None:
        first_ms = int(event_times_ms.min())
        for ranker in stratum.rankers:
            block = (stratum.model, stratum.variant, ranker)
            if first_ms < self.began_ms.get(block, first_ms + 1):
                self.began_ms[block] = first_ms

    def _count(
        self,
        stratum: Stratum,
        grades: GradeColumns,
        silent: NDArray[np.bool_],
        minutes: Sequence[int],
        places: IntArray,
    ) -> None:
        judged = (grades.counts > 0) & ~silent
        positive = np.concatenate(([0], np.cumsum(grades.grades > 0)))
        irrelevant = judged & (positive[grades.ends] == positive[grades.ends - grades.counts])
        numbers = [
            np.bincount(places[which], minlength=len(minutes)).tolist()
            for which in (judged, silent, ~(judged | silent), irrelevant)
        ]
        pair, rows = stratum[:2], list[Row]()
        for minute, row in zip(minutes, zip(*numbers, strict=True), strict=True):
            rows.append(((*pair, minute), _encoded(row)))
        self._results.sort(PAIRS, rows)

    def _sum(
        self, stratum: Stratum, units: IntArray, minutes: Sequence[int], places: IntArray
    ) -> None:
        has_value = units >= 0
        units = exactly(np.where(has_value, units, 0))
        terms = np.stack((has_value.astype(np.int64), units, squares_of(units)), axis=-1)
        numbers = [terms.reshape(*units.shape[:2], -1)]
        for name in self.histograms:
            column = self.measures.index(name)
            buckets = value_buckets(units[:, :, column])[..., None] == np.arange(len(VALUE_BOUNDS))
            numbers.append((buckets & has_value[:, :, column, None]).astype(np.int64))
        flat = np.concatenate(numbers, axis=-1)
        order = np.argsort(places, kind="stable")
        sums = np.add.reduceat(flat[order], np.searchsorted(places[order], np.arange(len(minutes))))
        pair, rows = stratum[:2], list[Row]()
        for minute, by_ranker in zip(minutes, sums.tolist(), strict=True):
            for ranker, row in zip(stratum.rankers, by_ranker, strict=True):
                rows.append(((*pair, ranker, minute), _encoded(row)))
        self._results.sort(BLOCKS, rows)

    def settled(self, name: str) -> Iterator[tuple[tuple[str, ...], int, Numbers]]:
        """Names, minute and numbers of BLOCKS or PAIRS; a minute may have several parts."""
        for key, line in self._results.sorted_rows(name):
            *names, minute = key
            yield cast("tuple[str, ...]", tuple(names)), int(minute), [*map(int, line.split())]

    def began(self) -> Mapping[Block, int]:
        """The minute before the first query of each block, in order of the first query."""

        def in_order(item: tuple[Block, int]) -> tuple[int, str, str, bool, str]:
            (model, variant, ranker), began_ms = item
            return began_ms, model, variant, ranker != SERVED, ranker

        first = sorted(self.began_ms.items(), key=in_order)
        return {block: max(0, minute_of(ms) - 1) for block, ms in first}

    def sampled(self) -> list[range]:
        """The minutes that have samples."""
        for minute in self.began().values():
            self.busy.add(minute)
        return self.busy.sampled(self._end)
