"""The outputs of a MemoryBroker."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence

from evaluator.adapters.memory.broker import MemoryBroker
from evaluator.ports import SourceAway
from evaluator.wire.records import Output, OutputRecord


class MemorySink:
    """Implements `evaluator.ports.Sink` over a MemoryBroker.

    What is emitted becomes visible, and is acknowledged, on a later turn of the event loop;
    while the broker is away it waits, in order.
    """

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._waiting: deque[
            tuple[
                Mapping[tuple[Output, int], Sequence[OutputRecord]],
                asyncio.Future[None],
            ]
        ] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._stopped = False

    async def start(self) -> None:
        """Raises SourceAway while the broker is away."""
        self._broker.require()

    async def emit(
        self, records: Mapping[tuple[Output, int], Sequence[OutputRecord]]
    ) -> Awaitable[None]:
        """Hands records over; the awaitable ends when they are visible."""
        if self._stopped:
            raise SourceAway("The sink is stopped.")
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
                self._broker.write(lane, rows)
            if not done.done():
                done.set_result(None)
        self._writing = None

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
                done.set_exception(SourceAway("The sink was stopped while the broker was away."))
                done.exception()
        self._waiting.clear()
