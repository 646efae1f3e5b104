"""Event-time timers that settle and expire queries and release their keys."""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from msgspec import Struct, field

from evaluator.core.columns.key_hashes import Key
from evaluator.core.columns.table import IntArray
from evaluator.core.event_time.clock import AT_THE_END, MAX_TIMESTAMP_MS

Timer = Literal["settle", "expire", "release"]
TIMERS: Final[tuple[Timer, Timer, Timer]] = ("settle", "expire", "release")


class Entries(Struct):
    """Queries by event time: each array is `[n_queries]`.

    `rows` has the row of each query in the query table, -1 for one that is not in memory.
    """

    times_ms: IntArray
    offsets: IntArray
    rows: IntArray

    def __len__(self) -> int:
        return len(self.times_ms)

    @classmethod
    def none(cls) -> "Entries":
        return cls(*(np.empty(0, np.int64) for _ in range(3)))

    def with_more(self, *more: IntArray) -> "Entries":
        """These and further entries, sorted by time; the sort is stable."""
        mine = (self.times_ms, self.offsets, self.rows)
        columns = [np.concatenate(pair) for pair in zip(mine, more, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return Entries(*(column[order] for column in columns))


class Run(Struct, eq=False):
    """Queries whose timers are processed together.

    An ordinary run has consecutively started queries. A *release_only* run has queries whose
    keys had another ranking: only their release is scheduled again.
    """

    number: int
    entries: Entries | None  # None: evicted
    n_queries: int
    earliest_ms: int
    latest_ms: int
    first_offset: int
    last_offset: int
    release_only: bool = False
    keys: list[Key] | None = None  # of the entries of a release-only run that is in memory
    on_disk: bool = False  # the entries have no row of its queries
    passed: dict[Timer, int] = field(default_factory=lambda: dict.fromkeys(TIMERS, 0))


class DueRange(NamedTuple):
    """Due entries of a run, from its entry *first* on; arrays are `[n_queries]`."""

    run: Run
    first: int
    times_ms: IntArray
    offsets: IntArray
    rows: IntArray

    def part(self, first: int, last: int) -> "DueRange":
        """Some of the entries."""
        return DueRange(self.run, self.first + first, *(each[first:last] for each in self[2:]))


def in_parts(due: Sequence[DueRange], n_queries: int) -> Iterator[list[DueRange]]:
    """Due entries in parts of about *n_queries*, in order of time; equal times share a part."""
    times = np.sort(np.concatenate([np.empty(0, np.int64), *(each.times_ms for each in due)]))
    firsts = [0] * len(due)
    for cut_ms in [*np.unique(times[n_queries::n_queries]).tolist(), AT_THE_END]:
        ends = [_n_before(each.times_ms, cut_ms) for each in due]
        cuts = zip(due, firsts, ends, strict=True)
        part = [each.part(first, end) for each, first, end in cuts if end > first]
        firsts = ends
        if part:
            yield part


class Timers:
    """Timers of started queries in runs; new queries are added to the open run.

    No query starts before the watermark, so new entries follow those that were due. *fetch* loads
    the entries of a run that was evicted.
    """

    RUN = 4096

    def __init__(self, fetch: Callable[[int], Entries] | None = None) -> None:
        self.runs: dict[int, Run] = {}
        self.open_run = self._new_run(0)
        self.closed: list[Run] | None = None  # runs, if changes are recorded
        self.ended: list[int] | None = None  # numbers of runs
        self._end_offset = 0  # behind all queries that were pushed
        self._fetch = fetch
        # By timer a heap of the next time and the number of each run.
        self._next: dict[Timer, list[tuple[int, int]]] = {timer: [] for timer in TIMERS}

    @staticmethod
    def _new_run(number: int) -> Run:
        return Run(number, Entries.none(), 0, AT_THE_END, -1, AT_THE_END, -1)

    def push(self, times_ms: IntArray, offsets: IntArray, rows: IntArray) -> None:
        """Adds queries that have just started; all `[n_started]`."""
        if not len(times_ms):
            return
        self._fill(self.open_run, self.entries(self.open_run).with_more(times_ms, offsets, rows))
        self._end_offset = self.open_run.last_offset + 1
        if self.open_run.n_queries >= self.RUN:
            self._close(self.open_run)
            self.open_run = self._new_run(self.open_run.number + 1)

    def push_for_release(
        self, times_ms: IntArray, offsets: IntArray, rows: IntArray, keys: Sequence[Key]
    ) -> None:
        """Schedules the release of these queries again, at other times, in a run of their own."""
        if not len(times_ms):
            return
        key_at = dict(zip(offsets.tolist(), keys, strict=True))
        run = self._new_run(self.open_run.number)
        self.open_run.number += 1
        run.release_only = True
        self._fill(run, Entries.none().with_more(times_ms, offsets, rows))
        run.keys = [key_at[offset] for offset in self.entries(run).offsets.tolist()]
        run.passed |= {"settle": run.n_queries, "expire": run.n_queries}
        self._close(run)

    def pop_before(self, timer: Timer, limit_ms: int) -> list[DueRange]:
        """The due entries of this timer: with a time before *limit_ms*."""
        due = []
        queue = self._next[timer]
        while queue and queue[0][0] < limit_ms:
            _, number = heapq.heappop(queue)
            due.append(self._pass(self.runs[number], timer, limit_ms))
            self._await(self.runs[number], timer)
        if self.open_run.earliest_ms < limit_ms:
            due.append(self._pass(self.open_run, timer, limit_ms))
        return [due_range for due_range in due if len(due_range.times_ms)]

    def drop(self, run: Run) -> None:
        """Removes a run after the release of all its keys."""
        if self.ended is not None:
            self.ended.append(run.number)
        if run is self.open_run:
            self.open_run = self._new_run(run.number + 1)
        else:
            del self.runs[run.number]

    def restore(self, runs: Sequence[Run], limits_ms: Mapping[Timer, int], next_run: int) -> None:
        """Restores the runs of other timers, which had passed *limits_ms*."""
        self.open_run = self._new_run(next_run)
        for run in runs:
            for timer, limit_ms in limits_ms.items():
                if run.latest_ms < limit_ms or (run.release_only and timer != "release"):
                    run.passed[timer] = run.n_queries
                elif run.earliest_ms < limit_ms:
                    run.passed[timer] = _n_before(self.entries(run).times_ms, limit_ms)
            self._end_offset = max(self._end_offset, run.last_offset + 1)
            self._add(run)

    def passed_before(self, timer: Timer) -> int:
        """Offset before which this timer has fired for every query, except release-only runs."""
        for run in (*self.runs.values(), self.open_run):
            if not run.release_only and run.passed[timer] < run.n_queries:
                return run.first_offset
        return self._end_offset

    def entries(self, run: Run) -> Entries:
        """The entries of a run, loaded if it was evicted."""
        if run.entries is None:
            if self._fetch is None:
                raise LookupError(f"run {run.number} was evicted without a disk tier")
            run.entries = self._fetch(run.number)
        return run.entries

    @staticmethod
    def _fill(run: Run, entries: Entries) -> None:
        run.entries, run.n_queries = entries, len(entries)
        run.earliest_ms, run.latest_ms = int(entries.times_ms[0]), int(entries.times_ms[-1])
        run.first_offset, run.last_offset = int(entries.offsets.min()), int(entries.offsets.max())

    def _close(self, run: Run) -> None:
        if self.closed is not None:
            self.closed.append(run)
        self._add(run)

    def _add(self, run: Run) -> None:
        self.runs[run.number] = run
        for timer in TIMERS:
            self._await(run, timer)

    def _pass(self, run: Run, timer: Timer, limit_ms: int) -> DueRange:
        entries = self.entries(run)
        first, last = run.passed[timer], _n_before(entries.times_ms, limit_ms)
        run.passed[timer] = max(first, last)
        whole = DueRange(run, 0, entries.times_ms, entries.offsets, entries.rows)
        return whole.part(first, last)

    def _await(self, run: Run, timer: Timer) -> None:
        passed = run.passed[timer]
        if passed == run.n_queries:
            return
        next_ms = int(self.entries(run).times_ms[passed]) if passed else run.earliest_ms
        heapq.heappush(self._next[timer], (next_ms, run.number))


def _n_before(times_ms: IntArray, limit_ms: int) -> int:
    if limit_ms > MAX_TIMESTAMP_MS:
        return len(times_ms)
    return int(np.searchsorted(times_ms, limit_ms))
