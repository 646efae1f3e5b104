"""A leader in workers on a real broker: killed and succeeded, it equals a replay."""

import json
import signal
import urllib.request
from dataclasses import replace
from random import Random

import pytest

from evaluator.adapters.kafka import read_weights
from evaluator.adapters.kafka.administration import leader_group
from evaluator.adapters.kafka.clients import requests
from evaluator.cli import main
from tests.kafka.process import Process
from tests.kafka.world import World, answered
from tests.oracle.messages import Raw
from tests.worker.traffic import LONG_AGO_MS, SETTINGS

pytestmark = pytest.mark.kafka

N_TASKS, N_CANDIDATES = 2, 5
TRUTH = (1.0, -2.0, 0.5)
SECOND_MS = 1_000
SETTLED = replace(SETTINGS, maturity_ms=5_000, out_of_orderness_ms=1_000, measures=("ndcg@10",))
LEARNING = {
    "learning": "auto",
    "source_weights": "human=1",
    "scale": "within_query",
    "batch_queries": 4,
    "learning_interval_ms": 60_000,
    "gate_block_ms": 5_000,
    "gate_min_traces": 50,
    "gate_min_age_ms": 0,
    "gate_cool_down_ms": 0,
}


def messages(
    first: int, end: int, model: str = "m", judged_by=lambda _: ("human", 1.0)
) -> dict[tuple[str, int], list[Raw]]:
    """A ranking each second of event time, and judgments of the best two by a linear truth.

    *judged_by* gives the source of a judgment by number, and its factor of the truth.
    """
    made = {(log, task): [] for log in ("rankings", "judgments") for task in range(N_TASKS)}
    for number in range(first, end):
        random = Random(number)
        source, factor = judged_by(number)
        features = [[round(random.gauss(0, 1), 3) for _ in TRUTH] for _ in range(N_CANDIDATES)]
        utilities = [
            sum(factor * w * x for w, x in zip(TRUTH, row, strict=True)) + random.gauss(0, 0.3)
            for row in features
        ]
        best = sorted(range(N_CANDIDATES), key=lambda i: -utilities[i])
        at_ms = LONG_AGO_MS + SECOND_MS * number
        trace = f"{model}-{number}"
        key = {"schema_version": 1, "trace_id": trace, "node_id": "n", "model": model}
        ranking = {
            "candidate_ids": [f"c{i}" for i in range(N_CANDIDATES)],
            "scores": [random.random() for _ in range(N_CANDIDATES)],
            "features": features,
        }
        judgment = {"grades": {f"c{best[0]}": 2, f"c{best[1]}": 1}, "source": source}
        for log, body in (("rankings", ranking), ("judgments", judgment)):
            value = json.dumps({**key, "timestamp_ms": at_ms, **body}).encode()
            made[log, number % N_TASKS].append(Raw(0, at_ms, value, trace.encode()))
    return made


def published_weights(world: World) -> list[bytes]:
    found = answered(lambda: read_weights(world.connection, world.prefix, "weights-log"))
    return [record.value for record in found]


def until_published(world, worker, n, what="promoted"):
    """Waits until this many records with the status are published."""
    return worker.eventually(
        lambda: (
            [json.loads(v)["status"] for v in published_weights(world)].count(what) >= n
            and published_weights(world)
        )
    )


def is_leader(worker):
    terms = worker.events("leader_elected"), worker.events("leader_resigned")
    return len(terms[0]) > len(terms[1])


def leader_of(address):
    with urllib.request.urlopen(f"{address}/status") as response:
        return json.load(response)["leader"]


def replayed(world, directory, settings):
    flags = [f"--set={name}={value}" for name, value in settings.items()]
    out = directory / "replayed"
    source = f"kafka://{world.bootstrap}"
    assert main(["replay", "--source", source, "--out", str(out), "--force", *flags]) == 0
    return (out / "weights.ndjson").read_bytes().splitlines()


def test_the_successor_of_a_killed_leader_publishes_the_records_of_a_replay(
    make_world, start, tmp_path
):
    world = make_world(N_TASKS, settings=SETTLED)
    settings = {**LEARNING, "heartbeats": "off", "session_timeout_ms": 6_000}
    workers = [start(world, **settings) for _ in range(2)]
    world.produce(messages(0, 200))
    until_published(world, workers[0], 1, "challenger")
    workers[0].eventually(lambda: any(map(is_leader, workers)))
    killed = next(filter(is_leader, workers))
    killed.signal(signal.SIGKILL)
    killed.wait()
    [left] = [each for each in workers if each is not killed]
    left.eventually(lambda: is_leader(left))
    before = published_weights(world)
    world.produce(messages(200, 900))
    left.until_read(world.ends())
    shared = {
        name: value
        for name, value in left.settings.items()
        if name not in {"group_id", "http_port", "log_format", "state_dir"}
    }
    expected = replayed(world, tmp_path, shared)
    assert len(expected) > len(before) >= 1
    left.eventually(lambda: len(published_weights(world)) >= len(expected))
    assert published_weights(world) == expected
    with urllib.request.urlopen(f"http://127.0.0.1:{left.port}/weights") as response:
        live = json.load(response)
    promoted = [json.loads(v) for v in expected if json.loads(v)["status"] == "promoted"]
    assert live == promoted[-1]


