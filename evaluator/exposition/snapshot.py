"""The immutable state of a worker for scrapes, `/status` and the live page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from evaluator.core.types.records import LOGS, Log
from evaluator.core.types.tally import GroupedTally, Path, Tally


class TaskView(Struct, frozen=True):
    """One task as of one commit."""

    task: int
    positions: Mapping[Log, int]  # next offset to read
    end_offsets: Mapping[Log, int | None]  # the latest that the broker reported
    clocks_ms: Mapping[Log, int | None]
    watermark_ms: int | None
    n_open: int
    memory_tier_bytes: int
    n_early: int
    restoring: bool  # re-reads committed records
    tally: GroupedTally
    restore_left: int = 0  # offsets of both logs until restoring ends
    restore_seconds: int | None = None  # estimate until restoring ends
    loaded_seconds: float | None = None  # duration of loading its state; None if it was not loaded
    state_bytes: int = 0  # of its store
    checkpoint_ms: int | None = None  # wall clock of its last checkpoint record; display only
    checkpoint_bytes: int = 0


class StoreSnapshot(NamedTuple):
    """The last snapshot of the store of a task; before the first the time is its take-over."""

    written_ms: int  # wall clock; display only
    n_bytes: int


class Resources(NamedTuple):
    """Limits, free space and use in bytes; None without a limit or if unknown."""

    memory_limit: int | None = None
    disk_free: int | None = None
    state_limit: int | None = None
    resident: int | None = None


class Exemplar(NamedTuple):
    """A query behind a count: its trace, and its value in units of 2^-40."""

    trace_id: str
    value_units: int


class WorstQuery(NamedTuple):
    """A settled query with a low value, in units of 2^-40."""

    value_units: int
    event_time_ms: int
    trace_id: str
    node_id: str


class Snapshot(Struct, frozen=True):
    """Every task of a worker as of its last commit.

    `counters` are the counts of committed work of this process; each is at least that of an earlier
    snapshot. `exemplars` have the keys of counters. `process_counts` are events of the process:
    ("rebalances",), ("commits", outcome), ("quarantined_stores", task), ("snapshot_failures",
    operation), ("snapshot_bytes", direction). `store_snapshots` are those of the tasks, if they are
    on. `skew_ms` is how far the clock of this machine is ahead of the broker's, None if that is
    unknown. `worst` has recent queries by model, variant and measure, the lowest value first.
    """

    tasks: tuple[TaskView, ...] = ()
    counters: GroupedTally = field(default_factory=GroupedTally)
    last_commit_ms: int | None = None  # wall clock; display only
    exemplars: Mapping[Path, Exemplar] = field(default_factory=dict)
    process_counts: Tally = field(default_factory=dict)
    skew_ms: int | None = None
    store_snapshots: Mapping[int, StoreSnapshot] = field(default_factory=dict)
    worst: Mapping[tuple[str, str, str], Sequence[WorstQuery]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[TaskView]:
        return iter(self.tasks)

    def clocks_ahead_ms(self) -> dict[tuple[Log, int], int]:
        """How far the clock of each log was ahead of the broker's at that commit, at least 0.

        If the broker's clock is unknown, that of this machine is used.
        """
        if self.last_commit_ms is None:
            return {}
        broker_ms = self.last_commit_ms - (self.skew_ms or 0)
        clocks = ((log, view.task, view.clocks_ms.get(log)) for view in self for log in LOGS)
        return {(log, task): max(0, ms - broker_ms) for log, task, ms in clocks if ms is not None}
