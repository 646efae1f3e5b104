"""The times at which a worker publishes its progress."""

import pytest
from structlog.testing import capture_logs

from evaluator.adapters.memory import MemoryStateDirectory
from evaluator.core.types.records import LOGS
from evaluator.ports import StateUnusable
from evaluator.wire.state import checkpoint
from evaluator.wire.state.checkpoint import decode_checkpoint
from evaluator.worker import loop
from evaluator.worker.monitoring import ValueHistograms
from evaluator.worker.task import MAX_CHECKPOINT_SECONDS, Task
from tests.repeats import first_quick, sized
from tests.worker.harness import WorkerHarness, totals
from tests.worker.traffic import traffic

NEVER_MS = 10**12


@pytest.mark.slow(alone=False)
async def test_a_checkpoint_record_is_written_once_in_an_interval_and_at_the_end(monkeypatch):
    monkeypatch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 0.0)
    by_interval = {}
    for interval_ms in (0, NEVER_MS):
        harness = WorkerHarness(1)
        harness.append({0: traffic(1, n_queries=60)})
        worker = await harness.until_end(max_poll_records=20, checkpoint_interval_ms=interval_ms)
        n_commits = worker.snapshot.process_counts["commits", "committed"]
        by_interval[interval_ms] = harness.broker.output("checkpoints", 0)
        assert n_commits > 5
    assert len(by_interval[0]) > 5, "one for each commit that brought something"
    assert len(by_interval[NEVER_MS]) == 2, "the first commit, and the end"
    last = {name: decode_checkpoint(records[-1].value) for name, records in by_interval.items()}
    assert last[0].head.positions == last[NEVER_MS].head.positions


@pytest.mark.slow(alone=False)
async def test_a_task_is_rebuilt_from_a_checkpoint_in_parts(monkeypatch):
    monkeypatch.setattr(checkpoint, "PART_BYTES", 300)
    harness, whole = WorkerHarness(1), traffic(1, n_queries=60)
    harness.append({0: whole.part(0, 0.5)})
    await harness.until_end()
    first = harness.broker.output("checkpoints", 0)
    harness.append({0: whole.part(0.5, 1)})
    await harness.until_end()
    parts = harness.broker.output("checkpoints", 0)
    assert len({record.key for record in parts}) > 3, "of several parts"
    for written in (parts, parts[:-1], parts[: len(first) + 1]):  # whole, and cut off by crashes
        harness.broker.expire_output("checkpoints", 0, 10**9)
        harness.broker.write(("checkpoints", 0), written)
        with capture_logs() as logs:
            worker = await harness.until_end()
        assert totals(harness.settings, worker) == harness.truth().totals
        events = {line["event"] for line in logs}
        assert "task_restored" in events
        assert not events & {"checkpoint_unreadable", "fingerprint_is_new"}


@pytest.mark.slow(alone=False)
async def test_a_checkpoint_with_missing_parts_is_not_used(monkeypatch):
    monkeypatch.setattr(checkpoint, "PART_BYTES", 300)
    harness = WorkerHarness(1)
    harness.append({0: traffic(1, n_queries=60)})
    await harness.until_end(checkpoint_interval_ms=NEVER_MS)
    parts = harness.broker.output("checkpoints", 0)
    harness.broker.expire_output("checkpoints", 0, 10**9)
    harness.broker.write(
        ("checkpoints", 0), [record for record in parts if record.key[-2:] == b"+1"]
    )
    with capture_logs() as logs:
        worker = await harness.until_end()
    assert totals(harness.settings, worker) == harness.truth().totals, "from the whole inputs"
    errors = [line["error"] for line in logs if line["event"] == "checkpoint_unreadable"]
    assert errors == ["it has several parts, and some of them are missing"]


def test_the_checkpoint_interval_grows_with_the_number_of_parts(monkeypatch, stored):
    monkeypatch.setattr(checkpoint, "PART_BYTES", 100)
    harness = WorkerHarness(1)
    worker = harness.worker(checkpoint_interval_ms=10_000)
    task = Task(
        *(stored.engine, stored.state, worker._ownership._wire, worker._ownership._settings),
        checkpoint=None,
        loaded_seconds=None,
        ends=dict.fromkeys(LOGS, 0),
        values=ValueHistograms((), counted=(), warned=set()),
    )
    records = task.checkpoint(now=0.0, at_once=False)
    assert len(records) > 2
    assert not task.checkpoint(now=1e9, at_once=True), "nothing has changed"
    task.positions["rankings"] = 1
    wait_seconds = 10.0 * len(records)
    assert not task.checkpoint(now=wait_seconds - 1, at_once=False)
    assert task.checkpoint(now=wait_seconds, at_once=False)
    task.positions["rankings"] = 2
    assert task.checkpoint(now=wait_seconds, at_once=True), "at a handover"
    monkeypatch.setattr(checkpoint, "PART_BYTES", 1)
    task.positions["rankings"] = 3
    many = task.checkpoint(now=wait_seconds, at_once=True)
    assert 10.0 * len(many) > MAX_CHECKPOINT_SECONDS
    task.positions["rankings"] = 4
    assert task.checkpoint(now=wait_seconds + MAX_CHECKPOINT_SECONDS, at_once=False)


OTHER_COLUMNS = rb'[["[\"m\",\"v\",[\"served\"]]",[[1,[1],[]],[1,[1],[]],[1,[1],[]],0,0]]]'


@pytest.mark.parametrize(
    "poison",
    first_quick(
        lambda value: value.replace(b'"rankings":', b'"rankings":9223372036854775808,"x":', 1),
        lambda value: b"[" * 100_000,
        lambda value: b'{"format":1,"head":' + b'{"a":' * 100_000,
        lambda value: value.replace(b'"next_run":', b'"next_run":-', 1),
        lambda value: value.replace(b"],", b",0],", 1),
        lambda value: value[:-1] + b',"totals":' + OTHER_COLUMNS + b"}",
    ),
)
async def test_an_unreadable_checkpoint_causes_a_rebuild_from_the_inputs(poison):
    harness = WorkerHarness(1)
    harness.append({0: traffic(1, n_queries=sized(30, quick=15))})
    await harness.until_end()
    *_, last = harness.broker.output("checkpoints", 0)
    harness.broker.write(("checkpoints", 0), [last._replace(value=poison(last.value))])
    with capture_logs() as logs:
        worker = await harness.until_end()
    assert totals(harness.settings, worker) == harness.truth().totals
    assert [line["event"] for line in logs].count("checkpoint_unreadable") == 1


@pytest.mark.parametrize("log", first_quick(*LOGS))
async def test_an_unreadable_checkpoint_with_expired_inputs_is_no_fresh_start(log):
    harness, disk = WorkerHarness(1), MemoryStateDirectory()
    harness.append({0: traffic(1, n_queries=sized(30, quick=15))})
    whole = await harness.until_end(states=disk)
    *_, last = harness.broker.output("checkpoints", 0)
    harness.broker.write(("checkpoints", 0), [last._replace(value=b'{"format":1}')])
    harness.broker.expire(log, 0, 10)
    message = (
        rf"task 0 cannot be read \(.*\), there is no store of it, and the beginning of {log} has"
    )
    for _ in range(2):
        with pytest.raises(StateUnusable, match=message):
            await harness.until_end()
    worker = await harness.until_end(states=disk)
    assert totals(harness.settings, worker) == totals(harness.settings, whole)
    harness.broker.write(("checkpoints", 0), [last._replace(value=b'{"format":1}')])
    worker = await harness.until_end(accept_loss=True)
    assert totals(harness.settings, worker) == harness.truth().totals, "of what is left"
