"""A log that accepts no heartbeat, as one with too few replicas, delays nothing else."""

import asyncio
from types import SimpleNamespace

from structlog.testing import capture_logs

from evaluator.adapters.memory import MemorySource
from evaluator.worker.heartbeats import Heartbeats
from tests.waiting import eventually
from tests.worker.harness import WorkerHarness, positions
from tests.worker.test_broker_clock import now_ms
from tests.worker.test_loop import a_query


class Stuck(MemorySource):
    """Waits for a broker that accepts no heartbeat, until the end of the test."""

    def __init__(self, broker):
        super().__init__(broker)
        self.asked, self.ended = asyncio.Event(), asyncio.Event()

    async def append_heartbeat(self, partition, timestamp_ms):
        self.asked.set()
        await self.ended.wait()
        return False


async def test_a_heartbeat_that_is_not_accepted_delays_no_records():
    harness = WorkerHarness(2)
    harness.append({0: a_query(now_ms()), 1: a_query(now_ms())})
    source = Stuck(harness.broker)
    worker = harness.worker(source, heartbeats=True, idle_ms=0)
    async with harness.working(worker):
        await source.asked.wait()
        harness.append({0: a_query(now_ms())})
        try:
            await eventually(lambda: positions(worker) == harness.ends(), seconds=20)
            assert not worker.readiness()
        finally:
            source.ended.set()


class Refusing(MemorySource):
    async def append_heartbeat(self, partition, timestamp_ms):
        return False


async def test_a_refusal_is_logged_again_when_another_task_has_come():
    heartbeats = Heartbeats(Refusing(WorkerHarness(2).broker), enabled=True)
    with capture_logs() as logs:
        for number in (0, 0, 1):
            task = SimpleNamespace(number=number, idle_since={}, needs_heartbeat=lambda *_, **__: 1)
            await heartbeats.append_due([task], begin_at=0.0)
            await heartbeats._appending
    refused = [line["partition"] for line in logs if line["event"] == "heartbeat_refused"]
    assert refused == [0, 1]
