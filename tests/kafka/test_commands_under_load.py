"""Operator commands during traffic while leaders are killed, on a real broker."""

import itertools
import json
import signal
import threading
from contextlib import contextmanager

import pytest

from evaluator.cli import main
from tests.kafka.test_leader import (
    LEARNING,
    N_TASKS,
    SECOND_MS,
    SETTLED,
    is_leader,
    leader_of,
    messages,
    published_weights,
    until_published,
)
from tests.worker.traffic import LONG_AGO_MS

pytestmark = pytest.mark.kafka

INTERVAL_MS = LEARNING["learning_interval_ms"]
DELAY_MS = SETTLED.maturity_ms + SETTLED.out_of_orderness_ms


class Load:
    """Produces 30 queries repeatedly, each one second of event time after the previous one."""

    def __init__(self, world, first):
        self.world, self.n = world, first
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._ends.wait(0.3):
            self.world.produce(messages(self.n, self.n + 30))
            self.n += 30

    @property
    def newest_ms(self):
        """No query of this event time or later has been produced."""
        return LONG_AGO_MS + SECOND_MS * (self.n + 30)

    @contextmanager
    def running(self):
        self._thread.start()
        try:
            yield self
        finally:
            self._ends.set()
            self._thread.join()


def log(world):
    return [json.loads(value) for value in published_weights(world)]


def of_status(world, status):
    return [record for record in log(world) if record["status"] == status]


def view_of(worker):
    return leader_of(f"http://127.0.0.1:{worker.port}")


def until_served(worker, version):
    """The live record, of this version or a later one."""

    def look():
        served = worker.document("/weights?model=m")
        return served if served.get("version", 0) >= version else None

    return worker.eventually(look)


def leading(workers):
    return workers[0].eventually(lambda: [each for each in workers if is_leader(each)])[0]


def kill_leader(workers):
    """Kills it; returns the others once one of them leads."""
    killed = leading(workers)
    killed.signal(signal.SIGKILL)
    killed.wait()
    return [each for each in workers if each is not killed]


def test_commands_under_load_take_effect_once_while_leaders_are_killed(make_world, start):
    world = make_world(N_TASKS, settings=SETTLED)
    settings = {**LEARNING, "heartbeats": "off", "session_timeout_ms": 6_000}
    workers = [start(world, **settings) for _ in range(3)]
    flags = [f"--set={name}={workers[0].settings[name]}" for name in ("topic_prefix", "group_id")]
    where = [f"--source=kafka://{world.bootstrap}", *flags]
    world.produce(messages(0, 600))
    until_published(world, workers[0], 1)
    with Load(world, 600).running() as load:
        # A roll-back; the leader is killed before or after it has read it.
        assert main(["weights", "roll-back", *where, "--to=1", "--reason=sales fell"]) == 0
        workers = kill_leader(workers)
        latest_ms = load.newest_ms + INTERVAL_MS + DELAY_MS
        until_published(world, workers[0], 1, "rolled_back")
        [back] = of_status(world, "rolled_back")
        assert back["weights"] == log(world)[0]["weights"]
        assert (back["epoch"], back["reason"]) == (1, "sales fell")
        assert back["event_time_ms"] <= latest_ms
        for worker in workers:  # also the one that does not lead
            served = until_served(worker, back["version"])
            assert served["epoch"] == 1

        # The same for a freeze.
        leading(workers)
        assert main(["weights", "freeze", *where, "--reason=a fair"]) == 0
        (last,) = kill_leader(workers)
        latest_ms = load.newest_ms + INTERVAL_MS + DELAY_MS
        until_published(world, last, 1, "frozen")
        frozen = log(world)
        assert (frozen[-1]["status"], frozen[-1]["reason"]) == ("frozen", "a fair")
        assert frozen[-1]["event_time_ms"] <= latest_ms
        after_ms = load.newest_ms + 5 * INTERVAL_MS
        last.eventually(lambda: (view_of(last)["settled_time_ms"] or 0) >= after_ms)
        assert log(world) == frozen  # nothing was tried or promoted, nothing executed again
        live = [r for r in frozen if r["status"] in {"promoted", "rolled_back"}][-1]
        assert last.document("/weights?model=m") == live

        # `weights forget` while a leader runs.
        last.eventually(lambda: main(["weights", "forget", *where]) == 0)
        last.eventually(lambda: last.events("leader_fenced"))
        until_published(world, last, len(of_status(world, "promoted")) + 1)
    both = log(world)
    new = both[len(frozen) :]
    assert both[: len(frozen)] == frozen
    assert {record["epoch"] for record in new} == {2}
    assert {record["status"] for record in new} <= {"challenger", "promoted", "rejected"}
    starts = {of["start"] for record in new for of in record["ranges"].values()}
    assert starts == {0}  # learned from the first settled query on
    assert [record["version"] for record in both] == list(range(1, len(both) + 1))
    assert all(new["parent"] == old["checksum"] for old, new in itertools.pairwise(both))
