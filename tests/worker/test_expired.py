"""Inputs with expired beginnings, and the state of a task that is rebuilt from them."""

import json

import pytest
from structlog.testing import capture_logs

from evaluator.adapters.memory import MemoryStateDirectory
from evaluator.core.types.records import LOGS
from evaluator.ports import StateUnusable
from evaluator.wire.state.checkpoint import decode_checkpoint
from tests.worker.harness import WorkerHarness, positions, totals
from tests.worker.traffic import LONG_AGO_MS, SETTINGS, traffic
from tests.worker.truth import Truth


@pytest.mark.slow
async def test_a_store_behind_expired_inputs_is_replaced_from_the_checkpoint_record():
    harness, whole = WorkerHarness(1), traffic(1, n_queries=200)
    old = MemoryStateDirectory()
    harness.append({0: whole.part(0, 0.1)})
    stale = positions(await harness.until_end(states=old))
    harness.append({0: whole.part(0.1, 1)})
    await harness.until_end()
    truth = harness.truth()
    assert truth.totals
    restore_offsets = decode_checkpoint(
        harness.broker.output("checkpoints", 0)[-1].value
    ).restore_offsets
    for log, offset in restore_offsets.items():
        assert stale[log, 0] < offset
        harness.broker.expire(log, 0, offset)
    with capture_logs() as logs:
        worker = await harness.until_end(states=old)
    assert totals(harness.settings, worker) == truth.totals
    assert {line["event"] for line in logs} >= {
        "state_loaded",
        "store_quarantined",
        "task_restored",
    }
    assert "input_expired" not in {line["event"] for line in logs}
    truth.check_outputs(harness.outputs(), once=False)


async def test_a_store_ahead_of_all_checkpoint_records_continues_after_expired_records():
    harness, whole = WorkerHarness(1), traffic(1)
    disk = MemoryStateDirectory()
    harness.append({0: whole.part(0, 0.5)})
    await harness.until_end(states=disk)
    read = {log: harness.raws(log, 0) for log in LOGS}
    harness.append({0: whole.part(0.5, 1)})
    for log in LOGS:
        harness.broker.expire(log, 0, harness.broker.end_of(log, 0) - 10)
    with capture_logs() as logs:
        worker = await harness.until_end(states=disk)
    left = {log: [*read[log], *harness.raws(log, 0)] for log in LOGS}
    truth = Truth({0: (left["rankings"], left["judgments"])}, harness.settings)
    assert totals(harness.settings, worker) == truth.totals
    expired = [line for line in logs if line["event"] == "input_expired"]
    assert {line["log"]: line["records"] for line in expired} == {
        log: harness.raws(log, 0)[0].offset - len(read[log]) for log in LOGS
    }


def ranking(at_ms):
    message = {
        "schema_version": 1,
        "trace_id": "t",
        "node_id": "n",
        "timestamp_ms": LONG_AGO_MS + at_ms,
        "candidate_ids": ["a"],
        "scores": [1.0],
    }
    return json.dumps(message).encode()


async def test_the_ledger_is_complete_after_the_loss_of_early_judgments():
    harness = WorkerHarness(1)
    for log in LOGS:
        harness.broker.append(log, 0, None, None, LONG_AGO_MS)
    message = {"schema_version": 1, "trace_id": "t", "node_id": "n", "grades": {"a": 1}}
    harness.broker.append("judgments", 0, b"t", json.dumps(message).encode(), LONG_AGO_MS)
    before = (await harness.until_end()).snapshot.tasks[0].tally
    assert before["judgments", "early"] == 1
    harness.broker.expire("judgments", 0, 2)
    with pytest.raises(
        StateUnusable, match=r"rebuild task 0: no open query is lost, but judgments are"
    ):
        await harness.until_end()
    (view,) = (await harness.until_end(accept_loss=True)).snapshot.tasks
    ledger = {path[1]: n for path, n in view.tally.items() if path[0] == "judgments"}
    assert (ledger["early"], ledger["orphan"]) == (0, 1)
    assert ledger.pop("read") == sum(ledger.values())


async def test_a_query_only_in_the_rebuild_does_not_reduce_the_lost_queries():
    harness, of = WorkerHarness(1), SETTINGS
    again_ms = of.retention_ms - 1
    harness.broker.append("rankings", 0, b"t", ranking(0), LONG_AGO_MS)
    harness.broker.append("rankings", 0, b"t", ranking(again_ms), LONG_AGO_MS + again_ms)
    for log in LOGS:
        at_ms = LONG_AGO_MS + of.retention_ms + of.out_of_orderness_ms + 1
        harness.broker.append(log, 0, None, None, at_ms)
    before = (await harness.until_end()).snapshot.tasks[0].tally
    assert (before["rankings", "conflicting"], before["rankings", "expired"]) == (1, 1)
    harness.broker.expire("rankings", 0, 1)
    with pytest.raises(
        StateUnusable, match=r"rebuild task 0: no open query is lost, but judgments are"
    ):
        await harness.until_end()
    (view,) = (await harness.until_end(accept_loss=True)).snapshot.tasks
    assert view.n_open == view.tally["rankings", "open"] == 1
    assert view.tally.get(("extra", "lost"), 0) == 0
