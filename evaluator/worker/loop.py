"""The loop of the live worker. It owns no rule of the join: it moves batches, in order.

Outputs are acknowledged before offsets are committed, and offsets are committed before people
see the figures. A crash in between says the same again under the same keys.
"""

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import structlog

from evaluator.core.types.records import Exemplar, Snapshot, Tally, TaskView
from evaluator.core.types.skips import Skips
from evaluator.ports import Assignment, Sink, Source, SourceUnavailable, StateDirectory
from evaluator.wire.outputs.sizes import OVERSIZE_OUTPUT
from evaluator.wire.records import Records
from evaluator.wire.state.task_rows import StateDamaged
from evaluator.worker.beats import Beats
from evaluator.worker.checkpoints import Checkpoints, commits_of
from evaluator.worker.connectivity import Connectivity
from evaluator.worker.emissions import MOST_OPEN, Emissions
from evaluator.worker.ownership import NewEngine, Ownership
from evaluator.worker.progress import Progress
from evaluator.worker.reading import next_reads
from evaluator.worker.stages import Stages
from evaluator.worker.task import Emission, Task, Wire
from evaluator.worker.trimming import Trimming

COMMIT_INTERVAL_SECONDS: Final = 1.0
FIGURES_IN_A_SECOND: Final = 100_000  # a commit shows all: with so many more it waits longer
STOP_PATIENCE_SECONDS: Final = 3.0
DEAD_AFTER_SECONDS: Final = 60.0

log = structlog.get_logger(__name__)


