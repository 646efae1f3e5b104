"""Decides when the checkpoint record and the offsets of each task are written."""

import time
from collections.abc import Iterable
from typing import Final

from evaluator.core.event_time.clock import seconds_of
from evaluator.core.types.records import LOGS, Log
from evaluator.ports import Committed, Partition
from evaluator.wire.records import CHECKPOINTS
from evaluator.wire.state.checkpoint import checkpoint_records, encode_checkpoint
from evaluator.wire.state.origin import commit_metadata
from evaluator.worker.settings import Emission
from evaluator.worker.task import Task

MAX_WAIT_SECONDS: Final = 300.0
"""Between two checkpoints of a task, unless checkpoint_interval_ms is longer."""


def commits_of(tasks: Iterable[Task], fingerprint: str) -> dict[Partition, Committed]:
    """Offsets to commit, of the warm tasks; they show lag and the progress of an owner."""
    return {
        (log, task.number): Committed(
            task.positions[log], commit_metadata(fingerprint, task.engine.origin, log)
        )
        for task in tasks
        if not task.restoring
        for log in LOGS
    }


class Checkpoints:
    """Checkpoint records of the tasks as of their last commit, one per interval.

    A checkpoint of several parts waits as many intervals as it has parts, at most
    MAX_WAIT_SECONDS. The size of the store is checked with each of them.
    """

    def __init__(self, *, fingerprint: str, interval_ms: int, max_store_bytes: int) -> None:
        self._fingerprint = fingerprint
        self._max_store_bytes = max_store_bytes
        self._interval_seconds = seconds_of(interval_ms)
        self._written: dict[int, tuple[float, dict[Log, int] | None]] = {}  # due at; positions

    def due(self, tasks: Iterable[Task], *, now: float, at_once: bool) -> Emission:
        """The records to write now; none of a task whose positions have not changed.

        Raises StateUnusable if a store exceeds *max_store_bytes*, unless that is 0.
        """
        emission: Emission = {}
        for task in tasks:
            due_at, positions = self._written.get(task.number, (now, None))
            if task.restoring or positions == task.positions or not (now >= due_at or at_once):
                continue
            value = encode_checkpoint(task.engine.checkpoint())
            records = checkpoint_records(task.number, self._fingerprint, value)
            emission[CHECKPOINTS, task.number] = records
            longest = max(self._interval_seconds, MAX_WAIT_SECONDS)
            wait_seconds = min(len(records) * self._interval_seconds, longest)
            self._written[task.number] = now + wait_seconds, dict(task.positions)
            task.checkpoint_ms = time.time_ns() // 1_000_000
            task.checkpoint_bytes = len(value)
            task.measure_state(self._max_store_bytes)
        return emission

    def reset(self) -> None:
        """Makes all tasks due: an earlier owner may have written an older record late."""
        self._written.clear()
