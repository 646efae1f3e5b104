"""A worker on foreign logs: dead letters keep their record after a restart; idle logs."""

import json
import time

import pytest

from evaluator.adapters.memory import MemoryStateDirectory
from evaluator.mapping.document import read_document
from evaluator.mapping.stage import Stage
from evaluator.worker import loop
from tests.repeats import sized
from tests.waiting import eventually
from tests.worker.harness import WorkerHarness, totals

MAPPING = """
[rankings]
where = { kind = ["ranking"] }
trace_id = "key:"
node_id = "q"
timestamp_ms = "at"
[rankings.rows]
candidate_id = "ids"
[judgments]
trace_id = "key:"
node_id = "q"
timestamp_ms = "at"
candidate_id = "id"
grade = "g"
"""
NOW_MS = 1_769_846_400_000


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 0.0)
    logs = read_document(MAPPING, "m.toml").logs
    stages = {log: Stage(each, max_future_skew_ms=300_000) for log, each in logs.items()}
    return WorkerHarness(n_tasks=1, stages=stages)


def append(harness, log, key, at, **members):
    value = json.dumps({"at": at, **members}).encode()
    harness.broker.append(log, 0, key, value, at)
    return value


def ranking(harness, key, at):
    return append(harness, "rankings", key, at, kind="ranking", q=1, ids=["a", "b"])


async def test_an_orphan_keeps_its_record_over_a_restart(harness):
    states = MemoryStateDirectory()
    ranking(harness, b"t", NOW_MS)
    early = append(harness, "judgments", b"no such trace", NOW_MS, q=1, id="b", g=1)
    append(harness, "judgments", b"t", NOW_MS + 1, q=1, id="b", g=1)
    await harness.until_end(states=states)
    later_ms = NOW_MS + 10 * harness.settings.retention_ms
    append(harness, "rankings", b"t", later_ms, kind="other")  # advances the clock
    append(harness, "judgments", b"t", later_ms, q=2, id="b", g=1)
    worker = await harness.until_end(states=states)
    letters = harness.broker.output("dead-letters", 0)
    orphan = next(each for each in letters if each.key == b"no such trace")
    assert orphan.value == early
    assert dict(orphan.headers)["reason"] == b"orphan"
    ledger = totals(harness.settings, worker)["ledger"]["rankings"]
    assert (ledger["read"], ledger["left_out"]) == (2, 1)


async def test_a_log_is_idle_while_its_records_are_left_out_and_move_no_clock(harness):
    now_ms = time.time_ns() // 1_000_000
    ranking(harness, b"t", now_ms)
    append(harness, "judgments", b"t", now_ms, q=1, id="b", g=1)

    def has_heartbeat():
        harness.broker.append("rankings", 0, b"t", b'{"kind": "other"}', now_ms)
        return None in harness.broker.logs["rankings", 0].values

    async with harness.working(harness.worker(heartbeats=True, idle_ms=sized(500, quick=100))):
        await eventually(has_heartbeat)
