"""A process of the simulated world; it runs until it is done, stopped, refused or killed."""

import asyncio
from collections.abc import Awaitable, Generator, Mapping, Sequence
from contextvars import ContextVar
from random import Random
from typing import TYPE_CHECKING, Any

from evaluator.adapters.kafka.membership import PositionBounds
from evaluator.adapters.memory import MemorySource
from evaluator.core.engine.engine import Engine
from evaluator.core.types.records import LOGS, Log
from evaluator.ports import Committed, Partition, SourceUnavailable, StateUnusable
from evaluator.wire.records import CHECKPOINTS, Output, OutputRecord, Records
from tests.simulation.disks import Disk, HeldDisk
from tests.simulation.expiry import GROUP

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

READS = {"await", "store read"}
"""Boundaries without an effect on the world."""
Lane = tuple[Output, int]

current_life: ContextVar["Life | None"] = ContextVar("current_life", default=None)


class Killed(BaseException):
    """The process has ended. Its later calls have no effect on the world."""


class Life:
    """One process, from its start to its end.

    Each of its effects on the world goes through `boundary`, and so does every await of its loop:
    at the *crash_at*-th it is killed; with *at_writes* only writes are counted.
    """

    def __init__(
        self,
        world: "Simulation",
        name: str,
        disk: Disk,
        *,
        crash_at: int | None = None,
        at_writes: bool = False,
        accept_loss: bool = False,
    ) -> None:
        self.world = world
        self.random: Random = world.random
        self.name = name
        self.disk = disk
        self._crash_at = crash_at
        self._at_writes = at_writes
        self.accept_loss = accept_loss
        self.dead = False
        self._n_boundaries = 0
        self.frozen_until = 0.0
        self.refusal: str | None = None  # a fault of the medium that must end it
        self.engines: dict[int, Engine] = {}
        self.source = SimulatedSource(self)
        self.sink = SimulatedSink(self)
        self._states = HeldDisk(self, disk)
        self.worker = world.new_worker(self, self._states)
        self._task: asyncio.Task[None] | None = None
        self._snapshot = self.worker.snapshot

    def add_step(self, text: str) -> None:
        self.world.add_step(text, self.name)

    async def finished(self) -> None:
        """Waits until none of its tasks runs any more."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def run(self, *, until_end: bool = False) -> str:
        """How it ended: done, killed, refused, overtaken by expiry, or by expired records.

        Raises unexpected errors.
        """
        self._task = asyncio.create_task(self._run(until_end))
        await asyncio.wait({self._task})
        self.look()
        error = None if self._task.cancelled() else self._task.exception()
        if self.dead:
            return "killed"
        self.dead = True
        self.sink.cut()
        if isinstance(error, StateUnusable) and self.refusal is not None:
            self.add_step(f"ended, as it should: {error}")
            return "refused"
        ended = self.world.loss.ended(self, error)
        if ended is not None:
            self.add_step(f"ended, as it should: {error}")
            return ended
        if error is not None:
            raise error
        self.add_step("ended in order")
        return "done"

    async def _run(self, until_end: bool) -> None:
        current_life.set(self)
        self._states.hold()
        await _Stepped(self, self.worker.run(until_end=until_end))

    def boundary(self, name: str) -> None:
        """Raises Killed if the process ends here, or has ended."""
        if self.dead:
            raise Killed(name)
        if self._at_writes and name in READS:
            return
        self._n_boundaries += 1
        if self._n_boundaries == self._crash_at:
            self.world.count(f"crash at {name}")
            self.kill(f"crashed at boundary {self._n_boundaries}, {name}")
            raise Killed(name)

    def kill(self, reason: str) -> None:
        """Ends it like `kill -9`."""
        if self.dead:
            return
        self.add_step(f"KILLED: {reason}")
        self.dead = True
        self.sink.cut()
        if self._task is not None:
            self._task.cancel()

    def happens(self, fault: str) -> bool:
        """Whether a fault of its medium occurs now; if that ends the process, it counts as
        refused."""
        if self.world.faults_ended or self.random.random() >= self.world.plan.chances.get(
            fault, 0.0
        ):
            return False
        self.world.count(fault)
        self.add_step(f"fault: {fault}")
        if fault.startswith("disk full"):
            self.refusal = fault
        return True

    async def pause(self, name: str) -> None:
        """Simulates the time of a request to the broker."""
        if self.dead:
            raise Killed(name)
        seconds = self.world.latency()
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(seconds, self.frozen_until - now))
        if self.dead:
            raise Killed(name)

    def look(self) -> None:
        """Observes each new snapshot of the process."""
        snapshot = self.worker.snapshot
        if snapshot is not self._snapshot:
            self.world.observe(self, self._snapshot, snapshot)
            self._snapshot = snapshot


class _Stepped:
    """Awaits the loop of a process and counts its suspensions."""

    def __init__(self, life: Life, loop: Awaitable[None]) -> None:
        self._life = life
        self._loop = loop

    def __await__(self) -> Generator[Any, Any, None]:
        inner = self._loop.__await__()
        thrown: BaseException | None = None
        while True:
            try:
                yielded = inner.send(None) if thrown is None else inner.throw(thrown)
            except StopIteration:
                return
            thrown = None
            try:
                if not self._life.dead:
                    self._life.boundary("await")
                yield yielded
            except BaseException as error:  # noqa: BLE001 - handed on to whom it is meant for
                thrown = error


class SimulatedSource(MemorySource):
    """A member of the group that may be expelled without noticing."""

    def __init__(self, life: Life) -> None:
        super().__init__(life.world.broker, group_id=GROUP)
        self._life = life
        self.expelled = False
        self.begins: Mapping[Partition, int] = {}
        """Beginnings of the logs, from its request until it reads."""
        self.began: dict[Partition, int] = {}
        """The same, at its last request."""
        self.given: dict[int, tuple[bytes | None, Mapping[Log, int]]] = {}
        """The checkpoint record of each task, and the beginnings of its logs, at its last
        request."""
        self.had: dict[Partition, int] = {}
        """The commits of the group at its last request."""
        self._kafka = PositionBounds()

    def expel(self) -> bool:
        """The group and the member continue without each other. False if that is impossible."""
        if self.expelled or self not in self._group.members:
            return False
        self.expelled = True
        self._group.leave(self)
        return True

    def rejoin(self) -> None:
        if self.expelled and self._joined and not self._life.dead:
            self._life.add_step("notices that it was expelled, and joins again")
            self.expelled = False
            self._group.join(self)

    async def start(self) -> None:
        await self._life.pause("start")
        await super().start()

    async def stop(self) -> None:
        await self._life.pause("stop")
        await super().stop()

    async def poll(
        self, partitions: Sequence[Partition], *, max_records: int, timeout_ms: int
    ) -> list[Records]:
        self._life.look()
        self.begins = {}
        await self._life.pause("poll")
        return await super().poll(partitions, max_records=max_records, timeout_ms=timeout_ms)

    async def beginning(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        self.begins = found = await super().beginning(partitions)
        self.began |= found
        self._kafka.note(found, ends=False)
        return found

    async def end(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        await self._life.pause("end")
        found = await super().end(partitions)
        self._kafka.note(found, ends=True)
        return found

    async def committed(self, partitions: Sequence[Partition]) -> Mapping[Partition, Committed]:
        """Logs records that expired before the group had read them, like the adapter for Kafka."""
        found = await super().committed(partitions)
        self.had |= {each: mark.offset for each, mark in found.items()}
        self._kafka.compare(found)
        return found

    async def checkpoints(self, tasks: Any) -> Any:
        await self._life.pause("checkpoints")
        found = await super().checkpoints(tasks)
        for task, records in found.items():
            began = {log: self.began[log, task] for log in LOGS}
            self.given[task] = next(iter(records.values()), None), began
        return found

    def outside(self) -> list[Partition]:
        """The position if the log does not contain it any more."""
        logs = self._broker.logs
        return [each for each, at in self._positions.items() if at < logs[each].first]

    async def commit(self, commits: Mapping[Partition, Committed]) -> bool:
        self._life.boundary("commit")
        await self._life.pause("commit")
        if self.expelled:
            return False
        taken = await super().commit(commits)
        self._life.boundary("committed")
        if self._life.happens("commit answer lost"):
            raise SourceUnavailable("simulated: the answer to a commit was lost")
        return taken

    async def append_heartbeat(self, partition: Partition, timestamp_ms: int) -> bool:
        self._life.boundary("heartbeat")
        await self._life.pause("heartbeat")
        accepted = await super().append_heartbeat(partition, timestamp_ms)
        self._life.world.count("heartbeat")
        self._life.boundary("heartbeat appended")
        return accepted


class SimulatedSink:
    """Implements `evaluator.ports.Sink`: each lane in order, the lanes in any order.

    A write may fail, or succeed and be reported as failed; it is repeated in both cases. When the
    process is killed, some of its emitted records have arrived, or will arrive soon.
    """

    refused = 0

    def __init__(self, life: Life) -> None:
        self._life = life
        self._broker = life.world.broker
        self._lanes: dict[Lane, list[tuple[Sequence[OutputRecord], list]]] = {}
        self._late: list[tuple[Lane, list[OutputRecord]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._life.pause("sink start")
        self._broker.require()

    async def emit(self, records: Mapping[Lane, Sequence[OutputRecord]]) -> Awaitable[None]:
        self._life.boundary("emit")
        await self._life.pause("emit")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        emission = [len(records), done]
        for lane, rows in records.items():
            self._lanes.setdefault(lane, []).append((rows, emission))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        self._life.boundary("emitted")
        return done

    async def _write(self) -> None:
        life = self._life
        while self._lanes and not life.dead:
            await asyncio.sleep(life.world.latency())
            while self._broker.disconnected and not life.dead:
                await self._broker.wait_for_change()
            if life.dead:
                return
            lane = life.random.choice(list(self._lanes))
            rows, emission = self._lanes[lane][0]
            if life.happens("produce failed"):
                continue
            self._broker.write(lane, rows)
            if lane[0] == CHECKPOINTS:
                life.world.expiry.maybe_expire()
            if life.happens("produce ambiguous"):
                continue
            self._lanes[lane].pop(0)
            if not self._lanes[lane]:
                del self._lanes[lane]
            emission[0] -= 1
            if not emission[0] and not emission[1].done():
                emission[1].set_result(None)
        self._writing = None

    def cut(self) -> None:
        """The process has ended: a prefix of each lane arrives, now, later or never."""
        if self._writing is not None:
            self._writing.cancel()
        for lane, waiting in self._lanes.items():
            rows = [row for each, _ in waiting for row in each]
            arrived = rows[: self._life.random.randint(0, len(rows))]
            if arrived:
                seconds = self._life.random.choice((0.0, 0.0, 1.0, 5.0))
                self._life.add_step(
                    f"{len(arrived)} of {len(rows)} records of {lane} arrive anyway"
                )
                self._life.world.count("records of the dead")
                loop = asyncio.get_running_loop()
                self._late.append((lane, arrived))
                loop.call_later(seconds, self._arrive, lane, arrived)
        self._lanes = {}

    def _arrive(self, lane: Lane, rows: list[OutputRecord]) -> None:
        self._late.remove((lane, rows))
        self._broker.write(lane, rows)

    def unwritten(self, task: int) -> list[OutputRecord]:
        """Checkpoint records of a task that may still arrive."""
        lane: Lane = (CHECKPOINTS, task)
        waiting = [row for rows, _ in self._lanes.get(lane, ()) for row in rows]
        return waiting + [row for of, rows in self._late if of == lane for row in rows]

    async def stop(self) -> None:
        if self._life.dead:
            raise Killed("stop")
        if self._writing is not None and not self._broker.disconnected:
            await asyncio.wait({self._writing})
