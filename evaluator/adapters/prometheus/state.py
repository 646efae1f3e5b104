"""What is told of durable state: stores, checkpoints, and who owns what."""

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import Metric

from evaluator.adapters.prometheus.specs import (
    CHECKPOINT,
    CHECKPOINT_BYTES,
    COMMITS,
    HELD_BYTES,
    REBALANCES,
    RESTORE_LEFT,
    SET_ASIDE,
    STATE_BYTES,
    Samples,
    family_of,
)
from evaluator.core.types import Snapshot, TaskView

SET_ASIDE_COUNT = "states_set_aside"
OUTCOMES = ("committed", "refused")


def state_families(snapshot: Snapshot) -> Iterator[Metric]:
    """The families of durable state, in the order of SPECS; a task keeps those of counters."""
    counts = snapshot.process_counts
    checkpoints = (
        ((str(view.task),), view.checkpoint_ms / 1000)
        for view in snapshot
        if view.checkpoint_ms is not None
    )
    yield family_of(CHECKPOINT, checkpoints)
    yield family_of(CHECKPOINT_BYTES, _by_task(snapshot, lambda view: view.checkpoint_bytes))
    yield family_of(STATE_BYTES, _by_task(snapshot, lambda view: view.state_bytes))
    yield family_of(HELD_BYTES, _by_task(snapshot, lambda view: view.held_bytes))
    yield family_of(RESTORE_LEFT, _by_task(snapshot, lambda view: view.restore_left))
    yield family_of(
        SET_ASIDE, ((key[1:], n) for key, n in counts.items() if key[0] == SET_ASIDE_COUNT)
    )
    yield family_of(REBALANCES, [((), counts.get(("rebalances",), 0))])
    yield family_of(COMMITS, (((each,), counts.get(("commits", each), 0)) for each in OUTCOMES))


def _by_task(snapshot: Snapshot, figure: Callable[[TaskView], int]) -> Samples:
    return (((str(view.task),), figure(view)) for view in snapshot)
