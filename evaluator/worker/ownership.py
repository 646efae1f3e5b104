"""The tasks that the group gives to this process: where each of them begins."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from evaluator.core.engine import Engine
from evaluator.core.stored import Checkpoint, QueriesAside, StoredTask
from evaluator.core.types import LOGS, Log, TaskView
from evaluator.ports import Assignment, Committed, Partition, Source, StateDirectory
from evaluator.wire.checkpoint import CheckpointUnreadable, checkpoint_key, decode_checkpoint
from evaluator.wire.reading import refused_as
from evaluator.wire.state import StateDamaged
from evaluator.worker.state import TaskState
from evaluator.worker.task import Task, Wire
from evaluator.worker.values import ValueHistograms

_ATTEMPTS: Final = 2

log = structlog.get_logger(__name__)


class NewEngine(Protocol):
    """Makes the engine of a task, whose other queries are *aside*."""

    def __call__(self, task: int, *, aside: QueriesAside) -> Engine: ...


@dataclass(frozen=True, slots=True)
class _Opened:
    """The state of a task, and its engine with what was *stored* there, if it was.

    `seconds` is how long it took to load that; None if there was nothing.
    """

    state: TaskState
    engine: Engine
    stored: StoredTask | None
    seconds: float | None

    def gone(self, begins: Mapping[Partition, int]) -> list[Log]:
        """The logs whose beginning expired before it was read into this state."""
        if self.stored is None:
            return []
        positions = self.stored.head.positions
        return [name for name in LOGS if positions[name] < begins[name, self.engine.task]]

    def overtaken(self, checkpoint: Checkpoint | None, begins: Mapping[Partition, int]) -> bool:
        """Whether this has not read all that expired, and knows less of it than a checkpoint."""
        gone = self.gone(begins)
        if self.stored is None or checkpoint is None or not gone:
            return False
        mine, others = self.stored.head.positions, checkpoint.head.positions
        return all(others[name] > mine[name] for name in gone)


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
        lineage: str,
        max_lead_ms: int,
        histogram_measures: Collection[str],
        accept_loss: bool,
    ) -> None:
        self._source = source
        self._states = states
        self._new_engine = new_engine
        self._wire = wire
        self._lineage = lineage
        self._max_lead_ms = max_lead_ms
        self._histogram_measures = histogram_measures
        self._accept_loss = accept_loss
        self.tasks: dict[int, Task] = {}
        self.generation = 0
        self.counts: Counter[tuple[str, ...]] = Counter()  # `Snapshot.process_counts`

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
        """Owns what the group says; which tasks were kept as they are."""
        numbers = sorted(assignment.tasks)
        partitions: list[Partition] = [(name, number) for number in numbers for name in LOGS]
        begins = await self._source.beginning(partitions)
        ends = await self._source.end(partitions)
        committed = await self._source.committed(partitions)
        identity = await self._source.identity()
        kept = {
            number
            for number, task in self.tasks.items()
            if number in assignment.tasks and task.untouched(committed)
        }
        gone = self.tasks.keys() - kept
        self.close(gone)
        opened: dict[int, _Opened] = {}
        try:
            for number in numbers:
                if number not in kept:
                    opened[number] = self._opened(number, identity, ends)
            checkpoints = await self._checkpoints(opened, begins, ends, committed)
            for number, checkpoint in checkpoints.items():
                if opened[number].overtaken(checkpoint, begins):
                    opened[number].state.close()
                    self._set_aside(number, "its inputs expired before it had read them")
                    opened[number] = self._opened(number, identity, ends)
            begun = {
                number: self._begin(each, checkpoints.get(number), begins, ends)
                for number, each in opened.items()
            }
            tasks = {number: begun.get(number) or self.tasks[number] for number in numbers}
            for number, task in tasks.items():
                self.counts["states_set_aside", str(number)] += 0  # there from the start
                task.resume(committed, ends, lineage=self._lineage)
                if task.misled:
                    log.warning("commit_beyond_end", task=number, committed=dict(task.committed))
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

    def set_aside(self, number: int, damaged: StateDamaged) -> None:
        """Begins a task anew, at the next turn, whose state cannot be trusted any more."""
        self.close([number])
        self._set_aside(number, str(damaged))
        self.generation = 0

    def _set_aside(self, number: int, reason: str) -> None:
        place = self._states.set_aside(number)
        self.counts["states_set_aside", str(number)] += 1
        log.warning("state_set_aside", task=number, reason=reason, place=place)

    # Where a task begins

    async def _checkpoints(
        self,
        opened: Mapping[int, _Opened],
        begins: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        committed: Mapping[Partition, Committed],
    ) -> Mapping[int, Checkpoint | None]:
        """The checkpoints of tasks of which the disk and the group do not know enough.

        To read them all would take long: the topic has all that was said since it was compacted.
        """
        wanted = [
            number
            for number, each in opened.items()
            if each.stored is None
            or each.gone(begins)
            or any((name, number) not in committed for name in LOGS)
        ]
        records = await self._source.checkpoints(wanted) if wanted else {}
        return {
            number: self._checkpoint(opened[number], records[number], ends) for number in records
        }

    def _begin(
        self,
        opened: _Opened,
        checkpoint: Checkpoint | None,
        begins: Mapping[Partition, int],
        ends: Mapping[Partition, int],
    ) -> Task:
        engine, stored = opened.engine, opened.stored
        number = engine.task
        first = {name: begins[name, number] for name in LOGS}
        if stored is not None:
            wanted: Mapping[Log, int] = stored.head.positions
        else:
            wanted = first if checkpoint is None else checkpoint.low_water
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
        return Task(
            engine,
            opened.state,
            checkpoint=checkpoint,
            accept_loss=self._accept_loss,
            loaded_seconds=opened.seconds,
            positions=positions,
            ends={name: ends[name, number] for name in LOGS},
            max_lead_ms=self._max_lead_ms,
            now=time.monotonic(),
            values=ValueHistograms(self._wire.measures.canonical, counted=self._histogram_measures),
        )

    def _opened(
        self, number: int, identity: Mapping[str, str], ends: Mapping[Partition, int]
    ) -> _Opened:
        """The state of a task, and its engine with what the state has.

        Whatever is not to be trusted is set aside.
        """
        started_at = time.monotonic()
        wanted = {**identity, "task": number, "lineage": self._lineage}
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
            if stored is not None and not trouble:
                trouble = [
                    f"its position in {name} is {stored.head.positions[name]}, behind the end "
                    f"{ends[name, number]}"
                    for name in LOGS
                    if stored.head.positions[name] > ends[name, number]
                ]
            if state is not None and not trouble:
                engine, seconds = self._new_engine(number, aside=state), None
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
                            held=engine.held,
                            seconds=seconds,
                        )
                    return _Opened(state, engine, stored, seconds)
                except StateDamaged as damaged:
                    trouble = [str(damaged)]
            if state is not None:
                state.close()
            self._set_aside(number, "; ".join(trouble))
        raise StateDamaged(f"the new state of task {number} cannot be read either: {trouble}")

    def _checkpoint(
        self, opened: _Opened, records: Mapping[bytes, bytes], ends: Mapping[Partition, int]
    ) -> Checkpoint | None:
        """What the record of this task says of it, if it is one of these logs."""
        number = opened.engine.task
        value = records.get(checkpoint_key(number, self._lineage))
        if value is None:
            if records and opened.stored is None:
                log.warning("lineage_is_new", task=number, others=len(records))
            return None
        try:
            checkpoint = decode_checkpoint(value, n_measures=len(self._wire.measures.canonical))
        except CheckpointUnreadable as unreadable:
            log.warning("checkpoint_unreadable", task=number, error=str(unreadable))
            return None
        if any(checkpoint.head.positions[name] > ends[name, number] for name in LOGS):
            log.warning("checkpoint_of_other_logs", task=number)
            return None
        return checkpoint
