"""State stores in memory; they live as long as the process."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from evaluator.ports import StateInUse, StateUnusable
from evaluator.wire.state.task_rows import TABLES, Row, Table

Step = tuple[Table, list[Row] | tuple[bytes, bytes]]
"""Rows to put, or the range of keys to delete."""


class MemoryStateBatch:
    """Implements `evaluator.ports.StateBatch`."""

    def __init__(self, write: Callable[[list["Step"]], None]) -> None:
        self._steps: list[Step] = []
        self._write = write

    def put(self, table: Table, rows: Iterable[Row]) -> None:
        self._steps.append((table, list(rows)))

    def delete_range(self, table: Table, first: bytes, end: bytes) -> None:
        self._steps.append((table, (first, end)))

    def write(self) -> None:
        self._write(self._steps)


class MemoryStateStore:
    """Tables as dicts."""

    def __init__(self, before: "MemoryStateStore | None" = None) -> None:
        self._tables: dict[Table, dict[bytes, bytes]] = (
            {table: {} for table in TABLES} if before is None else before._tables
        )
        self._closed = False

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check()
        return [self._tables[table].get(key) for key in keys]

    def rows(
        self, table: Table, first: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        self._check()
        rows = sorted(self._tables[table].items())
        return iter([row for row in rows if first <= row[0] and (end is None or row[0] < end)])

    def discard_before(self, table: Table, end: bytes) -> None:
        self._write([(table, (b"", end))])

    def batch(self) -> MemoryStateBatch:
        self._check()
        return MemoryStateBatch(self._write)

    def _write(self, steps: list[Step]) -> None:
        self._check()
        for table, step in steps:
            rows = self._tables[table]
            if isinstance(step, tuple):
                step = [(key, None) for key in rows if step[0] <= key < step[1]]  # noqa: PLW2901  # as rows
            for key, value in step:
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = value

    def n_bytes(self) -> int:
        return sum(len(k) + len(v) for rows in self._tables.values() for k, v in rows.items())

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise StateUnusable("the store in memory was closed")


class MemoryStateDirectory:
    """Stores by task. A process that restarts with the same object has its state."""

    def __init__(self) -> None:
        self.stores: dict[int, MemoryStateStore] = {}
        self.quarantined: dict[int, MemoryStateStore] = {}
        self._locked = False

    def hold(self) -> None:
        if self._locked:
            raise StateInUse("the state in memory is in use")
        self._locked = True

    def open(self, task: int) -> MemoryStateStore:
        self.stores[task] = MemoryStateStore(self.stores.get(task))
        return self.stores[task]

    def quarantine(self, task: int) -> str:
        if task not in self.stores:
            raise StateUnusable(f"there is no store of task {task} to quarantine")
        self.quarantined[task] = self.stores.pop(task)
        return f"quarantine of task {task}, in memory"

    def release(self) -> None:
        self._locked = False
