"""Retention of the inputs: deletes beginnings of logs that are not needed, or too much."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from evaluator.core.types.records import LOGS, Log
from evaluator.ports import Partition
from evaluator.wire.records import OUTPUTS, Output, OutputRecord
from evaluator.wire.state.checkpoint import decode_checkpoint
from tests.oracle.messages import Malformed, Raw, read_judgments, read_rankings
from tests.oracle.refusals import MAX_FUTURE_SKEW_MS, by_the_models

if TYPE_CHECKING:
    from tests.simulation.process import Life
    from tests.simulation.world import Simulation

Offsets = Mapping[Log, int]
READ = {"rankings": read_rankings, "judgments": read_judgments}
REFUSES = {log: by_the_models(log, MAX_FUTURE_SKEW_MS) for log in LOGS}
FROM_THE_BEGINNING: Offsets = dict.fromkeys(LOGS, 0)
GROUP = "group"
LOSS_EVENTS = {"input_expired", "input_lost", "queries_lost"}
"""Log events of a process that has noticed missing records."""
CUT_CHANCE = 0.15
CATCH_CHANCE = 0.02


class Expiry:
    """The records of the inputs that the broker has deleted, and those that it may delete.

    A topic that `evaluator check` accepts keeps records up to Z + K, and a millisecond, older than
    the watermark (docs/semantics.md). That is relative to each checkpoint record from which a task
    may be rebuilt: the present one, those that may arrive late, and those that running processes
    will write. Positions of processes and commits of the group are not overtaken either. Stores
    without a process keep no records.

    Its random numbers are its own, and no time passes: if it has no effect, a world is the same
    with it and without.
    """

    def __init__(self, world: "Simulation") -> None:
        self._world = world
        self._random = Random(f"expiry {world.plan.seed}")
        self._gone: dict[Partition, list[Raw]] = defaultdict(list)
        self._clocks: dict[Partition, list[int]] = defaultdict(list)
        self._offsets: dict[Partition, list[int]] = defaultdict(list)
        self._clocks_read_to: dict[Partition, int] = {}
        self.cut: set[int] = set()
        """Tasks that lack records that they may need."""
        self.reported: dict[int, Mapping[Output, int]] = {}
        """Tasks with a reported loss, and the numbers of records of each output at that time."""
        self.behind: dict[int, set[str]] = defaultdict(set)
        """Processes that began a task behind expired records."""

    def gone(self, log: Log, task: int) -> list[Raw]:
        """Deleted records of an input."""
        return self._gone[log, task]

    # Deletion

    def maybe_expire(self) -> None:
        """The broker may check here for records to delete."""
        kind = self._world.plan.retention
        if kind == "for ever" or self._world.faults_ended or self._random.random() < 0.5:
            return
        for task in range(self._world.plan.n_tasks):
            self._expire(task, self._needed(task), "is not needed any more")
        if kind == "short" and self._random.random() < CUT_CHANCE:
            self._cut()

    def catch_up(self) -> None:
        """Records have just been written: records that expire now may be unread."""
        if self._world.plan.retention == "short" and self._random.random() < CATCH_CHANCE:
            self._cut()

    def at_the_end(self) -> None:
        """Deletes records before the last process starts."""
        kind = self._world.plan.retention
        if kind == "for ever":
            return
        for task in range(self._world.plan.n_tasks):
            self._expire(task, self._needed(task), "is not needed any more")
        if kind == "short at the end":
            self._cut()

    def _cut(self) -> None:
        """Retention is shorter than required: a task lacks records."""
        task = self._random.randrange(self._world.plan.n_tasks)
        logs = self._random.choice((LOGS, LOGS, LOGS[:1], LOGS[1:]))
        needed = self._needed(task)
        how_far = self._random.choice(("a little", "a little", "somewhere", "all"))
        beyond: dict[Log, int] = {}
        for log in logs:
            kept = self._world.broker.logs[log, task]
            first = kept.index_of(max(needed[log], kept.first))
            n_left = len(kept.offsets) - first
            n_gone = min(
                self._random.randint(1, 5 if how_far == "a little" else n_left + 1), n_left
            )
            all_gone = how_far == "all" or n_gone == n_left
            beyond[log] = kept.end if all_gone else kept.offsets[first + n_gone]
        if any(self._world.broker.logs[log, task].first < at for log, at in beyond.items()):
            self.cut.add(task)
            self._world.count("expired too early")
            self._expire(task, beyond, "EXPIRES TOO EARLY")

    def _expire(self, task: int, before: Offsets, how: str) -> None:
        for log, offset in before.items():
            kept = self._world.broker.logs[log, task]
            if offset <= kept.first:
                continue
            self._advance_clock(log, task)
            n_gone = kept.index_of(offset)
            rows = zip(kept.offsets, kept.timestamps_ms, kept.values, kept.keys, strict=True)
            self._gone[log, task] += [
                Raw(*row) for _, row in zip(range(n_gone), rows, strict=False)
            ]
            self._world.broker.expire(log, task, offset)
            self._world.count("expired")
            self._world.add_step(f"{log}-{task} before {offset} {how}")

    # Required records

    def is_there(self, task: int, record: OutputRecord) -> bool:
        """Whether a task can be rebuilt from a checkpoint record."""
        logs = self._world.broker.logs
        return all(logs[log, task].first <= at for log, at in self._of(task, record).items())

    def _needed(self, task: int) -> Offsets:
        records = self._world.broker.output("checkpoints", task)
        if not records:
            return FROM_THE_BEGINNING
        needs = [self._of(task, records[-1]), self._committed(task)]
        for life in self._world.lives:
            needs += [self._of(task, record) for record in life.sink.unwritten(task)]
            if not life.dead:
                needs += self._of_life(task, life)
        return {log: min(each[log] for each in needs) for log in LOGS}

    def _committed(self, task: int) -> Offsets:
        """Records before the committed offsets of the group do not count as lost."""
        commits = {log: self._world.broker.committed(GROUP, (log, task)) for log in LOGS}
        return {log: 2**63 if each is None else each.offset for log, each in commits.items()}

    def _of(self, task: int, record: OutputRecord) -> Offsets:
        return self._before(task, decode_checkpoint(record.value).watermark_ms)

    def _of_life(self, task: int, life: "Life") -> list[Offsets]:
        """The positions of a process, and the restore offsets of its next checkpoint record."""
        needs: list[Offsets] = []
        if life.source.begins:  # it is determining its positions
            needs.append({log: life.source.begins.get((log, task), 2**63) for log in LOGS})
        owned = life.worker._tasks.get(task)
        if owned is not None:
            checkpoint_watermarks = [
                step.checkpoint.watermark_ms for step in owned._steps if step.checkpoint
            ]
            watermarks = [
                ms for ms in (owned.engine.watermark_ms, *checkpoint_watermarks) if ms is not None
            ]
            needs += [owned.positions, self._before(task, max(watermarks, default=None))]
        return needs

    def _before(self, task: int, watermark_ms: int | None) -> Offsets:
        """The first records that retention keeps, by the clocks of their logs."""
        if watermark_ms is None:
            return FROM_THE_BEGINNING
        of = self._world.plan.settings
        state_ms = max(of.key_reserved_ms, of.retention_ms + of.window_ms)
        kept_ms = watermark_ms - (state_ms + of.key_reserved_ms + self._world.plan.kept_more_ms)
        needed: dict[Log, int] = {}
        for log in LOGS:
            offsets = self._advance_clock(log, task)
            needed[log] = offsets[bisect_left(self._clocks[log, task], kept_ms)]
        return needed

    def _advance_clock(self, log: Log, task: int) -> list[int]:
        """Offsets of the records that have moved the clock of a log."""
        kept = self._world.broker.logs[log, task]
        clocks, offsets = self._clocks[log, task], self._offsets[log, task]
        begin = kept.index_of(self._clocks_read_to.get((log, task), 0))
        for n in range(begin, len(kept.offsets)):
            raw = Raw(kept.offsets[n], kept.timestamps_ms[n], kept.values[n])
            (record,) = READ[log]([raw], REFUSES[log])
            if isinstance(record, Malformed):
                continue
            if not clocks or record.timestamp_ms > clocks[-1]:
                clocks.append(record.timestamp_ms)
                offsets.append(record.offset)
        self._clocks_read_to[log, task] = kept.end
        return offsets

    # Reports

    def on_log_event(self, life: "Life", event: Mapping[str, Any]) -> None:
        """Receives a log event of a process."""
        if event["event"] in LOSS_EVENTS:
            task = event["task"] if "task" in event else event["partition"]
            self.report_loss(task)
            if event["event"] != "input_lost":
                self.behind[task].add(life.name)

    def report_loss(self, task: int) -> None:
        """A loss of a task is reported, so its later outputs may differ."""
        written = self._world.broker
        if task in self.cut and task not in self.reported:
            self.reported[task] = {output: len(written.output(output, task)) for output in OUTPUTS}
