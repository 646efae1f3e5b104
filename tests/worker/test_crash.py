"""Crashes at every boundary, handovers in every state: no output is lost or differs."""

import asyncio
import contextlib

import pytest

from evaluator.adapters.memory import MemorySink, MemorySource, MemoryStateDirectory
from evaluator.wire.state.checkpoint import decode_checkpoint
from evaluator.worker import loop
from tests.waiting import eventually, finished
from tests.worker.house import (
    GROUP,
    House,
    StalledSink,
    counted,
    offsets_of,
    positions,
    totals,
)
from tests.worker.traffic import traffic

pytestmark = pytest.mark.slow


class Crash(Exception):
    """The process is gone."""


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


def fused_house():
    house = House()
    house.append({task: traffic(task, n_queries=12) for task in (0, 1)})
    return house


async def run_until_crash(house, fuse):
    """Runs a worker to its end or its crash; returns its counts."""
    source, sink = FusedSource(house.broker, fuse), FusedSink(house.broker, fuse)
    worker = house.worker(source, sink, max_poll_records=30)
    with contextlib.suppress(Crash):
        await finished(worker.run(until_end=True))
    return worker


async def calls_of_a_whole_run():
    fuse = Fuse()
    await run_until_crash(fused_house(), fuse)
    return fuse.calls


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_crash_at_any_call_loses_no_output_and_changes_none(after):
    calls = await calls_of_a_whole_run()
    assert {"poll", "emit", "commit"} == set(calls)
    for at in range(1, len(calls) + 1):
        house = fused_house()
        crashed = await run_until_crash(house, Fuse(at, after=after))
        assert counted(crashed.snapshot, "rankings") <= sum(
            offset for (log, _), offset in house.committed().items() if log == "rankings"
        )
        second = await house.until_end()
        assert house.committed() == house.ends()
        truth = house.truth()
        assert totals(house.settings, second) == truth.totals
        truth.check_outputs(house.outputs(), once=False)


async def test_a_crash_while_restoring_changes_nothing():
    house = fused_house()
    await run_until_crash(house, Fuse())
    before = house.outputs()
    for at in (1, 3, 5):
        fuse = Fuse(at)
        await run_until_crash(house, fuse)
        assert fuse.burnt
    last = await house.until_end()
    assert house.outputs() == before
    assert totals(house.settings, last) == house.truth().totals
    assert counted(last.snapshot, "rankings") == 0


async def test_figures_are_published_after_outputs_and_commits():
    house = fused_house()
    seen = []

    class Looking(MemorySource):
        async def poll(self, partitions, **how):
            committed = house.committed()
            for each, position in positions(worker).items():
                assert position <= committed.get(each, 0)
            seen.append(committed)
            return await super().poll(partitions, **how)

        async def commit(self, commits):
            assert worker.snapshot.tasks
            assert not worker._emissions._unacknowledged
            return await super().commit(commits)

    worker = house.worker(Looking(house.broker, group_id=GROUP), max_poll_records=7)
    await finished(worker.run(until_end=True))
    assert any(any(committed.values()) for committed in seen)


# Handovers


class SlowToLetGo(MemorySource):
    """As on a real broker, a release takes effect some turns of the event loop later."""

    def release(self):
        asyncio.get_running_loop().call_later(0.05, super().release)


async def until_shared(house, *workers):
    tasks = set(range(house.n_tasks))

    def shared():
        owned = [view.task for worker in workers for view in worker.snapshot]
        done = positions(*workers) == house.ends()
        return done and len(owned) == len(tasks) and set(owned) == tasks

    await eventually(shared)


@pytest.mark.parametrize("kind", [MemorySource, SlowToLetGo])
async def test_workers_share_tasks_and_take_them_over(kind):
    house = House(4)
    whole = {task: traffic(task, n_queries=80) for task in range(4)}
    house.append({t: each.part(0, 0.3) for t, each in whole.items()})
    first, second = (house.worker(kind(house.broker, group_id=GROUP)) for _ in "12")
    async with house.working(first):
        await eventually(lambda: any(positions(first).values()))
        async with house.working(second):
            await until_shared(house, first, second)
            house.append({t: each.part(0.3, 0.6) for t, each in whole.items()})
            await until_shared(house, first, second)
            assert totals(house.settings, first, second) == house.truth().totals
        await until_shared(house, first)
        house.append({t: each.part(0.6, 1) for t, each in whole.items()})
        await until_shared(house, first)
        assert totals(house.settings, first) == house.truth().totals
    house.truth().check_outputs(house.outputs(), once=True)
    for log in ("rankings", "judgments"):
        read = house.truth().totals["ledger"][log]["read"]
        assert counted(first.snapshot, log) + counted(second.snapshot, log) == read


class Gated(MemorySource):
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
    house, gate = House(4), asyncio.Event()
    house.append({task: traffic(task, n_queries=40) for task in range(4)})
    await house.until_end()
    before = house.outputs()
    for task in range(4):  # without its checkpoint a task is read again from its beginning
        del house.broker._outputs["checkpoints", task]
    first, second = (house.worker(Gated(house.broker, gate), max_poll_records=1) for _ in range(2))
    async with house.working(first):
        await eventually(lambda: "restoring" in str(first.readiness()))
        async with house.working(second):
            await eventually(lambda: second.snapshot.tasks)
            for worker in (first, second):
                await eventually(lambda of=worker: "restoring" in str(of.readiness()))
        await eventually(lambda: "restoring" in str(first.readiness()))
        gate.set()
        await until_shared(house, first)
        assert totals(house.settings, first) == house.truth().totals
    assert house.outputs() == before
    assert counted(first.snapshot, "rankings") == counted(second.snapshot, "rankings") == 0


