"""One task of the worker: its engine, how far it has read, and what it may say."""

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog

from evaluator.core.engine.engine import Engine
from evaluator.core.event_time.clock import next_log
from evaluator.core.join.changes import Checkpoint
from evaluator.core.measures import MeasureSet
from evaluator.core.types.records import (
    LOGS,
    JudgmentColumns,
    Log,
    Outputs,
    RankingColumns,
    Tally,
    TaskView,
)
from evaluator.ports import Committed, Partition, StateUnusable
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.wire.outputs.encoding import (
    encode_dead_letters,
    encode_evaluations,
    encode_settled,
    encode_watermark,
    encode_windows,
)
from evaluator.wire.records import (
    FINGERPRINT_HEADER,
    GENERATION_HEADER,
    OUTPUTS,
    Output,
    OutputRecord,
    Records,
)
from evaluator.wire.state.origin import generation_of, note_last
from evaluator.worker.stages import Stages
from evaluator.worker.state import TaskState
from evaluator.worker.values import ValueHistograms

Emission = dict[tuple[Output, int], list[OutputRecord]]
SAID_BEFORE: Final[tuple[Output, ...]] = OUTPUTS
SAID_ONCE: Final[tuple[Output, ...]] = ("dead-letters",)
FEWEST_JUDGMENTS: Final = 500
"""A reading of judgments never asks for fewer, or the tail of a log would come in crumbs."""
LOST_BUT_NO_QUERY: Final = (
    "it holds no fewer queries, but judgments are lost, or rankings that had taken a key"
)

log = structlog.get_logger(__name__)

