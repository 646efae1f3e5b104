"""Continues after the end of a world: inputs are recreated or lose their ends; disks are kept."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from evaluator.core.types.records import LOGS, Log
from evaluator.wire.records import OUTPUTS
from tests.oracle.messages import Raw
from tests.simulation.disks import Disk
from tests.simulation.plan import drawn_inputs
from tests.simulation.process import Life
from tests.simulation.verdict import check_early, check_open_windows, check_totals
from tests.worker.truth import Outputs, Truth

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

CHANCE = 0.5
LATEST_SECONDS = 10.0
"""By then all records emitted by ended processes have arrived."""


class Continuation:
    """Has its own random numbers, so that a world is the same with it and without.

    Two processes read the present logs, on an old disk or on none: one may be killed, the other
    reads to the end. Its totals are exactly those of the logs; and if a topic was recreated, all
    records written since are those of an evaluator without a past.
    """

    def __init__(self, world: "Simulation") -> None:
        self._world = world
        self._random = Random(f"anew {world.plan.seed}")
        self.happens = self._random.random() < CHANCE
        # Of records that have expired, a checkpoint from before the lost end has the totals.
        self._ends_are_lost = world.plan.retention == "for ever" and self._random.random() < 0.6

    async def live(self) -> None:
        """Runs from the first new record to the verdict."""
        await asyncio.sleep(LATEST_SECONDS)
        world, random = self._world, self._random
        before = {lane: len(records) for lane, records in self._outputs().items()}
        self._change(random.choice((LOGS, LOGS, LOGS[:1], LOGS[1:])))
        disk = random.choice([*world._disks, Disk()])
        accept_loss = random.random() < 0.3
        first = Life(world, "anew", disk, crash_at=random.randint(1, 60), accept_loss=accept_loss)
        await self._run(first)
        last = Life(world, "anew, again", disk, accept_loss=accept_loss)
        assert await self._run(last) == "done"
        self._judge(last, before)

    async def _run(self, life: Life) -> str:
        how = await life.run(until_end=True)
        self._world.broker.group("group").leave(life.source)
        await asyncio.sleep(LATEST_SECONDS)
        return how

    def _outputs(self) -> Outputs:
        broker, tasks = self._world.broker, range(self._world.plan.n_tasks)
        return {(out, task): broker.output(out, task) for out in OUTPUTS for task in tasks}

    # Changes of the logs

    def _change(self, logs: Sequence[Log]) -> None:
        world, random = self._world, self._random
        old = dict(world.broker.logs)
        for log in logs:
            if not self._ends_are_lost:
                world.broker.recreate(log)
        for task in range(world.plan.n_tasks):
            plan = world.plan
            new = drawn_inputs(random, plan.settings, task, plan.base_ms, plan.span_ms)
            for log in logs:
                kept = old[log, task]
                if self._ends_are_lost:
                    first = kept.offsets[0] if kept.offsets else kept.end
                    self._world.broker.lose_end(log, task, random.randint(first, kept.end))
                elif random.random() < 0.7:  # from the beginning of the old one on
                    world.broker.skip(log, task, kept.offsets[0] if kept.offsets else kept.end)
                self._append(log, task, new[log, task])
                world.count("end lost" if self._ends_are_lost else "recreated")

    def _append(self, log: Log, task: int, raws: Sequence[Raw]) -> None:
        """Once or repeatedly, so that the log grows beyond the read part of the old one."""
        for _ in range(self._random.choice((1, 2, 5))):
            for raw in raws:
                at_ms = -1 if raw.timestamp_ms is None else raw.timestamp_ms
                self._world.broker.append(log, task, raw.key, raw.value, at_ms)

    # Expected results

    def _judge(self, last: Life, before: dict) -> None:
        world = self._world
        inputs = {
            task: tuple(self._present_records(log, task) for log in LOGS)
            for task in range(world.plan.n_tasks)
        }
        truth = Truth(inputs, world.plan.settings)  # type: ignore[arg-type]
        check_totals(world, last.worker.snapshot, truth)
        for number, task in truth.tasks.items():
            check_open_windows(last.engines[number], task)
            check_early(last.engines[number], task)
        if self._ends_are_lost:
            return
        outputs = {lane: records[before[lane] :] for lane, records in self._outputs().items()}
        truth.check_evaluations(outputs)
        truth.check_settled(outputs)
        truth.check_windows(outputs)
        truth.check_dead_letters(outputs, once=False)

    def _present_records(self, log: Log, task: int) -> list[Raw]:
        kept = self._world.broker.logs[log, task]
        columns = zip(kept.offsets, kept.timestamps_ms, kept.values, kept.keys, strict=True)
        return [Raw(*row) for row in columns]
