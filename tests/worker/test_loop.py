"""The outputs of the loop, which do not depend on its batches."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from evaluator.adapters.memory import MemorySource
from evaluator.adapters.memory.broker import PartitionLog
from evaluator.ports import StateUnusable
from evaluator.wire.state.task_rows import StateDamaged
from evaluator.worker import connectivity, loop
from evaluator.worker.connectivity import MAX_UNACKNOWLEDGED
from tests.oracle.messages import Raw
from tests.repeats import first_quick, sized
from tests.waiting import eventually, finished
from tests.worker.harness import (
    GROUP,
    RoundCountingSource,
    StalledSink,
    WorkerHarness,
    counted,
    positions,
    totals,
)
from tests.worker.traffic import LONG_AGO_MS, Traffic, traffic

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("max_poll_records", "max_lead_ms"),
    first_quick((37, 5_000), (1, 0), (5_000, 10**12), (37, 10**12), (5_000, 0)),
)
async def test_batches_and_pausing_do_not_change_results(max_poll_records, max_lead_ms):
    harness = WorkerHarness()
    n_queries = 40 if max_poll_records == 1 else sized(60, quick=30)
    harness.append({task: traffic(task, n_queries=n_queries) for task in (0, 1)})
    worker = await harness.until_end(max_poll_records=max_poll_records, max_lead_ms=max_lead_ms)
    truth = harness.truth()
    assert totals(harness.settings, worker) == truth.totals
    truth.check_outputs(harness.outputs())
    assert harness.committed() == harness.ends() == positions(worker)


@pytest.mark.slow(alone=False)
async def test_the_log_that_is_ahead_is_paused_for_the_other():
    harness = WorkerHarness(1)
    harness.append({0: traffic(5, n_queries=sized(150, quick=100))})
    polled = []
    source = harness.source()
    poll = source.poll

    async def recorded_poll(partitions, **how):
        batches = await poll(partitions, **how)
        polled.append([each.log for each in batches])
        return batches

    source.poll = recorded_poll
    worker = harness.worker(source, max_poll_records=10, max_lead_ms=2_000)
    async with harness.working(worker):
        await eventually(lambda: positions(worker) == harness.ends())
    half = [log for logs in polled[: len(polled) // 2] for log in logs]
    assert half.count("rankings") > len(half) / 4
    assert half.count("judgments") > len(half) / 4


class HeldSource(MemorySource):
    """Delivers no record until `reads` is set."""

    def __init__(self, broker):
        super().__init__(broker, group_id=GROUP)
        self.reads = asyncio.Event()

    async def poll(self, partitions, **how):
        return await super().poll(partitions if self.reads.is_set() else [], **how)


@pytest.mark.parametrize("fingerprint", first_quick("the same", "another"))
async def test_until_end_ignores_a_task_that_another_worker_has_finished(fingerprint):
    harness = WorkerHarness()
    harness.append({task: traffic(task, n_queries=20) for task in (0, 1)})
    sources = [HeldSource(harness.broker) for _ in "12"]
    first = harness.worker(
        sources[0], **({} if fingerprint == "the same" else {"measures": ("mrr",)})
    )
    second = harness.worker(sources[1])
    running = [asyncio.create_task(each.run(until_end=True)) for each in (first, second)]
    await eventually(lambda: [len(each.snapshot.tasks) for each in (first, second)] == [1, 1])
    sources[0].reads.set()
    await finished(running[0])
    await eventually(lambda: second._ownership.generation == 2)
    assert sources[1].assignment.tasks == {0, 1}
    owned = [1] if fingerprint == "the same" else [0, 1]
    assert [view.task for view in second.snapshot] == owned
    second._ownership.quarantine(1, StateDamaged("a row cannot be read"))
    assert not second._ownership.is_current
    await eventually(lambda: second._ownership.is_current)
    assert [view.task for view in second.snapshot] == owned, "its own task alone is opened again"
    sources[1].reads.set()
    await finished(running[1])
    assert harness.committed() == harness.ends()


class LateSource(MemorySource):
    """Has no assignment until `assigned` is set, though the group has given it tasks."""

    def __init__(self, broker):
        super().__init__(broker, group_id=GROUP)
        self.assigned = asyncio.Event()

    @property
    def assignment(self):
        return super().assignment if self.assigned.is_set() else None


async def started_late(harness, source):
    """A worker that waits for its tasks, its run, and another one that has ended meanwhile."""
    harness.append({task: traffic(task, n_queries=20) for task in (0, 1)})
    late, first = harness.worker(source), harness.worker()
    running = asyncio.create_task(late.run(until_end=True))
    await eventually(lambda: late._started)
    await finished(first.run(until_end=True))
    return late, running, first


async def test_a_worker_with_a_late_first_assignment_reads_only_unfinished_tasks():
    harness = WorkerHarness()
    source = LateSource(harness.broker)
    late, running, first = await started_late(harness, source)
    done = [view.task for view in first.snapshot]
    assert len(done) == 1
    source.assigned.set()
    await finished(running)
    assert [view.task for view in late.snapshot] == [task for task in (0, 1) if task not in done]
    assert harness.committed() == harness.ends()
    harness.truth().check_outputs(harness.outputs(), once=True)
    assert first._n_read + late._n_read == sum(harness.ends().values())


class JoiningSource(MemorySource):
    """Joins the group when `joins` is set."""

    def __init__(self, broker):
        super().__init__(broker, group_id=GROUP)
        self.joins = asyncio.Event()

    async def start(self):
        self._counts = dict(self._broker.partitions)

    async def poll(self, partitions, **how):
        if self.joins.is_set():
            await super().start()
        return await super().poll(partitions, **how)


@pytest.mark.slow(alone=False)
async def test_a_worker_assigned_only_finished_tasks_ends_without_reading():
    harness = WorkerHarness()
    source = JoiningSource(harness.broker)
    late, running, _ = await started_late(harness, source)
    assert harness.committed() == harness.ends()
    source.joins.set()
    await finished(running)
    assert source.assignment.tasks == {0, 1}
    assert (late._n_read, list(late.snapshot)) == (0, [])
    again = await harness.until_end()  # finished before its start: its totals are rebuilt
    assert totals(harness.settings, again) == harness.truth().totals


@pytest.mark.slow
async def test_records_appended_later_are_read_and_counted(monkeypatch):
    monkeypatch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 0.1)
    harness = WorkerHarness()
    n_queries = 40
    whole = {task: traffic(task, n_queries=n_queries) for task in (0, 1)}
    async with harness.working(harness.worker()) as worker:
        await eventually(lambda: worker.readiness() == [])
        for begin in (0.0, 0.25, 0.5, 0.75):
            harness.append({t: each.part(begin, begin + 0.25) for t, each in whole.items()})
            await eventually(lambda: positions(worker) == harness.ends())
            assert totals(harness.settings, worker) == harness.truth().totals
    harness.truth().check_outputs(harness.outputs())


@pytest.mark.slow(alone=False)
async def test_commits_are_rarer_while_more_than_one_poll_is_unread(monkeypatch):
    monkeypatch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 1e-9)
    n_commits = {}
    for long_intervals in (1.0, 1e18):
        monkeypatch.setattr(loop, "LONG_INTERVALS", long_intervals)
        harness = WorkerHarness(1)
        harness.append({0: traffic(1, n_queries=30)})
        worker = await harness.until_end(max_poll_records=20)
        assert totals(harness.settings, worker) == harness.truth().totals
        n_commits[long_intervals] = worker.snapshot.process_counts["commits", "committed"]
    assert n_commits[1.0] > 5
    assert n_commits[1e18] <= 3


async def test_without_new_records_nothing_is_published_at_the_shorter_intervals(monkeypatch):
    monkeypatch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 1e-9)
    monkeypatch.setattr(loop, "LONG_INTERVALS", 1e18)
    harness = WorkerHarness(1)
    async with harness.working(harness.worker()) as worker:
        harness.append({0: traffic(1, n_queries=3)})
        await eventually(lambda: positions(worker) == harness.ends())
        shown, n_polls = worker.snapshot, worker._n_polls
        await eventually(lambda: worker._n_polls > n_polls + 3)
        assert worker.snapshot is shown


# The end


async def test_empty_logs_end_at_once():
    harness = WorkerHarness(3)
    await harness.until_end()
    assert harness.committed() == harness.ends() == dict.fromkeys(harness.ends(), 0)


async def test_a_task_without_records_does_not_block_the_others():
    harness = WorkerHarness(3)
    harness.append({1: traffic(1)})
    worker = await harness.until_end()
    assert harness.committed() == harness.ends()
    assert totals(harness.settings, worker) == harness.truth().totals


@pytest.mark.slow(alone=False)
async def test_offsets_without_records_are_skipped():
    harness = WorkerHarness()
    for part in (traffic(1).part(0, 0.5), traffic(1).part(0.5, 1)):
        harness.broker.skip("rankings", 0, 3)
        harness.append({0: part})
        harness.broker.skip("rankings", 0, 3)
        harness.broker.skip("judgments", 1, 2)
    worker = await harness.until_end(max_poll_records=20)
    assert harness.committed() == harness.ends()
    assert totals(harness.settings, worker) == harness.truth().totals
    second = await harness.until_end(max_poll_records=20)
    assert totals(harness.settings, second) == harness.truth().totals
    harness.truth().check_outputs(harness.outputs())


async def test_the_end_is_reached_only_when_it_is_committed(monkeypatch):
    monkeypatch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 0.01)
    harness = WorkerHarness(1)
    harness.append({0: traffic(1, n_queries=20)})
    source = harness.source()
    commit, refused = source.commit, []

    async def refuse_first_commits(offsets, **how):
        if len(refused) < 3:
            refused.append(offsets)
            return False
        return await commit(offsets, **how)

    source.commit = refuse_first_commits
    await finished(harness.worker(source).run(until_end=True))
    assert harness.committed() == harness.ends()


# Starting again


async def test_committed_records_are_not_written_or_counted_again():
    harness = WorkerHarness()
    whole = {task: traffic(task) for task in (0, 1)}
    harness.append({t: each.part(0, 0.6) for t, each in whole.items()})
    first = await harness.until_end(max_poll_records=30)
    before = harness.committed()
    harness.append({t: each.part(0.6, 1) for t, each in whole.items()})
    second = await harness.until_end(max_poll_records=30)
    truth = harness.truth()
    assert totals(harness.settings, second) == truth.totals
    truth.check_outputs(harness.outputs(), once=True)
    for log in ("rankings", "judgments"):
        new = sum(end - before[each] for each, end in harness.ends().items() if each[0] == log)
        assert counted(second.snapshot, log) == new
        assert counted(first.snapshot, log) + new == truth.totals["ledger"][log]["read"]


@pytest.mark.parametrize("longer", ["judgments", pytest.param("rankings", marks=SLOW)])
async def test_a_log_at_its_lead_limit_is_paused_for_the_other(longer):
    """One log has much more to read beyond its limit than one poll returns."""
    harness = WorkerHarness(1)
    whole = traffic(1)
    shares = {"rankings": (0.1, 0.5), "judgments": (0.5, 0.1)}
    mine, theirs = shares[longer]
    first, rest = (
        Traffic(whole.part(0, mine).rankings, whole.part(0, theirs).judgments),
        Traffic(whole.part(mine, 1).rankings, whole.part(theirs, 1).judgments),
    )
    harness.append({0: first})
    await harness.until_end(max_poll_records=10)
    harness.append({0: rest})
    second = await harness.until_end(max_poll_records=10, max_lead_ms=10**12)
    assert totals(harness.settings, second) == harness.truth().totals
    harness.truth().check_outputs(harness.outputs(), once=True)


@pytest.mark.slow(alone=False)
async def test_changed_settings_write_all_outputs_again_except_dead_letters():
    harness = WorkerHarness()
    harness.append({task: traffic(task) for task in (0, 1)})
    await harness.until_end()
    before = harness.outputs()
    harness.truth().check_outputs(before)
    other = WorkerHarness(settings=type(harness.settings)(**{
        **{name: getattr(harness.settings, name) for name in harness.settings.__slots__},
        "measures": ("ndcg", "mrr@2"),
    }))  # fmt: skip
    other.broker = harness.broker
    worker = await other.until_end()
    assert totals(other.settings, worker) == other.truth().totals
    again = {lane: records[len(before[lane]) :] for lane, records in harness.outputs().items()}
    truth = other.truth()
    assert truth.check_evaluations(again)
    assert truth.check_settled(again)
    assert truth.check_windows(again)
    assert not [lane for lane, records in again.items() if lane[0] == "dead-letters" and records]
    assert counted(worker.snapshot, "rankings") == 0


async def test_expired_records_that_are_not_needed_change_no_total():
    harness = WorkerHarness(1)
    harness.append({0: traffic(1)})
    await harness.until_end()
    truth = harness.truth()
    for log in ("rankings", "judgments"):
        harness.broker.expire(log, 0, 30)
    worker = await harness.until_end()
    assert totals(harness.settings, worker) == truth.totals


async def test_expired_records_that_are_needed_end_the_worker_unless_the_loss_is_accepted():
    harness = WorkerHarness(1)
    harness.append({0: traffic(1)})
    first = await harness.until_end()
    n_open = first.snapshot.tasks[0].n_open
    assert n_open
    for log, before in harness.ends():
        harness.broker.expire(log, before, harness.broker.end_of(log, before))
    with pytest.raises(StateUnusable, match=f"{n_open} open queries are lost.*--accept-loss"):
        await harness.until_end()
    worker = await harness.until_end(accept_loss=True)
    (view,) = worker.snapshot.tasks
    assert view.tally["extra", "lost"] == n_open
    assert view.n_open == view.tally["rankings", "open"] == 0
    before = first.snapshot.tasks[0].tally
    assert {path: n for path, n in view.tally.items() if path[0] == "settled"} == {
        path: n for path, n in before.items() if path[0] == "settled"
    }


@pytest.mark.parametrize(
    "recreated",
    [
        pytest.param(("rankings",), marks=SLOW),
        pytest.param(("judgments",), marks=SLOW),
        ("rankings", "judgments"),
    ],
)
async def test_a_commit_beyond_the_end_of_a_log_does_not_skip_its_records(recreated):
    """Topics were recreated under the same names, and hold less than the group has committed."""
    harness = WorkerHarness(2)
    harness.append({task: traffic(task) for task in (0, 1)})
    await harness.until_end()
    before, old = harness.outputs(), harness.committed()
    shorter = traffic(0).part(0, 0.7)
    for log in recreated:
        harness.broker.logs[log, 0] = PartitionLog()
        harness.produce(log, 0, shorter.of(log))
    with capture_logs() as logged:
        worker = await harness.until_end()
    (warning,) = (line for line in logged if line["event"] == "commit_beyond_end")
    assert (warning["log_level"], warning["task"]) == ("warning", 0)
    assert warning["committed"] == {log: old[log, 0] for log in ("rankings", "judgments")}
    truth = harness.truth()
    assert totals(harness.settings, worker) == truth.totals
    again = {lane: records[len(before[lane]) :] for lane, records in harness.outputs().items()}
    assert not any(again[output, 1] for output, task in again if task == 1)
    alone = type(truth)({0: truth.inputs[0]}, truth.settings)
    assert alone.check_evaluations(again)
    assert alone.check_settled(again)
    assert alone.check_windows(again)
    assert alone.check_dead_letters(again, once=True)
    for log in ("rankings", "judgments"):
        assert counted(worker.snapshot, log) == harness.ends()[log, 0]
    assert harness.committed() == harness.ends()


@pytest.mark.slow(alone=False)
async def test_commits_after_one_beyond_the_end_are_continued_from():
    harness = WorkerHarness(1)
    harness.append({0: traffic(1)})
    await harness.until_end()
    for log in ("rankings", "judgments"):
        harness.broker.logs[log, 0] = PartitionLog()
    harness.append({0: traffic(7, n_queries=60)})
    await harness.until_end()
    before = harness.outputs()
    with capture_logs() as logged:
        worker = await harness.until_end()
    assert "commit_beyond_end" not in {line["event"] for line in logged}
    assert harness.outputs() == before
    assert counted(worker.snapshot, "rankings") == 0
    assert totals(harness.settings, worker) == harness.truth().totals


# Obstacles


async def test_an_available_broker_is_not_logged():
    harness = WorkerHarness()
    harness.append({0: traffic(0, n_queries=20)})
    with capture_logs() as logged:
        await harness.until_end()
    events = [line["event"] for line in logged]
    assert events.count("worker_started") == 1
    assert not {"broker_unavailable", "broker_reached"} & set(events)


async def test_an_unavailable_broker_and_its_return_are_logged_once():
    harness = WorkerHarness()
    harness.broker.disconnect()
    worker = harness.worker()
    assert worker.readiness()[0] == "broker unavailable: not connected yet"
    with capture_logs() as logged:
        async with harness.working(worker):
            await eventually(lambda: "in memory is unavailable" in str(worker.readiness()))
            assert worker.readiness()[0] == f"broker unavailable: {logged[0]['error']}"
            harness.broker.reconnect()
            await eventually(lambda: worker.readiness() == [])
    broker_events = [line["event"] for line in logged if line["event"].startswith("broker_")]
    assert broker_events == ["broker_unavailable", "broker_reached"]


@pytest.mark.slow
async def test_unacknowledged_outputs_stop_the_reading_and_are_reported():
    """The membership continues: the group receives heartbeats of the member."""

    class CountingSource(MemorySource):
        times = 0

        def stay_in_group(self):
            self.times += 1

    harness = WorkerHarness()
    harness.append({task: traffic(task) for task in (0, 1)})
    source, sink = CountingSource(harness.broker, group_id=GROUP), StalledSink(harness.broker)
    worker = harness.worker(source, sink=sink, max_poll_records=20)
    async with harness.working(worker):
        await eventually(worker.readiness)
        await eventually(lambda: "not acknowledged" in str(worker.readiness()))
        await eventually(lambda: sink.emitted == MAX_UNACKNOWLEDGED + 1)
        n_before = source.times
        await eventually(lambda: source.times > n_before + 3)
        assert sink.emitted == MAX_UNACKNOWLEDGED + 1
        assert worker.alive()
        assert not any(harness.committed().values())
        assert not any(positions(worker).values())
        sink.flows.set()
        await eventually(lambda: positions(worker) == harness.ends())
        await eventually(lambda: worker.readiness() == [])
        assert totals(harness.settings, worker) == harness.truth().totals
    harness.truth().check_outputs(harness.outputs())


@pytest.mark.slow
async def test_a_few_unacknowledged_outputs_are_reported():
    """So few records that reading continues, but none is committed."""
    harness = WorkerHarness(1)
    harness.append({0: traffic(0, n_queries=20)})
    sink = StalledSink(harness.broker)
    worker = harness.worker(sink=sink, max_poll_records=5_000)
    with capture_logs() as logged:
        async with harness.working(worker):
            await eventually(lambda: "not acknowledged" in str(worker.readiness()))
            assert sink.emitted <= MAX_UNACKNOWLEDGED
            harness.append({0: traffic(1, n_queries=1)})  # reading continues and repairs nothing
            await eventually(lambda: sink.emitted > 2)
            assert "not acknowledged" in str(worker.readiness())
            sink.flows.set()
            await eventually(lambda: positions(worker) == harness.ends())
            await eventually(lambda: worker.readiness() == [])
    broker_events = [line["event"] for line in logged if line["event"].startswith("broker_")]
    assert broker_events == ["broker_unavailable", "broker_reached"]


@pytest.mark.slow(alone=False)
async def test_a_worker_whose_outputs_stall_can_be_stopped(monkeypatch):
    monkeypatch.setattr(connectivity, "STALLED_AFTER_SECONDS", 0.5)
    monkeypatch.setattr(loop, "STOP_TIMEOUT_SECONDS", 0.5)
    harness = WorkerHarness()
    harness.append({task: traffic(task) for task in (0, 1)})
    worker = harness.worker(sink=StalledSink(harness.broker))
    running = asyncio.create_task(worker.run())
    await eventually(lambda: "not acknowledged" in str(worker.readiness()))
    worker.stop()
    await finished(running)
    assert not any(harness.committed().values())


@pytest.mark.slow(alone=False)
async def test_the_timeout_of_a_stop_begins_after_the_evaluation(monkeypatch):
    monkeypatch.setattr(loop, "STOP_TIMEOUT_SECONDS", 1.0)
    harness = WorkerHarness()
    harness.append({task: traffic(task) for task in (0, 1)})
    worker = harness.worker(max_poll_records=5_000)  # more than both tasks have
    receive, received = loop.Task.receive, []

    def slowly(*arguments):
        received.append(None)
        asyncio.get_running_loop().call_soon(worker.stop)
        time.sleep(1.2)
        return receive(*arguments)

    monkeypatch.setattr(loop.Task, "receive", slowly)
    await finished(worker.run())
    assert len(received) == 2
    assert harness.committed() == positions(worker)
    assert any(harness.committed().values())


@pytest.mark.slow
async def test_an_intermittent_broker_does_not_change_results(monkeypatch):
    monkeypatch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 0.0)  # positions are as of a commit
    harness = WorkerHarness()
    harness.append({task: traffic(task, n_queries=40) for task in (0, 1)})
    harness.broker.disconnect()
    worker = harness.worker(max_poll_records=5)
    async with harness.working(worker):
        await eventually(lambda: "in memory is unavailable" in str(worker.readiness()))
        assert worker.alive()
        for _ in range(5):
            harness.broker.reconnect()
            before = positions(worker)
            await eventually(lambda before=before: positions(worker) != before)
            harness.broker.disconnect()
            await eventually(lambda: "in memory is unavailable" in str(worker.readiness()))
            assert positions(worker) != harness.ends()
        harness.broker.reconnect()
        await eventually(lambda: positions(worker) == harness.ends())
        await eventually(lambda: worker.readiness() == [])
    harness.truth().check_outputs(harness.outputs())


async def test_a_worker_without_a_broker_can_be_stopped():
    harness = WorkerHarness()
    harness.broker.disconnect()
    worker = harness.worker()
    running = asyncio.create_task(worker.run())
    await eventually(lambda: "in memory is unavailable" in str(worker.readiness()))
    worker.stop()
    await finished(running)


# Quiet logs


def a_query(at_ms):
    return Traffic(
        (Raw(0, at_ms, b'{"schema_version":1,"trace_id":"t","node_id":"n","candidate_ids":["a"],'
             b'"scores":[1]}'),),
        (Raw(0, at_ms, b'{"schema_version":1,"trace_id":"t","node_id":"n","grades":{"a":1}}'),),
    )  # fmt: skip


def now_ms():
    return time.time_ns() // 1_000_000


SOON = {"maturity_ms": 100, "out_of_orderness_ms": 50}


def quick_harness():
    harness = WorkerHarness(1)
    values = {name: getattr(harness.settings, name) for name in harness.settings.__slots__}
    harness.settings = type(harness.settings)(**{**values, **SOON})
    return harness


@pytest.mark.parametrize("silent", first_quick("rankings", "judgments", None))
async def test_an_idle_task_settles_by_heartbeats(silent):
    harness = quick_harness()
    part = a_query(now_ms())
    harness.append({0: Traffic(part.rankings, () if silent == "judgments" else part.judgments)})
    worker = harness.worker(heartbeats=True, idle_ms=30)
    async with harness.working(worker):
        await eventually(lambda: any(record.key for record in harness.outputs()["settled", 0]))
    assert harness.truth().check_settled(harness.outputs()) == 1
    beats = [raw for log in ("rankings", "judgments") for raw in harness.raws(log, 0)]
    assert {raw.key for raw in beats if raw.value is None} == {None}


async def test_without_heartbeats_nothing_settles_and_nothing_is_written():
    harness = quick_harness()
    harness.append({0: a_query(now_ms())})
    source = RoundCountingSource(harness.broker)
    async with harness.working(harness.worker(source, heartbeats=False, idle_ms=0)) as worker:
        await eventually(lambda: positions(worker) == harness.ends())
        await source.wait_for_rounds()
    assert harness.ends() == {("rankings", 0): 1, ("judgments", 0): 1}
    assert not any(record.key for record in harness.outputs()["settled", 0])


async def test_logs_with_old_or_no_records_get_no_heartbeats():
    harness = WorkerHarness(2)
    harness.append({0: a_query(LONG_AGO_MS)})
    source = RoundCountingSource(harness.broker)
    async with harness.working(harness.worker(source, heartbeats=True, idle_ms=0)) as worker:
        await eventually(lambda: positions(worker) == harness.ends())
        await source.wait_for_rounds()
    assert sum(harness.ends().values()) == 2


def in_seconds(at_ms):
    """A ranking and a judgment with the timestamp *at_ms* in the messages."""
    ranking = b'{"schema_version":1,"trace_id":"%d","node_id":"n","timestamp_ms":%d,'
    ranking += b'"candidate_ids":["a"],"scores":[1]}'
    judgment = (
        b'{"schema_version":1,"trace_id":"%d","node_id":"n","timestamp_ms":%d,"grades":{"a":1}}'
    )
    raws = (Raw(0, LONG_AGO_MS, value % (at_ms, at_ms)) for value in (ranking, judgment))
    return Traffic(*((raw,) for raw in raws))


async def test_timestamps_in_seconds_are_counted_and_logged_once():
    harness = WorkerHarness(2)
    with capture_logs() as logged:
        async with harness.working(harness.worker()) as worker:
            for at_ms in (10**9 - 1, 10**9, 1_763_690_000, 10**10 - 1, 10**10):
                harness.append({0: in_seconds(at_ms), 1: in_seconds(at_ms)})
            await eventually(lambda: positions(worker) == harness.ends())
    for log in ("rankings", "judgments"):
        assert worker.snapshot.counters["timestamps_in_seconds", log] == 3 * 2
        (warning,) = [
            each
            for each in logged
            if each["event"] == "timestamps_in_seconds" and each["log"] == log
        ]
        assert (warning["hint"], warning["offset"]) == ("milliseconds expected", 1)
        assert warning["timestamp_ms"] == 10**9


async def test_timestamps_in_seconds_are_not_counted_again_by_a_rebuild():
    harness = WorkerHarness(1)
    harness.append({0: in_seconds(10**9)})
    await harness.until_end()
    worker = await harness.until_end()
    assert worker.snapshot.counters.get(("timestamps_in_seconds", "rankings"), 0) == 0
