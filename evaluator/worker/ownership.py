"""The tasks that the group gives to this process: where each of them begins."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, Protocol

import structlog

from evaluator.core.engine.engine import Engine
from evaluator.core.event_time.clock import MAX_TIMESTAMP_MS
from evaluator.core.join.changes import Checkpoint, DiskTier, Head, LogMark, Origin
from evaluator.core.types.records import LOGS, Log, TaskView
from evaluator.core.types.skips import Skips, between, merged
from evaluator.ports import Assignment, Committed, Partition, Source, StateDirectory
from evaluator.wire.reading import refused_as
from evaluator.wire.state.checkpoint import CheckpointUnreadable, checkpoint_key, decode_checkpoint
from evaluator.wire.state.origin import commit_note
from evaluator.wire.state.task_rows import StateDamaged
from evaluator.worker.opened import Opened
from evaluator.worker.origins import Claim, Logs, claims_of
from evaluator.worker.state import TaskState
from evaluator.worker.task import Task, Wire
from evaluator.worker.values import ValueHistograms

_ATTEMPTS: Final = 2

log = structlog.get_logger(__name__)


class NewEngine(Protocol):
    """Creates the engine of a task with this disk tier."""

    def __call__(self, task: int, *, disk_tier: DiskTier) -> Engine: ...


class Ownership:
    """Keeps the tasks that stay, drops those that went, and begins new ones.

    A new one begins with what the disk has of it, else with its checkpoint record and what of its
    inputs that asks for, else with the beginning of its inputs. What the disk has counts for
    nothing where what it would read next has expired, and the checkpoint record has read it.
    """

    def __init__(
        self,
        source: Source,
        states: StateDirectory,
        *,
        new_engine: NewEngine,
        wire: Wire,
        fingerprint: str,
        max_lead_ms: int,
        histogram_measures: Collection[str],
        accept_loss: bool,
        skips: Skips,
    ) -> None:
        self._source = source
        self._states = states
        self._new_engine = new_engine
        self._wire = wire
        self._fingerprint = fingerprint
        self._max_lead_ms = max_lead_ms
        self._histogram_measures = histogram_measures
        self._accept_loss = accept_loss
        self._skips = skips
        self.tasks: dict[int, Task] = {}
        self.generation = 0
        self._warned: set[str] = set()  # logs whose timestamps look like seconds
        self.counts: Counter[tuple[str, ...]] = Counter()  # `Snapshot.process_counts`
        self._logs = Logs(source, wire.topic_names)
        self._ends_lost: Counter[int] = Counter()  # by task, as far as known

    @property
    def is_current(self) -> bool:
        """Whether the tasks are those that the group gives now."""
        assignment = self._source.assignment
        return assignment is not None and assignment.generation == self.generation

    def unready(self) -> list[str]:
        """Why these are not the tasks that the group gives now, all of them up to date."""
        assignment = self._source.assignment
        if assignment is None:
            return ["no tasks assigned by the group yet"]
        if not self.is_current:
            return [f"taking over tasks {sorted(assignment.tasks)}"]
        restoring = sorted(task.number for task in self.tasks.values() if task.restoring)
        return [f"restoring tasks {restoring}"] if restoring else []

    async def take_over(self, assignment: Assignment) -> set[int]:
        """Owns the tasks that the group assigns; returns those that were kept."""
        numbers = sorted(assignment.tasks)
        partitions: list[Partition] = [(name, number) for number in numbers for name in LOGS]
        self._ends_lost.clear()
        await self._logs.look(partitions, reading=bool(self.tasks))
        committed = await self._committed(partitions)
        identity = await self._source.identity()
        kept = {
            number
            for number, task in self.tasks.items()
            if number in assignment.tasks and task.untouched(committed)
        }
        gone = self.tasks.keys() - kept
        self.close(gone)
        opened: dict[int, Opened] = {}
        try:
            for number in numbers:
                if number not in kept:
                    opened[number] = self._opened(number, identity)
            begun = await self._begun(opened, identity, committed)
            tasks = {number: begun.get(number) or self.tasks[number] for number in numbers}
            for number, task in tasks.items():
                self.counts["quarantined_stores", str(number)] += 0  # there from the start
                task.resume(committed, fingerprint=self._fingerprint)
                for name in LOGS:
                    self._source.seek((name, number), task.positions[name])
        except BaseException:
            for each in opened.values():
                each.state.close()
            raise
        left = gone - assignment.tasks
        if left:
            log.info("tasks_left", tasks=sorted(left))
        self.tasks = tasks
        self.generation = assignment.generation
        self.counts["rebalances",] = assignment.generation
        log.info("tasks_assigned", tasks=numbers, generation=assignment.generation)
        return kept

    async def watch(self) -> None:
        """Looks now and then whether the topics are those that were there at the take-over.

        Raises SourceUnusable if not.
        """
        await self._logs.watch()

    def hear_ends(self) -> None:
        """Notes the ends of the logs as of the last fetch."""
        for number, task in self.tasks.items():
            for name in LOGS:
                end = self._source.known_end((name, number))
                if end is not None:
                    task.ends[name] = end

    def views(self, shown: Mapping[int, TaskView]) -> tuple[TaskView, ...]:
        """The tasks as they are *shown* already, the others as they stand."""
        return tuple(
            shown.get(number) or task.view(task.tally())
            for number, task in sorted(self.tasks.items())
        )

    def close(self, numbers: Iterable[int] | None = None) -> None:
        """Closes the stores of tasks; of all for None."""
        for number in list(self.tasks if numbers is None else numbers):
            self.tasks.pop(number).state.close()

    def quarantine(self, number: int, damaged: StateDamaged) -> None:
        """Restarts a task whose state cannot be trusted, at the next call of `look`."""
        self.close([number])
        self._quarantine(number, str(damaged))
        self.generation = 0

    def _quarantine(self, number: int, reason: str) -> None:
        place = self._states.quarantine(number)
        self.counts["quarantined_stores", str(number)] += 1
        log.warning("store_quarantined", task=number, reason=reason, place=place)

    # Where a task begins

    async def _begun(
        self,
        opened: dict[int, Opened],
        identity: Mapping[str, str],
        committed: Mapping[Partition, Committed],
    ) -> dict[int, Task]:
        """Tasks with the best that is known of them; *opened* is what they have in the end."""
        stored = {number: each.stored for number, each in opened.items() if each.stored}
        heads = {number: each.head for number, each in stored.items()}
        behind = dict(self._ends_lost)  # as the group knows it
        doubts = await self._doubts({n: (head.positions, head.origin) for n, head in heads.items()})
        for number, head in heads.items():
            if number not in doubts and head.origin.ends_lost < behind.get(number, 0):
                doubts[number] = "a log has lost its end since, and the group has gone on without"
        for number, reason in doubts.items():
            opened[number] = self._reopened(opened[number], reason, identity)
        checkpoints = await self._checkpoints(opened, committed)
        for number, checkpoint in checkpoints.items():
            if opened[number].overtaken(checkpoint, self._logs.begins):
                reason = "its inputs expired before it had read them"
                opened[number] = self._reopened(opened[number], reason, identity)
        return {n: self._begin(each, checkpoints.get(n)) for n, each in opened.items()}

    async def _committed(self, partitions: Sequence[Partition]) -> dict[Partition, Committed]:
        """What the group has committed of these logs, with the fingerprint as its metadata.

        A task of which it has committed anything of other logs is as if nothing were known.
        """
        found = await self._source.committed(partitions)
        notes = {each: commit_note(mark.metadata) for each, mark in found.items()}
        states: dict[int, tuple[dict[Log, int], Origin]] = {}
        for (name, number), note in notes.items():
            positions, origin = states.setdefault(number, ({}, Origin()))
            positions[name] = found[name, number].offset
            origin.logs[name] = note.mark
            origin.ends_lost = max(origin.ends_lost, note.ends_lost)
        doubts = await self._doubts(states)
        for number, reason in doubts.items():
            positions = states[number][0]
            if any(at > self._logs.ends[name, number] for name, at in positions.items()):
                log.warning("commit_beyond_end", task=number, committed=positions)
            else:
                log.warning("commit_of_other_logs", task=number, reason=reason)
        return {
            each: Committed(mark.offset, notes[each].fingerprint)
            for each, mark in found.items()
            if each[1] not in doubts
        }

    async def _doubts(
        self, states: Mapping[int, tuple[Mapping[Log, int], Origin]]
    ) -> dict[int, str]:
        """Why positions and origins, by task, are not of the logs that are there; if they are not.

        Notes in `_ends_lost` how often logs of the same topics have lost an end.
        """
        claims: dict[tuple[int, Log], Claim] = {}
        for number, (positions, origin) in states.items():
            claims |= claims_of(number, positions, origin.logs)
        found = await self._logs.doubts(claims)
        reasons: dict[int, str] = {}
        for number, (_, origin) in states.items():
            doubts = [found[number, name] for name in LOGS if (number, name) in found]
            if all(doubt.lost_end for doubt in doubts):
                ends_lost = origin.ends_lost + bool(doubts)
                self._ends_lost[number] = max(self._ends_lost[number], ends_lost)
            if doubts:
                reasons[number] = "; ".join(doubt.reason for doubt in doubts)
        return reasons

    async def _checkpoints(
        self, opened: Mapping[int, Opened], committed: Mapping[Partition, Committed]
    ) -> Mapping[int, Checkpoint]:
        """The checkpoints of tasks of which the disk and the group do not know enough.

        To read them all would take long: the topic has all that was said since it was compacted.
        """
        wanted = [
            number
            for number, each in opened.items()
            if each.stored is None
            or each.gone(self._logs.begins)
            or each.is_stale(committed)
            or any((name, number) not in committed for name in LOGS)
        ]
        records = await self._source.checkpoints(wanted) if wanted else {}
        read = {number: self._checkpoint(opened[number], records[number]) for number in records}
        found = {number: each for number, each in read.items() if each is not None}
        heads = {number: each.head for number, each in found.items()}
        doubts = await self._doubts({n: (head.positions, head.origin) for n, head in heads.items()})
        for number, reason in doubts.items():
            self.counts["quarantined_stores", str(number)] += 1
            log.warning("checkpoint_of_other_logs", task=number, reason=reason)
            del found[number]
        return found

    def _begin(self, opened: Opened, checkpoint: Checkpoint | None) -> Task:
        engine, stored = opened.engine, opened.stored
        number = engine.task
        first = {name: self._logs.begins[name, number] for name in LOGS}
        if stored is not None:
            wanted: Mapping[Log, int] = stored.head.positions
        else:
            wanted = first if checkpoint is None else checkpoint.restore_offsets
        positions = {name: max(first[name], wanted[name]) for name in LOGS}
        for name, offset in positions.items():
            if offset > wanted[name] or (checkpoint is None and stored is None and offset):
                log.warning(
                    "input_expired",
                    log=name,
                    partition=number,
                    records=offset - (wanted[name] if offset > wanted[name] else 0),
                )
        engine.positions.update(positions)
        known = stored or checkpoint
        self._tell_origin(engine, Origin() if known is None else known.head.origin)
        self._skip(engine, [each.head for each in (stored, checkpoint) if each is not None])
        return Task(
            engine,
            opened.state,
            checkpoint=checkpoint,
            accept_loss=self._accept_loss,
            loaded_seconds=opened.seconds,
            positions=positions,
            ends={name: self._logs.ends[name, number] for name in LOGS},
            max_lead_ms=self._max_lead_ms,
            now=time.monotonic(),
            values=ValueHistograms(
                self._wire.measures.canonical,
                counted=self._histogram_measures,
                warned=self._warned,
            ),
        )

    def _tell_origin(self, engine: Engine, known: Origin) -> None:
        """Sets the logs that an engine reads, from this known origin."""
        for name, mark in known.logs.items():
            topic_id = self._logs.topic_ids.get(name, mark.topic_id)
            engine.origin.logs[name] = LogMark(topic_id, mark.last)
        engine.origin.ends_lost = max(known.ends_lost, self._ends_lost[engine.task])

    def _reopened(self, opened: Opened, reason: str, identity: Mapping[str, str]) -> Opened:
        """A task without the state that it had."""
        opened.state.close()
        self._quarantine(opened.engine.task, reason)
        return self._opened(opened.engine.task, identity)

    def _skip(self, engine: Engine, heads: Sequence[Head]) -> None:
        """Leaves out what an operator asks for, and what these states were made without.

        What they were made with stays, for they could not be made again without it; only an
        operator who accepts the loss may leave it out.
        """
        for name in LOGS:
            partition = name, engine.task
            asked = self._skips.get(partition, ())
            if not self._accept_loss:
                read_to = max((head.positions[name] for head in heads), default=0)
                asked = between(asked, read_to, MAX_TIMESTAMP_MS)
            ranges = merged([*asked, *chain.from_iterable(h.skipped.get(name, ()) for h in heads)])
            engine.skips[name] = ranges
            self._source.skip(partition, ranges)
            left = between(ranges, engine.positions[name], MAX_TIMESTAMP_MS)
            if left:
                log.warning("offsets_skipped", log=name, partition=engine.task, offsets=left)

    def _opened(self, number: int, identity: Mapping[str, str]) -> Opened:
        """The state of a task, and its engine with what the state has.

        Whatever is not to be trusted is quarantined.
        """
        started_at = time.monotonic()
        wanted = {**identity, "task": number, "fingerprint": self._fingerprint}
        trouble: list[str] = []
        for _ in range(_ATTEMPTS):
            state: TaskState | None = None
            try:
                state = TaskState(
                    self._states.open(number), task=number, features=self._wire.features
                )
                trouble = state.belongs_to(wanted)
                stored = None if trouble else state.load()
            except StateDamaged as damaged:
                trouble, stored = [str(damaged)], None
            if state is not None and not trouble:
                engine, seconds = self._new_engine(number, disk_tier=state), None
                try:
                    if stored is not None:
                        with refused_as(StateDamaged, "the state cannot be loaded"):
                            engine.load(stored)
                        seconds = round(time.monotonic() - started_at, 3)
                        read_to = dict(stored.head.positions)
                        log.info(
                            "state_loaded",
                            task=number,
                            positions=read_to,
                            n_open=engine.n_open,
                            seconds=seconds,
                        )
                    return Opened(state, engine, stored, seconds)
                except StateDamaged as damaged:
                    trouble = [str(damaged)]
            if state is not None:
                state.close()
            self._quarantine(number, "; ".join(trouble))
        raise StateDamaged(f"the new state of task {number} cannot be read either: {trouble}")

    def _checkpoint(self, opened: Opened, records: Mapping[bytes, bytes]) -> Checkpoint | None:
        """The checkpoint record of this task. Raises StateUnusable if nothing can replace it."""
        number = opened.engine.task
        value = records.get(checkpoint_key(number, self._fingerprint))
        if value is None:
            if records and opened.stored is None:
                log.warning("fingerprint_is_new", task=number, others=len(records))
            return None
        try:
            return decode_checkpoint(value, n_measures=len(self._wire.measures.canonical))
        except CheckpointUnreadable as unreadable:
            log.warning("checkpoint_unreadable", task=number, error=str(unreadable))
            if not self._accept_loss:
                opened.do_without_checkpoint(unreadable, self._logs.begins)
            return None
