"""What a worker says of itself while it works: whether it is ready, and its figures."""

import asyncio

from tests.worker.house import House, eventually


async def test_a_worker_is_not_ready_before_it_has_taken_its_tasks_over():
    house, asked, answer = House(), asyncio.Event(), asyncio.Event()
    source = house.source()
    checkpoints = source.checkpoints

    async def slow(tasks):
        asked.set()
        await answer.wait()
        return await checkpoints(tasks)

    source.checkpoints = slow
    async with house.working(house.worker(source)) as worker:
        await asyncio.wait_for(asked.wait(), 5)
        assert worker.readiness()[-1] == "taking over tasks [0, 1]"
        answer.set()
        await eventually(lambda: worker.readiness() == [])
