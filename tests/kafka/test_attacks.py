"""Frozen leaders, unusual messages, forged weights and poisoned judgments, on a real broker."""

import asyncio
import json
import signal

import pytest

from evaluator.adapters.kafka import write_to_weights
from evaluator.cli import main
from evaluator.wire.weights.weights_record import with_checksum
from tests.kafka.test_leader import (
    LEARNING,
    N_TASKS,
    SECOND_MS,
    SETTLED,
    TRUTH,
    is_leader,
    leader_of,
    messages,
    published_weights,
    replayed,
    until_published,
)
from tests.oracle.messages import Raw
from tests.worker.traffic import LONG_AGO_MS

pytestmark = pytest.mark.kafka


def with_odd_features(traffic, number):
    """The messages, in which one ranking has a feature more than the others."""
    records = traffic["rankings", number % N_TASKS]
    for place, record in enumerate(records):
        if record.key == f"m-{number}".encode():
            message = json.loads(record.value)
            message["features"] = [[*row, 1.0] for row in message["features"]]
            records[place] = Raw(0, record.timestamp_ms, json.dumps(message).encode(), record.key)
    return traffic


def until_published_like_a_replay(world, worker, directory):
    """The weights records, once they are those of a replay."""
    shared = {
        name: value
        for name, value in worker.settings.items()
        if name not in {"group_id", "http_port", "log_format", "state_dir"}
    }
    expected = replayed(world, directory, shared)
    worker.eventually(lambda: len(published_weights(world)) >= len(expected))
    assert published_weights(world) == expected
    return expected


def test_a_leader_frozen_under_load_and_forged_records_change_no_published_byte(
    make_world, start, tmp_path
):
    world = make_world(N_TASKS, settings=SETTLED)
    settings = {**LEARNING, "heartbeats": "off", "session_timeout_ms": 6_000}
    workers = [start(world, **settings) for _ in range(2)]
    world.produce(messages(0, 200))
    until_published(world, workers[0], 1, "challenger")
    workers[0].eventually(lambda: any(map(is_leader, workers)))
    first = next(filter(is_leader, workers))
    [second] = [each for each in workers if each is not first]
    n_resigned = len(first.events("leader_resigned"))
    first.freeze()
    world.produce(with_odd_features(messages(200, 500), 333))
    second.eventually(lambda: is_leader(second))
    first.signal(signal.SIGCONT)
    world.produce(messages(500, 900))
    first.eventually(lambda: len(first.events("leader_resigned")) > n_resigned)
    until_published(world, second, 1)
    expected = until_published_like_a_replay(world, second, tmp_path)

    def leading():
        views = [leader_of(f"http://127.0.0.1:{each.port}") for each in workers]
        found = [view for view in views if view["is_leader"]]
        return len(found) == 1 and found

    [leader] = second.eventually(leading)
    (model,) = leader["models"]
    assert model["unusable"] == {"features": 1, "propensities": 0, "overflow": 0, "invalid": 0}
    live = [v for v in expected if json.loads(v)["status"] == "promoted"][-1]
    forged = live.replace(b'"epoch":0', b'"epoch":1')
    assert forged != live
    asyncio.run(write_to_weights(world.connection, world.prefix, b'"m"', forged))
    for worker in workers:
        worker.eventually(lambda worker=worker: worker.events("weights_unreadable"))
        status, body = worker.get("/weights?model=m")
        assert (status, body) == (200, live)


N_QUERIES, TURNS = 400, 50
POISONED = {
    **LEARNING,
    "initial_weights": "0.05,-0.1,0.025",  # of the truth: small, so that learning turns soon
    "source_weights": "human=1,click=1",
    "source_max_share": "click=0.3",
    "gate_min_age_ms": 60_000,
    "gate_cool_down_ms": 120_000,
}


def poisoned():
    """Four of five queries of a model have inverted grades, of another one all after 50 s."""
    flooded = messages(
        0, N_QUERIES, "flooded", lambda i: ("click", -1.0) if i % 5 else ("human", 1.0)
    )
    turned = messages(0, N_QUERIES, "turned", lambda i: ("human", -1.0 if i >= TURNS else 1.0))
    return {
        place: sorted([*flooded[place], *turned[place]], key=lambda record: record.timestamp_ms)
        for place in flooded
    }


def test_poisoned_judgments_and_a_forged_record_stay_within_the_bounds_of_the_page(
    make_world, start, tmp_path
):
    world = make_world(N_TASKS, settings=SETTLED)
    worker = start(world, **POISONED, heartbeats="off")
    world.produce(poisoned())
    expected = until_published_like_a_replay(world, worker, tmp_path)
    records = [json.loads(value) for value in expected]
    # A source floods: its lesson is tried, and its share is capped at the gate.
    flooded = [each for each in records if each["model"] == "flooded"]
    assert {each["status"] for each in flooded} == {"initial", "challenger", "rejected"}
    rejected = next(each for each in flooded if each["status"] == "rejected")
    assert rejected["evidence"]["mean_difference"] < -0.2
    worker.eventually(lambda: worker.document("/weights?model=flooded") == flooded[0])
    # The only trusted source turns bad: believed, after the age of an experiment.
    turned = [each for each in records if each["model"] == "turned"]
    bad = next(each for each in turned if each["status"] == "promoted")
    assert all(weight * true < 0 for weight, true in zip(bad["weights"], TRUTH, strict=True))
    turned_ms = LONG_AGO_MS + SECOND_MS * TURNS + SETTLED.maturity_ms
    assert bad["event_time_ms"] - turned_ms >= POISONED["gate_min_age_ms"]
    served = "/weights?model=turned"
    worker.eventually(lambda: worker.document(served) == bad)
    # A forged record with a checksum of its own is served; no record of the log is the same.
    rest = {name: value for name, value in bad.items() if name != "checksum"}
    forged = with_checksum({**rest, "weights": [9.0, 9.0, 9.0]})
    value = json.dumps(forged).encode()
    asyncio.run(write_to_weights(world.connection, world.prefix, b'"turned"', value))
    worker.eventually(lambda: worker.document(served) == forged)
    assert published_weights(world) == expected
    # A roll-back ends both.
    where = [f"--source=kafka://{world.bootstrap}", f"--set=topic_prefix={world.prefix}"]
    assert main(["weights", "roll-back", *where, "--model=turned", "--to=1", "--reason=bad"]) == 0
    worker.eventually(lambda: worker.events("command_received"))
    world.produce(messages(N_QUERIES, N_QUERIES + 120, "turned"))
    until_published(world, worker, 1, "rolled_back")
    back = next(
        each
        for each in map(json.loads, published_weights(world))
        if each["status"] == "rolled_back"
    )
    assert back["weights"] == turned[0]["weights"]
    worker.eventually(lambda: worker.document(served) == back)
