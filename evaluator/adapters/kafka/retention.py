"""How long the inputs keep their records, looked at now and then beside a worker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Final

import structlog

from evaluator.adapters.kafka.admin import described
from evaluator.adapters.kafka.commands import longer_retention_command
from evaluator.adapters.kafka.connection import Connection, input_topics
from evaluator.core.types.records import Log
from evaluator.ports import SourceUnavailable, SourceUnusable

AGAIN_SECONDS: Final = 600.0
RETRY_SECONDS: Final = 5.0
UNKNOWN: Final = -1

log = structlog.get_logger()


def retention_ms(values: Mapping[str, str]) -> int | None:
    """How long a topic with these settings keeps its records; None for ever."""
    kept_ms = int(values.get("retention.ms", "-1"))
    return None if kept_ms < 0 else kept_ms


class InputRetention:
    """Watches the retention of both inputs. A topic that cannot be described is missing in `known`.

    Args:
        connection: where the brokers are.
        topic_prefix: precedes every name.
        needed_ms: how far back the inputs must reach; records have to be kept for longer.
    """

    def __init__(self, connection: Connection, *, topic_prefix: str = "", needed_ms: int) -> None:
        self.known: Mapping[Log, int | None] = {}
        self.needed_ms = needed_ms
        self._connection = connection
        self._topics = input_topics(topic_prefix)
        self._said: dict[Log, int | None] = {}

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Looks again and again meanwhile."""
        ending = asyncio.Event()
        task = asyncio.create_task(self._watch(ending))
        try:
            yield
        finally:
            ending.set()  # the library may swallow the cancellation
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()

    async def _watch(self, ending: asyncio.Event) -> None:
        while not ending.is_set():
            seconds = AGAIN_SECONDS if await self.look() else RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ending.wait(), seconds)

    async def look(self) -> bool:
        """Looks once, and warns where something is new; False if the brokers did not answer."""
        try:
            found = await described(self._connection, list(self._topics.values()))
        except (SourceUnavailable, SourceUnusable):
            return False  # the worker says so itself
        self.known = {
            name: retention_ms(found[topic])
            for name, topic in self._topics.items()
            if topic in found
        }
        for name, topic in self._topics.items():
            self._judge(name, topic)
        return True

    def _judge(self, name: Log, topic: str) -> None:
        now = self.known.get(name, UNKNOWN)
        if name in self._said and self._said[name] == now:
            return
        self._said[name] = now
        if now == UNKNOWN:
            log.info("input_retention_unknown", topic=topic)
        elif now is not None and now <= self.needed_ms:
            log.warning(
                "input_retention_short",
                topic=topic,
                retention_ms=now,
                needed_ms=self.needed_ms,
                command=longer_retention_command(self._connection, topic, self.needed_ms),
            )
