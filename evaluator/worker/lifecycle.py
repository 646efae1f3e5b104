"""The states of a worker, with their transition table, and of the catch-up of a task."""

import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from evaluator.core.types.transitions import IllegalTransition

SLOW_REBALANCE_SECONDS: Final = 5.0


class WorkerState(Enum):
    """The state of a worker."""

    CONNECTING = "connecting"
    """It waits for the broker, or for its first assignment."""
    RESTORING = "restoring"
    """It takes over tasks, or one of its tasks is not warm."""
    RUNNING = "running"
    """All assigned tasks are warm."""
    HANDING_OVER = "handing over"
    """It commits and releases its tasks, and waits for the next assignment."""
    STOPPING = "stopping"
    """It commits its tasks and closes."""


class CatchUp(Enum):
    """Progress of a task that was taken over towards the position of its last owner.

    A state that has become complete stays so: the only way to COLD is to open the task again.
    """

    COLD = "cold"
    """It rebuilds its state from a checkpoint record; its counts are incomplete."""
    STALE = "stale"
    """Its state is complete; it reads records that were processed before, without outputs."""
    WARM = "warm"
    """It reads new records."""


_RELEASING: Final = frozenset({WorkerState.HANDING_OVER, WorkerState.STOPPING})
WORKER_TRANSITIONS: Final[Mapping[WorkerState, frozenset[WorkerState]]] = {
    WorkerState.CONNECTING: _RELEASING | {WorkerState.RESTORING},
    WorkerState.RESTORING: _RELEASING | {WorkerState.RUNNING},
    WorkerState.RUNNING: _RELEASING | {WorkerState.RESTORING},
    WorkerState.HANDING_OVER: frozenset({WorkerState.RESTORING, WorkerState.STOPPING}),
    WorkerState.STOPPING: frozenset(),
}


class Lifecycle:
    """The current state of a worker, and its legal transitions."""

    def __init__(
        self,
        initial: WorkerState = WorkerState.CONNECTING,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = initial
        self._monotonic = monotonic
        self._since = monotonic()

    @property
    def slow_rebalance(self) -> list[str]:
        """The reason why a worker is not ready whose group takes long to assign its tasks."""
        seconds = self._monotonic() - self._since
        if self.state is not WorkerState.HANDING_OVER or seconds <= SLOW_REBALANCE_SECONDS:
            return []
        return [f"its group has been assigning tasks for {seconds:.0f} s"]

    def to(self, state: WorkerState) -> None:
        """Enters *state*; no effect if it is the current one. Raises IllegalTransition."""
        if state is self.state:
            return
        if state not in WORKER_TRANSITIONS[self.state]:
            raise IllegalTransition(f"{self.state} to {state} is not a legal transition")
        self.state, self._since = state, self._monotonic()
