"""The outputs of a MemoryBroker."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence

from evaluator.adapters.memory.broker import MemoryBroker
from evaluator.ports import SourceUnavailable
from evaluator.wire.outputs.sizes import refused
from evaluator.wire.records import Output, OutputRecord


class MemorySink:
    """Implements `evaluator.ports.Sink` over a MemoryBroker.

    What is emitted becomes visible, and is acknowledged, on a later turn of the event loop;
    while the broker is away it waits, in order. What its output does not take is refused as Kafka
    refuses it.
    """

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self.refused = 0
        self._waiting: deque[
            tuple[
                Mapping[tuple[Output, int], Sequence[OutputRecord]],
                asyncio.Future[None],
            ]
        ] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._stopped = False

    async def start(self) -> None:
        """Raises SourceUnavailable while the broker is away."""
        self._broker.require()

    async def emit(
        self, records: Mapping[tuple[Output, int], Sequence[OutputRecord]]
    ) -> Awaitable[None]:
        """Hands records over; the awaitable ends when they are visible."""
        if self._stopped:
            raise SourceUnavailable("The sink is stopped.")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((records, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        return done

    async def _write(self) -> None:
        while self._waiting:
            while self._broker.away:
                await self._broker.wait_for_news()
            records, done = self._waiting.popleft()
            for lane, rows in records.items():
                self._write_rows(lane, rows)
            if not done.done():
                done.set_result(None)
        self._writing = None

    def _write_rows(self, lane: tuple[Output, int], rows: Sequence[OutputRecord]) -> None:
        output, partition = lane
        most = self._broker.max_bytes.get(output)
        if most is None:
            self._broker.write(lane, rows)
            return
        for row in rows:
            record: OutputRecord | None = row
            while record is not None and _n_bytes(record) > most:
                found = refused(record, output, topic=output, partition=partition)
                self.refused += found.counts
                if found.letter is not None:
                    self._write_rows(("dead-letters", partition), [found.letter])
                record = found.smaller
            if record is not None:
                self._broker.write(lane, [record])

    async def stop(self) -> None:
        """Writes what was emitted unless the broker is away; also twice."""
        self._stopped = True
        writing, self._writing = self._writing, None
        if writing is not None:
            if self._broker.away:
                writing.cancel()
            await asyncio.wait({writing})
        for _, done in self._waiting:
            if not done.done():
                done.set_exception(
                    SourceUnavailable("The sink was stopped while the broker was away.")
                )
                done.exception()
        self._waiting.clear()


def _n_bytes(record: OutputRecord) -> int:
    headers = sum(len(name) + len(value) for name, value in record.headers)
    return len(record.key or b"") + len(record.value) + headers
