"""Logs that differ from those that were read: recreated topics, lost ends."""

import asyncio
import copy

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from evaluator.adapters.memory import MemoryStateDirectory
from evaluator.core.types.records import LOGS
from evaluator.ports import Committed, SourceUnusable
from evaluator.wire.state.checkpoint import decode_checkpoint
from evaluator.worker import loop, origins
from tests.repeats import first_quick, sized
from tests.waiting import eventually, finished
from tests.worker.harness import GROUP, WorkerHarness, counted, totals
from tests.worker.traffic import LONG_AGO_MS, traffic

OLD = traffic(1, n_queries=sized(20, quick=12))
NEW = traffic(1, n_queries=sized(45, quick=27))
"""Other messages, of the same queries and more."""


@pytest.fixture(autouse=True)
def _commit_after_every_batch(monkeypatch):
    monkeypatch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 0.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def read_once():
    """One task, read to the end by a worker whose disk is `harness.disk`."""
    made = WorkerHarness(1)
    made.disk = MemoryStateDirectory()
    made.append({0: OLD})
    await made.until_end(states=made.disk)
    return made


@pytest.fixture
def harness(read_once):
    """A copy of `read_once`."""
    return copy.deepcopy(read_once)


def recreate_topics(harness, *logs):
    """Recreates the topics of *logs*, which grow beyond the positions in the old ones."""
    for log in logs:
        before = harness.broker.end_of(log, 0)
        harness.broker.recreate(log)
        harness.produce(log, 0, NEW.of(log))
        assert harness.broker.end_of(log, 0) > before


async def run_to_end(harness, states=None, **how):
    """Runs a worker to the end; returns it, its log by event, and its outputs."""
    before = {lane: len(records) for lane, records in harness.outputs().items()}
    with capture_logs() as lines:
        worker = await harness.until_end(states=states or MemoryStateDirectory(), **how)
    new_outputs = {lane: records[before[lane] :] for lane, records in harness.outputs().items()}
    return worker, {line["event"]: line for line in lines}, new_outputs


def generations(harness):
    """Those in `settled`, in the order in which they begin."""
    records = harness.broker.output("settled", 0)
    return list(dict.fromkeys(dict(record.headers)["generation"] for record in records))


def check_results_of_present_logs(harness, worker, new_outputs):
    truth = harness.truth()
    assert totals(harness.settings, worker) == truth.totals
    truth.check_outputs(new_outputs, once=False)


@pytest.mark.parametrize("disk", first_quick("the old disk", "no disk", "no disk, accept_loss"))
@pytest.mark.parametrize("logs", first_quick((LOGS,), (LOGS[:1],), (LOGS[1:],)))
async def test_totals_of_recreated_topics_have_no_old_records(harness, logs, disk):
    recreate_topics(harness, *logs)
    states = harness.disk if disk == "the old disk" else MemoryStateDirectory()
    worker, log, new_outputs = await run_to_end(
        harness, states, accept_loss=disk.endswith("accept_loss")
    )
    check_results_of_present_logs(harness, worker, new_outputs)
    counts = worker.snapshot.process_counts
    if disk == "the old disk":
        assert counts["quarantined_stores", "0"] == 2  # the store, and the checkpoint record
        assert f"topic {logs[0]} was recreated" in log["store_quarantined"]["reason"]
        assert log["store_quarantined"]["place"]
    else:
        assert counts["quarantined_stores", "0"] == 1
        assert "store_quarantined" not in log
    assert f"topic {logs[0]} was recreated" in log["checkpoint_of_other_logs"]["reason"]
    assert f"topic {logs[0]} was recreated" in log["commit_of_other_logs"]["reason"]
    assert len(generations(harness)) == 2
    assert counted(worker.snapshot, "rankings") == len(harness.raws("rankings", 0))
    again, log, new_outputs = await run_to_end(harness, states)
    assert totals(harness.settings, again) == harness.truth().totals
    assert (
        not {"store_quarantined", "checkpoint_of_other_logs", "commit_of_other_logs"} & log.keys()
    )
    assert not any(new_outputs.values())


