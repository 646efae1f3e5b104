"""An outage of the broker: no heartbeat overtakes records that producers have buffered.

In simulated time, with the default settings of what matters.
"""

import asyncio
import time
from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest

from evaluator.worker import task
from evaluator.worker.connectivity import Connectivity, Emissions
from evaluator.worker.monitoring import Stages
from tests.oracle.messages import Raw
from tests.simulation.clock import simulated_time
from tests.waiting import eventually
from tests.worker.harness import StalledSink, WorkerHarness
from tests.worker.traffic import SETTINGS

START_MS = 1_763_690_000_000
DAY_MS = 86_400_000
DEFAULTS = replace(
    SETTINGS,
    retention_ms=DAY_MS,
    maturity_ms=3_600_000,
    early_ms=60_000,
    remember_ms=3_600_000,
    out_of_orderness_ms=300_000,
    window_ms=60_000,
)
IDLE_MS, WAIT_MS = 10_000, 600_000
FLUSH_SECONDS = 60
"""How long after the broker a producer is back: longer than `idle_ms`."""


def ranking(at_ms):
    value = (
        b'{"schema_version":1,"trace_id":"t-%d","node_id":"n","candidate_ids":["a"],"scores":[1]}'
    )
    return Raw(0, at_ms, value % at_ms, b"t-%d" % at_ms)


def now_ms():
    return time.time_ns() // 1_000_000


async def outage_of(seconds, *, wait_ms):
    """Records out of order, the first heartbeats after the outage, and when the broker was back.

    A producer makes a ranking every ten seconds, and sends what it has buffered when it is back.
    """
    harness = WorkerHarness(1, settings=DEFAULTS)
    worker = harness.worker(heartbeats=True, idle_ms=IDLE_MS, heartbeat_outage_wait_ms=wait_ms)
    async with harness.working(worker):
        harness.produce("rankings", 0, [ranking(now_ms())])
        await eventually(lambda: worker.snapshot.tasks and worker.snapshot.tasks[0].n_open, every=1)
        harness.broker.disconnect()
        buffered = []
        for _ in range(seconds // 10):
            await asyncio.sleep(10)
            buffered.append(ranking(now_ms()))
        harness.broker.reconnect()
        back_ms = now_ms()
        await asyncio.sleep(FLUSH_SECONDS)
        harness.produce("rankings", 0, buffered)
        await asyncio.sleep(max(FLUSH_SECONDS, min(seconds, wait_ms // 1_000)))
        (view,) = worker.snapshot.tasks
        beats = [raw.timestamp_ms for raw in harness.raws("judgments", 0) if raw.value is None]
        return view.tally["extra", "out_of_order"], beats, back_ms


def simulated(scenario):
    with simulated_time(lambda seconds: START_MS + int(seconds * 1000)) as loop:
        return loop.run_until_complete(scenario)


@pytest.fixture
def _fewer_turns(monkeypatch):
    """A worker waits for records as long as outside of tests, unlike in `conftest.py`."""
    monkeypatch.setattr(task, "IDLE_POLL_MS", 100)


@pytest.mark.slow(alone=False)
@pytest.mark.usefixtures("_fewer_turns")
@pytest.mark.parametrize("seconds", [400, 650])
def test_heartbeats_do_not_overtake_records_buffered_by_producers(seconds):
    out_of_order, beats, back_ms = simulated(outage_of(seconds, wait_ms=WAIT_MS))
    assert out_of_order == 0
    waited_ms = min(seconds * 1000, WAIT_MS)
    (first_ms, *_) = (at_ms for at_ms in beats if at_ms > back_ms)
    assert waited_ms - 10_000 < first_ms - back_ms < waited_ms + 15_000


@pytest.mark.slow(alone=False)
@pytest.mark.usefixtures("_fewer_turns")
def test_without_the_wait_heartbeats_overtake_buffered_records():
    """Of 40 rankings those are out of order that are 300 s older than the first heartbeat."""
    out_of_order, beats, back_ms = simulated(outage_of(400, wait_ms=0))
    assert out_of_order >= 9
    assert min(at_ms for at_ms in beats if at_ms > back_ms) < back_ms + 15_000


def test_the_pauses_of_a_worker_double_until_the_broker_answers():
    async def outages():
        reach, times = Connectivity(max_wait_ms=WAIT_MS), [0.0]
        for n_attempts in (4, 2):
            for _ in range(n_attempts):
                await reach.back_off(asyncio.Event())
                times.append(asyncio.get_running_loop().time())
            reach.answered()
        return [after - before for before, after in pairwise(times)]

    waited = simulated(outages())
    assert waited == pytest.approx([0.25, 0.5, 1.0, 2.0, 0.25, 0.5], abs=0.01)


@pytest.fixture
def clock(monkeypatch):
    """A list with the one number that the monotonic clock shows."""
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_producers_are_given_the_length_of_the_outage_to_catch_up(clock):
    reach = Connectivity(max_wait_ms=WAIT_MS)
    reach.answered()
    assert reach.caught_up_at == -inf
    reach.lost("gone")
    assert reach.caught_up_at == inf
    clock[0] += 70
    reach.lost("still gone")
    clock[0] += 30
    reach.answered()
    assert reach.caught_up_at == 1_100 + 100
    clock[0] += 10
    reach.answered()
    assert reach.caught_up_at == 1_100 + 100


def test_an_outage_before_producers_have_caught_up_extends_the_one_before(clock):
    reach = Connectivity(max_wait_ms=WAIT_MS)
    reach.lost("gone")
    clock[0] = 1_100.0
    reach.answered()
    clock[0] = 1_150.0
    reach.lost("gone again")
    clock[0] = 1_160.0
    reach.answered()
    assert reach.caught_up_at == 1_160 + 160
    clock[0] = 1_320.0
    reach.lost("a new one")
    clock[0] = 1_325.0
    reach.answered()
    assert reach.caught_up_at == 1_325 + 5


def test_the_wait_ends_for_any_setting(clock):
    for most_ms, waited in ((0, 0), (2_000, 2), (10**400, 5_000)):
        reach = Connectivity(max_wait_ms=most_ms)
        reach.lost("gone")
        clock[0] += 5_000
        reach.answered()
        assert reach.caught_up_at == clock[0] + waited


def test_a_sink_is_overdue_since_the_oldest_emission_that_it_has_not_acknowledged():
    async def emitted():
        sink = StalledSink(WorkerHarness(1).broker)
        emissions, overdue = Emissions(sink, Stages(), waiting=lambda: None), []
        for _ in range(4):
            await emissions.emit({})
            await asyncio.sleep(0.9)
            overdue.append(emissions.overdue)
        sink.flows.set()
        await emissions.acknowledged()
        return [*overdue, emissions.overdue]

    assert simulated(emitted()) == [False, False, False, True, False]
