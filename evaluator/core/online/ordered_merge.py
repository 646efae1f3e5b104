"""Merges the settled queries of all tasks in an order that depends on the logs only."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from evaluator.core.types.candidates import Described
from evaluator.core.types.records import FloatArray, WatermarkRecord


class SettledQuery(NamedTuple):
    """A settled query, as the leader reads it.

    `served_units` are the values of the served order in units of 2^-40, by measure. Without
    features `feature_names` is None, and there are no features; `described` then has what they can
    be made of. Without that there are no candidates either. `n_bytes` is what its record took.
    """

    task: int
    n: int
    settled_time_ms: int
    event_time_ms: int
    trace_id: str
    node_id: str
    model: str
    grades: Mapping[str, float]
    served_units: Mapping[str, int]
    sources: Mapping[str, int]
    candidate_ids: Sequence[str]
    feature_names: tuple[str, ...] | None
    features: FloatArray
    propensities: Sequence[float] | None
    described: Described | None = None
    n_bytes: int = 0

    @property
    def place(self) -> tuple[int, str, str]:
        """Where it stands in the merged order."""
        return self.settled_time_ms, self.trace_id, self.node_id


class SettledGap(Exception):
    """The number of a *query* does not follow that of the one before it in its task."""

    def __init__(self, message: str, query: SettledQuery) -> None:
        super().__init__(message)
        self.query = query


class Taken(NamedTuple):
    """How far a task has been taken: the number of its next query; when the last one settled."""

    next_n: int
    settled_ms: int


@dataclass(slots=True)
class _Part:
    """One task: its queries that wait, and its watermark.

    A task without a state begins with the first record that is read.
    """

    next_n: int | None = None  # the number of the next query to be read
    settled_ms: int = -1  # of the last query that was read
    watermark_ms: int = -1  # every later record settles at this time or later
    waiting: deque[SettledQuery] = field(default_factory=deque)
    waiting_bytes: int = 0


class OrderedMerge:
    """Takes the queries of *n_tasks* tasks by (settled time, trace_id, node_id).

    A query is taken once every other task shows one that comes later, or a record beyond it.

    Args:
        n_tasks: how many there are.
        taken: how far tasks have been taken. One that is not there begins with what is read of it
            first: the queries before that are gone.
    """

    def __init__(self, n_tasks: int, taken: Mapping[int, Taken]) -> None:
        self._parts = [_Part() for _ in range(n_tasks)]
        for task, (next_n, settled_ms) in taken.items():
            self._parts[task].next_n = next_n
            self._parts[task].settled_ms = settled_ms

    @property
    def n_waiting(self) -> int:
        """Queries that were read and cannot be taken yet."""
        return sum(len(part.waiting) for part in self._parts)

    @property
    def n_waiting_bytes(self) -> int:
        """What the records of these queries took; in memory they take a few times as much."""
        return sum(part.waiting_bytes for part in self._parts)

    @property
    def awaited(self) -> list[int]:
        """The tasks that block the merge: no query buffered, and no watermark beyond.

        Empty while nothing has been read that could be taken.
        """
        heads = [part.waiting[0] for part in self._parts if part.waiting]
        if not heads:
            return []
        first = min(heads, key=lambda query: query.place)
        return [
            task
            for task, part in enumerate(self._parts)
            if not part.waiting and part.watermark_ms <= first.settled_time_ms
        ]

    def add(self, query: SettledQuery) -> None:
        """Reads the next record of a task; one that was read before is left alone.

        Raises:
            SettledGap: if records before it are missing, or its number was another query's.
        """
        part = self._parts[query.task]
        if part.next_n is None:
            part.next_n = query.n
        if query.n < part.next_n:
            if query.settled_time_ms > part.settled_ms:
                raise SettledGap(
                    f"settled of task {query.task} has n = {query.n} again, at a later time than "
                    f"n = {part.next_n - 1}: a worker has lost its state and counts from 0 again.",
                    query,
                )
            return
        if query.n > part.next_n:
            raise SettledGap(
                f"settled of task {query.task} goes on with n = {query.n}, and {part.next_n} comes "
                "next: the records between them are gone.",
                query,
            )
        part.next_n += 1
        part.settled_ms = query.settled_time_ms
        part.watermark_ms = max(part.watermark_ms, query.settled_time_ms)
        part.waiting.append(query)
        part.waiting_bytes += query.n_bytes

    def watermark(self, task: int, record: WatermarkRecord) -> None:
        """Reads a watermark record; one beyond the records read so far is ignored."""
        part = self._parts[task]
        if part.next_n is None:
            part.next_n, part.settled_ms = record.n, record.watermark_ms
        if record.n <= part.next_n:
            part.watermark_ms = max(part.watermark_ms, record.watermark_ms)

    def end(self) -> None:
        """All tasks have ended: nothing comes after what was read."""
        for part in self._parts:
            part.watermark_ms = 1 << 200

    def taken(self) -> Iterator[SettledQuery]:
        """The queries that can be taken now, in order."""
        while True:
            heads = [part for part in self._parts if part.waiting]
            if not heads:
                return
            part = min(heads, key=lambda each: each.waiting[0].place)
            settled_ms = part.waiting[0].settled_time_ms
            if any(not p.waiting and p.watermark_ms <= settled_ms for p in self._parts):
                return
            query = part.waiting.popleft()
            part.waiting_bytes -= query.n_bytes
            yield query
