"""The loop of the live worker: reads, processes, emits and commits batches in order.

Outputs are acknowledged before offsets are committed, and offsets are committed before the
figures are published. A crash in between repeats outputs under the same keys.
"""

import asyncio
import time
from collections.abc import Mapping
from itertools import chain
from typing import Final

import structlog
from msgspec.structs import replace

from evaluator.core.types.tally import Group, GroupedTally, Path
from evaluator.exposition.snapshot import Exemplar, Snapshot, TaskView
from evaluator.ports import Assignment, Place, Sink, Source, SourceUnavailable, StateDirectory
from evaluator.wire.outputs.sizes import OVERSIZE_OUTPUT
from evaluator.wire.records import CHECKPOINTS, Records
from evaluator.wire.state.task_rows import StateDamaged
from evaluator.worker.connectivity import MAX_UNACKNOWLEDGED, Connectivity, Emissions
from evaluator.worker.heartbeats import Heartbeats
from evaluator.worker.lifecycle import Lifecycle, WorkerState
from evaluator.worker.monitoring import HeapTrimmer, Stages
from evaluator.worker.ownership import NewEngine, Ownership
from evaluator.worker.settings import Emission, Wire, WorkerSettings
from evaluator.worker.store_snapshots import StoreSnapshots
from evaluator.worker.task import Task, next_reads

COMMIT_INTERVAL_SECONDS: Final = 0.05
LONG_INTERVALS: Final = 20
"""As many intervals are between commits without new records, or while tasks are behind."""
STOP_TIMEOUT_SECONDS: Final = 3.0
DEAD_AFTER_SECONDS: Final = 60.0

log = structlog.get_logger(__name__)


