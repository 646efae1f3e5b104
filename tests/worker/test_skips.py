"""Skipped offsets are not part of the state of a task, whichever worker builds it."""

import pytest
from structlog.testing import capture_logs

from evaluator.adapters.memory import MemoryStateDirectory
from evaluator.core.types.records import LOGS
from evaluator.wire.state.checkpoint import decode_checkpoint
from tests.repeats import first_quick, sized
from tests.worker.harness import WorkerHarness, totals
from tests.worker.traffic import traffic
from tests.worker.truth import Truth

SKIPS = {("rankings", 0): [(10, 14), (60, 60)], ("judgments", 0): [(3, 3), (70, 99)]}
N_SKIPPED = 5 + 1 + 1 + 30


def truth_without(harness):
    """The oracle's result for the inputs without skipped records."""
    inputs = tuple(
        [
            raw
            for raw in harness.raws(log, 0)
            if not any(first <= raw.offset <= last for first, last in SKIPS[log, 0])
        ]
        for log in LOGS
    )
    return Truth({0: inputs}, harness.settings)


def n_skipped(worker):
    [view] = worker.snapshot
    return view.tally.get(("extra", "skipped"), 0)


@pytest.mark.slow(alone=False)
async def test_a_task_is_rebuilt_without_skipped_records_and_without_confirmation():
    harness, whole = WorkerHarness(1), traffic(1, n_queries=60)
    harness.append({0: whole.part(0, 0.7)})
    states = MemoryStateDirectory()
    first = await harness.until_end(states=states, skips=SKIPS)
    harness.append({0: whole.part(0.7, 1)})
    truth = truth_without(harness)
    for again in (states, MemoryStateDirectory()):  # its own disk, and none
        with capture_logs() as logs:
            worker = await harness.until_end(states=again, skips=SKIPS if again is states else {})
        assert totals(harness.settings, worker) == truth.totals
        assert n_skipped(worker) == N_SKIPPED
        assert not {line["event"] for line in logs} & {"queries_lost", "checkpoint_unreadable"}
    assert 0 < n_skipped(first) <= N_SKIPPED
    truth.check_outputs(harness.outputs(), once=False)


@pytest.mark.slow(alone=False)
async def test_a_stale_store_skips_the_offsets_skipped_by_others():
    harness, whole = WorkerHarness(1), traffic(2, n_queries=60)
    stale = MemoryStateDirectory()
    for log in LOGS:
        harness.produce(log, 0, whole.of(log)[:3])
    await harness.until_end(states=stale)
    for log in LOGS:
        harness.produce(log, 0, whole.of(log)[3:])
    await harness.until_end(skips=SKIPS)  # another worker, which goes further
    with capture_logs() as logs:
        worker = await harness.until_end(states=stale)
    assert totals(harness.settings, worker) == truth_without(harness).totals
    assert n_skipped(worker) == N_SKIPPED
    assert [line["log"] for line in logs if line["event"] == "offsets_skipped"] == list(LOGS)


@pytest.mark.slow(alone=False)
async def test_records_that_were_already_read_are_not_skipped():
    harness = WorkerHarness(1)
    harness.append({0: traffic(3, n_queries=60)})
    states = MemoryStateDirectory()
    await harness.until_end(states=states)
    with capture_logs() as logs:
        worker = await harness.until_end(states=states, skips=SKIPS)
    assert totals(harness.settings, worker) == harness.truth().totals
    assert n_skipped(worker) == 0
    assert "offsets_skipped" not in [line["event"] for line in logs]


@pytest.mark.slow(alone=False)
@pytest.mark.parametrize("with_disk", first_quick(True, False))
async def test_skipping_the_last_read_record_changes_nothing(with_disk):
    """It identifies the state, which still belongs to these logs."""
    harness, whole = WorkerHarness(1), traffic(4, n_queries=60)
    harness.append({0: whole.part(0, 0.7)})
    states = MemoryStateDirectory()
    await harness.until_end(states=states)
    ends = harness.ends()
    skips = {each: [(end - 1, end - 1)] for each, end in ends.items()}
    harness.append({0: whole.part(0.7, 1)})
    how = {"states": states} if with_disk else {}
    with capture_logs() as logs:
        worker = await harness.until_end(skips=skips, **how)
    assert totals(harness.settings, worker) == harness.truth().totals
    assert n_skipped(worker) == 0
    events = {line["event"] for line in logs}
    assert not events & {"store_quarantined", "checkpoint_of_other_logs", "commit_of_other_logs"}


@pytest.mark.parametrize("accept_loss", first_quick(True, False))
async def test_a_task_is_rebuilt_with_records_already_read_unless_the_loss_is_accepted(accept_loss):
    """All offsets between the restore offsets and the checkpoint are skipped."""
    harness = WorkerHarness(1)
    harness.append({0: traffic(5, n_queries=sized(60, quick=30))})
    await harness.until_end()
    (*_, record) = harness.broker.output("checkpoints", 0)
    written = decode_checkpoint(record.value)
    read = {log: (written.restore_offsets[log], written.head.positions[log] - 1) for log in LOGS}
    assert all(first < last for first, last in read.values())
    skips = {(log, 0): [each] for log, each in read.items()}
    with capture_logs() as logs:
        worker = await harness.until_end(skips=skips, accept_loss=accept_loss)
    events = {line["event"] for line in logs}
    assert accept_loss == ("queries_lost" in events) == ("offsets_skipped" in events)
    if not accept_loss:
        assert totals(harness.settings, worker) == harness.truth().totals
        assert n_skipped(worker) == 0
