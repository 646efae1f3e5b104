"""How far the tasks have come that still read what somebody has read before."""

from collections.abc import Iterable
from typing import Final

import structlog

from evaluator.worker.task import Task

SECONDS: Final = 10.0
"""Between two lines about a task."""

log = structlog.get_logger(__name__)


class Progress:
    """Logs now and then how much is left, and how long it will take at the present speed."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, int]] = {}  # when, and how much was left

    def look(self, tasks: Iterable[Task], *, now: float) -> None:
        """Looks at all tasks; sets their `restore_seconds`."""
        for task in tasks:
            if not task.restoring:
                self._seen.pop(task.number, None)
                task.restore_seconds = None
                continue
            left = task.restore_left
            then, before = self._seen.setdefault(task.number, (now, left))
            if now - then < SECONDS:
                continue
            per_second = max(before - left, 0) / (now - then)
            task.restore_seconds = round(left / per_second) if per_second else None
            self._seen[task.number] = now, left
            log.info(
                "task_restoring",
                task=task.number,
                left=left,
                per_second=round(per_second),
                seconds_left=task.restore_seconds,
            )
