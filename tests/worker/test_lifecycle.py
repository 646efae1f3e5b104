"""The states of a worker and of the catch-up of a task."""

import asyncio
from itertools import product

import pytest

from evaluator.core.types.transitions import IllegalTransition
from evaluator.worker.lifecycle import (
    WORKER_TRANSITIONS,
    CatchUp,
    Lifecycle,
    WorkerState,
)
from tests.waiting import eventually, finished
from tests.worker.harness import WorkerHarness, positions
from tests.worker.traffic import traffic


def test_illegal_transitions_raise_and_a_state_may_be_entered_again():
    assert set(WORKER_TRANSITIONS) == set(WorkerState)
    for before, after in product(WorkerState, WorkerState):
        lifecycle = Lifecycle(before)
        if after is before or after in WORKER_TRANSITIONS[before]:
            lifecycle.to(after)
            assert lifecycle.state is after
        else:
            with pytest.raises(IllegalTransition, match=f"{before} to {after}"):
                lifecycle.to(after)
            assert lifecycle.state is before


def test_a_stopping_worker_has_no_other_transition():
    assert not WORKER_TRANSITIONS[WorkerState.STOPPING]


def test_a_long_rebalance_makes_a_worker_not_ready():
    now = [0.0]
    lifecycle = Lifecycle(WorkerState.RUNNING, lambda: now[0])
    now[0] = 100.0
    lifecycle.to(WorkerState.HANDING_OVER)
    for seconds, reasons in (
        (5.0, []),
        (5.5, ["its group has been assigning tasks for 6 s"]),
    ):
        now[0] = 100.0 + seconds
        lifecycle.to(WorkerState.HANDING_OVER)  # again: the time counts from the first
        assert lifecycle.slow_rebalance == reasons
    lifecycle.to(WorkerState.RESTORING)
    now[0] += 100.0
    assert lifecycle.slow_rebalance == []


def test_readiness_shows_how_long_the_group_has_been_assigning():
    worker = WorkerHarness(1).worker()
    worker._lifecycle = Lifecycle(WorkerState.HANDING_OVER, iter([0.0, 6.0]).__next__)
    assert worker.readiness()[-1] == "its group has been assigning tasks for 6 s"


def recorded(lifecycle: Lifecycle) -> list:
    """The states that *lifecycle* enters from now on."""
    entered, to = [lifecycle.state], lifecycle.to

    def recording(state):
        to(state)
        if entered[-1] is not state:
            entered.append(state)

    lifecycle.to = recording
    return entered


@pytest.mark.slow(alone=False)
async def test_a_worker_that_rebuilds_a_task_enters_and_shows_all_states():
    harness = WorkerHarness(1)
    harness.append({0: traffic(1, n_queries=60)})
    await harness.until_end()
    worker = harness.worker(max_poll_records=20)
    states, shown = recorded(worker._lifecycle), []
    assert worker.readiness()[-1] == "no tasks assigned by the group yet"
    running = asyncio.create_task(worker.run())
    while worker.state is not WorkerState.RUNNING:
        shown += [reason for reason in worker.readiness() if reason not in shown]
        await asyncio.sleep(0)
    assert worker.readiness() == []
    assert worker._ownership.tasks[0].catch_up is CatchUp.WARM
    worker.stop()
    await finished(running)
    assert "restoring tasks [0]" in shown
    assert states == [
        *(WorkerState.CONNECTING, WorkerState.RESTORING, WorkerState.RUNNING),
        WorkerState.STOPPING,
    ]


async def test_a_second_worker_causes_handover_and_restore():
    harness = WorkerHarness(2)
    harness.append({task: traffic(task, n_queries=10) for task in range(2)})
    first, second = harness.worker(), harness.worker()
    states = recorded(first._lifecycle)
    async with harness.working(first):
        await eventually(lambda: positions(first) == harness.ends())
        async with harness.working(second):
            await eventually(lambda: second.state is WorkerState.RUNNING)
            await eventually(lambda: first.state is WorkerState.RUNNING)
    handover = states.index(WorkerState.HANDING_OVER)
    assert states[handover - 1 : handover + 3] == [
        *(WorkerState.RUNNING, WorkerState.HANDING_OVER),
        *(WorkerState.RESTORING, WorkerState.RUNNING),
    ]
