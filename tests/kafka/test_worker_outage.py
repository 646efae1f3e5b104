"""A broker that is not started yet, becomes unavailable, returns, or hangs."""

import os
import signal
from itertools import pairwise

import pytest

from evaluator.adapters.kafka import Connection
from tests.kafka.world import World
from tests.oracle.totals import comparable
from tests.waiting import STOP_SECONDS
from tests.worker.traffic import traffic

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("brokers")]


@pytest.fixture
def world(own_broker, topic_prefix):
    """Topics on a broker of this test alone."""
    return World(Connection(own_broker.bootstrap), topic_prefix)


def append_part(world, begin, end):
    world.append({task: traffic(task, n_queries=100).part(begin, end) for task in (0, 1)})


def test_a_broker_that_starts_late_and_fails_changes_no_total(world, own_broker, start):
    append_part(world, 0, 0.5)
    own_broker.stop()
    never = start(world, group_id=f"{world.prefix}never")
    never.until_unavailable()
    assert never.stop() == 0, "a worker that has never reached a broker"
    worker = start(world, max_poll_records=1)
    worker.until_unavailable()
    (away,) = worker.events("broker_unavailable")
    assert world.bootstrap in away["error"]
    own_broker.start()
    worker.eventually(lambda: any(worker.positions.values()))
    own_broker.stop()
    worker.until_unavailable()
    ends_before = worker.positions
    own_broker.start()
    worker.until_ready()
    append_part(world, 0.5, 1)
    worker.until_read(world.ends())
    assert worker.positions != ends_before
    truth = world.truth()
    assert comparable(worker.totals) == truth.totals
    changes = worker.events("broker_unavailable", "broker_reached")
    assert all(a.get("error") != b.get("error") for a, b in pairwise(changes)), "one line for each"
    own_broker.stop()
    worker.until_unavailable()
    assert worker.stop() == 0
    own_broker.start()
    truth.check_outputs(world.outputs(), once=False)


def test_a_frozen_broker_does_not_keep_a_worker_from_ending(world, own_broker, start):
    append_part(world, 0, 0.2)
    workers = [start(world), start(world, group_id=f"{world.prefix}other")]
    for worker in workers:
        worker.eventually(lambda worker=worker: any(worker.positions.values()))
    os.kill(own_broker.pid, signal.SIGSTOP)
    try:
        workers[0].until_unavailable()
        for worker in workers:
            worker.signal(signal.SIGTERM)
        workers[1].eventually(lambda: (workers[1].get("/livez") or (0,))[0] == 200)
        workers[1].signal(signal.SIGTERM)
        assert workers[1].wait() == 128 + signal.SIGTERM
        assert workers[0].wait(STOP_SECONDS) == 0
    finally:
        own_broker.kill()  # it would be fenced for a moment, and the next test has no controller
