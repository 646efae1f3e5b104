"""The logs of each task through its engine: the log whose clock is behind is read next."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Final

from evaluator.core.engine.engine import Engine
from evaluator.core.event_time.clock import next_log
from evaluator.core.types.records import LOGS, Log, Outputs, RankingColumns
from evaluator.core.types.skips import Skips, partition_missing
from evaluator.ports import Partition, RangeSource, SourceUnusable
from evaluator.replay.progress import Progress
from evaluator.replay.ranges import LogRange

MAX_LEAD_MS: Final = 60_000
"""How far rankings are read ahead; it changes how much waits, not what comes out."""

OnRankings = Callable[[RankingColumns], RankingColumns]
"""Sees the rankings of a batch, and gives those that the engine receives."""


async def tasks_of(
    source: RangeSource,
    *,
    from_ms: int | None,
    to_ms: int | None,
    max_future_skew_ms: int,
    max_poll_records: int,
    features: bool = False,
    skips: Skips | None = None,
    show_progress: bool | None = None,
) -> AsyncGenerator[tuple[int, dict[Log, LogRange]], None]:
    """Each task with the ranges of its logs, under a progress bar; opens and closes the source."""
    try:
        n_tasks = await source.open()
        for log, partition in skips or {}:
            if partition >= n_tasks:
                raise SourceUnusable(partition_missing(log, partition, n_tasks))
        partitions: list[Partition] = [(log, p) for p in range(n_tasks) for log in LOGS]
        bounds = [await source.bounds(*partition) for partition in partitions]
        with Progress(source, bounds, shown=show_progress) as progress:
            for task in range(n_tasks):
                yield (
                    task,
                    {
                        log: LogRange(
                            source,
                            log,
                            task,
                            from_ms=from_ms,
                            to_ms=to_ms,
                            max_future_skew_ms=max_future_skew_ms,
                            max_records=max_poll_records,
                            on_read=progress.on_read,
                            features=features,
                            skips=(skips or {}).get((log, task), ()),
                        )
                        for log in LOGS
                    },
                )
    finally:
        await source.close()


async def fed(
    engine: Engine,
    ranges: Mapping[Log, LogRange],
    on_rankings: OnRankings | None = None,
) -> AsyncGenerator[Outputs, None]:
    """What each batch gave rise to, up to the ends of both ranges."""
    async with AsyncExitStack() as closing:  # an error in one log ends the reading of both
        reading = {
            log: await closing.enter_async_context(aclosing(log_range.read()))
            for log, log_range in ranges.items()
        }
        while reading:
            log = next_log(engine.clocks_ms, max_lead_ms=MAX_LEAD_MS)
            log = log if log in reading else next(iter(reading))
            batch = await anext(reading[log], None)
            if batch is None:
                del reading[log]
            elif isinstance(batch, RankingColumns):
                yield engine.receive(batch if on_rankings is None else on_rankings(batch), None)
            else:
                yield engine.receive(None, batch)
            await asyncio.sleep(0)  # lets a signal through


def ended(engine: Engine, at_end: str) -> Iterator[Outputs]:
    """What follows from the end of the logs: everything with "settle", nothing with "hold"."""
    if at_end == "settle":
        yield from engine.finish()
