"""The durable state of a task: the engine's changes into the store, and the store's into it."""

from collections.abc import Mapping, Sequence
from typing import Final

from evaluator.core.calendar import Entries
from evaluator.core.engine import Engine
from evaluator.core.stored import Chain, StoredQueries, StoredTask
from evaluator.core.types import IntArray, Key
from evaluator.ports import StateStore
from evaluator.wire import state as wire
from evaluator.wire.state import StateDamaged

_MOST_CACHED: Final = 8
"""Runs of which the entries are kept when they were read."""


class TaskState:
    """One store, as the engine of its task sees it: `QueriesAside`."""

    def __init__(self, store: StateStore, *, task: int) -> None:
        self._store = store
        self._task = task
        self._runs: dict[int, tuple[Entries, list[Key]]] = {}

    # What the engine asks for

    def chains(self, keys: Sequence[Key]) -> list[Chain]:
        """The queries of each key."""
        return list(map(wire.chain_from, self._store.get("names", list(map(wire.name_of, keys)))))

    def queries(self, offsets: IntArray) -> StoredQueries:
        """Queries by the offsets of their rankings, which ascend."""
        wanted = offsets.tolist()
        found = self._store.rows_under("queries", list(map(wire.query_prefix, wanted)))
        return wire.queries_from(found, wanted, task=self._task)

    def entries(self, run: int) -> Entries:
        """The entries of a run of the calendar."""
        return self._run(run)[0]

    def keys(self, run: int) -> list[Key]:
        """The keys of the entries of a run."""
        return self._run(run)[1]

    def _run(self, number: int) -> tuple[Entries, list[Key]]:
        if number not in self._runs:
            key = wire.run_key(number)
            head, value = (self._store.get(table, [key])[0] for table in ("runs", "entries"))
            if head is None or value is None:
                raise StateDamaged(f"run {number} is not there")
            while len(self._runs) >= _MOST_CACHED:
                self._runs.pop(next(iter(self._runs)))
            self._runs[number] = wire.entries_from(value, wire.run_from(key, head).n_queries)
        entries, keys = self._runs[number]
        return Entries(entries.times_ms, entries.offsets, entries.slots.copy()), keys

    # A commit

    def commit(self, engine: Engine, *, complete: bool = True) -> None:
        """Writes all that has changed since the last commit, whole or not at all.

        What was written of a task that is not *complete* yet is never loaded. Whatever has
        changed since the last commit is in memory, so that what is read is as it was then.
        """
        changes, batch = engine.drain_changes(), self._store.batch()
        for table, rows in wire.rows_of(changes):
            batch.put(table, rows)
        for first, end in wire.forgotten_ranges(changes):
            batch.delete_range("queries", first, end)
        if complete:
            batch.put("meta", [(wire.HEAD, wire.head_row(engine.head))])
        else:
            batch.put("meta", [(wire.UNFINISHED, b"")])
        batch.write()
        for number in changes.runs:
            self._runs.pop(number, None)
        engine.put_aside()

    # The beginning

    def load(self) -> StoredTask | None:
        """The task as it was at the last commit; None before the first.

        Raises StateDamaged; also for what a rebuild left that did not come to its end: the next one
        begins later and would not write over all of it.
        """
        (head,) = self._store.get("meta", [wire.HEAD])
        if head is None:
            if self._store.get("meta", [wire.UNFINISHED]) != [None]:
                raise StateDamaged("it is of a rebuild that did not come to its end")
            return None
        rows = self._store.rows
        try:
            return StoredTask(
                head=wire.head_from(head),
                totals={
                    wire.stratum_from(key): wire.totals_row_from(value)
                    for key, value in rows("totals")
                },
                windows=dict(wire.window_from(key, value) for key, value in rows("windows")),
                waiting=wire.waiting_from(rows("waiting"), task=self._task),
                runs=[wire.run_from(key, value) for key, value in rows("runs")],
            )
        except (ValueError, TypeError, KeyError) as error:
            raise StateDamaged(f"a row cannot be read: {error!r}") from error

    def belongs_to(self, identity: Mapping[str, object]) -> list[str]:
        """In what the store belongs to something else; a new store is taken into possession."""
        (found,) = self._store.get("meta", [wire.IDENTITY])
        if found is None:
            batch = self._store.batch()
            batch.put("meta", [(wire.IDENTITY, wire.identity_row(identity))])
            batch.write()
            return []
        return wire.identity_differs(found, identity)

    def n_bytes(self) -> int:
        """About how much room the store takes."""
        return self._store.n_bytes()

    def close(self) -> None:
        """Lets go of the store."""
        self._store.close()