def lose_end_and_grow(harness, log="rankings", *, lost=5):
    """Removes the last records of a log, and appends more records than it removed."""
    end = harness.broker.end_of(log, 0)
    harness.broker.lose_end(log, 0, end - lost)
    harness.produce(log, 0, NEW.of(log))
    assert harness.broker.end_of(log, 0) > end


@pytest.mark.parametrize("with_disk", first_quick(True, False))
@pytest.mark.parametrize("log", first_quick(*LOGS))
async def test_totals_have_no_records_of_a_lost_end(harness, log, with_disk):
    end = harness.broker.end_of(log, 0)
    lose_end_and_grow(harness, log)
    states = harness.disk if with_disk else MemoryStateDirectory()
    worker, logged, new_outputs = await run_to_end(harness, states)
    check_results_of_present_logs(harness, worker, new_outputs)
    reason = f"record {end - 1} of {log}-0 is not the one that was read"
    assert logged["checkpoint_of_other_logs"]["reason"] == reason
    assert logged["commit_of_other_logs"]["reason"] == reason
    assert with_disk == ("store_quarantined" in logged)
    first, second = generations(harness)
    assert second == first + b".1"
    lose_end_and_grow(harness, log)
    await run_to_end(harness, states)
    assert generations(harness)[2:] == [first + b".2"]


@pytest.mark.parametrize("disk", ["the old disk", "no disk"])
async def test_an_unreadable_record_is_no_evidence_of_other_logs(harness, disk, monkeypatch):
    async def damaged(self, places):
        return dict.fromkeys(places)

    monkeypatch.setattr(type(harness.source()), "records_at", damaged)
    harness.append({0: traffic(3, n_queries=20)})
    states = harness.disk if disk == "the old disk" else MemoryStateDirectory()
    worker, log, _ = await run_to_end(harness, states)
    assert totals(harness.settings, worker) == harness.truth().totals
    assert not {"store_quarantined", "checkpoint_of_other_logs", "commit_of_other_logs"} & set(log)


@pytest.mark.parametrize("log", first_quick(*LOGS))
async def test_a_lost_end_is_recognised_even_if_its_last_record_is_skipped(harness, log):
    last = harness.broker.end_of(log, 0) - 1
    lose_end_and_grow(harness, log)
    _, logged, _ = await run_to_end(harness, harness.disk, skips={(log, 0): [(last, last)]})
    reason = f"record {last} of {log}-0 is not the one that was read"
    assert logged["store_quarantined"]["reason"] == reason
    assert logged["checkpoint_of_other_logs"]["reason"] == reason


@pytest.mark.slow(alone=False)
async def test_a_checkpoint_from_before_the_lost_end_is_used(harness):
    """The read records still exist; only the records after them differ."""
    (*_, record) = harness.broker.output("checkpoints", 0)
    harness.append({0: traffic(3, n_queries=20)})
    await harness.until_end(states=harness.disk)
    harness.broker.write(("checkpoints", 0), [record])  # that of the second run is lost
    for log in LOGS:
        harness.broker.lose_end(log, 0, decode_checkpoint(record.value).head.positions[log] + 3)
    harness.append({0: traffic(4, start_ms=LONG_AGO_MS + 100_000)})
    worker, log, _ = await run_to_end(harness, harness.disk)
    assert totals(harness.settings, worker) == harness.truth().totals
    assert {"store_quarantined", "task_restored"} <= log.keys()
    assert "checkpoint_of_other_logs" not in log
    assert len(generations(harness)) == 2


@pytest.mark.slow(alone=False)
async def test_a_stale_store_is_replaced_if_another_worker_has_noticed_a_lost_end():
    """It has read all records, but `settled` has had another generation since."""
    harness, stale, disk = WorkerHarness(1), MemoryStateDirectory(), MemoryStateDirectory()
    harness.append({0: OLD})
    await harness.until_end(states=stale)
    harness.append({0: traffic(3, n_queries=20)})
    await harness.until_end(states=disk)
    lose_end_and_grow(harness)
    await harness.until_end(states=disk)
    worker, log, new_outputs = await run_to_end(harness, stale)
    assert totals(harness.settings, worker) == harness.truth().totals
    assert log["store_quarantined"]["reason"].startswith("a log has lost its end since")
    assert not any(new_outputs.values())
    harness.append({0: traffic(4, n_queries=20)})
    await run_to_end(harness, stale)
    assert len(generations(harness)) == 2


