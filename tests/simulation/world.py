"""One simulated world: machines, a broker, faults, and a last worker that reads all records."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any
from unittest import mock

import structlog

from evaluator.core.engine import expiry
from evaluator.core.event_time.timers import Timers
from evaluator.core.join.changes import DiskTier
from evaluator.core.measures import MeasureSet
from evaluator.core.types.records import LOGS, Log
from evaluator.exposition.snapshot import Snapshot, TaskView
from evaluator.ports import StateDirectory
from evaluator.worker import Wire, Worker, WorkerSettings
from tests.faulty_broker import FaultyBroker
from tests.oracle.messages import Raw
from tests.oracle.run import new_engine
from tests.simulation.clock import simulated_time
from tests.simulation.continuation import Continuation
from tests.simulation.disks import MOST_LOST, Disk
from tests.simulation.expiry import GROUP, Expiry
from tests.simulation.loss import LACKS, Loss
from tests.simulation.plan import Plan, drawn
from tests.simulation.process import Killed, Life, current_life
from tests.simulation.verdict import check_counters, check_end, check_samples
from tests.worker.truth import Truth

FINGERPRINT = "simulated"
END_PATIENCE_SECONDS = 600.0
SHORTEST_SECONDS = 0.001
"""Least duration of an action, so that time advances."""
MOST_SAMPLES = 3
DISK_FAULTS = {"torn log", "empty disk", "damage"}
DISORDER = {
    *("kill", "expel", "freeze", "away", "disk full", "disk full, written", "commit answer lost"),
    *("log commit_refused", "log stopped_without_commit"),
}


@dataclass(frozen=True)
class Step:
    """One event of a world."""

    seconds: float
    who: str
    text: str

    def __str__(self) -> str:
        return f"{self.seconds:9.3f}  {self.who:<8}  {self.text}"


class Simulation:
    """The world of a seed. `live` runs it; `steps` are its events."""

    def __init__(self, seed: int, *, plan: Plan | None = None) -> None:
        self.plan = drawn(seed) if plan is None else plan
        self.random = Random(seed + 1)
        self.steps: list[Step] = []
        self.counts: Counter[str] = Counter()
        self.faults_ended = False
        self.samples: list[TaskView] = []
        self.expiry = Expiry(self)
        self.loss = Loss(self)
        self.continuation = Continuation(self)
        self.last: Life | None = None
        self._n_samples = 0
        self._chance = Random(seed + 2)  # observation has no effect
        self._jump_ms = 0
        self._lives: list[Life] = []
        self._disks = [Disk() for _ in range(self.plan.n_machines)]
        self._measures = MeasureSet.parse(list(self.plan.settings.measures))

    # Common to all processes

    def add_step(self, text: str, who: str = "world") -> None:
        self.steps.append(Step(asyncio.get_running_loop().time(), who, text))

    def count(self, what: str) -> None:
        """Counts an event, for the summary of a soak."""
        self.counts[what] += 1

    def latency(self) -> float:
        """Seconds that a request takes, rarely many."""
        if self.faults_ended:
            return SHORTEST_SECONDS
        seconds = SHORTEST_SECONDS + self.random.random() * self.plan.latency_seconds
        return seconds * 30 if self.random.random() < 0.01 else seconds

    def observe(self, life: Life, before: Snapshot, now: Snapshot) -> None:
        """Receives a new snapshot of a process."""
        check_counters(before, now)
        for view in now:
            if not view.restoring:
                self._n_samples += 1
                if len(self.samples) < MOST_SAMPLES:
                    self.samples.append(view)
                elif self._chance.random() < MOST_SAMPLES / self._n_samples:
                    self.samples[self._chance.randrange(MOST_SAMPLES)] = view

    def raws(self, log: Log, task: int) -> list[Raw]:
        """All records of an input, deleted ones included."""
        kept = self.broker.logs[log, task]
        columns = zip(kept.offsets, kept.timestamps_ms, kept.values, kept.keys, strict=True)
        return [*self.expiry.gone(log, task), *(Raw(*row) for row in columns)]

    @cached_property
    def truth(self) -> Truth:
        """The results of the oracle for all records of the inputs, for tasks without a loss."""
        inputs = {
            task: (self.raws("rankings", task), self.raws("judgments", task))
            for task in range(self.plan.n_tasks)
            if task not in self.expiry.reported
        }
        return Truth(inputs, self.plan.settings)

    @property
    def lives(self) -> list[Life]:
        """All processes so far."""
        return self._lives

    @property
    def disk_survived(self) -> bool:
        """Whether there was a single disk, without losses."""
        return self.plan.n_machines == 1 and not DISK_FAULTS & self.counts.keys()

    @property
    def clean_handovers(self) -> bool:
        """Whether all handovers of tasks were clean."""
        crashed = any(what.startswith("crash") for what in self.counts)
        return not crashed and not (DISK_FAULTS | DISORDER) & self.counts.keys()

    # Setup

    def new_worker(self, life: Life, states: StateDirectory) -> Worker:
        plan, settings = self.plan, self.plan.settings

        def engine(task: int, *, disk_tier: DiskTier) -> Any:
            made = new_engine(
                settings, task=task, disk_tier=disk_tier, max_bytes=plan.memory_tier_bytes
            )
            life.engines[task] = made
            return made

        wire = Wire(
            measures=self._measures,
            max_future_skew_ms=300_000,
            maturity_ms=settings.maturity_ms,
            window_ms=settings.window_ms,
            emit_query=True,
            topic_names={log: log for log in LOGS},
            fingerprint=FINGERPRINT,
        )
        loop: dict[str, Any] = dict(plan.loop)
        loop["heartbeats"] = loop["heartbeats"] and not self.faults_ended
        return Worker(
            life.source,
            life.sink,
            states,
            new_engine=engine,
            wire=wire,
            settings=WorkerSettings(max_store_bytes=0, accept_loss=life.accept_loss, **loop),
        )

    def live(self) -> None:
        """Runs from the first record to the verdict."""
        with self._environment():
            loop = self._loop
            asyncio.set_event_loop(loop)
            try:
                unhandled: list[dict[str, Any]] = []
                loop.set_exception_handler(lambda _, context: unhandled.append(context))
                loop.run_until_complete(self._live())
                self._judge()
                if self.continuation.happens:
                    loop.run_until_complete(self.continuation.live())
            finally:
                asyncio.set_event_loop(None)
        gone = (Killed, asyncio.CancelledError)
        unhandled = [each for each in unhandled if not isinstance(each.get("exception"), gone)]
        assert not unhandled, f"unhandled errors: {unhandled}"

    def _judge(self) -> None:
        check_end(self)
        check_samples(self)
        self.loss.check_end()

    @contextmanager
    def _environment(self) -> Iterator[None]:
        before = structlog.get_config()
        with ExitStack() as stack:
            self._loop = stack.enter_context(
                simulated_time(lambda now: self.plan.wall_ms(now, self._jump_ms))
            )
            stack.enter_context(mock.patch.object(Timers, "RUN", self.plan.run))
            stack.enter_context(mock.patch.object(expiry, "_CHUNK", self.plan.chunk))
            structlog.configure(processors=[self._on_log_event], cache_logger_on_first_use=False)
            stack.callback(structlog.configure, **before)
            yield

    def _on_log_event(self, _: object, method: str, event: dict[str, Any]) -> Any:
        life = current_life.get()
        if life is not None and not life.dead:
            words = " ".join(f"{k}={v!r}" for k, v in event.items() if k not in ("event", "stages"))
            life.add_step(f"log {method}: {event['event']} {words}")
            self.count(f"log {event['event']}")
            self.expiry.on_log_event(life, event)
            self.loss.on_log_event(life, event)
        raise structlog.DropEvent

    # Run

    async def _live(self) -> None:
        plan = self.plan
        self.broker = FaultyBroker(
            plan.n_tasks, release_timeout_seconds=plan.release_timeout_seconds
        )
        for partition in self.broker.logs:
            self.broker.skip(*partition, self.random.choice((0, 0, 5, 2**40)))
        machines = [asyncio.create_task(self._machine(number)) for number in range(plan.n_machines)]
        injector = asyncio.create_task(self._inject_events())
        try:
            await self._produce()
            await asyncio.sleep(self.random.choice((0.0, 1.0, 3.0)))
        finally:
            await self._end_all(injector, machines)
        await self._read_to_the_end()

    async def _produce(self) -> None:
        """Appends records to the partitions in any order; a producer may send a record twice."""
        left = {partition: list(raws) for partition, raws in self.plan.inputs.items()}
        n_steps = sum(map(len, left.values())) / 2.5
        while left:
            partition = self.random.choice(list(left))
            for _ in range(self.random.choice((1, 1, 2, 3, 8))):
                if not left[partition]:
                    break
                raw = left[partition].pop(0)
                for _ in range(2 if self.random.random() < 0.03 else 1):
                    if self.random.random() < 0.05:
                        self.broker.skip(*partition, 2)
                    at_ms = -1 if raw.timestamp_ms is None else raw.timestamp_ms
                    self.broker.append(*partition, raw.key, raw.value, at_ms)
            self.expiry.catch_up()
            if not left[partition]:
                del left[partition]
            await asyncio.sleep(2 * self.random.random() * self.plan.seconds / n_steps)

    async def _machine(self, number: int) -> None:
        """Restarts the process of a machine for as long as the world lasts."""
        disk, how = self._disks[number], ""
        for life_number in range(1_000):
            life = self._next_life(f"{number}.{life_number}", disk, accept_loss=how == LACKS)
            self._lives.append(life)
            self.add_step(f"started on machine {number}", life.name)
            self.expiry.maybe_expire()
            how = await life.run()
            self._leave_later(life)
            if how == "killed":
                self._after_a_crash(disk, life)
            await asyncio.sleep(self.random.choice((0.0, 0.1, 1.0)))

    def _next_life(self, name: str, disk: Disk, *, accept_loss: bool) -> Life:
        """Kills a process at some boundary, preferably an early one.

        A process that has to rebuild its tasks is often killed during the rebuild.
        """
        mean = self.plan.boundaries_per_life
        if mean is None:
            return Life(self, name, disk, accept_loss=accept_loss)
        if not disk.stores and self.random.random() < 0.5:
            at = 20 + self.random.expovariate(1 / 40)
            return Life(self, name, disk, crash_at=round(at), accept_loss=accept_loss)
        at_writes = self.random.random() < 0.5
        at = self.random.expovariate(1 / (mean / 10 if at_writes else mean))
        how = {"at_writes": at_writes, "accept_loss": accept_loss}
        return Life(self, name, disk, crash_at=1 + round(at), **how)

    def _leave_later(self, life: Life) -> None:
        """The group notices some time later that a member has died."""
        seconds = self.random.choice((0.0, 0.1, 2.0))
        group = self.broker.group(GROUP)
        asyncio.get_running_loop().call_later(seconds, group.leave, life.source)

    def _after_a_crash(self, disk: Disk, life: Life) -> None:
        if self.random.random() >= self.plan.disk_loss_chance:
            return
        if self.random.random() < 0.6:
            n_lost = self.random.choice((1, 1, 2, 5, MOST_LOST))
            disk.lose_last(n_lost)
            self.add_step(f"the disk has lost the last {n_lost} batches", life.name)
            self.count("torn log")
        else:
            disk.delete()
            self.add_step("the disk is empty", life.name)
            self.count("empty disk")

    async def _inject_events(self) -> None:
        while self.plan.events:
            await asyncio.sleep(self.random.expovariate(1.0))
            event = self.random.choice(self.plan.events)
            self.count(event)
            self._inject(event)

    def _inject(self, event: str) -> None:
        now = asyncio.get_running_loop().time()
        alive = [life for life in self._lives if not life.dead]
        if event == "jump":
            self._jump_ms += self.random.randint(-self.plan.span_ms, self.plan.span_ms)
            self.add_step(f"wall clocks are off by {self._jump_ms} ms now")
        elif event == "away":
            if not self.broker.disconnected:
                self.add_step("the broker goes away")
                self.broker.disconnect()
                self._after(self.random.choice((0.2, 2.0, 6.0)), self._come_back)
        elif alive:
            life = self.random.choice(alive)
            if event == "kill":
                life.kill("from outside")
            elif event == "stop":
                self.add_step("is asked to stop", life.name)
                life.worker.stop()
            elif event == "freeze":
                life.frozen_until = now + self.random.choice((1.0, 4.0))
                self.add_step(f"stands still until {life.frozen_until:.3f}", life.name)
                self._expel(life)
            elif event == "expel":
                self._expel(life)

    def _expel(self, life: Life) -> None:
        if life.source.expel():
            self.add_step("is expelled from the group, and does not know", life.name)
            self._after(self.random.choice((0.5, 2.0, 8.0)), life.source.rejoin)

    def _after(self, seconds: float, act: Any) -> None:
        asyncio.get_running_loop().call_later(seconds, act)

    def _come_back(self) -> None:
        self.add_step("the broker is back")
        self.broker.reconnect()

    # The end

    async def _end_all(self, injector: asyncio.Task, machines: list[asyncio.Task]) -> None:
        """All faults end; processes are stopped or killed."""
        self.add_step("all faults end")
        for task in (injector, *machines):
            task.cancel()
        self.broker.reconnect()
        for life in self._lives:
            if not life.dead:
                life.kill("the world ends")
            self.broker.group(GROUP).leave(life.source)
        await asyncio.wait({injector, *machines})
        for life in self._lives:
            await life.finished()
        for task in (injector, *machines):
            if not task.cancelled():
                task.result()
        self.faults_ended = True

    async def _read_to_the_end(self) -> None:
        """A last process, on a disk that was used or on none."""
        if self.random.random() < 0.3:
            self._write_late()
        self.expiry.at_the_end()
        disk = self.random.choice(self._disks if self.disk_survived else [*self._disks, Disk()])
        self.add_step(f"a last process, with the state of tasks {sorted(disk.stores)}")
        async with asyncio.timeout(END_PATIENCE_SECONDS):
            if await self._last(disk, accept_loss=False) == LACKS:
                await self._last(disk, accept_loss=True)

    async def _last(self, disk: Disk, *, accept_loss: bool) -> str:
        name = "again" if accept_loss else "last"
        self.last = life = Life(self, name, disk, accept_loss=accept_loss)
        self._lives.append(life)
        return await life.run(until_end=True)

    def _write_late(self) -> None:
        """An expelled process writes an old checkpoint record of each task."""
        for number in range(self.plan.n_tasks):
            records = self.broker.output("checkpoints", number)
            records = [each for each in records if self.expiry.is_there(number, each)]
            if records:
                self.add_step(f"an old checkpoint record of task {number} arrives")
                self.count("late checkpoint record")
                self.broker.write(("checkpoints", number), [self.random.choice(records)])


def digest(world: Simulation) -> str:
    """The same for the same seed."""
    text = "\n".join(map(str, world.steps))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
