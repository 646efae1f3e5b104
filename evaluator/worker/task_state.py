"""The durable state of a task: writes the changes of the engine to its store and loads them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

import numpy as np
from msgspec import Struct

from evaluator.core.columns.key_hashes import Key, KeyHashes
from evaluator.core.engine.engine import Engine
from evaluator.core.event_time.timers import Entries, Run
from evaluator.core.join.changes import Checkpoint, StoredQueries, StoredTask, VersionsOfKeys
from evaluator.core.types.records import LOGS, IntArray, Log
from evaluator.ports import Committed, Partition, StateBatch, StateStore
from evaluator.wire.reading import refused_as
from evaluator.wire.state import task_rows as wire
from evaluator.wire.state.judgment_rows import queries_from
from evaluator.wire.state.task_rows import SettingsChanged, StateDamaged, Table, number_of, row_key
from evaluator.worker.key_versions import KeyVersions
from evaluator.worker.stored_judgments import StoredJudgments

_MAX_CACHED_RUNS: Final = 8


def _readable() -> AbstractContextManager[None]:
    """Raises StateDamaged for errors of decoding: another version may have written the row."""
    return refused_as(StateDamaged, "a row cannot be read")


class TaskState:
    """The store of one task as the `DiskTier` of its engine; with *features*, reads features."""

    def __init__(self, store: StateStore, *, task: int, features: bool = False) -> None:
        self._store = store
        self._task = task
        self._key_versions = KeyVersions(store, features=features)
        self._judgments = StoredJudgments(store)
        self._runs: dict[int, tuple[Entries, KeyHashes]] = {}
        self._deleted_before: dict[Table, int] = {}

    # evaluator.core.join.changes.DiskTier

    def versions(self, keys: Sequence[Key]) -> VersionsOfKeys:
        with _readable():
            return self._key_versions.versions(keys)

    def queries(self, offsets: IntArray) -> StoredQueries:
        judgments = self._judgments.of(offsets)
        with _readable():
            return queries_from(self._key_versions.rankings(offsets), judgments, task=self._task)

    def entries(self, run: int) -> Entries:
        return self._run(run)[0]

    def keys(self, run: int) -> list[Key]:
        keys: list[Key] = self._run(run)[1].tolist()
        return keys

    def renamed(self, first: int, last: int) -> IntArray:
        rows = self._store.rows("renamed", row_key(first), row_key(last + 1))
        return np.array([number_of(key) for key, _ in rows], np.int64)

    def load_index(self, runs: Sequence[Run], released_before: int) -> None:
        with _readable():
            self._key_versions.load(runs)
            self._judgments.load()
        self._discard(released_before)

    def _run(self, number: int) -> tuple[Entries, KeyHashes]:
        if number not in self._runs:
            key = row_key(number)
            head, value = (self._store.get(table, [key])[0] for table in ("runs", "entries"))
            if head is None or value is None:
                raise StateDamaged(f"run {number} is missing")
            while len(self._runs) >= _MAX_CACHED_RUNS:
                self._runs.pop(next(iter(self._runs)))
            with _readable():
                self._runs[number] = wire.entries_from(value, wire.run_from(key, head).n_queries)
        entries, keys = self._runs[number]
        return Entries(entries.times_ms, entries.offsets, entries.rows.copy()), keys

    # Commits

    def commit(self, engine: Engine, *, complete: bool = True) -> None:
        """Writes all changes since the last commit, atomically.

        The state of a task that is not *complete* is never loaded. All changes since the last
        commit are in memory, so reads return the rows of the last commit.
        """
        changes, batch = engine.take_changes(), self._store.batch()
        self._judgments.write(batch, changes)
        with _readable():
            self._key_versions.write(batch, changes)
        for table, rows in wire.rows_of(changes):
            batch.put(table, rows)
        self._judgments.delete_before(batch, changes.expired_before)
        self._delete_before(batch, "renamed", changes.released_before)
        self._delete_before(batch, "starts", self._key_versions.first_row(changes.released_before))
        if complete:
            batch.put("meta", [(wire.HEAD, wire.head_row(engine.head))])
        batch.write()
        self._discard(changes.released_before)
        for number in changes.runs:
            self._runs.pop(number, None)
        engine.evict()

    def _discard(self, released_before: int) -> None:
        """Deletes the rows of rankings that were all released, and of their judgments."""
        first = self._key_versions.first_row(released_before)
        self._store.discard_before("queries", row_key(first))
        self._judgments.discard()

    def _delete_before(self, batch: StateBatch, table: Table, offset: int) -> None:
        """Deletes the rows of earlier offsets that are not deleted yet."""
        first = self._deleted_before.get(table, 0)
        if offset > first:
            batch.delete_range(table, row_key(first), row_key(offset))
            self._deleted_before[table] = offset

    # Loading

    def load(self) -> StoredTask | None:
        """The task as of the last complete commit, or None. Raises StateDamaged."""
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
        """Deletes the rows of a task that was never complete."""
        batch = self._store.batch()
        for table in wire.TABLES:
            if table != "meta":
                batch.delete_range(table, b"", wire.BEHIND_ALL)
        batch.write()

    def require_identity(self, identity: Mapping[str, object]) -> None:
        """Writes the identity into a new store. Raises StateDamaged for a different identity."""
        found, head = self._store.get("meta", [wire.IDENTITY, wire.HEAD])
        if found is not None:
            if differences := wire.identity_differs(found, identity):
                settings = all(each.startswith("fingerprint is ") for each in differences)
                raise (SettingsChanged if settings else StateDamaged)("; ".join(differences))
        elif head is not None:
            raise StateDamaged("its identity is missing")
        else:
            batch = self._store.batch()
            batch.put("meta", [(wire.IDENTITY, wire.identity_row(identity))])
            batch.write()

    @property
    def n_bytes_in_memory(self) -> int:
        """Approximate memory of the key index in bytes."""
        return self._key_versions.n_bytes + self._judgments.n_bytes

    def n_bytes(self) -> int:
        """Approximate size of the store in bytes."""
        return self._store.n_bytes()

    def close(self) -> None:
        """Closes the store."""
        self._store.close()


class OpenedTask(Struct, frozen=True):
    """An open store and the engine that loaded it; *stored* and *seconds* are None if empty.

    `seconds` is how long the load took.
    """

    state: TaskState
    engine: Engine
    stored: StoredTask | None
    seconds: float | None

    @property
    def positions(self) -> Mapping[Log, int]:
        """The next offset to read of each log; none for an empty store."""
        return {} if self.stored is None else self.stored.head.positions

    def unread_logs(self, begins: Mapping[Partition, int]) -> list[Log]:
        """The logs with a next record that expired before this state read it."""
        task = self.engine.task
        return [name for name, at in self.positions.items() if at < begins[name, task]]

    def needs_checkpoint(
        self, begins: Mapping[Partition, int], committed: Mapping[Partition, Committed]
    ) -> bool:
        """Whether the store is empty, behind the group or behind the beginning of a log."""
        if self.stored is None or self.unread_logs(begins):
            return True
        commits = [committed.get((name, self.engine.task)) for name in LOGS]
        return None in commits or self.n_behind(committed) > 0

    def n_behind(self, committed: Mapping[Partition, Committed]) -> int:
        """Offsets of both logs that the group has committed since; 0 for an empty store."""
        positions, task = self.positions.items(), self.engine.task
        commits = ((at, committed.get((name, task))) for name, at in positions)
        return sum(max(0, each.offset - at) for at, each in commits if each)

    def is_behind(self, checkpoint: Checkpoint, begins: Mapping[Partition, int]) -> bool:
        """Whether the checkpoint is further in every log of `unread_logs`."""
        unread = self.unread_logs(begins)
        further = all(checkpoint.head.positions[name] > self.positions[name] for name in unread)
        return bool(unread) and further
