"""Opens and closes the tasks that the group assigns to this process."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, Protocol

import structlog

from evaluator.core.engine.engine import Engine
from evaluator.core.event_time.clock import MAX_TIMESTAMP_MS
from evaluator.core.join.changes import Checkpoint, DiskTier, Head, LogId, Origin
from evaluator.core.types.records import LOGS, Log
from evaluator.core.types.skips import between, merged
from evaluator.ports import (
    Assignment,
    Committed,
    Partition,
    Place,
    Source,
    StateDirectory,
    StateUnusable,
)
from evaluator.wire.reading import refused_as
from evaluator.wire.state.checkpoint import CheckpointUnreadable, checkpoint_key, decode_checkpoint
from evaluator.wire.state.snapshots import SnapshotFailed
from evaluator.wire.state.task_rows import SettingsChanged, StateDamaged
from evaluator.worker.monitoring import ValueHistograms
from evaluator.worker.origins import Origins
from evaluator.worker.settings import Wire, WorkerSettings
from evaluator.worker.store_snapshots import MUCH_OLDER, StoreSnapshots, place_of
from evaluator.worker.task import Task
from evaluator.worker.task_state import OpenedTask, TaskState
from evaluator.worker.worst_queries import WorstQueries

_ATTEMPTS: Final = 3
"""A fetched store, the one that it replaced, and an empty one."""

log = structlog.get_logger(__name__)


class NewEngine(Protocol):
    """Creates the engine of a task with this disk tier."""

    def __call__(self, task: int, *, disk_tier: DiskTier) -> Engine: ...


class Ownership:
    """Takes over assigned tasks: keeps those that stay, closes those that left, opens new ones.

    A new task begins with its store, else with its checkpoint record and the inputs from the
    restore offsets, else with the beginning of its inputs. A store is not used if its next records
    have expired and the checkpoint record has read them.
    """

    def __init__(
        self,
        source: Source,
        states: StateDirectory,
        *,
        new_engine: NewEngine,
        wire: Wire,
        settings: WorkerSettings,
        snapshots: StoreSnapshots | None = None,
    ) -> None:
        self.tasks: dict[int, Task] = {}
        self.until_end = False
        self.generation = 0
        self.origins = Origins(source, wire.topic_names, wire.fingerprint)
        self.counts: Counter[tuple[str, ...]] = Counter()  # `Snapshot.process_counts`
        self._source = source
        self._states = states
        self._snapshots = snapshots
        self._new_engine = new_engine
        self._wire = wire
        self._settings = settings
        self.place: Place | None = None
        self._taken: Sequence[int] | None = None  # by the last take-over; some are being fetched
        self.worst = WorstQueries(wire.measures.canonical)
        self._warned: set[str] = set()  # logs whose timestamps are probably seconds

    @property
    def is_current(self) -> bool:
        """Whether the tasks are those of the current assignment."""
        assignment = self._source.assignment
        return assignment is not None and assignment.generation == self.generation

    def unready(self) -> list[str]:
        """Reasons why not all assigned tasks are warm."""
        assignment = self._source.assignment
        if assignment is not None and not self.is_current:
            return [f"taking over tasks {sorted(assignment.tasks)}"]
        restoring = sorted(task.number for task in self.tasks.values() if task.restoring)
        reasons = [f"restoring tasks {restoring}"] if restoring else []
        return [*reasons, f"fetching snapshots of {self.fetching}"] if self.fetching else reasons

    @property
    def fetching(self) -> list[int]:
        """Assigned tasks that are opened when a snapshot was fetched."""
        return [] if self._snapshots is None else self._snapshots.fetching

    def open_fetched(self) -> None:
        """Lets the next take-over open the tasks whose snapshots were fetched."""
        if self._snapshots is not None and self._snapshots.ended():
            self.generation = 0

    async def take_over(self, assignment: Assignment) -> set[int]:
        """Takes over the tasks of the assignment; returns those that were kept."""
        numbers = sorted(assignment.tasks)
        partitions: list[Partition] = [(name, number) for number in numbers for name in LOGS]
        await self.origins.refresh(partitions, reading=bool(self.tasks))
        committed = await self.origins.committed(partitions)
        self.place = await self._source.place()
        if self.until_end:
            finished = self.origins.finished(committed, self._taken)
            numbers = [number for number in numbers if number not in finished]
        kept = {
            number
            for number, task in self.tasks.items()
            if number in assignment.tasks and task.can_be_kept(committed)
        }
        left = self.tasks.keys() - assignment.tasks
        self.close(self.tasks.keys() - kept)
        if self._snapshots is not None:
            self._snapshots.give_up_others(numbers)
        new = [number for number in numbers if number not in kept]
        opened = await self._open(new, committed)
        now = {**self.tasks, **opened}
        self.tasks = {number: now[number] for number in numbers if number in now}
        for number, task in self.tasks.items():
            self.counts["quarantined_stores", str(number)] += 0  # shown from the start
            task.resume(committed)
            for name in LOGS:
                self._source.seek((name, number), task.positions[name])
        if left:
            log.info("tasks_left", tasks=sorted(left))
        self.generation, self._taken = assignment.generation, numbers
        self.counts["rebalances",] = assignment.generation
        log.info("tasks_assigned", tasks=numbers, generation=assignment.generation)
        return kept

    def update_ends(self) -> None:
        """Updates the ends of the logs from the last fetch."""
        for number, task in self.tasks.items():
            for name in LOGS:
                end = self._source.known_end((name, number))
                if end is not None:
                    task.ends[name] = end

    def close(self, numbers: Iterable[int] | None = None) -> None:
        """Closes the stores of tasks; of all for None."""
        for number in list(self.tasks if numbers is None else numbers):
            self.tasks.pop(number).state.close()

    def quarantine(self, number: int, damaged: StateDamaged) -> None:
        """Quarantines the store of a task; the next take-over opens the task again."""
        self.close([number])
        self._quarantine(number, str(damaged))
        self.generation = 0

    # Opening tasks

    async def _open(
        self, numbers: Sequence[int], committed: Mapping[Partition, Committed]
    ) -> dict[int, Task]:
        """Opens tasks from their stores and checkpoints. Raises StateUnusable."""
        ends_lost = dict(self.origins.ends_lost)  # as the group has committed
        fetched = {} if self._snapshots is None else self._snapshots.adopt(numbers)
        opened: dict[int, OpenedTask] = {}
        try:
            for number in numbers:
                opened[number] = self._opened(number, is_fetched=fetched.get(number, False))
            unchecked = set(opened)
            while unchecked:  # a fetched store, then the one that it replaced
                unchecked = await self._reopen_mismatches(opened, unchecked, ends_lost)
            if self._snapshots is not None:
                self._snapshots.keep(opened)
            for number in set(opened) - fetched.keys():
                if self._fetches(opened[number], committed):
                    opened.pop(number).state.close()
            checkpoints = await self._checkpoints(opened, committed)
            for number, checkpoint in checkpoints.items():
                if opened[number].is_behind(checkpoint, self.origins.begins):
                    reason = "its inputs expired before it had read them"
                    opened[number] = self._reopened(opened[number], reason)
            return {n: self._task(each, checkpoints.get(n)) for n, each in opened.items()}
        except BaseException:
            for each in opened.values():
                each.state.close()
            raise

    async def _reopen_mismatches(
        self, opened: dict[int, OpenedTask], numbers: Iterable[int], ends_lost: Mapping[int, int]
    ) -> set[int]:
        """Opens tasks again whose stores are not of these logs; returns them."""
        stored = {number: opened[number].stored for number in numbers}
        heads = {number: each.head for number, each in stored.items() if each is not None}
        mismatches = await self._mismatches(heads)
        for number, head in heads.items():
            if number not in mismatches and head.origin.ends_lost < ends_lost.get(number, 0):
                reason = "a log has lost its end since, and the group has continued without it"
                mismatches[number] = reason
        for number, reason in mismatches.items():
            opened[number] = self._reopened(opened[number], reason)
        return set(mismatches)

    def _quarantine(self, number: int, reason: str, *, is_damaged: bool = True) -> None:
        """Moves a closed store away, so that it is not used again."""
        place = self._states.quarantine(number)
        self.counts["quarantined_stores", str(number)] += 1
        if is_damaged:
            log.warning("store_quarantined", task=number, reason=reason, place=place)
        else:
            log.info("store_quarantined", task=number, reason=reason, place=place)

    async def _mismatches(self, heads: Mapping[int, Head]) -> dict[int, str]:
        return await self.origins.mismatches(
            {number: (head.positions, head.origin) for number, head in heads.items()}
        )

    def _opened(self, number: int, *, is_fetched: bool = False) -> OpenedTask:
        """The store of a task and the engine that loaded it; quarantines a damaged store.

        Also a fetched one that cannot be used: the store that it replaced may be healthy.
        """
        identity = {} if self.place is None else self.place.identity()
        wanted = {**identity, "task": number, "fingerprint": self._wire.fingerprint}
        reason = ""
        for _ in range(_ATTEMPTS):
            state: TaskState | None = None
            try:
                started_at = time.monotonic()
                store = self._states.open(number)
                state = TaskState(store, task=number, features=self._wire.features)
                state.require_identity(wanted)
                stored = state.load()
                engine = self._new_engine(number, disk_tier=state)
                if stored is None:
                    return OpenedTask(state, engine, None, None)
                with refused_as(StateDamaged, "the state cannot be loaded"):
                    engine.load(stored)
            except (StateDamaged, StateUnusable) as error:
                if isinstance(error, StateUnusable) and not is_fetched:
                    raise
                reason, is_fetched = str(error), False
                if state is not None:
                    state.close()
                self._quarantine(number, reason, is_damaged=not isinstance(error, SettingsChanged))
                continue
            seconds = round(time.monotonic() - started_at, 3)
            log.info(
                "state_loaded",
                task=number,
                positions=dict(stored.head.positions),
                n_open=engine.n_open,
                seconds=seconds,
            )
            return OpenedTask(state, engine, stored, seconds)
        raise StateDamaged(f"the new state of task {number} cannot be read either: {reason}")

    def _reopened(self, opened: OpenedTask, reason: str) -> OpenedTask:
        """Opens a task with the store that a snapshot replaced, else with an empty one."""
        opened.state.close()
        self._quarantine(opened.engine.task, reason)
        return self._opened(opened.engine.task)

    def _fetches(self, opened: OpenedTask, committed: Mapping[Partition, Committed]) -> bool:
        """Whether a snapshot is fetched first: the store is missing or would need too much."""
        number, least, place = opened.engine.task, 0, self.place
        if self._snapshots is None or place is None:
            return False
        if opened.stored is not None:
            unread = opened.unread_logs(self.origins.begins)
            if not unread and opened.n_behind(committed) < MUCH_OLDER:
                return False
            least = sum(opened.positions.values()) + (1 if unread else MUCH_OLDER)
        lost, fingerprint = self.origins.ends_lost[number], self._wire.fingerprint
        try:
            path = place_of(place.cluster, self.origins.topic_ids, lost, number, fingerprint)
        except SnapshotFailed:
            return False  # it is logged at the next write
        origins = self.origins
        bounds = {name: (origins.begins[name, number], origins.ends[name, number]) for name in LOGS}
        return self._snapshots.begin_fetch(number, path, least=least, bounds=bounds)

    async def _checkpoints(
        self, opened: Mapping[int, OpenedTask], committed: Mapping[Partition, Committed]
    ) -> dict[int, Checkpoint]:
        """The checkpoints of the tasks that need one.

        A read of all tasks would take long, because the topic has all records since its compaction.
        """
        begins = self.origins.begins
        wanted = [n for n, each in opened.items() if each.needs_checkpoint(begins, committed)]
        records = await self._source.checkpoints(wanted) if wanted else {}
        decoded = {number: self._checkpoint(opened[number], records[number]) for number in records}
        found = {number: each for number, each in decoded.items() if each is not None}
        mismatches = await self._mismatches({n: each.head for n, each in found.items()})
        for number, reason in mismatches.items():
            self.counts["quarantined_stores", str(number)] += 1
            log.warning("checkpoint_of_other_logs", task=number, reason=reason)
            del found[number]
        return found

    def _checkpoint(self, opened: OpenedTask, records: Mapping[bytes, bytes]) -> Checkpoint | None:
        number = opened.engine.task
        value = records.get(checkpoint_key(number, self._wire.fingerprint))
        if value is None:
            if records and opened.stored is None:
                log.warning("fingerprint_is_new", task=number, others=len(records))
            return None
        try:
            of_levels = self._wire.segment_measures
            return decode_checkpoint(
                value, measures=self._wire.measures, segment_measures=of_levels
            )
        except CheckpointUnreadable as unreadable:
            log.warning("checkpoint_unreadable", task=number, error=str(unreadable))
            expired = [name for name in LOGS if self.origins.begins[name, number]]
            if self._settings.accept_loss or opened.stored is not None or not expired:
                return None
            raise StateUnusable(
                f"The checkpoint record of task {number} cannot be read ({unreadable}), there is "
                f"no store of it, and the beginning of {' and '.join(expired)} has expired: its "
                "totals would begin at zero, without the expired records. Start the worker that "
                "has the store, or the version that wrote the record; start once with "
                "--accept-loss to count only the records that the inputs still contain."
            ) from unreadable

    def _task(self, opened: OpenedTask, checkpoint: Checkpoint | None) -> Task:
        engine, stored = opened.engine, opened.stored
        restore_offsets = {} if checkpoint is None else checkpoint.restore_offsets
        self._set_positions(engine, opened.positions or restore_offsets)
        heads = [each.head for each in (stored, checkpoint) if each is not None]
        self._set_origin(engine, heads[0].origin if heads else Origin())
        self._set_skips(engine, heads)
        return Task(
            engine,
            opened.state,
            self._wire,
            self._settings,
            checkpoint=checkpoint,
            loaded_seconds=opened.seconds,
            ends={name: self.origins.ends[name, engine.task] for name in LOGS},
            values=ValueHistograms(
                self._wire.measures.canonical,
                counted=self._settings.histogram_measures,
                warned=self._warned,
                positions=self._settings.counts_positions,
                worst=self.worst,
            ),
        )

    def _set_positions(self, engine: Engine, wanted: Mapping[Log, int]) -> None:
        """Positions of the store, else restore offsets; not before the beginning of the logs."""
        for name in LOGS:
            first, at = self.origins.begins[name, engine.task], wanted.get(name, 0)
            if first > at:
                log.warning("input_expired", log=name, partition=engine.task, records=first - at)
            engine.positions[name] = max(first, at)

    def _set_origin(self, engine: Engine, known: Origin) -> None:
        """Sets the logs that an engine reads; topic ids are the current ones if known."""
        for name, log_id in known.logs.items():
            topic_id = self.origins.topic_ids.get(name, log_id.topic_id)
            engine.origin.logs[name] = LogId(topic_id, log_id.last)
        engine.origin.ends_lost = max(known.ends_lost, self.origins.ends_lost[engine.task])

    def _set_skips(self, engine: Engine, heads: Sequence[Head]) -> None:
        """Skips the offsets of the settings, and those already skipped by these states.

        Offsets before a stored position cannot be skipped afterwards, because the state could not
        be rebuilt without them; `accept_loss` allows it.
        """
        for name in LOGS:
            partition = name, engine.task
            wanted = self._settings.skips.get(partition, ())
            if not self._settings.accept_loss:
                read_to = max((head.positions[name] for head in heads), default=0)
                wanted = between(wanted, read_to, MAX_TIMESTAMP_MS)
            skipped = chain.from_iterable(head.skipped.get(name, ()) for head in heads)
            ranges = merged([*wanted, *skipped])
            engine.skips[name] = ranges
            self._source.skip(partition, ranges)
            left = between(ranges, engine.positions[name], MAX_TIMESTAMP_MS)
            if left:
                log.warning("offsets_skipped", log=name, partition=engine.task, offsets=left)
