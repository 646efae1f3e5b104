"""Merges the settled queries of all tasks in an order that depends on the logs only."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct, field

from evaluator.core.types.candidates import Described
from evaluator.core.types.records import SERVED, FloatArray, LoggedQuery, WatermarkRecord

NO_FEATURES: Final = np.zeros((0, 0))


class SettledQuery(NamedTuple):
    """A settled query, as the leader reads it.

    `units` are the values in units of 2^-40, by ranker and measure. Without features
    `feature_names` is None and `described`, if any, describes the candidates; without that there
    are no candidates. `n_bytes` is the size of the record, `offset` its offset. With
    `invalid_training_data` the record has some, and they were left out.
    """

    task: int
    n: int
    settled_time_ms: int
    event_time_ms: int
    trace_id: str
    node_id: str
    model: str
    grades: Mapping[str, float]
    units: Mapping[str, Mapping[str, int]]
    sources: Mapping[str, int] = MappingProxyType({})
    candidate_ids: Sequence[str] = ()
    feature_names: tuple[str, ...] | None = None
    features: FloatArray = NO_FEATURES
    propensities: Sequence[float] | None = None
    described: Described | None = None
    n_bytes: int = 0
    offset: int = -1
    variant: str = ""
    segments: Mapping[str, str] = MappingProxyType({})
    logged: LoggedQuery | None = None
    silent: bool = False
    invalid_training_data: bool = False

    @property
    def served_units(self) -> Mapping[str, int]:
        """The values of the served order, by measure."""
        return self.units.get(SERVED, {})


PLACE: Final = attrgetter("settled_time_ms", "trace_id", "node_id")
"""The place of a settled query in the merged order."""


class SettledGap(Exception):
    """The number of a *query* does not follow the previous number of its task."""

    def __init__(self, message: str, query: SettledQuery) -> None:
        super().__init__(message)
        self.query = query


class TaskProgress(NamedTuple):
    """Progress of a task in the merge: the next number, and the last settled time."""

    next_n: int
    settled_ms: int


class ReadTask(Struct):
    """Read progress of a task. Without a state it begins with the first record that is read."""

    next_n: int | None = None  # the number of the next query to be read
    settled_ms: int = -1  # of the last query that was read
    watermark_ms: int = -1  # every later record settles at this time or later

    def watermark(self, record: WatermarkRecord) -> None:
        """Adds a watermark record; one beyond the records read so far is ignored."""
        if self.next_n is None:
            self.next_n, self.settled_ms = record.n, record.watermark_ms
        if record.n <= self.next_n:
            self.watermark_ms = max(self.watermark_ms, record.watermark_ms)


class _Task(ReadTask):
    """The unprocessed queries of one task."""

    waiting: deque[SettledQuery] = field(default_factory=deque)

    def blocks(self, settled_ms: int) -> bool:
        """Whether a query that settles before or at this time may still be read."""
        return not self.waiting and self.watermark_ms <= settled_ms


class OrderedMerge:
    """Takes the queries of *n_tasks* tasks by (settled time, trace_id, node_id).

    A query is taken once every other task has a later one, or a watermark beyond it.

    Args:
        n_tasks: the number of tasks.
        taken: the progress of each task; a missing task begins with the first record that is read.
    """

    def __init__(self, n_tasks: int, taken: Mapping[int, TaskProgress]) -> None:
        self._tasks = [_Task(*taken.get(task, (None, -1))) for task in range(n_tasks)]
        self.n_buffered_bytes = 0
        """The size of the records that wait; in memory they take a few times as much."""

    @property
    def n_buffered(self) -> int:
        """Queries that were read and cannot be taken yet."""
        return sum(len(task.waiting) for task in self._tasks)

    def _next(self) -> _Task | None:
        """The task with the first unprocessed query."""
        waiting = [task for task in self._tasks if task.waiting]
        return min(waiting, key=lambda task: PLACE(task.waiting[0]), default=None)

    @property
    def awaited(self) -> list[int]:
        """The tasks that block the merge; empty without unprocessed queries."""
        first = self._next()
        if first is None:
            return []
        settled_ms = first.waiting[0].settled_time_ms
        return [number for number, task in enumerate(self._tasks) if task.blocks(settled_ms)]

    def add(self, query: SettledQuery) -> None:
        """Adds the next record of a task; a record that was read before is ignored.

        Raises:
            SettledGap: if records before it are missing, or its number was another query's.
        """
        task = self._tasks[query.task]
        if task.next_n is None:
            task.next_n = query.n
        if query.n < task.next_n:
            if query.settled_time_ms > task.settled_ms:
                raise SettledGap(
                    f"settled of task {query.task} has n = {query.n} again, at a later time than "
                    f"n = {task.next_n - 1}: a worker has lost its state and counts from 0 again.",
                    query,
                )
            return
        if query.n > task.next_n:
            raise SettledGap(
                f"settled of task {query.task} continues with n = {query.n} instead of "
                f"{task.next_n}: the records in between are missing.",
                query,
            )
        task.next_n += 1
        task.settled_ms = query.settled_time_ms
        task.watermark_ms = max(task.watermark_ms, query.settled_time_ms)
        task.waiting.append(query)
        self.n_buffered_bytes += query.n_bytes

    def watermark(self, number: int, record: WatermarkRecord) -> None:
        """Adds a watermark record of a task, as `ReadTask` does."""
        self._tasks[number].watermark(record)

    def begin_again(self, number: int) -> None:
        """Begins a task with its next record; its queries that wait are dropped."""
        self.n_buffered_bytes -= sum(query.n_bytes for query in self._tasks[number].waiting)
        self._tasks[number] = _Task()

    def end(self) -> None:
        """Ends the input: no record follows in any task."""
        for task in self._tasks:
            task.watermark_ms = 1 << 200

    def take(self) -> Iterator[SettledQuery]:
        """The queries that can be taken now, in order."""
        certain_ms = min(task.watermark_ms for task in self._tasks)  # no query before it is awaited
        yield from merge(*(self._before(task, certain_ms) for task in self._tasks), key=PLACE)
        while (first := self._next()) is not None:
            settled_ms = first.waiting[0].settled_time_ms
            if any(task.blocks(settled_ms) for task in self._tasks):
                return
            query = first.waiting.popleft()
            self.n_buffered_bytes -= query.n_bytes
            yield query

    def _before(self, task: _Task, settled_ms: int) -> Iterator[SettledQuery]:
        """Takes the queries of a task that settle before this time."""
        waiting = task.waiting
        while waiting and waiting[0].settled_time_ms < settled_ms:
            query = waiting.popleft()
            self.n_buffered_bytes -= query.n_bytes
            yield query