class Worker:
    """Evaluates the tasks that the group gives to this process.

    Args:
        source, sink: the world.
        states: where the state of the tasks is, held by this process.
        new_engine: makes the engine of a task.
        wire: how bytes become columns and back.
        fingerprint: names the settings that change meaning; written beside each commit.
        max_poll_records, max_lead_ms, idle_ms, heartbeats, heartbeat_max_gap_ms,
            heartbeat_outage_wait_ms, checkpoint_interval_ms, max_store_bytes: see docs/settings.md.
        accept_loss: go on if the inputs no longer contain all records of a checkpoint.
        histogram_measures: canonical names of the measures whose values are counted by bucket.
    """

    def __init__(
        self,
        source: Source,
        sink: Sink,
        states: StateDirectory,
        *,
        new_engine: NewEngine,
        wire: Wire,
        fingerprint: str,
        max_poll_records: int,
        max_lead_ms: int,
        idle_ms: int,
        heartbeats: bool,
        heartbeat_max_gap_ms: int,
        heartbeat_outage_wait_ms: int,
        checkpoint_interval_ms: int,
        max_store_bytes: int,
        accept_loss: bool = False,
        skips: Skips = MappingProxyType({}),
        histogram_measures: Collection[str] = (),
    ) -> None:
        self._source = source
        self._sink = sink
        self._wire = wire
        self._fingerprint = fingerprint
        self._max_poll_records = max_poll_records
        self._beats = Beats(source, on=heartbeats, idle_ms=idle_ms, max_gap_ms=heartbeat_max_gap_ms)
        self._owned = Ownership(
            source,
            states,
            new_engine=new_engine,
            wire=wire,
            fingerprint=fingerprint,
            max_lead_ms=max_lead_ms,
            histogram_measures=histogram_measures,
            accept_loss=accept_loss,
            skips=skips,
        )
        self._checkpoints = Checkpoints(
            fingerprint=fingerprint,
            interval_ms=checkpoint_interval_ms,
            max_store_bytes=max_store_bytes,
        )
        self._started = self._released = False
        self._connectivity = Connectivity(longest_wait_ms=heartbeat_outage_wait_ms)
        self._stopping = asyncio.Event()
        self._patience: asyncio.Timeout | None = None
        self._emissions = Emissions(sink)
        self._progress = Progress()
        self._until_end = False
        self._uncommitted = self._refused = False
        self._committed_at = 0.0
        self._progress_at = time.monotonic()
        self._counters: Tally = {}
        self._exemplars: dict[tuple[str, ...], Exemplar] = {}
        self._snapshot = Snapshot()
        self._trimming = Trimming()
        self._first_read_at: float | None = None
        self._n_polls = self._n_read = 0
        self.stages = Stages()

    # What can be seen from other tasks of the process

    @property
    def snapshot(self) -> Snapshot:
        """Everything as of the last commit."""
        return self._snapshot

    @property
    def _tasks(self) -> dict[int, Task]:
        return self._owned.tasks

    def readiness(self) -> list[str]:
        """Reasons why this worker is not ready; empty if it is."""
        away = self._connectivity.away
        return [*([f"broker unavailable: {away}"] if away else []), *self._owned.unready()]

    def alive(self) -> bool:
        """Whether the loop goes round; the broker's absence does not matter."""
        return time.monotonic() - self._progress_at < DEAD_AFTER_SECONDS

    def stop(self) -> None:
        """Ends `run` soon: after the batch at hand is emitted and committed, if that can be."""
        if not self._stopping.is_set() and self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time() + STOP_PATIENCE_SECONDS)
        self._stopping.set()

    # The loop

    async def run(self, *, until_end: bool = False) -> None:
        """Works until stopped, or with *until_end* until what was there at the start is done.

        Raises SourceUnusable if an input or output can never be used as it is.
        """
        self._until_end = until_end
        try:
            async with asyncio.timeout(None) as self._patience:
                await self._work()
                await self._finish()
        except TimeoutError:
            log.warning("stopped_without_commit", error="the broker did not answer")
        finally:
            self._patience = None
            await self._close()
            self._say_stopped()

    async def _work(self) -> None:
        while not self._stopping.is_set():
            self._progress_at = time.monotonic()
            try:
                await self._turn()
            except SourceUnavailable as away:
                self._connectivity.lost(str(away))
                await self._connectivity.pause(self._stopping)
                continue
            if self._until_end and self._done:
                self.stop()

    @property
    def _done(self) -> bool:
        return (
            self._owned.is_current
            and not self._uncommitted
            and all(task.reached_goals for task in self._tasks.values())
        )

    async def _turn(self) -> None:
        """One round: connect, hand over, take over, or read and process a batch."""
        if not self._started:
            await self._source.start()
            await self._sink.start()
            self._started = True
            log.info("worker_started", fingerprint=self._fingerprint)
        if self._source.revoking:
            if not self._released:
                await self._hand_over()
            await self._source.poll([], max_records=1, timeout_ms=0)  # lets the group go on
            return
        self._released = False
        assignment = self._source.assignment
        if assignment is not None and assignment.generation != self._owned.generation:
            await self._take_over(assignment)
        if not await self._acknowledged(but=MOST_OPEN):
            self._wait_for_acknowledgement()
            return
        batches = await self._poll()
        if not self._emissions.overdue:
            self._connectivity.answered()
        if batches:
            await self._evaluate(batches)
        await self._commit_if_due(idle=not batches)
        await self._beats.beat(self._tasks.values(), begin_at=self._connectivity.caught_up_at)
        await self._owned.watch()

    async def _poll(self) -> list[Records]:
        self._n_polls += 1
        reads = next_reads(
            self._tasks.values(), turn=self._n_polls, max_records=self._max_poll_records
        )
        self.stages.begin()
        batches: list[Records] = []
        for read in reads:
            batches = await self._source.poll(
                read.partitions, max_records=read.max_records, timeout_ms=read.timeout_ms
            )
            if batches:
                break
        self.stages.end("poll" if batches else "idle")
        self._owned.hear_ends()
        return batches

    async def _evaluate(self, batches: list[Records]) -> None:
        """From records to emitted records; the next batch is read while these are on their way."""
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
        emission: Emission = {}
        now = time.monotonic()
        self.stages.begin()
        for number, parts in by_task.items():
            try:
                emission.update(self._tasks[number].receive(parts, self._wire, self.stages, now))
            except StateDamaged as damaged:
                self._owned.quarantine(number, damaged)
        self._uncommitted = True
        if emission:
            await self._emissions.emit(emission, waiting=self._wait_for_acknowledgement)
        self.stages.end("emit")
        self._finish_restoring()
        self._progress.look(self._tasks.values(), now=time.monotonic())

    def _wait_for_acknowledgement(self) -> None:
        self._progress_at = time.monotonic()
        self._source.at_work()
        if self._emissions.stalled:
            self._connectivity.lost("outputs are not acknowledged")

    async def _acknowledged(self, **how: Any) -> bool:
        self.stages.begin()
        done = await self._emissions.acknowledged(**how)
        self.stages.end("acknowledge")
        return done

    # Committing

    async def _commit_if_due(self, *, idle: bool) -> None:
        longer = sum(len(view.tally) for view in self._snapshot) // FIGURES_IN_A_SECOND
        due = time.monotonic() - self._committed_at >= COMMIT_INTERVAL_SECONDS + longer
        finished = self._until_end and all(task.reached_goals for task in self._tasks.values())
        wanted = due or ((idle or finished) and self._uncommitted and not self._refused)
        if not wanted:
            return
        if await self._acknowledged():
            await self._commit()
        else:
            self._wait_for_acknowledgement()

    async def _commit(self) -> None:
        """Commits acknowledged outputs to the stores and the group, and publishes a snapshot.

        Where the group takes no commit now, somebody else may have done the same work, and nothing
        is shown: it would be counted twice. Raises StateUnusable.
        """
        self.stages.begin()
        if self._uncommitted:
            for number, task in list(self._tasks.items()):
                try:
                    task.commit()
                except StateDamaged as damaged:
                    self._owned.quarantine(number, damaged)
            self.stages.end("store")
            self._refused = not await self._tell_group()
            self._uncommitted = self._refused
        self._committed_at = time.monotonic()
        if self._refused:
            return
        self._publish()
        self.stages.end("commit")
        await self._tell_others(at_once=False)

    async def _tell_group(self) -> bool:
        """Commits the offsets, for those who look at lag; False if the group takes none now."""
        commits = commits_of(self._tasks.values(), self._fingerprint)
        if commits and not await self._source.commit(commits):
            log.warning("commit_refused", tasks=sorted(self._tasks))
            self._owned.counts["commits", "refused"] += 1
            return False
        self._owned.counts["commits", "committed"] += bool(commits)
        for (log_name, number), mark in commits.items():
            self._tasks[number].committed[log_name] = mark.offset
        return True

    async def _tell_others(self, *, at_once: bool) -> None:
        """Writes the checkpoint records that are due; all that have changed if *at_once*."""
        now = time.monotonic()
        emission = self._checkpoints.due(self._tasks.values(), now=now, at_once=at_once)
        if not emission:
            return
        await self._emissions.emit(emission, waiting=self._wait_for_acknowledgement)

    def _publish(self) -> None:
        views: list[TaskView] = []
        for number in sorted(self._tasks):
            task = self._tasks[number]
            tally = task.tally()
            self._exemplars |= task.values.exemplars
            task.count_into(self._counters, tally)
            views.append(task.view(tally))
        self._counters["dead_letters", OVERSIZE_OUTPUT] = self._sink.refused
        wall_ms = time.time_ns() // 1_000_000
        self._snapshot = Snapshot(
            *(tuple(views), dict(self._counters), wall_ms, dict(self._exemplars)),
            process_counts=dict(self._owned.counts),
            skew_ms=self._beats.clock.skew_ms,
        )
        self._trimming.look(sum(view.memory_tier_bytes for view in views))

    # Ownership

    async def _leave_in_order(self) -> None:
        """Commits finished work if possible, and the offsets for the next owner."""
        if not self._owned.is_current:
            return  # others have gone on with these tasks since
        if await self._acknowledged(patience_seconds=STOP_PATIENCE_SECONDS):
            await self._commit()
            await self._tell_others(at_once=True)
            await self._acknowledged(patience_seconds=STOP_PATIENCE_SECONDS)

    async def _hand_over(self) -> None:
        """Lets the group have its tasks, with everything committed that was done."""
        await self._leave_in_order()
        log.info("tasks_handed_over", tasks=sorted(self._tasks))
        self._source.release()
        self._released = True

    async def _take_over(self, assignment: Assignment) -> None:
        """Owns what the group gives, and shows it."""
        kept = await self._owned.take_over(assignment)
        self._checkpoints.forget()
        self._uncommitted = True
        self._finish_restoring()
        shown = {view.task: view for view in self._snapshot if view.task in kept}
        views, counts = self._owned.views(shown), dict(self._owned.counts)
        self._snapshot = replace(self._snapshot, tasks=views, process_counts=counts)

    def _finish_restoring(self) -> None:
        for number, task in self._tasks.items():
            if task.finish_restoring():
                log.info("task_restored", task=number, positions=task.positions)

    # The end

    async def _finish(self) -> None:
        """Commits what is done; a broker that is away does not hold the process up."""
        if not self._started:
            return
        try:
            await self._leave_in_order()
        except SourceUnavailable as away:
            log.warning("stopped_without_commit", error=str(away))

    async def _close(self) -> None:
        """Whatever goes wrong in closing, all that could be done is done."""
        closing = (self._sink.stop(), self._source.stop())
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if outcome is not None:
                log.warning("closed_badly", error=repr(outcome))
        self._owned.close()

    def _say_stopped(self) -> None:
        since = self._first_read_at
        log.info(
            "worker_stopped",
            records=self._n_read,
            seconds=round(max(0.0, self._committed_at - since), 6) if since is not None else 0.0,
            stages={name: round(spent, 6) for name, spent in self.stages.seconds.items()},
        )
