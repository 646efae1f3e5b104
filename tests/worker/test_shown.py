"""The published state of a running worker: its readiness, and its figures."""

import asyncio

import pytest
from structlog.testing import capture_logs

from evaluator.adapters.memory import MemoryStateDirectory
from evaluator.core.types.records import LOGS
from evaluator.wire.state.checkpoint import decode_checkpoint
from evaluator.worker import connectivity, loop
from tests.waiting import eventually, finished
from tests.worker.harness import RoundCountingSource, StalledSink, WorkerHarness, positions
from tests.worker.traffic import traffic


async def test_a_worker_is_not_ready_before_it_has_taken_over_its_tasks():
    harness, asked, answer = WorkerHarness(), asyncio.Event(), asyncio.Event()
    source = harness.source()
    checkpoints = source.checkpoints

    async def slow(tasks):
        asked.set()
        await answer.wait()
        return await checkpoints(tasks)

    source.checkpoints = slow
    async with harness.working(harness.worker(source)) as worker:
        await finished(asked.wait())
        assert worker.readiness()[-1] == "taking over tasks [0, 1]"
        answer.set()
        await eventually(lambda: worker.readiness() == [])


@pytest.mark.slow
async def test_figures_are_those_of_the_last_commit_while_outputs_stall(monkeypatch):
    """The lag does not grow either, as docs/operations.md states under Failures."""
    monkeypatch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(connectivity, "STALLED_AFTER_SECONDS", 0.3)
    harness, whole = WorkerHarness(1), traffic(1, n_queries=60)
    source, sink = RoundCountingSource(harness.broker), StalledSink(harness.broker)
    sink.flows.set()
    async with harness.working(harness.worker(source, sink, max_poll_records=20)) as worker:
        harness.append({0: whole.part(0, 0.3)})
        await eventually(lambda: positions(worker) == harness.ends())
        sink.flows.clear()
        harness.append({0: whole.part(0.3, 0.6)})
        await eventually(lambda: "not acknowledged" in str(worker.readiness()))
        stalled = worker.snapshot
        harness.append({0: whole.part(0.6, 1)})
        await source.wait_for_rounds()
        assert worker.snapshot == stalled
        assert positions(worker) == harness.committed() != harness.ends()
        sink.flows.set()
        await eventually(lambda: positions(worker) == harness.ends() == harness.committed())
        assert worker.snapshot.last_commit_ms > stalled.last_commit_ms
        await eventually(lambda: worker.readiness() == [])


@pytest.mark.slow(alone=False)
async def test_remaining_records_of_a_cold_start_fall_to_zero(monkeypatch):
    monkeypatch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 0.0)
    harness = WorkerHarness(1)
    harness.append({0: traffic(1, n_queries=60).part(0, 0.6)})
    await harness.until_end()
    checkpoint = decode_checkpoint(harness.broker.output("checkpoints", 0)[-1].value)
    worker, seen = harness.worker(source := harness.source(), max_poll_records=20), []
    poll = source.poll

    async def recorded_poll(partitions, **how):
        seen.extend((view.restore_left, view.restoring) for view in worker.snapshot)
        return await poll(partitions, **how)

    source.poll = recorded_poll
    await finished(worker.run(until_end=True))
    seen.extend((view.restore_left, view.restoring) for view in worker.snapshot)
    left = [n for n, _ in seen]
    to_read = {
        log: checkpoint.head.positions[log] - checkpoint.restore_offsets[log] for log in LOGS
    }
    assert left[0] == sum(to_read.values()) > 0
    assert left == sorted(left, reverse=True)
    assert len(set(left)) > 5
    assert left[-1] == 0
    assert all(restoring == (n > 0) for n, restoring in seen)


async def test_held_bytes_are_those_of_the_memory_tier_and_of_the_key_index():
    harness = WorkerHarness(1)
    harness.append({0: traffic(1)})
    async with harness.working(harness.worker(memory_tier_bytes=20_000)) as worker:
        await eventually(lambda: positions(worker) == harness.ends())
        task = worker._ownership.tasks[0]
        in_memory, index = task.engine.memory_tier_bytes, task.state.n_bytes_in_memory
        assert in_memory > 0
        assert index > 0
        assert worker.snapshot.tasks[0].memory_tier_bytes == in_memory + index


async def test_the_duration_of_loading_a_state_is_shown_if_there_was_one():
    harness, states = WorkerHarness(1), MemoryStateDirectory()
    harness.append({0: traffic(1, n_queries=20)})
    first = await harness.until_end(states=states)
    with capture_logs() as logs:
        second = await harness.until_end(states=states)
    (line,) = [line for line in logs if line["event"] == "state_loaded"]
    assert first.snapshot.tasks[0].loaded_seconds is None
    assert second.snapshot.tasks[0].loaded_seconds == line["seconds"] >= 0