async def test_state_of_topics_with_the_same_ids_is_kept_after_any_expiry(harness):
    for log in LOGS:
        harness.broker.expire(log, 0, harness.broker.end_of(log, 0))
    harness.append({0: traffic(3, n_queries=20)})
    worker, log, _ = await run_to_end(harness, harness.disk)
    assert not {"store_quarantined", "commit_of_other_logs"} & log.keys()
    assert len(generations(harness)) == 1
    assert counted(worker.snapshot, "rankings") == len(harness.raws("rankings", 0))


@pytest.mark.slow(alone=False)
async def test_without_topic_ids_the_last_record_shows_that_a_topic_was_recreated(
    harness, monkeypatch
):
    """As on brokers without topic ids."""

    async def nothing(self):
        return {}

    monkeypatch.setattr(type(harness.source()), "topic_ids", nothing)
    disk = MemoryStateDirectory()
    await harness.until_end(states=disk)
    recreate_topics(harness, *LOGS)
    worker, log, new_outputs = await run_to_end(harness, disk)
    check_results_of_present_logs(harness, worker, new_outputs)
    assert "is not the one that was read" in log["store_quarantined"]["reason"]


async def test_an_offset_set_by_hand_is_used(harness):
    """Without a note its origin is unknown; a place beyond the end is not a position."""
    harness.append({0: traffic(3, n_queries=20)})
    for log in LOGS:
        end = harness.broker.end_of(log, 0)
        harness.broker.group(GROUP).commits[log, 0] = Committed(end + 1, "")
    worker, log, _ = await run_to_end(harness, harness.disk)
    assert totals(harness.settings, worker) == harness.truth().totals
    assert set(log["commit_beyond_end"]["committed"]) == set(LOGS)
    assert len(generations(harness)) == 1


@pytest.mark.parametrize("logs", first_quick((LOGS,), (LOGS[1:],)))
async def test_a_topic_recreated_during_reading_ends_the_worker(harness, logs, monkeypatch):
    """Records of the new topic read before that are only in a discarded state."""
    monkeypatch.setattr(origins, "WATCH_SECONDS", 1e9)
    disk = harness.disk
    worker = harness.worker(states=disk)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker.snapshot.tasks)
    n_read = counted(worker.snapshot, "judgments")
    recreate_topics(harness, *logs)
    await eventually(lambda: counted(worker.snapshot, "judgments") > n_read)  # and committed
    monkeypatch.setattr(origins, "WATCH_SECONDS", 0.0)
    with pytest.raises(SourceUnusable, match=rf"Topic {logs[0]} was recreated while it was read"):
        await finished(running)
    again, log, _ = await run_to_end(harness, disk)
    assert totals(harness.settings, again) == harness.truth().totals
    assert "was recreated" in log["store_quarantined"]["reason"]


@pytest.mark.slow(alone=False)
async def test_a_topic_recreated_during_a_handover_ends_the_worker(harness):
    worker = harness.worker(states=harness.disk)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker.snapshot.tasks)
    recreate_topics(harness, *LOGS)
    second = harness.worker()
    joining = asyncio.create_task(second.run())  # makes the group assign again
    with pytest.raises(SourceUnusable, match="was recreated while it was read"):
        await finished(running)
    await eventually(lambda: second.snapshot.tasks and not second.readiness())
    await eventually(lambda: totals(harness.settings, second) == harness.truth().totals)
    second.stop()
    await joining


async def test_added_partitions_end_the_worker_at_the_next_check(harness, monkeypatch):
    monkeypatch.setattr(origins, "WATCH_SECONDS", 0.01)
    worker = harness.worker(states=harness.disk)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker.snapshot.tasks)
    harness.broker.grow("rankings", 3)
    with pytest.raises(SourceUnusable, match="had 1 partitions at the start and has 3 now"):
        await finished(running)


def test_topics_are_checked_often_enough():
    assert origins.WATCH_SECONDS <= 15