async def test_records_of_a_commit_refused_in_a_handover_are_read_by_the_next_owner():
    """The group does not wait for a worker whose outputs stall; that worker counts nothing."""
    house = House(2, release_timeout_seconds=0.2)
    house.append({task: traffic(task, n_queries=80) for task in range(2)})
    sink = StalledSink(house.broker)
    stuck, other = house.worker(sink=sink), house.worker()
    async with house.working(stuck):
        await eventually(lambda: sink.emitted)
        async with house.working(other):
            await eventually(lambda: len(other.snapshot.tasks) == 1)
            sink.flows.set()
            await until_shared(house, stuck, other)
            assert totals(house.settings, stuck, other) == house.truth().totals
            read = house.truth().totals["ledger"]["rankings"]["read"]
            both = counted(stuck.snapshot, "rankings") + counted(other.snapshot, "rankings")
            assert both == read
    house.truth().check_outputs(house.outputs(), once=False)


async def test_a_frozen_worker_does_not_count_records_counted_by_its_successor():
    """It was gone for longer than its session, between an acknowledgement and the commit."""
    house = House(1, release_timeout_seconds=0.1)
    house.append({0: traffic(0, n_queries=60)})
    frozen, thawed = asyncio.Event(), asyncio.Event()

    class Freezing(MemorySource):
        async def commit(self, commits):
            if self.assignment.generation == 1 and offsets_of(commits) == house.ends():
                frozen.set()
                await thawed.wait()
                return False  # that generation is over
            return await super().commit(commits)

    first = house.worker(Freezing(house.broker, group_id=GROUP))
    second = house.worker()
    async with house.working(first):
        await eventually(frozen.is_set)
        first_member = house.broker.group(GROUP).members[0]
        house.broker.group(GROUP).leave(first_member)
        async with house.working(second):
            await eventually(lambda: positions(second) == house.ends())
        house.broker.group(GROUP).join(first_member)
        thawed.set()
        await eventually(lambda: positions(first) == house.ends())
        assert totals(house.settings, first) == house.truth().totals
    read = house.truth().totals["ledger"]["rankings"]["read"]
    assert counted(first.snapshot, "rankings") + counted(second.snapshot, "rankings") == read
    house.truth().check_outputs(house.outputs(), once=False)


@pytest.mark.parametrize("place", ["commit", "checkpoint"])
async def test_a_late_checkpoint_of_a_frozen_worker_is_replaced(place):
    """Another has told of more meanwhile, and nothing comes any more that it would tell of."""
    house = House(1, release_timeout_seconds=0.1)
    house.append({0: traffic(0, n_queries=60).part(0, 0.5)})
    half = house.ends()
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
                and house.committed() == half
            ):
                await freeze()
            return await super().emit(records)

    def told():
        record = house.broker.output("checkpoints", 0)[-1]
        return {
            (log, 0): position
            for log, position in decode_checkpoint(record.value).head.positions.items()
        }

    first = house.worker(FreezingSource(house.broker, group_id=GROUP), FreezingSink(house.broker))
    second = house.worker()
    async with house.working(first):
        await eventually(frozen.is_set)
        first_member = house.broker.group(GROUP).members[0]
        house.broker.group(GROUP).leave(first_member)
        async with house.working(second):
            house.append({0: traffic(0, n_queries=60).part(0.5, 1)})
            await eventually(lambda: positions(second) == house.ends() == told())
            generation = second._source.assignment.generation
            n_told = len(house.broker.output("checkpoints", 0))
            thawed.set()
            if place == "checkpoint":
                await eventually(lambda: len(house.broker.output("checkpoints", 0)) > n_told)
                assert told() == half
            house.broker.group(GROUP).join(first_member)
            await eventually(lambda: second._source.assignment.generation > generation)
            await eventually(lambda: told() == house.ends())
            assert second._source.assignment.tasks == {0}
    assert told() == house.ends()


async def test_an_unfinished_rebuild_leaves_nothing_in_later_states(monkeypatch):
    """The next rebuild begins later, so it does not meet those judgments that waited then."""
    monkeypatch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 0.0)
    house = House(1)
    whole = traffic(0, n_queries=400)
    house.append({0: whole.part(0, 0.3)})
    early, late = MemoryStateDirectory(), MemoryStateDirectory()
    await house.until_end(states=early)
    dying = house.worker(FusedSource(house.broker, Fuse(at=10)), states=late)
    with contextlib.suppress(Crash):
        await finished(dying.run(until_end=True))
    assert list(late.open(0).rows("early"))
    house.append({0: whole.part(0.3, 0.9)})
    await house.until_end(states=early)
    await house.until_end(states=late)
    house.append({0: whole.part(0.9, 1)})
    worker = await house.until_end(states=late)
    assert totals(house.settings, worker) == house.truth().totals
