"""The clock of a worker against that of its broker."""

import time

import pytest
from structlog.testing import capture_logs

from evaluator.adapters.memory import MemorySource
from evaluator.worker import heartbeats as heartbeats_module
from evaluator.worker.heartbeats import BrokerClock
from tests.faulty_broker import FaultyBroker
from tests.repeats import first_quick, sized
from tests.waiting import eventually
from tests.worker.harness import WorkerHarness, positions
from tests.worker.test_loop import a_query

SLACK_MS = 20_000
"""More than a test on a busy machine is interrupted for."""
SILENT_MS = sized(500, quick=100)
"""For so long a heartbeat could have been written."""


def now_ms():
    return time.time_ns() // 1_000_000


def heartbeats(harness):
    """Timestamps of the heartbeats of all inputs."""
    raws = (raw for log, task in harness.ends() for raw in harness.raws(log, task))
    return [raw.timestamp_ms for raw in raws if raw.value is None]


@pytest.fixture
def often(monkeypatch):
    """Probes come one after the other."""
    monkeypatch.setattr(heartbeats_module, "PROBE_SECONDS", 0.02)


@pytest.mark.parametrize("ahead_ms", first_quick(-90_000, 90_000))
async def test_a_worker_with_a_wrong_clock_writes_no_heartbeats_until_it_is_corrected(
    often, ahead_ms
):
    harness = WorkerHarness(1)
    harness.append({0: a_query(now_ms())})
    harness.broker.ahead_ms = ahead_ms
    worker = harness.worker(heartbeats=True, idle_ms=0)
    with capture_logs() as logged:
        async with harness.working(worker):
            await eventually(lambda: positions(worker) == harness.ends())
            await eventually(lambda: worker.snapshot.skew_ms is not None)
            at_ms = now_ms()
            await eventually(lambda: now_ms() > at_ms + SILENT_MS)
            assert abs(worker.snapshot.skew_ms + ahead_ms) < SLACK_MS
            assert heartbeats(harness) == []
            harness.broker.ahead_ms = 0
            await eventually(lambda: heartbeats(harness))
    events = [event for event in logged if event["event"].startswith("clock_skew")]
    assert [event["event"] for event in events] == ["clock_skewed", "clock_skew_over"]
    assert abs(events[0]["skew_ms"] + ahead_ms) < SLACK_MS


async def test_heartbeats_are_stamped_in_the_time_of_the_broker():
    harness = WorkerHarness(1)
    harness.append({0: a_query(now_ms())})
    harness.broker.ahead_ms = 50_000
    async with harness.working(harness.worker(heartbeats=True, idle_ms=0)):
        await eventually(lambda: heartbeats(harness))
    ahead_ms = heartbeats(harness)[0] - now_ms()
    assert 50_000 - SLACK_MS < ahead_ms <= 50_000


async def test_the_local_clock_is_used_if_the_broker_clock_is_unknown():
    harness = WorkerHarness(1)
    harness.append({0: a_query(now_ms())})
    harness.broker.ahead_ms = None
    worker = harness.worker(heartbeats=True, idle_ms=0)
    async with harness.working(worker):
        await eventually(lambda: heartbeats(harness))
    assert worker.snapshot.skew_ms is None
    assert abs(heartbeats(harness)[0] - now_ms()) < SLACK_MS


async def test_refused_heartbeats_are_logged_once_and_retried():
    harness = WorkerHarness(1)
    harness.append({0: a_query(now_ms())})
    harness.broker.ahead_ms, harness.broker.timestamp_bound_ms = None, -600_000
    worker = harness.worker(heartbeats=True, idle_ms=0)
    with capture_logs() as logged:
        async with harness.working(worker):
            await eventually(lambda: any(each["event"] == "heartbeat_refused" for each in logged))
            at_ms = now_ms()
            await eventually(lambda: now_ms() > at_ms + SILENT_MS)
            assert heartbeats(harness) == []
            harness.broker.timestamp_bound_ms = 0
            await eventually(lambda: heartbeats(harness))
    assert [each["event"] for each in logged].count("heartbeat_refused") == 1
    assert not worker.readiness()


class CountedSource(MemorySource):
    probes = 0

    async def broker_time_ms(self):
        self.probes += 1
        return await super().broker_time_ms()


@pytest.fixture
def set_clock(monkeypatch):
    """A function that sets the wall clock so far ahead of the true one; the broker's stays."""
    broker, right_ns = FaultyBroker(), time.time_ns

    def set_clock(ahead_ms):
        monkeypatch.setattr(time, "time_ns", lambda: right_ns() + ahead_ms * 1_000_000)
        broker.ahead_ms = -ahead_ms

    set_clock.source = CountedSource(broker)
    set_clock.broker = broker
    return set_clock


async def test_a_changed_wall_clock_is_measured_at_once(set_clock):
    clock = BrokerClock(set_clock.source)
    assert not clock.may_stamp
    for _ in range(3):
        await clock.probe_if_due()
    assert (set_clock.source.probes, clock.may_stamp) == (1, True)
    set_clock(40_000)
    await clock.probe_if_due()
    assert set_clock.source.probes == 2
    assert abs(clock.skew_ms - 40_000) < SLACK_MS
    assert abs(clock.now_ms() - (now_ms() - 40_000)) < SLACK_MS


async def test_a_changed_clock_stamps_no_heartbeat_before_it_is_measured(set_clock):
    clock = BrokerClock(set_clock.source)
    await clock.probe_if_due()
    set_clock(3_600_000)
    set_clock.broker.disconnect()
    await clock.probe_if_due()
    assert not clock.may_stamp
    set_clock.broker.reconnect()
    await clock.probe_if_due()
    assert set_clock.source.probes == 2, "it is requested again after a while, not in every round"
