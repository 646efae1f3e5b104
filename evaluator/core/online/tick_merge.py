"""Sums of the settled queries of all tasks by tick, in an order that depends on the logs only."""

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush

import numpy as np
from msgspec import field
from numpy.typing import NDArray

from evaluator.core.alarms.sums import UnitSums
from evaluator.core.online.ordered_merge import ReadTask, TaskProgress
from evaluator.core.online.watched import WatchRules
from evaluator.core.online.watched_queries import Labels, TickSums, WatchedQueries
from evaluator.core.types.records import IntArray, WatermarkRecord


class _Task(ReadTask, kw_only=True):
    """The sums of one task."""

    sums: TickSums
    progress: dict[int, tuple[TaskProgress, int]] = field(default_factory=dict)
    """Progress and position after the last query of each tick that is not closed."""
    open_ticks_ms: list[int] = field(default_factory=list)
    """The starts of these ticks, as a heap."""
    waiting_ms: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Settled times of the queries before which other tasks may still have some."""


class TickMerge:
    """Takes the sums of ticks once no task can have further queries of them.

    Args:
        n_tasks: the number of tasks.
        taken: the progress of each task; a missing task begins with the first record that is read.
        rules: the watched series.
    """

    n_buffered_bytes = 0
    """No record is kept."""

    def __init__(self, n_tasks: int, taken: Mapping[int, TaskProgress], rules: WatchRules) -> None:
        self._rules = rules
        self._tasks = [
            _Task(*taken.get(task, (None, -1)), sums=TickSums(rules)) for task in range(n_tasks)
        ]
        self.taken = dict(taken)
        self.positions: dict[int, int] = {}
        """Offsets after the queries of closed ticks."""

    @property
    def n_buffered(self) -> int:
        """Queries that were read, while other tasks may still have earlier ones."""
        return sum(len(task.waiting_ms) for task in self._tasks)

    @property
    def awaited(self) -> list[int]:
        """The tasks that block the merge; empty without waiting queries."""
        waiting_ms = (task.waiting_ms.min() for task in self._tasks if len(task.waiting_ms))
        first_ms, tasks = min(waiting_ms, default=-1), enumerate(self._tasks)
        return [number for number, task in tasks if task.watermark_ms < first_ms]

    @property
    def certain_ms(self) -> int:
        """No query that settles before this time can still be read."""
        return min(task.watermark_ms for task in self._tasks)

    @property
    def first_tick_ms(self) -> int | None:
        """The start of the first tick that was read and not taken."""
        starts = (task.sums.first_ms for task in self._tasks)
        return min((start for start in starts if start is not None), default=None)

    def add(self, number: int, queries: WatchedQueries) -> WatchedQueries | None:
        """Adds the next queries of a task; one that was read before is ignored.

        Returns those from the first gap on: records before it are missing, or its number was
        another query's. None without a gap.
        """
        task = self._tasks[number]
        while len(queries.ns):
            if task.next_n is None:
                task.next_n = int(queries.ns[0])
            n = _leading(queries.ns - np.arange(len(queries.ns)) == task.next_n)
            if n:
                self._add(task, queries.rows(slice(n)))
            else:
                is_old = (queries.ns < task.next_n) & (queries.settled_times_ms <= task.settled_ms)
                if not (n := _leading(is_old)):
                    return queries
            queries = queries.rows(slice(n, None))
        return None

    def _add(self, task: _Task, queries: WatchedQueries) -> None:
        times_ms, ticks_ms = queries.settled_times_ms, queries.ticks_ms
        task.next_n, task.settled_ms = int(queries.ns[-1]) + 1, int(times_ms[-1])
        task.watermark_ms = max(task.watermark_ms, int(times_ms.max()))
        task.waiting_ms = np.append(task.waiting_ms, times_ms)
        task.sums.add(queries)
        for row in [*np.flatnonzero(np.diff(ticks_ms)).tolist(), -1]:
            after = TaskProgress(int(queries.ns[row]) + 1, int(times_ms[row]))
            if (tick_ms := int(ticks_ms[row])) not in task.progress:
                heappush(task.open_ticks_ms, tick_ms)
            task.progress[tick_ms] = after, int(queries.offsets[row]) + 1

    def watermark(self, number: int, record: WatermarkRecord) -> None:
        """Adds a watermark record of a task, as `ReadTask` does."""
        self._tasks[number].watermark(record)

    def take(self) -> Iterator[tuple[int, Labels, UnitSums]]:
        """Removes the ticks that are certain now: start, labels and sums, in order."""
        certain_ms = self.certain_ms
        for task in self._tasks:
            task.waiting_ms = task.waiting_ms[task.waiting_ms > certain_ms]
        until_ms = certain_ms - self._rules.maturity_ms
        found = [each for task in self._tasks for each in task.sums.pop(until_ms)]
        found.sort(key=lambda each: (each[0], each[1], each[2][2]))
        for tick_ms, _, labels, sums in found:
            yield tick_ms, labels, sums

    def close(self, end_ms: int) -> None:
        """Notes the progress of all tasks: the tick that ends then is closed."""
        for number, task in enumerate(self._tasks):
            while task.open_ticks_ms and task.open_ticks_ms[0] < end_ms:
                after = task.progress.pop(heappop(task.open_ticks_ms))
                self.taken[number], self.positions[number] = after

    def begin_again(self, number: int) -> None:
        """Begins a task with its next record; its sums of open ticks are dropped."""
        for _, position in self._tasks[number].progress.values():
            self.positions[number] = position
        self.taken.pop(number, None)
        self._tasks[number] = _Task(sums=TickSums(self._rules))


def _leading(mask: NDArray[np.bool_]) -> int:
    """Number of true elements before the first false one."""
    return len(mask) if mask.all() else int(mask.argmin())
