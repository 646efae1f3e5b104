"""Disks that outlive processes: stores that keep every batch, so that they can lose some."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from evaluator.adapters.memory.state import MemoryStateBatch, MemoryStateStore, Step
from evaluator.ports import StateInUse, StateUnusable
from evaluator.wire.state.task_rows import StateDamaged, Table

MOST_LOST = 100
"""Batches that are lost with a torn log."""


class Holder(Protocol):
    """The process that holds a disk."""

    @property
    def dead(self) -> bool:
        """Whether it has ended, so that its calls have no effect."""

    def boundary(self, name: str) -> None:
        """Raises if the process ends here."""

    def happens(self, fault: str) -> bool:
        """Whether a possible fault occurs here."""


class RememberingStore(MemoryStateStore):
    """The present rows, and all batches that wrote them."""

    def __init__(self, batches: Iterable[list[Step]] = ()) -> None:
        super().__init__()
        self.batches: list[list[Step]] = []
        self._discarded: list[tuple[int, Table, bytes]] = []  # with the batches written until then
        for batch in batches:
            self._write(batch)

    def _write(self, steps: list[Step]) -> None:
        super()._write(steps)
        self.batches.append(steps)

    def discard_later(self, table: Table, end: bytes) -> None:
        """Deletes rows once no torn log can restore a batch that needs them."""
        self._discarded.append((len(self.batches), table, end))
        while self._discarded[0][0] + MOST_LOST <= len(self.batches):
            _, of, before = self._discarded.pop(0)
            MemoryStateStore._write(self, [(of, (b"", before))])


class Disk:
    """The stores of one machine."""

    def __init__(self) -> None:
        self.stores: dict[int, RememberingStore] = {}
        self.holder: Holder | None = None

    def lose_last(self, n_batches: int) -> None:
        """Cuts the ends of the write-ahead logs: each store returns to an earlier state."""
        self.stores = {
            task: RememberingStore(store.batches[: max(0, len(store.batches) - n_batches)])
            for task, store in self.stores.items()
        }

    def delete(self) -> None:
        self.stores = {}


class OpenStore:
    """Implements `evaluator.ports.StateStore` for one process."""

    def __init__(self, life: Holder, store: RememberingStore) -> None:
        self._life = life
        self._store = store

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        self._look()
        return self._store.get(table, keys)

    def rows(
        self, table: Table, first: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        self._look()
        return self._store.rows(table, first, end)

    def discard_before(self, table: Table, end: bytes) -> None:
        self._store.discard_later(table, end)

    def _look(self) -> None:
        self._life.boundary("store read")
        if self._life.happens("damage"):
            raise StateDamaged("a block of the simulated store has another checksum")

    def batch(self) -> MemoryStateBatch:
        return MemoryStateBatch(self._write)

    def _write(self, steps: list[Step]) -> None:
        self._life.boundary("store write")
        if self._life.happens("disk full"):
            raise StateUnusable("simulated: no space is left")
        self._store._write(steps)
        self._life.boundary("store written")
        if self._life.happens("disk full, written"):
            raise StateUnusable("simulated: an error, and yet all is there")

    def n_bytes(self) -> int:
        return self._store.n_bytes()

    def close(self) -> None:
        """Written rows stay."""


class HeldDisk:
    """Implements `evaluator.ports.StateDirectory` for one process."""

    def __init__(self, life: Holder, disk: Disk) -> None:
        self._life = life
        self._disk = disk

    def hold(self) -> None:
        holder = self._disk.holder
        if holder is not None and not holder.dead:
            raise StateInUse("another simulated process has the disk")
        self._disk.holder = self._life

    def open(self, task: int) -> OpenStore:
        self._life.boundary("store open")
        return OpenStore(self._life, self._disk.stores.setdefault(task, RememberingStore()))

    def quarantine(self, task: int) -> str:
        self._life.boundary("quarantine")
        self._disk.stores.pop(task)
        return "aside"

    def release(self) -> None:
        if self._disk.holder is self._life:
            self._disk.holder = None