class Worker:
    """Evaluates the tasks that the group assigns to this process.

    Args:
        source, sink: the broker.
        states: the state stores of the tasks, held by this process.
        new_engine: creates the engine of a task.
        wire: decodes inputs and encodes outputs.
        settings: see docs/settings.md.
        snapshots: of the stores, if they are on.
    """

    def __init__(
        self,
        source: Source,
        sink: Sink,
        states: StateDirectory,
        *,
        new_engine: NewEngine,
        wire: Wire,
        settings: WorkerSettings,
        snapshots: StoreSnapshots | None = None,
    ) -> None:
        self._source = source
        self._sink = sink
        self._fingerprint = wire.fingerprint
        self._max_poll_records = settings.max_poll_records
        self._heartbeats = Heartbeats(source, enabled=settings.heartbeats)
        self._ownership = Ownership(
            *(source, states),
            new_engine=new_engine,
            wire=wire,
            settings=settings,
            snapshots=snapshots,
        )
        self._snapshots = snapshots
        self._lifecycle = Lifecycle()
        self._connectivity = Connectivity(max_wait_ms=settings.heartbeat_outage_wait_ms)
        self._heap = HeapTrimmer()
        self.stages = Stages()
        self._emissions = Emissions(sink, self.stages, waiting=self._wait_for_acknowledgement)
        self._started = self._until_end = False
        self._stopping = asyncio.Event()
        self._stop_timeout: asyncio.Timeout | None = None
        self._uncommitted = self._refused = False
        self._committed_at = 0.0
        self._progress_at = time.monotonic()
        self._counters: dict[Group, Mapping[Path, int]] = {}
        self._exemplars: dict[Path, Exemplar] = {}
        self.snapshot = Snapshot()  # all tasks as of the last commit
        self._first_read_at: float | None = None
        self._n_polls = self._n_read = 0
        self.polled = asyncio.Event()  # after the first poll that follows an assignment

    # Views for other coroutines of the process

    @property
    def state(self) -> WorkerState:
        return self._lifecycle.state

    @property
    def place(self) -> Place | None:
        """The place of the inputs; None before the first assignment."""
        return self._ownership.place

    @property
    def _tasks(self) -> dict[int, Task]:
        return self._ownership.tasks

    def readiness(self) -> list[str]:
        """Reasons why this worker is not ready; empty if it is."""
        unavailable, what = self._connectivity.unavailable, self._connectivity.what
        reasons = [f"{what} unavailable: {unavailable}"] if unavailable else []
        if self.state is WorkerState.CONNECTING:
            return [*reasons, "no tasks assigned by the group yet"]
        if self.state is not WorkerState.RUNNING:
            reasons += self._lifecycle.slow_rebalance + self._ownership.unready()
        return reasons

    def alive(self) -> bool:
        """Whether the loop makes progress; also while the broker is unavailable."""
        return time.monotonic() - self._progress_at < DEAD_AFTER_SECONDS

    def stop(self) -> None:
        """Ends `run` after the current batch is emitted and committed, or after a timeout."""
        if not self._stopping.is_set():
            self._limit_stop()
        self._stopping.set()

    def _limit_stop(self) -> None:
        if self._stop_timeout is not None:
            self._stop_timeout.reschedule(asyncio.get_running_loop().time() + STOP_TIMEOUT_SECONDS)

    # The loop

    async def run(self, *, until_end: bool = False) -> None:
        """Runs until stopped, or with *until_end* until the initial records are processed.

        Raises SourceUnusable for an unusable input or output.
        """
        self._until_end = self._ownership.until_end = until_end
        try:
            async with asyncio.timeout(None) as self._stop_timeout:
                await self._loop()
                self._lifecycle.to(WorkerState.STOPPING)
                await self._finish()
        except TimeoutError:
            log.warning("stopped_without_commit", error="the broker did not answer")
        finally:
            self._stop_timeout = None
            await self._close()

    async def _loop(self) -> None:
        while not self._stopping.is_set():
            self._progress_at = time.monotonic()
            try:
                await self._turn()
            except SourceUnavailable as error:
                self._connectivity.lost(str(error), error.what)
                await self._connectivity.back_off(self._stopping)
                continue
            done = self._ownership.is_current and not self._uncommitted and self._reached_first_ends
            if self._until_end and done:
                self.stop()

    @property
    def _reached_first_ends(self) -> bool:
        reached = all(task.reached_first_ends for task in self._tasks.values())
        return reached and not self._ownership.fetching

    async def _turn(self) -> None:
        """One turn: connect, hand over, take over, or read and process a batch."""
        if not self._started:
            await self._source.start()
            await self._sink.start()
            if self._until_end:
                await self._ownership.origins.note_start()
            self._started = True
            log.info("worker_started", fingerprint=self._fingerprint)
        if self._source.revoking:
            await self._hand_over()
            await self._source.poll([], max_records=1, timeout_ms=0)  # lets the group continue
            return
        self._ownership.open_fetched()
        assignment = self._source.assignment
        if assignment is not None and assignment.generation != self._ownership.generation:
            await self._take_over(assignment)
        if not await self._emissions.acknowledged(except_last=MAX_UNACKNOWLEDGED):
            return
        batches = await self._poll()
        if not self._emissions.overdue:
            self._connectivity.answered()
        if batches:
            await self._evaluate(batches)
        await self._commit_if_due()
        begin_at = self._connectivity.caught_up_at
        await self._heartbeats.append_due(self._tasks.values(), begin_at=begin_at)
        await self._ownership.origins.watch()

    async def _poll(self) -> list[Records]:
        self._n_polls += 1
        reads = next_reads(
            self._tasks.values(), turn=self._n_polls, max_records=self._max_poll_records
        )
        self.stages.begin()
        batches: list[Records] = []
        for partitions, most, timeout_ms in reads:
            batches = await self._source.poll(partitions, max_records=most, timeout_ms=timeout_ms)
            if batches:
                break
        if self.place is not None:
            self.polled.set()
        self.stages.end("poll" if batches else "idle")
        self._ownership.update_ends()
        return batches

    async def _evaluate(self, batches: list[Records]) -> None:
        """Processes records and emits their outputs, without a wait for the acknowledgement."""
        if self._first_read_at is None:
            self._first_read_at = time.monotonic()
        by_task: dict[int, list[Records]] = {}
        for records in batches:
            task = self._tasks[records.partition]
            kept = task.within_limit(records)
            if kept is not records:
                self._source.seek((records.log, records.partition), kept.next_offset)
            by_task.setdefault(records.partition, []).append(kept)
            self._n_read += len(kept)
        emission, now = Emission(), time.monotonic()
        for number, parts in by_task.items():
            if not self._stopping.is_set():
                await asyncio.sleep(0)  # scrapes and heartbeats wait for one task, not for all
            self.stages.begin()
            try:
                emission.update(self._tasks[number].receive(parts, self.stages, now))
            except StateDamaged as damaged:
                self._ownership.quarantine(number, damaged)
        if self._stopping.is_set():
            self._limit_stop()  # the evaluation does not count
        self._uncommitted = True
        if emission:
            await self._emissions.emit(emission)
        self.stages.end("emit")
        self._finish_restoring()
        for task in self._tasks.values():
            task.update_restore_rate(time.monotonic())

    def _wait_for_acknowledgement(self) -> None:
        self._progress_at = time.monotonic()
        self._source.stay_in_group()
        if self._emissions.stalled:
            self._connectivity.lost("outputs are not acknowledged")

    # Committing

    async def _commit_if_due(self) -> None:
        n_unread = sum(task.n_unread for task in self._tasks.values())
        soon = self._uncommitted and not self._refused and n_unread <= self._max_poll_records
        interval = COMMIT_INTERVAL_SECONDS * (1 if soon else LONG_INTERVALS)
        finished = soon and self._until_end and self._reached_first_ends
        if not finished and time.monotonic() - self._committed_at < interval:
            return
        if await self._emissions.acknowledged():
            await self._commit()
            if self._snapshots is not None and self.place is not None and not self._refused:
                self._snapshots.write_due(self._tasks, self.place.cluster)

    async def _commit(self) -> None:
        """Commits acknowledged outputs to the stores and the group, and publishes a snapshot.

        Nothing is published if the group refuses the commit: another process may have done the same
        work, which would be counted twice. Raises StateUnusable.
        """
        self.stages.begin()
        self._committed_at = time.monotonic()
        if self._uncommitted:
            for number, task in list(self._tasks.items()):
                try:
                    task.commit()
                except StateDamaged as damaged:
                    self._ownership.quarantine(number, damaged)
            self.stages.end("store")
            self._refused = not await self._commit_offsets()
            self._uncommitted = self._refused
        if self._refused:
            return
        self._publish()
        self.stages.end("commit")
        await self._write_checkpoints(at_once=False)

    async def _commit_offsets(self) -> bool:
        """Commits the offsets to the group; False if it refuses commits now."""
        commits = dict(chain.from_iterable(task.commits().items() for task in self._tasks.values()))
        if commits and not await self._source.commit(commits):
            log.warning("commit_refused", tasks=sorted(self._tasks))
            self._ownership.counts["commits", "refused"] += 1
            return False
        self._ownership.counts["commits", "committed"] += bool(commits)
        for (name, number), commit in commits.items():
            self._tasks[number].committed[name] = commit.offset
        return True

    async def _write_checkpoints(self, *, at_once: bool) -> None:
        """Writes the checkpoint records that are due; all that have changed if *at_once*."""
        now, emission = time.monotonic(), Emission()
        for number, task in self._tasks.items():
            if records := task.checkpoint(now=now, at_once=at_once):
                emission[CHECKPOINTS, number] = records
        if emission:
            await self._emissions.emit(emission)

    def _publish(self) -> None:
        views: list[TaskView] = []
        for _, task in sorted(self._tasks.items()):
            tally = task.tally()
            if exemplars := task.values.take_exemplars():
                self._exemplars = {**self._exemplars, **exemplars}
            task.count_into(self._counters, tally)
            views.append(task.view(tally))
        oversize: Path = ("dead_letters", OVERSIZE_OUTPUT)
        self._counters[()] = {**self._counters.get((), {}), oversize: self._sink.refused}
        wall_ms = time.time_ns() // 1_000_000
        self.snapshot = Snapshot(
            *(tuple(views), GroupedTally(dict(self._counters)), wall_ms, self._exemplars),
            process_counts=self._process_counts(),
            skew_ms=self._heartbeats.clock.skew_ms,
            store_snapshots=dict(self._snapshots.written) if self._snapshots else {},
            worst=dict(self._ownership.worst.found),
        )
        self._heap.update(sum(view.memory_tier_bytes for view in views))

    def _process_counts(self) -> dict[tuple[str, ...], int]:
        return {**self._ownership.counts, **(self._snapshots.counts if self._snapshots else {})}

    # Ownership

    async def _hand_over(self) -> None:
        """Commits processed records and releases the tasks to the group."""
        self._lifecycle.to(WorkerState.HANDING_OVER)
        await self._commit_all()
        log.info("tasks_handed_over", tasks=sorted(self._tasks))
        self._source.release()

    async def _commit_all(self) -> None:
        """Commits processed records if possible, with checkpoints for the next owner."""
        if not self._ownership.is_current:
            return  # other members have taken over these tasks
        if await self._emissions.acknowledged(timeout_seconds=STOP_TIMEOUT_SECONDS):
            await self._commit()
            await self._write_checkpoints(at_once=True)
            await self._emissions.acknowledged(timeout_seconds=STOP_TIMEOUT_SECONDS)

    async def _take_over(self, assignment: Assignment) -> None:
        """Takes over the assigned tasks, and publishes a snapshot of them."""
        self._lifecycle.to(WorkerState.RESTORING)
        kept = await self._ownership.take_over(assignment)
        self._uncommitted = True
        self._finish_restoring()
        shown = {view.task: view for view in self.snapshot if view.task in kept}
        tasks = [shown.get(n) or task.view(task.tally()) for n, task in sorted(self._tasks.items())]
        self.snapshot = replace(
            self.snapshot, tasks=tuple(tasks), process_counts=self._process_counts()
        )

    def _finish_restoring(self) -> None:
        for number, task in self._tasks.items():
            if task.finish_restoring():
                log.info("task_restored", task=number, positions=dict(task.positions))
        restoring = any(task.restoring for task in self._tasks.values())
        if self.state is WorkerState.RESTORING and not restoring and not self._ownership.fetching:
            self._lifecycle.to(WorkerState.RUNNING)

    # The end

    async def _finish(self) -> None:
        """Commits processed records, if the broker answers."""
        if not self._started:
            return
        try:
            await self._commit_all()
        except SourceUnavailable as error:
            log.warning("stopped_without_commit", error=str(error))

    async def _close(self) -> None:
        """Closes everything, also if some of it fails, and logs the end."""
        self._lifecycle.to(WorkerState.STOPPING)
        await self._heartbeats.stop()
        closing = (self._sink.stop(), self._source.stop())
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if outcome is not None:
                log.warning("closed_badly", error=repr(outcome))
        if self._snapshots is not None:
            self._snapshots.close()
        self._ownership.close()
        since = self._first_read_at
        log.info(
            "worker_stopped",
            records=self._n_read,
            seconds=round(max(0.0, self._committed_at - since), 6) if since is not None else 0.0,
            stages={name: round(spent, 6) for name, spent in self.stages.seconds.items()},
        )
