"""From a worse ranker to somebody's phone: Kafka, worker, Prometheus, Alertmanager, receiver.

Two worlds run side by side, 180 times as fast as life: an hour of the rules is 20 seconds, and
"last week" is half a minute ago. In one of them the ranker gets worse half way; where a busy
machine let the rules look too late, it gets better and worse once more.
"""

import itertools
import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from random import Random

import pytest

from tests.deploy.server import Prometheus, Receiver, alertmanager
from tests.kafka.world import World
from tests.oracle.messages import Raw
from tests.worker.traffic import SETTINGS

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.promtool,
    pytest.mark.slow,
    pytest.mark.xdist_group("minutes"),  # apart from the others, for it takes long
]

GOOD_SECONDS = 45
WORSE_SECONDS = 25
A_TURN = 0.5  # seconds
MOST_TIMES = 4
QUERIES = 40  # in each turn
QUICK = replace(
    SETTINGS, maturity_ms=1_000, out_of_orderness_ms=300, measures=("ndcg@10", "mrr"), empty="zero"
)


def in_a_hurry(rules: str) -> str:
    """The rules with an hour of 20 seconds."""
    pace = {"[1h]": "[20s]", "offset 1w": "offset 30s", "for: 10m": "for: 3s"}
    for of_life, of_test in pace.items():
        rules = rules.replace(of_life, of_test)
    return rules


def queries(random: Random, number: int, *, right: float) -> tuple[list[Raw], list[Raw]]:
    """Rankings and their judgments of one turn; the best candidate comes first so often."""
    now_ms = time.time_ns() // 1_000_000
    rankings, judgments = [], []
    for query in range(QUERIES):
        key = {"schema_version": 1, "trace_id": f"t{number}-{query}", "node_id": "n"}
        key["timestamp_ms"] = now_ms
        best = "a" if random.random() < right else "c"
        ranking = {**key, "model": "ranker", "variant": "prod", "candidate_ids": ["a", "b", "c"]}
        judgment = {**key, "grades": {best: 1}}
        for into, message in ((rankings, {**ranking, "scores": [3, 2, 1]}), (judgments, judgment)):
            into.append(Raw(0, now_ms, json.dumps(message).encode(), key["trace_id"].encode()))
    return rankings, judgments


def live_through(worlds: Mapping[str, World], receiver: Receiver) -> list[dict]:
    """Fills the worlds until there is an alarm: those from before one ranker got worse."""
    random, numbers = Random(20_26), itertools.count()

    def fill(seconds: float, *, worse: bool) -> None:
        """At the pace of the clock."""
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            number = next(numbers)
            for name, world in worlds.items():
                right = 0.4 if worse and name == "falls" else 0.9
                rankings, judgments = queries(random, number, right=right)
                world.produce({("rankings", 0): rankings, ("judgments", 0): judgments})
            time.sleep(max(0.0, began + passed + A_TURN - time.monotonic()))

    fill(GOOD_SECONDS, worse=False)
    told_before = receiver.firing()
    for _ in range(MOST_TIMES):
        fill(WORSE_SECONDS, worse=True)
        if receiver.firing():
            break
        fill(GOOD_SECONDS, worse=False)
    return told_before


def test_a_drop_reaches_the_receiver_and_no_drop_reaches_nobody(make_world, start, tmp_path):
    worlds = {name: make_world(1, prefix_end=name, settings=QUICK) for name in ("falls", "stays")}
    workers = {name: start(world, idle_ms=200) for name, world in worlds.items()}
    jobs = {name: f"127.0.0.1:{worker.port}" for name, worker in workers.items()}
    receiver = Receiver()
    with ExitStack() as stack:
        stack.callback(receiver.stop)
        address = stack.enter_context(alertmanager(tmp_path, receiver))
        prometheus = Prometheus(tmp_path, jobs=jobs, alertmanager=address, rules=in_a_hurry)
        prometheus.start()
        stack.callback(prometheus.stop)
        told_before = live_through(worlds, receiver)
        compared = prometheus.query("count by (job) (evaluator:quality_change:ratio1h)")
    assert {one["metric"]["job"] for one in compared} == {"falls", "stays"}
    assert told_before == []
    alarms = receiver.firing()
    assert {(one["labels"]["alertname"], one["labels"].get("job")) for one in alarms} == {
        ("EvaluatorQualityDrop", "falls")
    }
    assert alarms[0]["labels"]["measure"] == "ndcg@10"
    assert "of ranker/prod changed by -0." in alarms[0]["annotations"]["summary"]
