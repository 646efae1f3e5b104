"""What the disk has of a task, before it is known where the task begins."""

from collections.abc import Mapping
from dataclasses import dataclass

from evaluator.core.engine.engine import Engine
from evaluator.core.join.changes import Checkpoint, StoredTask
from evaluator.core.types.records import LOGS, Log
from evaluator.ports import Committed, Partition, StateUnusable
from evaluator.wire.state.checkpoint import CheckpointUnreadable
from evaluator.worker.state import TaskState


@dataclass(frozen=True, slots=True)
class Opened:
    """The state of a task, and its engine with what was *stored* there, if it was.

    `seconds` is how long it took to load that; None if there was nothing.
    """

    state: TaskState
    engine: Engine
    stored: StoredTask | None
    seconds: float | None

    def gone(self, begins: Mapping[Partition, int]) -> list[Log]:
        """The logs whose beginning expired before it was read into this state."""
        if self.stored is None:
            return []
        positions = self.stored.head.positions
        return [name for name in LOGS if positions[name] < begins[name, self.engine.task]]

    def do_without_checkpoint(
        self, unreadable: CheckpointUnreadable, begins: Mapping[Partition, int]
    ) -> None:
        """Raises StateUnusable where nothing tells any more what the task was made of."""
        number = self.engine.task
        expired = [name for name in LOGS if begins[name, number]]
        if self.stored is None and expired:
            raise StateUnusable(
                f"The checkpoint record of task {number} cannot be read ({unreadable}), there is "
                f"no store of it, and the beginning of {' and '.join(expired)} has expired: its "
                "totals would begin at zero, without what is gone. Start the worker that has the "
                "store, or the version that wrote the record; start once with --accept-loss to "
                "count only what the inputs still have."
            ) from unreadable

    def is_stale(self, committed: Mapping[Partition, Committed]) -> bool:
        """Whether others have gone on from here, and may have skipped something."""
        positions = {} if self.stored is None else self.stored.head.positions
        marks = ((committed.get((name, self.engine.task)), at) for name, at in positions.items())
        return any(mark is not None and mark.offset > at for mark, at in marks)

    def overtaken(self, checkpoint: Checkpoint | None, begins: Mapping[Partition, int]) -> bool:
        """Whether this has not read all that expired, and knows less of it than a checkpoint."""
        gone = self.gone(begins)
        if self.stored is None or checkpoint is None or not gone:
            return False
        mine, others = self.stored.head.positions, checkpoint.head.positions
        return all(others[name] > mine[name] for name in gone)
