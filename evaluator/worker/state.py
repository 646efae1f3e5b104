"""The durable state of a task: the engine's changes into the store, and the store's into it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

import numpy as np

from evaluator.core.engine.engine import Engine
from evaluator.core.event_time.timers import Entries, Run
from evaluator.core.join.changes import Chains, StoredQueries, StoredTask
from evaluator.core.types.records import IntArray, Key
from evaluator.ports import StateBatch, StateStore
from evaluator.wire.reading import refused_as
from evaluator.wire.state import task_rows as wire
from evaluator.wire.state.query_rows import (
    judgment_key,
    judgment_rows,
    offset_of,
    queries_from,
    query_key,
    ranking_rows,
)
from evaluator.wire.state.task_rows import StateDamaged, Table
from evaluator.worker.names import Names
from evaluator.worker.unjudged import Unjudged

_MOST_CACHED: Final = 8
"""Runs of which the entries are kept when they were read."""


def _readable() -> AbstractContextManager[None]:
    """Whatever goes wrong in reading rows, they are not what this version writes."""
    return refused_as(StateDamaged, "a row cannot be read")


class TaskState:
    """One store, as the engine of its task sees it: `DiskTier`, with *features* if asked."""

    def __init__(self, store: StateStore, *, task: int, features: bool = False) -> None:
        self._store = store
        self._task = task
        self._names = Names(store, task=task, features=features)
        self._unjudged = Unjudged()
        self._runs: dict[int, tuple[Entries, list[Key]]] = {}
        self._deleted_before: dict[Table, int] = {}

    # What the engine asks for

    def chains(self, keys: Sequence[Key]) -> Chains:
        """The queries of each key."""
        with _readable():
            return self._names.chains(keys)

    def expect(self, keys: Sequence[Key]) -> None:
        """The chains of these keys are asked for next, and the queries in them then."""
        self._names.expect(keys)

    def queries(self, offsets: IntArray) -> StoredQueries:
        """Queries by the offsets of their rankings, which ascend."""
        judgments = self._judgments(offsets)
        with _readable():
            return queries_from(self._names.rankings(offsets), judgments, task=self._task)

    def _judgments(self, offsets: IntArray) -> list[list[bytes]]:
        """The judgments of each query, by ordinal: as many readings as one has, and another.

        None for those that surely have none.
        """
        found: list[list[bytes]] = [[] for _ in offsets]
        left, ordinal = np.flatnonzero(~self._unjudged.among(offsets)).tolist(), 0
        queries = offsets.tolist()
        while left:
            keys = [judgment_key(queries[index], ordinal) for index in left]
            rows = zip(left, self._store.get("judgments", keys), strict=True)
            here = [(index, value) for index, value in rows if value is not None]
            for index, value in here:
                found[index].append(value)
            left, ordinal = [index for index, _ in here], ordinal + 1
        return found

    def entries(self, run: int) -> Entries:
        """The entries of a run of the timers."""
        return self._run(run)[0]

    def keys(self, run: int) -> list[Key]:
        """The keys of the entries of a run."""
        return self._run(run)[1]

    def renamed(self, first: int, last: int) -> IntArray:
        """Offsets of queries whose keys may name others too, or were named again."""
        rows = self._store.rows("renamed", query_key(first), query_key(last + 1))
        return np.array([offset_of(key) for key, _ in rows], np.int64)

    def stands(self, runs: Sequence[Run], released_before: int) -> None:
        """A task was loaded: what of these runs is not released is all that keys name."""
        with _readable():
            self._names.stands(runs)
        self._store.let_go("queries", query_key(released_before))

    def _run(self, number: int) -> tuple[Entries, list[Key]]:
        if number not in self._runs:
            key = wire.run_key(number)
            head, value = (self._store.get(table, [key])[0] for table in ("runs", "entries"))
            if head is None or value is None:
                raise StateDamaged(f"run {number} is not there")
            while len(self._runs) >= _MOST_CACHED:
                self._runs.pop(next(iter(self._runs)))
            with _readable():
                self._runs[number] = wire.entries_from(value, wire.run_from(key, head).n_queries)
        entries, keys = self._runs[number]
        return Entries(entries.times_ms, entries.offsets, entries.slots.copy()), keys

    # A commit

    def commit(self, engine: Engine, *, complete: bool = True) -> None:
        """Writes all that has changed since the last commit, whole or not at all.

        What was written of a task that is not *complete* yet is never loaded. Whatever has
        changed since the last commit is in memory, so that what is read is as it was then.
        """
        changes, batch = engine.take_changes(), self._store.batch()
        batch.put("queries", ranking_rows(changes))
        batch.put("judgments", judgment_rows(changes))
        with _readable():
            self._names.write(batch, changes)
        for table, rows in wire.rows_of(changes):
            batch.put(table, rows)
        self._delete_before(batch, "judgments", changes.expired_before)
        self._delete_before(batch, "renamed", changes.released_before)
        if complete:
            batch.put("meta", [(wire.HEAD, wire.head_row(engine.head))])
        batch.write()
        self._unjudged.note(changes)
        self._store.let_go("queries", query_key(changes.released_before))
        for number in changes.runs:
            self._runs.pop(number, None)
        engine.evict()

    def _delete_before(self, batch: StateBatch, table: Table, offset: int) -> None:
        """Deletes rows that begin with an earlier offset, as far as they are not deleted yet."""
        first = self._deleted_before.get(table, 0)
        if offset > first:
            batch.delete_range(table, query_key(first), query_key(offset))
            self._deleted_before[table] = offset

    # The beginning

    def load(self) -> StoredTask | None:
        """The task as it was at the last commit; None before the first. Raises StateDamaged."""
        (head,) = self._store.get("meta", [wire.HEAD])
        if head is None:
            self._clear()
            return None
        rows = self._store.rows
        with _readable():
            return StoredTask(
                head=wire.head_from(head),
                totals={
                    wire.stratum_from(key): wire.totals_row_from(value)
                    for key, value in rows("totals")
                },
                windows=dict(wire.window_from(key, value) for key, value in rows("windows")),
                early=wire.early_from(rows("early"), task=self._task),
                runs=[wire.run_from(key, value) for key, value in rows("runs")],
            )

    def _clear(self) -> None:
        """Deletes the rows of a task that was never complete: they would be taken for read."""
        batch = self._store.batch()
        for table in wire.TABLES:
            if table != "meta":
                batch.delete_range(table, b"", wire.BEHIND_ALL)
        batch.write()

    def belongs_to(self, identity: Mapping[str, object]) -> list[str]:
        """In what the store belongs to something else; a new store is taken into possession."""
        found, head = self._store.get("meta", [wire.IDENTITY, wire.HEAD])
        if found is None and head is not None:
            return ["it does not say what it belongs to"]
        if found is None:
            batch = self._store.batch()
            batch.put("meta", [(wire.IDENTITY, wire.identity_row(identity))])
            batch.write()
            return []
        return wire.identity_differs(found, identity)

    @property
    def n_bytes_in_memory(self) -> int:
        """About how much memory is taken to know where the queries are."""
        return self._names.n_bytes

    def n_bytes(self) -> int:
        """About how much room the store takes."""
        return self._store.n_bytes()

    def close(self) -> None:
        """Lets go of the store."""
        self._store.close()
