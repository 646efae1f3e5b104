"""Quiet partitions: heartbeats, and their absence."""

import json
import time
from dataclasses import replace

import pytest

from tests.kafka.world import lanes
from tests.oracle.messages import Raw
from tests.worker.traffic import LONG_AGO_MS, SETTINGS

pytestmark = pytest.mark.kafka

SOON = replace(SETTINGS, maturity_ms=100, out_of_orderness_ms=50)


def ranking(trace_id, at_ms):
    message = {"schema_version": 1, "trace_id": trace_id, "node_id": "n", "timestamp_ms": at_ms}
    value = json.dumps({**message, "candidate_ids": ["a", "b"], "scores": [2, 1]}).encode()
    return Raw(0, at_ms, value, trace_id.encode())


def now_ms():
    return time.time_ns() // 1_000_000


def settled(world):
    """The settled queries, without watermark records."""
    return [record for record in lanes(world.outputs(), "settled") if record.key is not None]


def test_a_quiet_partition_settles_and_history_is_left_alone(make_world, start):
    world, began_ms = make_world(3, settings=SOON), now_ms()
    world.produce({
        ("rankings", 0): [ranking("now", began_ms)],
        ("rankings", 1): [ranking("then", LONG_AGO_MS)],
    })  # fmt: skip
    worker = start(world, idle_ms=200)
    worker.eventually(lambda: settled(world))
    assert worker.stop() == 0
    truth = world.truth()
    assert truth.check_settled(world.outputs()) == 1
    beats = {
        (log, task): [raw for raw in raws if raw.value is None]
        for task, logs in world.inputs().items()
        for log, raws in zip(("rankings", "judgments"), logs, strict=True)
    }
    assert {each for each, found in beats.items() if found} == {("rankings", 0), ("judgments", 0)}
    for found in beats.values():
        assert all(raw.key is None and began_ms < raw.timestamp_ms <= now_ms() for raw in found)


def test_without_heartbeats_a_quiet_partition_stays_as_it_is(make_world, start):
    world = make_world(1, settings=SOON)
    world.produce({("rankings", 0): [ranking("now", now_ms())]})
    worker = start(world, idle_ms=0, heartbeats="off")
    worker.until_read(world.ends())
    read_ms = now_ms()
    worker.eventually(lambda: worker.document("/status")["last_commit_ms"] > read_ms + 1_000)
    assert worker.document("/status")["settings"]["heartbeats"] is False
    assert worker.stop() == 0
    assert world.ends() == {"rankings-0": 1, "judgments-0": 0}
    assert not settled(world)
