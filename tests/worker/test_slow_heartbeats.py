"""A log that accepts no heartbeat, as one with too few replicas, delays nothing else."""

import asyncio

from evaluator.adapters.memory import MemorySource
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
