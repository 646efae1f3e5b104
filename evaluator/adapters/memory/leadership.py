"""What leaders share, over a MemoryBroker."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from evaluator.adapters.memory.broker import MemoryBroker
from evaluator.ports import Fenced, SettledRecords
from evaluator.wire.records import FINGERPRINT_HEADER, GENERATION_HEADER, LeaderOutput, OutputRecord

_Found = TypeVar("_Found")


class MemoryLeadership:
    """Implements `evaluator.ports.Leadership`: the one that has stood longest is elected."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._n_followed = 0
        self._positions: dict[int, int] = {}
        self._leader_epoch: int | None = None

    async def start(self) -> int:
        """Raises SourceUnavailable while the broker is away."""
        self._broker.require()
        if self not in self._broker.leader.candidates:
            self._broker.leader.candidates.append(self)
            self._broker.tell()
        return self._broker.partitions["rankings"]

    @property
    def elected(self) -> bool:
        """Whether this one has stood longest."""
        return self._broker.leader.candidates[:1] == [self]

    async def follow(self, *, timeout_ms: int) -> list[OutputRecord]:
        """What is new in `weights`."""
        return await self._wait(self._rest, timeout_ms)

    def _rest(self) -> list[OutputRecord]:
        written = self._broker.leader.written["weights"]
        rest, self._n_followed = written[self._n_followed :], len(written)
        return rest

    async def begin_epoch(self) -> list[OutputRecord]:
        """Begins a leader_epoch; that of whoever was leader before is over."""
        self._broker.require()
        self._broker.leader.leader_epoch += 1
        self._leader_epoch = self._broker.leader.leader_epoch
        self._positions = {}
        return self._rest()

    async def seek(self, task: int, offset: int) -> None:
        """The next record to be read of a partition of `settled`."""
        self._positions[task] = offset

    async def read(
        self, tasks: Collection[int], *, max_records: int, timeout_ms: int
    ) -> list[SettledRecords]:
        """What is new in `settled`."""
        return await self._wait(lambda: self._settled(tasks, max_records), timeout_ms)

    def _settled(self, tasks: Collection[int], max_records: int) -> list[SettledRecords]:
        found = []
        for task in sorted(self._positions.keys() & set(tasks)):
            first, records = self._broker.output_from(
                "settled", task, self._positions[task], max_records
            )
            max_records -= len(records)
            if records:
                self._positions[task] = first + len(records)
                found.append(
                    SettledRecords(
                        task=task,
                        offsets=list(range(first, first + len(records))),
                        values=[record.value for record in records],
                        fingerprints=_headers(records, FINGERPRINT_HEADER),
                        generations=_headers(records, GENERATION_HEADER),
                        next_offset=first + len(records),
                    )
                )
        return found

    async def _wait(self, look: Callable[[], list[_Found]], timeout_ms: int) -> list[_Found]:
        elected = self.elected
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    self._broker.require()
                    found = look()
                    if found or self.elected != elected:
                        return found
                    await self._broker.wait_for_news()
        except TimeoutError:
            return []

    async def publish(self, records: Sequence[tuple[LeaderOutput, OutputRecord]]) -> None:
        """Raises Fenced once another one's leader_epoch has begun."""
        await asyncio.sleep(0)
        self._broker.require()
        leader = self._broker.leader
        if self._leader_epoch != leader.leader_epoch:
            raise Fenced
        for topic, record in records:
            leader.written[topic].append(record)
        self._broker.tell()

    async def stop(self) -> None:
        """Stands down."""
        self._leader_epoch = None
        if self in self._broker.leader.candidates:
            self._broker.leader.candidates.remove(self)
            self._broker.tell()


def _headers(records: Sequence[OutputRecord], name: str) -> list[bytes]:
    return [dict(each.headers).get(name, b"") for each in records]
