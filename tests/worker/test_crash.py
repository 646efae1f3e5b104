"""Crashes at every boundary, handovers in every state: no output is lost or differs."""

import asyncio
import contextlib

import pytest

from evaluator.adapters.memory import MemorySink, MemorySource, MemoryStateDirectory
from evaluator.wire.state.checkpoint import decode_checkpoint
from evaluator.worker import loop
from tests.waiting import eventually, finished
from tests.worker.harness import (
    GROUP,
    StalledSink,
    WorkerHarness,
    counted,
    offsets_of,
    positions,
    totals,
)
from tests.worker.traffic import traffic

pytestmark = pytest.mark.slow


class Crash(Exception):
    """The process has ended."""


class Fuse:
    """Counts the calls that touch the world; crashes at one of them, before or after it."""

    def __init__(self, at=None, *, after=False):
        self.at = at
        self.after = after
        self.calls = []

    @property
    def burnt(self):
        return self.at is not None and len(self.calls) >= self.at

    @contextlib.contextmanager
    def around(self, name):
        self.calls.append(name)
        burns = len(self.calls) == self.at
        if burns and not self.after:
            raise Crash(name)
        yield
        if burns:
            raise Crash(name)


class FusedSource(MemorySource):
    def __init__(self, broker, fuse):
        super().__init__(broker, group_id=GROUP)
        self.fuse = fuse

    async def poll(self, partitions, **how):
        batches = await super().poll(partitions, **how)
        if batches:
            with self.fuse.around("poll"):
                pass
        return batches

    async def commit(self, commits):
        with self.fuse.around("commit"):
            return await super().commit(commits)


class FusedSink(MemorySink):
    """Loses unwritten rows when it crashes."""

    def __init__(self, broker, fuse):
        super().__init__(broker)
        self.fuse = fuse

    async def emit(self, records):
        with self.fuse.around("emit"):
            return await super().emit(records)

    async def stop(self):
        if self.fuse.at is not None:
            self._waiting.clear()
        await super().stop()


def fused_harness():
    harness = WorkerHarness()
    harness.append({task: traffic(task, n_queries=12) for task in (0, 1)})
    return harness


async def run_until_crash(harness, fuse):
    """Runs a worker to its end or its crash; returns its counts."""
    source, sink = FusedSource(harness.broker, fuse), FusedSink(harness.broker, fuse)
    worker = harness.worker(source, sink, max_poll_records=30)
    with contextlib.suppress(Crash):
        await finished(worker.run(until_end=True))
    return worker


async def calls_of_a_whole_run():
    fuse = Fuse()
    await run_until_crash(fused_harness(), fuse)
    return fuse.calls


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_crash_at_any_call_loses_no_output_and_changes_none(after):
    calls = await calls_of_a_whole_run()
    assert {"poll", "emit", "commit"} == set(calls)
    for at in range(1, len(calls) + 1):
        harness = fused_harness()
        crashed = await run_until_crash(harness, Fuse(at, after=after))
        assert counted(crashed.snapshot, "rankings") <= sum(
            offset for (log, _), offset in harness.committed().items() if log == "rankings"
        )
        second = await harness.until_end()
        assert harness.committed() == harness.ends()
        truth = harness.truth()
        assert totals(harness.settings, second) == truth.totals
        truth.check_outputs(harness.outputs(), once=False)


async def test_a_crash_while_restoring_changes_nothing():
    harness = fused_harness()
    await run_until_crash(harness, Fuse())
    before = harness.outputs()
    for at in (1, 3, 5):
        fuse = Fuse(at)
        await run_until_crash(harness, fuse)
        assert fuse.burnt
    last = await harness.until_end()
    assert harness.outputs() == before
    assert totals(harness.settings, last) == harness.truth().totals
    assert counted(last.snapshot, "rankings") == 0


async def test_figures_are_published_after_outputs_and_commits():
    harness = fused_harness()
    seen = []

    class RecordingSource(MemorySource):
        async def poll(self, partitions, **how):
            committed = harness.committed()
            for each, position in positions(worker).items():
                assert position <= committed.get(each, 0)
            seen.append(committed)
            return await super().poll(partitions, **how)

        async def commit(self, commits):
            assert worker.snapshot.tasks
            assert not worker._emissions._unacknowledged
            return await super().commit(commits)

    worker = harness.worker(RecordingSource(harness.broker, group_id=GROUP), max_poll_records=7)
    await finished(worker.run(until_end=True))
    assert any(any(committed.values()) for committed in seen)