def test_an_operator_rolls_back_and_freezes(make_world, start, capsys):
    world = make_world(N_TASKS, settings=SETTLED)
    worker = start(world, **LEARNING, heartbeats="off")
    world.produce(messages(0, 700))
    until_published(world, worker, 1)
    where = [f"--source=kafka://{world.bootstrap}", f"--set=topic_prefix={world.prefix}"]
    assert main(["weights", "roll-back", *where, "--to", "1", "--reason", "as it was"]) == 0
    assert "takes effect once, when the interval ends" in capsys.readouterr().out
    worker.eventually(lambda: worker.events("command_received"))
    world.produce(messages(700, 900))
    until_published(world, worker, 1, "rolled_back")
    back = next(
        r for r in map(json.loads, published_weights(world)) if r["status"] == "rolled_back"
    )
    assert (back["epoch"], back["reason"]) == (1, "as it was")
    assert back["weights"] == json.loads(published_weights(world)[0])["weights"]
    assert main(["weights", "freeze", *where, "--model", "m", "--reason", "a holiday"]) == 0
    worker.eventually(lambda: len(worker.events("command_received")) == 2)
    world.produce(messages(900, 1_100))
    until_published(world, worker, 1, "frozen")
    assert main(["weights", "show", *where]) == 0
    shown = capsys.readouterr().out
    assert "rolled_back (live)" in shown
    assert "a holiday" in shown
    assert main(["weights", "roll-back", *where, "--to", "99", "--reason", "x"]) == 2
    assert main(["weights", "freeze", *where, "--model", "nobody", "--reason", "x"]) == 2
    assert "models with weights: 'm'" in capsys.readouterr().err


def test_version_numbers_continue_after_forget(make_world, start, capsys):
    world = make_world(N_TASKS, settings=SETTLED)
    worker = start(world, **LEARNING, heartbeats="off")
    world.produce(messages(0, 700))
    live = json.loads(until_published(world, worker, 1)[-1])
    where = [f"--source=kafka://{world.bootstrap}", f"--set=topic_prefix={world.prefix}"]
    assert main(["weights", "freeze", *where, "--reason", "a holiday"]) == 0
    worker.eventually(lambda: worker.events("command_received"))
    assert main(["weights", "forget", *where]) == 3
    error = f"The leader of group {world.prefix}group publishes to {world.prefix}weights"
    assert error in capsys.readouterr().err
    assert not worker.events("leader_fenced")
    assert worker.stop() == 0
    before = [json.loads(value) for value in published_weights(world)]
    assert main(["weights", "forget", *where]) == 0
    again = start(world, **LEARNING, heartbeats="off")
    again.eventually(lambda: len(published_weights(world)) >= len(before) + 2)
    both = [json.loads(value) for value in published_weights(world)]
    assert [each["version"] for each in both] == list(range(1, len(both) + 1))
    assert [each["parent"] for each in both] == [None, *(r["checksum"] for r in both[:-1])]
    new = both[len(before) :]
    assert {each["epoch"] for each in new} == {before[-1]["epoch"] + 1}
    assert "frozen" not in {each["status"] for each in new}  # it was asked for before
    assert live["checksum"] not in {each["checksum"] for each in new}


def test_forget_is_refused_while_a_group_assigns(make_world, start, tmp_path, capsys):
    """A member that is frozen holds up the group that another one joins."""
    world = make_world(N_TASKS, settings=SETTLED)
    settings = {"alarms": "on", "session_timeout_ms": 300_000}
    worker = start(world, **settings, heartbeats="off")
    worker.eventually(lambda: is_leader(worker))
    where = [f"--source=kafka://{world.bootstrap}", f"--set=topic_prefix={world.prefix}"]
    flags = [f"--set={name}={value}" for name, value in worker.settings.items()]
    second = Process(tmp_path, "leader", where[0], *flags, "--set=http_port=0")
    try:
        worker.signal(signal.SIGSTOP)
        group = leader_group(worker.settings["group_id"])
        second.eventually(lambda: answered(lambda: subscriptions(world, group)) == [b"", b""])
        short = "--set=session_timeout_ms=1000"
        assert main(["weights", "forget", *where, short]) == 3
        assert f"Group {group} has been assigning for 1000 ms" in capsys.readouterr().err
        worker.signal(signal.SIGCONT)
        assert main(["weights", "forget", *where, "--set=session_timeout_ms=600000"]) == 3
        assert f"The leader of group {world.prefix}group publishes" in capsys.readouterr().err
    finally:
        worker.signal(signal.SIGCONT)
        second.end()


async def subscriptions(world, group):
    async with requests(world.connection) as asking:
        return [sent for _, sent in await asking.members(group)]


def test_a_standalone_leader_serves_the_live_weights(make_world, start, tmp_path, capsys):
    world = make_world(N_TASKS, settings=SETTLED)
    worker = start(world, **LEARNING, heartbeats="off")
    world.produce(messages(0, 700))
    live = json.loads(until_published(world, worker, 1)[-1])
    assert worker.stop() == 0
    flags = [f"--set={name}={value}" for name, value in worker.settings.items()]
    where = f"--source=kafka://{world.bootstrap}"
    alone = Process(tmp_path, "leader", where, *flags)
    try:
        address = f"http://127.0.0.1:{worker.port}"
        alone.eventually(lambda: alone.events("leader_elected"))
        with urllib.request.urlopen(f"{address}/weights?model=m") as response:
            assert json.load(response)["version"] <= live["version"]
        alone.eventually(lambda: leader_of(address)["is_leader"])
        with urllib.request.urlopen(f"{address}/readyz") as response:
            assert response.status == 200
        alone.signal(signal.SIGTERM)
        assert alone.wait() == 0
    finally:
        alone.end()
    assert main(["leader", where, "--set=alarms=off"]) == 2
    assert "alarms and learning are off" in capsys.readouterr().err
