"""The outputs of a MemoryBroker, and the election of a leader over it."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Collection, Mapping, Sequence

import numpy as np

from evaluator.adapters.memory.broker import MemoryBroker
from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.ports import Fenced, Lane, SourceUnavailable
from evaluator.wire.outputs.sizes import refused
from evaluator.wire.records import LeaderOutput, OutputRecord, SettledRecords


class MemorySink:
    """Implements `evaluator.ports.Sink` over a MemoryBroker.

    Emitted records become visible, and are acknowledged, in a later turn of the event loop. Records
    that exceed the limit of their output are refused as the Kafka sink refuses them.
    """

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self.refused = 0
        self._unwritten: deque[
            tuple[Mapping[Lane, Sequence[OutputRecord]], asyncio.Future[None]]
        ] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._stopped = False

    async def start(self) -> None:
        self._broker.require()

    async def emit(self, records: Mapping[Lane, Sequence[OutputRecord]]) -> Awaitable[None]:
        if self._stopped:
            raise SourceUnavailable("The sink is stopped.")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unwritten.append((records, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        return done

    async def _write(self) -> None:
        while self._unwritten:
            while self._broker.disconnected:
                await self._broker.wait_for_change()
            records, done = self._unwritten.popleft()
            for lane, rows in records.items():
                self._write_rows(lane, rows)
            if not done.done():
                done.set_result(None)
        self._writing = None

    def _write_rows(self, lane: Lane, rows: Sequence[OutputRecord]) -> None:
        output, partition = lane
        max_bytes = self._broker.max_bytes.get(output)
        if max_bytes is None:
            self._broker.write(lane, rows)
            return
        for row in rows:
            record: OutputRecord | None = row
            while record is not None and _n_bytes(record) > max_bytes:
                found = refused(record, output, topic=output, partition=partition)
                self.refused += found.counts
                if found.letter is not None:
                    self._write_rows(("dead-letters", partition), [found.letter])
                record = found.smaller
            if record is not None:
                self._broker.write(lane, [record])

    async def stop(self) -> None:
        """Writes all emitted records, unless the broker is disconnected."""
        self._stopped = True
        writing, self._writing = self._writing, None
        if writing is not None:
            if self._broker.disconnected:
                writing.cancel()
            await asyncio.wait({writing})
        for _, done in self._unwritten:
            if not done.done():
                done.set_exception(
                    SourceUnavailable("The sink was stopped while the broker was unavailable.")
                )
                done.exception()
        self._unwritten.clear()


class MemoryLeadership:
    """Implements `evaluator.ports.Leadership`; the oldest eligible process is elected."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._n_followed = 0
        self._positions: dict[int, int] = {}
        self._leader_epoch: int | None = None

    async def start(self) -> int:
        self._broker.require()
        if self not in self._broker.leader.candidates:
            self._broker.leader.candidates.append(self)
            self._broker.notify()
        return self._broker.partitions["rankings"]

    @property
    def elected(self) -> bool:
        return self._broker.leader.candidates[:1] == [self]

    async def follow(self, *, timeout_ms: int) -> list[OutputRecord]:
        elected = self.elected
        return await self._broker.wait_for(
            self._new_weights, timeout_ms, until=lambda: self.elected != elected
        )

    def _new_weights(self) -> list[OutputRecord]:
        written = self._broker.leader.written["weights"]
        new, self._n_followed = written[self._n_followed :], len(written)
        return new

    async def begin_epoch(self) -> list[OutputRecord]:
        self._broker.require()
        self._broker.leader.leader_epoch += 1
        self._leader_epoch = self._broker.leader.leader_epoch
        self._positions = {}
        return self._new_weights()

    async def seek(self, task: int, offset: int) -> None:
        self._positions[task] = offset

    async def read(
        self, tasks: Collection[int], *, max_records: int, timeout_ms: int
    ) -> list[SettledRecords]:
        elected = self.elected
        return await self._broker.wait_for(
            lambda: self._settled(tasks, max_records),
            timeout_ms,
            until=lambda: self.elected != elected,
        )

    def _settled(self, tasks: Collection[int], max_records: int) -> list[SettledRecords]:
        found = list[SettledRecords]()
        for task in sorted(self._positions.keys() & set(tasks)):
            first, records = self._broker.output_from(
                "settled", task, self._positions[task], max_records
            )
            max_records -= len(records)
            if records:
                self._positions[task] = first + len(records)
                found += SettledRecords.split(
                    task,
                    np.arange(first, first + len(records)),
                    ByteStrings.of([record.value for record in records]),
                    [record.headers for record in records],
                )
        return found

    async def publish(self, records: Sequence[tuple[LeaderOutput, OutputRecord]]) -> None:
        await asyncio.sleep(0)
        self._broker.require()
        leader = self._broker.leader
        if self._leader_epoch != leader.leader_epoch:
            raise Fenced
        for topic, record in records:
            leader.written[topic].append(record)
        self._broker.notify()

    async def stop(self) -> None:
        self._leader_epoch = None
        if self in self._broker.leader.candidates:
            self._broker.leader.candidates.remove(self)
            self._broker.notify()


def _n_bytes(record: OutputRecord) -> int:
    headers = sum(len(name) + len(value) for name, value in record.headers)
    return len(record.key or b"") + len(record.value) + headers
