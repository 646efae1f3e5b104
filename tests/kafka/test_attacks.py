"""A leader that is frozen under load, one odd message, and forged weights, on a real broker."""

import asyncio
import json
import signal

import pytest

from evaluator.adapters.kafka import write_to_weights
from tests.kafka.test_leader import (
    LEARNING,
    N_TASKS,
    SETTLED,
    is_leader,
    leader_of,
    messages,
    replayed,
    said,
    until_said,
)
from tests.oracle.messages import Raw

pytestmark = pytest.mark.kafka


def with_odd_features(traffic, number):
    """The messages, in which one ranking has a feature more than the others."""
    records = traffic["rankings", number % N_TASKS]
    for place, record in enumerate(records):
        if record.key == f"t-{number}".encode():
            message = json.loads(record.value)
            message["features"] = [[*row, 1.0] for row in message["features"]]
            records[place] = Raw(0, record.timestamp_ms, json.dumps(message).encode(), record.key)
    return traffic


def test_a_leader_frozen_under_load_and_forged_records_change_no_published_byte(
    make_world, start, tmp_path
):
    world = make_world(N_TASKS, settings=SETTLED)
    settings = {**LEARNING, "heartbeats": "off", "session_timeout_ms": 6_000}
    workers = [start(world, **settings) for _ in range(2)]
    world.produce(messages(0, 200))
    until_said(world, workers[0], 1, "challenger")
    workers[0].eventually(lambda: any(map(is_leader, workers)))
    first = next(filter(is_leader, workers))
    [second] = [each for each in workers if each is not first]
    first.freeze()
    world.produce(with_odd_features(messages(200, 500), 333))
    second.eventually(lambda: is_leader(second))
    first.signal(signal.SIGCONT)
    world.produce(messages(500, 900))
    first.eventually(lambda: not is_leader(first))
    until_said(world, second, 1)
    shared = {
        name: value
        for name, value in second.settings.items()
        if name not in {"group_id", "http_port", "log_format", "state_dir"}
    }
    expected = replayed(world, tmp_path, shared)
    second.eventually(lambda: len(said(world)) >= len(expected))
    assert said(world) == expected
    views = [leader_of(f"http://127.0.0.1:{each.port}") for each in workers]
    assert [view["is_leader"] for view in views].count(True) == 1
    (model,) = next(view for view in views if view["is_leader"])["models"]
    assert model["unusable"] == {"features": 1, "propensities": 0, "overflow": 0, "invalid": 0}
    live = [v for v in expected if json.loads(v)["status"] == "promoted"][-1]
    forged = live.replace(b'"epoch":0', b'"epoch":1')
    assert forged != live
    asyncio.run(write_to_weights(world.connection, world.prefix, b'"m"', forged))
    for worker in workers:
        worker.eventually(lambda worker=worker: worker.events("weights_unreadable"))
        status, body = worker.get("/weights?model=m")
        assert (status, body) == (200, live)