# Handovers


class SlowReleaseSource(MemorySource):
    """As on a real broker, a release takes effect some turns of the event loop later."""

    def release(self):
        asyncio.get_running_loop().call_later(0.05, super().release)


async def until_shared(harness, *workers):
    tasks = set(range(harness.n_tasks))

    def shared():
        owned = [view.task for worker in workers for view in worker.snapshot]
        done = positions(*workers) == harness.ends()
        return done and len(owned) == len(tasks) and set(owned) == tasks

    await eventually(shared)


@pytest.mark.parametrize("kind", [MemorySource, SlowReleaseSource])
async def test_workers_share_tasks_and_take_them_over(kind):
    harness = WorkerHarness(4)
    whole = {task: traffic(task, n_queries=40) for task in range(4)}
    harness.append({t: each.part(0, 0.3) for t, each in whole.items()})
    first, second = (harness.worker(kind(harness.broker, group_id=GROUP)) for _ in "12")
    async with harness.working(first):
        await eventually(lambda: any(positions(first).values()))
        async with harness.working(second):
            await until_shared(harness, first, second)
            harness.append({t: each.part(0.3, 0.6) for t, each in whole.items()})
            await until_shared(harness, first, second)
            assert totals(harness.settings, first, second) == harness.truth().totals
        await until_shared(harness, first)
        harness.append({t: each.part(0.6, 1) for t, each in whole.items()})
        await until_shared(harness, first)
        assert totals(harness.settings, first) == harness.truth().totals
    harness.truth().check_outputs(harness.outputs(), once=True)
    for log in ("rankings", "judgments"):
        read = harness.truth().totals["ledger"][log]["read"]
        assert counted(first.snapshot, log) + counted(second.snapshot, log) == read


class GatedSource(MemorySource):
    """After its first few records it delivers nothing until the gate is opened."""

    def __init__(self, broker, gate):
        super().__init__(broker, group_id=GROUP)
        self._gate, self._left = gate, 5

    async def poll(self, partitions, **how):
        if not self._left and not self._gate.is_set():
            partitions = []
        batches = await super().poll(partitions, **how)
        self._left -= bool(batches and self._left)
        return batches


async def test_a_task_handed_over_during_its_restore_is_restored_again():
    harness, gate = WorkerHarness(4), asyncio.Event()
    harness.append({task: traffic(task, n_queries=16) for task in range(4)})
    await harness.until_end()
    before = harness.outputs()
    for task in range(4):  # without its checkpoint a task is read again from its beginning
        del harness.broker._outputs["checkpoints", task]
    first, second = (
        harness.worker(GatedSource(harness.broker, gate), max_poll_records=1) for _ in range(2)
    )
    async with harness.working(first):
        await eventually(lambda: "restoring" in str(first.readiness()))
        async with harness.working(second):
            await eventually(lambda: second.snapshot.tasks)
            for worker in (first, second):
                await eventually(lambda of=worker: "restoring" in str(of.readiness()))
        await eventually(lambda: "restoring" in str(first.readiness()))
        gate.set()
        await until_shared(harness, first)
        assert totals(harness.settings, first) == harness.truth().totals
    assert harness.outputs() == before
    assert counted(first.snapshot, "rankings") == counted(second.snapshot, "rankings") == 0


async def test_records_of_a_commit_refused_in_a_handover_are_read_by_the_next_owner():
    """The group does not wait for a worker whose outputs stall; that worker counts nothing."""
    harness = WorkerHarness(2, release_timeout_seconds=0.2)
    harness.append({task: traffic(task, n_queries=80) for task in range(2)})
    sink = StalledSink(harness.broker)
    stuck, other = harness.worker(sink=sink), harness.worker()
    async with harness.working(stuck):
        await eventually(lambda: sink.emitted)
        async with harness.working(other):
            await eventually(lambda: len(other.snapshot.tasks) == 1)
            sink.flows.set()
            await until_shared(harness, stuck, other)
            assert totals(harness.settings, stuck, other) == harness.truth().totals
            read = harness.truth().totals["ledger"]["rankings"]["read"]
            both = counted(stuck.snapshot, "rankings") + counted(other.snapshot, "rankings")
            assert both == read
    harness.truth().check_outputs(harness.outputs(), once=False)


