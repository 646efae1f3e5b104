"""Wrong clocks of a worker and of a producer."""

import re
import sys
import time

import pytest

from tests.kafka.process import Worker, arguments_of
from tests.oracle.messages import Raw
from tests.worker.traffic import SETTINGS

pytestmark = pytest.mark.kafka

AHEAD = """
import sys, time
right_ns = time.time_ns
time.time_ns = lambda: right_ns() + {ahead_ms} * 1_000_000
time.time = lambda: time.time_ns() / 1e9
from evaluator.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""`evaluator` on a machine whose clock is ahead."""


def now_ms():
    return time.time_ns() // 1_000_000


def ranking(trace_id, at_ms, *, record_ms=None):
    value = (
        b'{"schema_version":1,"trace_id":"%s","node_id":"n","timestamp_ms":%d,'
        b'"candidate_ids":["a"],"scores":[1]}' % (trace_id.encode(), at_ms)
    )
    return Raw(0, at_ms if record_ms is None else record_ms, value, trace_id.encode())


@pytest.fixture
def ahead(tmp_path):
    """Starts a worker whose clock is ahead."""
    started = []

    def start(world, ahead_ms, **settings):
        script = tmp_path / "ahead.py"
        script.write_text(AHEAD.format(ahead_ms=ahead_ms))
        settings = {**arguments_of(world.settings), **settings}
        python = (sys.executable, str(script))
        started.append(Worker(tmp_path, world.bootstrap, world.prefix, python=python, **settings))
        return started[-1]

    yield start
    for worker in started:
        worker.end()


def test_a_worker_whose_clock_is_ahead_warns_and_writes_no_heartbeats(make_world, ahead):
    world = make_world(1, settings=SETTINGS)
    world.produce({("rankings", 0): [ranking("now", now_ms())]})
    began_ms = now_ms()
    worker = ahead(world, 90_000, idle_ms=0)
    worker.until_read({"rankings-0": 1, "judgments-0": 0})
    (skewed,) = worker.eventually(lambda: worker.events("clock_skewed"))
    assert 90_000 <= skewed["skew_ms"] <= 90_000 + now_ms() - began_ms  # at most a probe longer
    worker.eventually(lambda: worker.document("/status")["clock_skew_ms"])
    (warning,) = worker.document("/status")["warnings"]
    assert re.match(r"The clock of this machine is \d+ s ahead of the broker's", warning)
    status = worker.document("/status")
    assert status["ready"]
    assert status["source"] == f"kafka://{world.bootstrap}"
    assert worker.samples()["evaluator_clock_skew_seconds"] >= 90
    commit_ms = worker.document("/status")["last_commit_ms"]
    worker.eventually(lambda: worker.document("/status")["last_commit_ms"] > commit_ms + 2_000)
    assert worker.stop() == 0
    assert world.ends() == {"rankings-0": 1, "judgments-0": 0}
    assert len(worker.events("clock_skewed")) == 1


def test_heartbeats_of_a_worker_are_stamped_in_broker_time(make_world, ahead):
    world = make_world(1, settings=SETTINGS)
    world.produce({("rankings", 0): [ranking("now", now_ms())]})
    worker = ahead(world, 50_000, idle_ms=0)
    worker.eventually(lambda: world.ends()["judgments-0"])
    assert worker.stop() == 0
    (_, judgments) = world.inputs()[0]
    assert judgments[0].timestamp_ms <= now_ms()


def test_a_log_whose_clock_is_ahead_is_reported(make_world, start):
    world = make_world(2, settings=SETTINGS)
    began_ms = now_ms()
    world.produce({("rankings", 1): [ranking("ahead", began_ms + 3_300_000)]})
    worker = start(world, heartbeats="off")
    worker.until_read(world.ends())
    worker.eventually(lambda: worker.document("/status")["warnings"])
    (warning,) = worker.document("/status")["warnings"]
    assert re.match(r"The clock of rankings-1 is \d+ s ahead of the broker's", warning)
    assert worker.document("/status")["ready"]
    name = 'evaluator_input_clock_ahead_seconds{partition="1",topic="rankings"}'
    ahead_seconds = worker.samples()[name]
    assert 3_300 - (now_ms() - began_ms) / 1000 <= ahead_seconds <= 3_300
