"""One task of the worker: its engine, its positions, its catch-up and its outputs."""

import time
from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import Final, NamedTuple

import structlog

from evaluator.core.engine.engine import Engine
from evaluator.core.event_time.clock import next_log, seconds_of
from evaluator.core.join.changes import Checkpoint
from evaluator.core.types.records import LOGS, JudgmentColumns, Log, RankingColumns
from evaluator.core.types.segments import newly_folded
from evaluator.core.types.tally import Group, GroupedTally, Path
from evaluator.exposition.snapshot import TaskView
from evaluator.ports import Committed, Partition, StateUnusable
from evaluator.wire.records import OutputRecord, Records
from evaluator.wire.state.checkpoint import checkpoint_records, encode_checkpoint
from evaluator.wire.state.origin import commit_metadata, generation_of, note_last
from evaluator.worker.lifecycle import CatchUp
from evaluator.worker.monitoring import RestoreRate, Stages, ValueHistograms
from evaluator.worker.settings import Emission, Wire, WorkerSettings
from evaluator.worker.task_state import TaskState

MAX_CHECKPOINT_SECONDS: Final = 300.0
"""Between two checkpoints of a task, unless checkpoint_interval_ms is longer."""
MIN_JUDGMENTS: Final = 500
"""Smallest limit of a poll of judgments."""
IDLE_POLL_MS: Final = 100
BUSY_POLL_MS: Final = 20
"""Poll timeouts: of the only poll of a turn, and of the last one of several."""

log = structlog.get_logger(__name__)


class _Step(NamedTuple):
    """One step of the catch-up: reads exactly to *limits*, without outputs.

    A step with a *checkpoint* rebuilds the state of that checkpoint. A step that *repeats* writes
    all outputs but dead letters.
    """

    limits: Mapping[Log, int]
    checkpoint: Checkpoint | None = None
    repeats: bool = False


