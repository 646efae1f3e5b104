"""State machines of the worker and of the catch-up of a task, with their transition tables."""

from collections.abc import Mapping
from enum import Enum
from typing import Final, Generic, TypeVar


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
    """Progress of a task that was taken over towards the position of its last owner."""

    COLD = "cold"
    """It rebuilds its state from a checkpoint record; its counts are incomplete."""
    STALE = "stale"
    """Its state is complete; it reads records that were processed before, without outputs."""
    WARM = "warm"
    """It reads new records."""


WORKER_TRANSITIONS: Final[Mapping[WorkerState, frozenset[WorkerState]]] = {
    WorkerState.CONNECTING: frozenset(
        {WorkerState.RESTORING, WorkerState.HANDING_OVER, WorkerState.STOPPING}
    ),
    WorkerState.RESTORING: frozenset(
        {WorkerState.RUNNING, WorkerState.HANDING_OVER, WorkerState.STOPPING}
    ),
    WorkerState.RUNNING: frozenset(
        {WorkerState.RESTORING, WorkerState.HANDING_OVER, WorkerState.STOPPING}
    ),
    WorkerState.HANDING_OVER: frozenset({WorkerState.RESTORING, WorkerState.STOPPING}),
    WorkerState.STOPPING: frozenset(),
}
CATCH_UP_TRANSITIONS: Final[Mapping[CatchUp, frozenset[CatchUp]]] = {
    CatchUp.COLD: frozenset({CatchUp.STALE, CatchUp.WARM}),
    CatchUp.STALE: frozenset({CatchUp.WARM}),
    CatchUp.WARM: frozenset({CatchUp.STALE}),
}

S = TypeVar("S", bound=Enum)


class IllegalTransition(RuntimeError):
    """A transition outside the table."""


class StateMachine(Generic[S]):
    """The current state, and the legal transitions."""

    def __init__(self, transitions: Mapping[S, frozenset[S]], initial: S) -> None:
        self._transitions = transitions
        self.state = initial

    def to(self, state: S) -> None:
        """Enters *state*; no effect if it is the current one. Raises IllegalTransition."""
        if state is self.state:
            return
        if state not in self._transitions[self.state]:
            raise IllegalTransition(f"{self.state} to {state} is not a legal transition")
        self.state = state
