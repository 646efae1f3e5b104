"""When to tell the others how far each task has come."""

import time
from collections.abc import Iterable

from evaluator.core.types import Log
from evaluator.wire.checkpoint import checkpoint_key, encode_checkpoint
from evaluator.wire.records import CHECKPOINTS, OutputRecord
from evaluator.worker.task import Emission, Task


class Checkpoints:
    """Checkpoint records of the tasks as of their last commit, a while apart.

    With each of them it is looked how large the store is: past *max_store_bytes*, if that is not
    0, StateUnusable is raised.
    """

    def __init__(self, *, lineage: str, interval_ms: int, max_store_bytes: int) -> None:
        self._lineage = lineage
        self._max_store_bytes = max_store_bytes
        self._interval_seconds = interval_ms / 1000
        self._told: dict[int, tuple[float, dict[Log, int]]] = {}

    def due(self, tasks: Iterable[Task], *, now: float, at_once: bool) -> Emission:
        """The records to be written now; none of a task that stands where it was told last."""
        emission: Emission = {}
        for task in tasks:
            told_at, positions = self._told.get(task.number, (-self._interval_seconds, None))
            waited = now - told_at >= self._interval_seconds
            if task.restoring or positions == task.positions or not (waited or at_once):
                continue
            value = encode_checkpoint(task.engine.checkpoint())
            record = OutputRecord(checkpoint_key(task.number, self._lineage), value)
            emission[CHECKPOINTS, task.number] = [record]
            self._told[task.number] = now, dict(task.positions)
            task.checkpoint_ms = time.time_ns() // 1_000_000
            task.checkpoint_bytes = len(value)
            task.measure_state(self._max_store_bytes)
        return emission

    def forget(self) -> None:
        """Tells of all tasks anew: an earlier owner may have told late of less."""
        self._told.clear()