class Task:
    """Partition *number* of both logs.

    During catch-up it reads exactly to the position of its last owner: to the checkpoint, then to
    the committed offsets of the group. The outputs up to there are already written.

    Args:
        state: its rows as of the last commit.
        checkpoint: its checkpoint record. If no state was loaded it is rebuilt from that record,
            and the engine is at the restore offsets.
        loaded_seconds: time to load the state; None if there was none.
        ends: end offset of both logs.
    """

    def __init__(
        self,
        engine: Engine,
        state: TaskState,
        wire: Wire,
        settings: WorkerSettings,
        *,
        checkpoint: Checkpoint | None,
        loaded_seconds: float | None,
        ends: Mapping[Log, int],
        values: ValueHistograms,
    ) -> None:
        self.number = engine.task
        self.engine = engine
        self.state = state
        self.values = values
        self.ends = dict(ends)
        self.committed: dict[Log, int | None] = dict.fromkeys(LOGS)  # as far as known here
        self.idle_since = dict.fromkeys(LOGS, time.monotonic())
        self._wire = wire
        self._settings = settings
        self._loaded_seconds = loaded_seconds
        self._restore_rate = RestoreRate()
        self._state_bytes = state.n_bytes()
        self._first_ends = dict(ends)  # where a run until the end ends
        self._generation = generation_of(engine.origin)
        self._first_checkpoint = None if checkpoint is None else checkpoint.head.positions
        self._checkpoint_due_at = -inf
        self._checkpoint_positions: dict[Log, int] | None = None  # of the last one written
        self._checkpoint_ms: int | None = None  # wall clock; display only
        self._checkpoint_bytes = 0
        self._steps: list[_Step] = []
        if checkpoint is not None and loaded_seconds is None:
            self._steps.append(_Step(checkpoint.head.positions, checkpoint))
        self._counted = GroupedTally() if loaded_seconds is None else self.tally()
        self._counted_all = False
        self._changed = True  # since the last commit
        self._judgments_per_ms = 0.0

    @property
    def positions(self) -> dict[Log, int]:
        """The next offset to read of each log."""
        return self.engine.positions

    # Catch-up

    def can_be_kept(self, committed: Mapping[Partition, Committed]) -> bool:
        """Whether the task can be kept: no other process has committed it meanwhile."""
        return self.restoring or self._offsets_in(committed) == self.committed

    def resume(self, committed: Mapping[Partition, Committed]) -> None:
        """Sets the end of the catch-up: the committed offsets, or the checkpoint if it is further.

        Outputs of another fingerprint are written again; dead letters never are. A checkpoint is
        due at once, because an earlier owner may have written an older one late.
        """
        self._checkpoint_due_at, self._checkpoint_positions = -inf, None
        self.committed = self._offsets_in(committed)
        self._steps = [step for step in self._steps if step.checkpoint is not None]
        start = self._steps[0].limits if self._steps else self.positions
        limits = {
            name: start[name] if offset is None else offset
            for name, offset in self.committed.items()
        }
        commits = [committed.get((name, self.number)) for name in LOGS]
        repeats = any(each is None or each.metadata != self._wire.fingerprint for each in commits)
        known = self._first_checkpoint
        if known is not None and all(known[name] >= limits[name] for name in LOGS):
            limits, repeats = dict(known), False
        ahead = [limits[name] - start[name] for name in LOGS]
        if min(ahead) >= 0 and any(ahead):  # else no owner was at both offsets: outputs may lack
            self._steps.append(_Step(limits, repeats=repeats))

    def _offsets_in(self, committed: Mapping[Partition, Committed]) -> dict[Log, int | None]:
        commits = {name: committed.get((name, self.number)) for name in LOGS}
        return {name: None if each is None else each.offset for name, each in commits.items()}

    @property
    def catch_up(self) -> CatchUp:
        """The catch-up state of the task."""
        if not self._steps:
            return CatchUp.WARM
        return CatchUp.STALE if self._steps[0].checkpoint is None else CatchUp.COLD

    @property
    def restoring(self) -> bool:
        """Whether the task re-reads records."""
        return bool(self._steps)

    @property
    def _limits(self) -> Mapping[Log, int]:
        return self._steps[0].limits if self._steps else {}

    @property
    def restore_left(self) -> int:
        """Offsets of both logs until the catch-up ends."""
        return self._left_to(self._steps[-1].limits if self._steps else {})

    def _left_to(self, limits: Mapping[Log, int]) -> int:
        return sum(max(0, limit - self.positions[name]) for name, limit in limits.items())

    def finish_restoring(self) -> bool:
        """Ends the steps whose limits are reached; True if that ends the catch-up.

        Raises StateUnusable if the inputs do not have the records of the checkpoint.
        """
        if not self._steps:
            return False
        while self._steps and not self._left_to(self._limits):
            checkpoint = self._steps.pop(0).checkpoint
            if checkpoint is not None:
                self._take_over(checkpoint)
        if self.restoring:
            return False
        self._counted, self._counted_all = self.tally(), False
        return True

    def _take_over(self, checkpoint: Checkpoint) -> None:
        self._changed = True
        lost = self.engine.take_over(checkpoint)
        if lost is None:
            return
        if not self._settings.accept_loss:
            none = "no open query is lost, but judgments are, or rankings of reserved keys"
            what = f"{lost} open queries are lost" if lost else none
            raise StateUnusable(
                f"The inputs no longer contain all records needed to rebuild task {self.number}: "
                f"{what}. Give the input topics a longer retention.ms (see `evaluator check`); "
                "start once with --accept-loss to continue without them."
            )
        log.warning("queries_lost", task=self.number, queries=lost)

    def update_restore_rate(self, now: float) -> None:
        """Measures the speed of the catch-up."""
        self._restore_rate.update(self.number, self.restore_left, now=now)

    # Reading

    @property
    def n_unread(self) -> int:
        """Offsets of both logs that are known and not read."""
        return self._left_to(self.ends)

    def wanted(self) -> list[Partition]:
        """The partitions to read next: one while both have unread records, else both.

        During catch-up a log at its limit is not read until the other log reaches its own.
        """
        limits = self._limits or self.ends
        unread = [name for name, limit in limits.items() if limit > self.positions[name]]
        if len(unread) == len(LOGS):
            unread = [next_log(self.engine.clocks_ms, max_lead_ms=self._settings.max_lead_ms)]
            return [(name, self.number) for name in unread]
        return [(name, self.number) for name in (unread if self._limits else LOGS)]

    def judgments_to_read(self) -> int | None:
        """Approximate number of judgments up to the clock of the rankings.

        More of them would be early judgments. None unless judgments are read next and the
        rankings are ahead.
        """
        clocks = self.engine.clocks_ms
        rankings_ms, judgments_ms = clocks["rankings"], clocks["judgments"]
        if self.wanted() != [("judgments", self.number)] or rankings_ms is None:
            return None
        lead_ms = 0 if judgments_ms is None else rankings_ms - judgments_ms
        return max(MIN_JUDGMENTS, int(lead_ms * self._judgments_per_ms)) if lead_ms >= 0 else None

    @property
    def reached_first_ends(self) -> bool:
        """Whether all records that existed when the task was taken over are read."""
        return not self.restoring and all(self.positions[n] >= self._first_ends[n] for n in LOGS)

    def within_limit(self, records: Records) -> Records:
        """The part of these records before the limit of the catch-up."""
        limit = self._limits.get(records.log)
        if limit is None or records.next_offset <= limit:
            return records
        return records.rows(records.offsets < limit, limit)

    def receive(self, batches: Iterable[Records], stages: Stages, now: float) -> Emission:
        """Processes the next records of one or both logs; returns their outputs."""
        rankings: RankingColumns | None = None
        judgments: JudgmentColumns | None = None
        before = self.engine.clocks_ms
        for records in batches:
            if records.log == "rankings":
                rankings = self._wire.rankings(records)
            else:
                judgments = self._wire.judgments(records)
            if len(records):
                if records.log not in self._wire.stages:
                    self.idle_since[records.log] = now
                note_last(self.engine.origin, records)
        stages.end("decode")
        self._changed = True
        before_ms = before["judgments"]
        outputs = self.engine.receive(rankings, judgments)
        clocks = self.engine.clocks_ms
        self.idle_since.update((log, now) for log in LOGS if clocks[log] != before[log])
        if not self.restoring:
            self.values.add(outputs.settled, rankings=rankings, judgments=judgments)
        passed_ms = (self.engine.clocks_ms["judgments"] or 0) - (before_ms or 0)
        if judgments is not None and before_ms is not None and passed_ms:
            self._judgments_per_ms = judgments.n_read / passed_ms
        stages.end("receive")
        emission: Emission = {}
        if not self._steps or self._steps[0].repeats:
            emission = self._wire.encode(outputs, self.number, self._generation)
        if self._steps:
            emission.pop(("dead-letters", self.number), None)
        stages.end("encode")
        return emission

    def needs_heartbeat(self, name: Log, *, now: float, broker_ms: int) -> bool:
        """Whether a log is read to its end and idle for `idle_ms`, and its clock is recent."""
        idle_for_ms = (now - self.idle_since[name]) * 1000
        at_end = self.positions[name] >= self.ends[name]
        if self.restoring or not at_end or idle_for_ms < self._settings.idle_ms:
            return False
        clocks = self.engine.clocks_ms
        other: Log = "judgments" if name == "rankings" else "rankings"
        clock_ms = clocks[name] if clocks[name] is not None else clocks[other]
        return clock_ms is not None and broker_ms - clock_ms <= self._settings.heartbeat_max_gap_ms

    # Committing and showing

    def commit(self) -> None:
        """Makes all received records durable. Raises StateUnusable."""
        if self._changed:
            self.state.commit(self.engine, complete=self.catch_up is not CatchUp.COLD)
            self._changed = False

    def commits(self) -> dict[Partition, Committed]:
        """The offsets to commit to the group; none during catch-up."""
        if self.restoring:
            return {}
        fingerprint, origin = self._wire.fingerprint, self.engine.origin
        return {
            (name, self.number): Committed(at, commit_metadata(fingerprint, origin, name))
            for name, at in self.positions.items()
        }

    def checkpoint(self, *, now: float, at_once: bool) -> list[OutputRecord]:
        """The checkpoint records to write, if due or *at_once*; none if no position has changed.

        A checkpoint of several parts delays the next one by as many intervals. Raises StateUnusable
        if the store exceeds `max_store_bytes`.
        """
        due = at_once or now >= self._checkpoint_due_at
        if self.restoring or not due or self._checkpoint_positions == self.positions:
            return []
        value = encode_checkpoint(self.engine.checkpoint())
        records = checkpoint_records(self.number, self._wire.fingerprint, value)
        interval = seconds_of(self._settings.checkpoint_interval_ms)
        longest = max(interval, MAX_CHECKPOINT_SECONDS)
        self._checkpoint_due_at = now + min(len(records) * interval, longest)
        self._checkpoint_positions = dict(self.positions)
        self._checkpoint_ms = time.time_ns() // 1_000_000
        self._checkpoint_bytes = len(value)
        self._measure_state()
        return records

    def _measure_state(self) -> None:
        self._state_bytes, max_bytes = self.state.n_bytes(), self._settings.max_store_bytes
        if 0 < max_bytes < self._state_bytes:
            raise StateUnusable(
                f"The state of task {self.number} takes {self._state_bytes} bytes, more than "
                f"max_store_bytes ({max_bytes}) allows. Raise that limit, or keep queries open for "
                "less time (retention_ms)."
            )

    def tally(self) -> GroupedTally:
        """Every count and sum of this task, with its value histograms."""
        return self.values.added_to(self.engine.tally())

    def count_into(self, counters: dict[Group, Mapping[Path, int]], tally: GroupedTally) -> None:
        """Adds the increase since the last call to *counters*; a new series begins at zero.

        Replaces only the groups with an increase. During catch-up nothing increases.
        """
        folded = newly_folded(self._counted, tally)
        for group, part in tally.groups.items():
            if (before := self._counted.groups.get(group, {})) is part and self._counted_all:
                continue
            counts = counters[group] = dict(counters.get(group, {}))
            for path, n in part.items():
                grown = 0 if self.restoring else n - before.get(path, 0) - folded.get(path, 0)
                counts[path] = counts.get(path, 0) + grown
        self._counted, self._counted_all = tally, True

    def view(self, tally: GroupedTally) -> TaskView:
        """The task as it is now."""
        return TaskView(
            task=self.number,
            positions=dict(self.positions),
            end_offsets=dict(self.ends),
            clocks_ms=dict(self.engine.clocks_ms),
            watermark_ms=self.engine.watermark_ms,
            n_open=self.engine.n_open,
            memory_tier_bytes=self.engine.memory_tier_bytes + self.state.n_bytes_in_memory,
            n_early=self.engine.n_early,
            restoring=self.restoring,
            restore_left=self.restore_left,
            restore_seconds=self._restore_rate.seconds_left,
            loaded_seconds=self._loaded_seconds,
            state_bytes=self._state_bytes,
            checkpoint_ms=self._checkpoint_ms,
            checkpoint_bytes=self._checkpoint_bytes,
            tally=tally,
        )


Read = tuple[list[Partition], int, int]
"""Arguments of one poll: partitions, max_records, timeout_ms."""


def next_reads(tasks: Collection[Task], *, turn: int, max_records: int) -> list[Read]:
    """The polls of a turn; each is made if the earlier ones returned no records.

    All tasks that read without a limit share one poll. A task with rankings ahead reads judgments
    up to about their clock in a separate poll, because a poll fills its first partition first. The
    order rotates with *turn*.
    """
    limits = {task.number: task.judgments_to_read() for task in tasks}
    shared = [
        partition for task in tasks if limits[task.number] is None for partition in task.wanted()
    ]
    reads = [(shared, max_records)] if shared else []
    for task in tasks:
        limit = limits[task.number]
        if limit is not None:
            reads.append((task.wanted(), min(limit, max_records)))
    if len(reads) <= 1:
        return [(*read, IDLE_POLL_MS) for read in reads or [([], max_records)]]
    first = turn % len(reads)
    rotated = reads[first:] + reads[:first]
    return [*((*read, 0) for read in rotated), (*rotated[0], BUSY_POLL_MS)]