async def test_a_frozen_worker_does_not_count_records_counted_by_its_successor():
    """It was frozen for longer than its session, between an acknowledgement and the commit."""
    harness = WorkerHarness(1, release_timeout_seconds=0.1)
    harness.append({0: traffic(0, n_queries=60)})
    frozen, thawed = asyncio.Event(), asyncio.Event()

    class Freezing(MemorySource):
        async def commit(self, commits):
            if self.assignment.generation == 1 and offsets_of(commits) == harness.ends():
                frozen.set()
                await thawed.wait()
                return False  # that generation is over
            return await super().commit(commits)

    first = harness.worker(Freezing(harness.broker, group_id=GROUP))
    second = harness.worker()
    async with harness.working(first):
        await eventually(frozen.is_set)
        first_member = harness.broker.group(GROUP).members[0]
        harness.broker.group(GROUP).leave(first_member)
        async with harness.working(second):
            await eventually(lambda: positions(second) == harness.ends())
        harness.broker.group(GROUP).join(first_member)
        thawed.set()
        await eventually(lambda: positions(first) == harness.ends())
        assert totals(harness.settings, first) == harness.truth().totals
    read = harness.truth().totals["ledger"]["rankings"]["read"]
    assert counted(first.snapshot, "rankings") + counted(second.snapshot, "rankings") == read
    harness.truth().check_outputs(harness.outputs(), once=False)


@pytest.mark.parametrize("place", ["commit", "checkpoint"])
async def test_a_late_checkpoint_of_a_frozen_worker_is_replaced(place):
    """Its successor has written a later checkpoint, and no further records arrive."""
    harness = WorkerHarness(1, release_timeout_seconds=0.1)
    harness.append({0: traffic(0, n_queries=60).part(0, 0.5)})
    half = harness.ends()
    frozen, thawed = asyncio.Event(), asyncio.Event()

    async def freeze():
        frozen.set()
        await thawed.wait()

    class FreezingSource(MemorySource):
        async def commit(self, commits):
            if (
                place == "commit"
                and self.assignment.generation == 1
                and offsets_of(commits) == half
            ):
                await freeze()
                return False  # that generation is over
            return await super().commit(commits)

    class FreezingSink(MemorySink):
        async def emit(self, records):
            if (
                place == "checkpoint"
                and ("checkpoints", 0) in records
                and harness.committed() == half
            ):
                await freeze()
            return await super().emit(records)

    def checkpointed():
        record = harness.broker.output("checkpoints", 0)[-1]
        return {
            (log, 0): position
            for log, position in decode_checkpoint(record.value).head.positions.items()
        }

    first = harness.worker(
        FreezingSource(harness.broker, group_id=GROUP), FreezingSink(harness.broker)
    )
    second = harness.worker()
    async with harness.working(first):
        await eventually(frozen.is_set)
        first_member = harness.broker.group(GROUP).members[0]
        harness.broker.group(GROUP).leave(first_member)
        async with harness.working(second):
            harness.append({0: traffic(0, n_queries=60).part(0.5, 1)})
            await eventually(lambda: positions(second) == harness.ends() == checkpointed())
            generation = second._source.assignment.generation
            n_checkpoints = len(harness.broker.output("checkpoints", 0))
            thawed.set()
            if place == "checkpoint":
                await eventually(
                    lambda: len(harness.broker.output("checkpoints", 0)) > n_checkpoints
                )
                assert checkpointed() == half
            harness.broker.group(GROUP).join(first_member)
            await eventually(lambda: second._source.assignment.generation > generation)
            await eventually(lambda: checkpointed() == harness.ends())
            assert second._source.assignment.tasks == {0}
    assert checkpointed() == harness.ends()


async def test_an_unfinished_rebuild_leaves_nothing_in_later_states(monkeypatch):
    """The next rebuild starts later, so it does not read the early judgments of the first one."""
    monkeypatch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 0.0)
    harness = WorkerHarness(1)
    whole = traffic(0, n_queries=400)
    harness.append({0: whole.part(0, 0.3)})
    early, late = MemoryStateDirectory(), MemoryStateDirectory()
    await harness.until_end(states=early)
    dying = harness.worker(FusedSource(harness.broker, Fuse(at=10)), states=late)
    with contextlib.suppress(Crash):
        await finished(dying.run(until_end=True))
    assert list(late.open(0).rows("early"))
    harness.append({0: whole.part(0.3, 0.9)})
    await harness.until_end(states=early)
    await harness.until_end(states=late)
    harness.append({0: whole.part(0.9, 1)})
    worker = await harness.until_end(states=late)
    assert totals(harness.settings, worker) == harness.truth().totals