OTHER: Final[Mapping[Log, Log]] = {"rankings": "judgments", "judgments": "rankings"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How bytes become columns and columns bytes."""

    measures: MeasureSet
    max_future_skew_ms: int
    maturity_ms: int
    window_ms: int
    emit_query: bool
    topic_names: Mapping[Log, str]
    features: bool = False  # kept of rankings, for somebody learns
    fingerprint: str = ""  # a header of `settled`, with `learning` on

    def rankings(self, records: Records) -> RankingColumns:
        """Columns of records of `rankings`."""
        return decode_rankings(
            records, max_future_skew_ms=self.max_future_skew_ms, features=self.features
        )

    def judgments(self, records: Records) -> JudgmentColumns:
        """Columns of records of `judgments`."""
        return decode_judgments(records, max_future_skew_ms=self.max_future_skew_ms)

    def encode(
        self, outputs: Outputs, task: int, generation: str, *, but: Container[Output] = ()
    ) -> Emission:
        """The records of what one batch of a task gave rise to, without the outputs *but*."""
        encoders: dict[Output, Callable[[], list[OutputRecord]]] = {
            "evaluations": lambda: encode_evaluations(
                outputs.evaluations, self.measures, emit_query=self.emit_query
            ),
            "settled": lambda: self._settled(outputs, task, generation),
            "windows": lambda: encode_windows(
                outputs.windows, self.measures, window_ms=self.window_ms, task=task
            ),
            "dead-letters": lambda: encode_dead_letters(
                outputs.dead_letters, self.topic_names, partition=task
            ),
        }
        said = {name: encode() for name, encode in encoders.items() if name not in but}
        return {(name, task): records for name, records in said.items() if records}

    def _settled(self, outputs: Outputs, task: int, generation: str) -> list[OutputRecord]:
        records = encode_settled(
            outputs.settled, self.measures, task=task, maturity_ms=self.maturity_ms
        )
        headers: tuple[tuple[str, bytes], ...] = ((GENERATION_HEADER, generation.encode()),)
        if self.features:
            headers += ((FINGERPRINT_HEADER, self.fingerprint.encode()),)
            records += encode_watermark(outputs.watermark_record, task=task)
        return [OutputRecord(key, value, headers) for key, value, _ in records]


@dataclass(frozen=True, slots=True)
class _CatchUp:
    """A way back to where somebody has been: exactly to these offsets, without these outputs."""

    limits: Mapping[Log, int]
    quiet: frozenset[Output]
    checkpoint: Checkpoint | None = None


class Task:
    """Partition *number* of both logs.

    While restoring it reads exactly up to where somebody had been before: to its checkpoint, then
    to what the group had committed. Its outputs up to there are already written.

    Args:
        state: its queries that are not in memory, and all else, as of the last commit.
        checkpoint: the record of it. If nothing was loaded, it is rebuilt from that, and the
            engine stands at its restore offsets.
        accept_loss: go on if the inputs no longer contain all records of the checkpoint.
        loaded_seconds: how long the engine took to load what the disk had; None if it had nothing.
        positions, ends: next offset to read, and end, of both logs.
    """

    def __init__(
        self,
        engine: Engine,
        state: TaskState,
        *,
        checkpoint: Checkpoint | None,
        accept_loss: bool,
        loaded_seconds: float | None,
        positions: Mapping[Log, int],
        ends: Mapping[Log, int],
        max_lead_ms: int,
        now: float,
        values: ValueHistograms,
    ) -> None:
        self.number = engine.task
        self.engine = engine
        self.state = state
        self.checkpoint_ms: int | None = None  # wall clock, for people only
        self.checkpoint_bytes = 0
        self.loaded_seconds = loaded_seconds
        self.restore_seconds: int | None = None  # about how long that will take
        self.state_bytes = state.n_bytes()
        self._accept_loss = accept_loss
        self.values = values
        self.positions = dict(positions)
        self.ends = dict(ends)
        self.goals = dict(ends)  # what a run until the end has to reach
        self.committed: dict[Log, int | None] = dict.fromkeys(LOGS)  # as far as is known here
        self._generation = generation_of(engine.origin)
        self._max_lead_ms = max_lead_ms
        self._ways: list[_CatchUp] = []
        self._told = None if checkpoint is None else dict(checkpoint.head.positions)
        if self._told is not None and loaded_seconds is None:
            self._ways.append(_CatchUp(self._told, frozenset(SAID_BEFORE), checkpoint))
        self._counted: Tally = {} if loaded_seconds is None else self.tally()
        self._judgments_per_ms = 0.0
        self.quiet_since = dict.fromkeys(LOGS, now)

    # Reading

    def untouched(self, committed: Mapping[Partition, Committed]) -> bool:
        """Whether nobody else has gone on with this task, so that its counts may go on here."""
        return self.restoring or self._known(committed) == self.committed

    def resume(self, committed: Mapping[Partition, Committed], *, fingerprint: str) -> None:
        """Makes it read quietly, before all else, up to what the group has committed of it, or
        to its checkpoint where that is known and further.

        Outputs of another fingerprint are written again; dead letters never are.
        """
        self.committed = self._known(committed)
        rebuild = [way for way in self._ways if way.checkpoint is not None]
        self._ways = rebuild
        from_here = rebuild[0].limits if rebuild else self.positions
        limits = {
            log: from_here[log] if offset is None else offset
            for log, offset in self.committed.items()
        }
        commits = [committed.get((log, self.number)) for log in LOGS]
        same = all(commit is not None and commit.metadata == fingerprint for commit in commits)
        if self._told is not None and all(self._told[log] >= limits[log] for log in LOGS):
            limits, same = self._told, True
        ahead = [limits[log] - from_here[log] for log in LOGS]
        if min(ahead) < 0 or not any(ahead):
            return  # no owner was at both offsets, so outputs can be missing
        self._ways.append(_CatchUp(limits, frozenset(SAID_BEFORE if same else SAID_ONCE)))

    def _known(self, committed: Mapping[Partition, Committed]) -> dict[Log, int | None]:
        commits = {log: committed.get((log, self.number)) for log in LOGS}
        return {log: None if each is None else each.offset for log, each in commits.items()}

    @property
    def restoring(self) -> bool:
        """Whether it still reads what somebody had read before."""
        return bool(self._ways)

    @property
    def rebuilding(self) -> bool:
        """Whether its counts are not the task's yet, but begin somewhere in the middle."""
        return bool(self._ways) and self._ways[0].checkpoint is not None

    @property
    def _limits(self) -> Mapping[Log, int]:
        return self._ways[0].limits if self._ways else {}

    @property
    def _quiet(self) -> frozenset[Output]:
        return self._ways[0].quiet if self._ways else frozenset()

    def wanted(self) -> list[Partition]:
        """The partitions to read next: one while both have unread records, else both.

        While restoring, a log that has come to its limit is not read until the other has too.
        """
        goals = self._limits or self.ends
        unread = [log for log, goal in goals.items() if goal > self.positions[log]]
        if len(unread) == len(LOGS):
            unread = [next_log(self.engine.clocks_ms, max_lead_ms=self._max_lead_ms)]
            return [(log, self.number) for log in unread]
        return [(log, self.number) for log in (unread if self._limits else LOGS)]

    def judgments_ahead(self) -> int | None:
        """About how many judgments there are up to the clock of the rankings that lead.

        Reading more would only let them wait for rankings that come next. None while it is not
        the turn of the judgments, or rankings are read to their end.
        """
        clocks = self.engine.clocks_ms
        rankings_ms, judgments_ms = clocks["rankings"], clocks["judgments"]
        if self.wanted() != [("judgments", self.number)] or rankings_ms is None:
            return None
        lead_ms = 0 if judgments_ms is None else rankings_ms - judgments_ms
        return (
            max(FEWEST_JUDGMENTS, int(lead_ms * self._judgments_per_ms)) if lead_ms >= 0 else None
        )

    def at_end(self, log: Log) -> bool:
        """Whether everything that is known to be in a log was read."""
        return self.positions[log] >= self.ends[log]

    @property
    def reached_goals(self) -> bool:
        """Whether everything was read that was there when the task was taken over."""
        return not self.restoring and all(self.positions[log] >= self.goals[log] for log in LOGS)

    def within_limit(self, records: Records) -> Records:
        """The part of these records that may be received now."""
        limit = self._limits.get(records.log)
        if limit is None or records.next_offset <= limit:
            return records
        kept = slice(bisect_left(records.offsets, limit))
        return replace(
            records,
            offsets=records.offsets[kept],
            keys=records.keys[kept],
            values=records.values[kept],
            timestamps_ms=records.timestamps_ms and records.timestamps_ms[kept],
            next_offset=limit,
        )

    # Receiving

    def receive(
        self, batches: Iterable[Records], wire: Wire, stages: Stages, now: float
    ) -> Emission:
        """Takes the next records of one or both logs; returns their outputs."""
        rankings: RankingColumns | None = None
        judgments: JudgmentColumns | None = None
        for records in batches:
            if records.log == "rankings":
                rankings = wire.rankings(records)
            else:
                judgments = wire.judgments(records)
            self.positions[records.log] = records.next_offset
            if len(records):
                self.quiet_since[records.log] = now
                note_last(self.engine.origin, records)
        stages.end("decode")
        before_ms = self.engine.clocks_ms["judgments"]
        outputs = self.engine.receive(rankings, judgments)
        if not self.restoring:
            self.values.add(outputs.settled, rankings=rankings, judgments=judgments)
        passed_ms = (self.engine.clocks_ms["judgments"] or 0) - (before_ms or 0)
        if judgments is not None and before_ms is not None and passed_ms:
            self._judgments_per_ms = judgments.n_read / passed_ms
        stages.end("receive")
        emission = wire.encode(outputs, self.number, self._generation, but=self._quiet)
        stages.end("encode")
        return emission

    def finish_restoring(self) -> bool:
        """Whether the last way back has just ended; from now on everything counts.

        Raises StateUnusable if the inputs do not have what the checkpoint speaks of.
        """
        restored = False
        while self._ways and all(self.positions[log] >= at for log, at in self._limits.items()):
            way = self._ways.pop(0)
            if way.checkpoint is not None:
                self._take_over(way.checkpoint)
            restored = not self._ways
        if restored:
            self._counted = self.tally()
        return restored

    def _take_over(self, checkpoint: Checkpoint) -> None:
        self.engine.positions.update(self.positions)
        lost = self.engine.take_over(checkpoint)
        if lost is not None and not self._accept_loss:
            what = f"{lost} open queries are lost" if lost else LOST_BUT_NO_QUERY
            raise StateUnusable(
                f"The inputs no longer contain all records needed to rebuild task {self.number}: "
                f"{what}. Give the input topics a longer retention.ms (see `evaluator check`); "
                "start once with --accept-loss to go on without them."
            )
        if lost is not None:
            log.warning("queries_lost", task=self.number, queries=lost)

    def measure_state(self, max_bytes: int) -> None:
        """Looks how much room the store takes. Raises StateUnusable past *max_bytes*, if not 0."""
        self.state_bytes = self.state.n_bytes()
        if 0 < max_bytes < self.state_bytes:
            raise StateUnusable(
                f"The state of task {self.number} takes {self.state_bytes} bytes, more than "
                f"max_store_bytes ({max_bytes}) allows. Give it more, or hold rankings for less "
                "long (retention_ms)."
            )

    def commit(self) -> None:
        """Makes all that was received durable. Raises StateUnusable."""
        self.state.commit(self.engine, complete=not self.rebuilding)

    # Showing

    def tally(self) -> Tally:
        """Every count and sum of this task, and how its values spread."""
        return self.values.add_to(self.engine.tally())

    def count_into(self, counters: Tally, tally: Tally) -> None:
        """Adds what came since the last time; a series that is new appears at zero."""
        for path, n in tally.items():
            grown = 0 if self.restoring else n - self._counted.get(path, 0)
            counters[path] = counters.get(path, 0) + grown
        if not self.restoring:
            self._counted = tally

    def view(self, tally: Tally) -> TaskView:
        """The task as it stands."""
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
            restore_seconds=self.restore_seconds,
            loaded_seconds=self.loaded_seconds,
            state_bytes=self.state_bytes,
            checkpoint_ms=self.checkpoint_ms,
            checkpoint_bytes=self.checkpoint_bytes,
            tally=tally,
        )

    @property
    def restore_left(self) -> int:
        """How many offsets it is away from where it speaks again."""
        return sum(
            max(0, goal - self.positions[log])
            for way in self._ways[-1:]
            for log, goal in way.limits.items()
        )

    def wants_heartbeat(
        self, log: Log, *, now: float, broker_ms: int, idle_ms: int, max_gap_ms: int
    ) -> bool:
        """Whether a log has stood at its end for long enough, and is not being loaded."""
        if self.restoring or not self.at_end(log) or (now - self.quiet_since[log]) * 1000 < idle_ms:
            return False
        clocks = self.engine.clocks_ms
        clock_ms = clocks[log] if clocks[log] is not None else clocks[OTHER[log]]
        return clock_ms is not None and broker_ms - clock_ms <= max_gap_ms
