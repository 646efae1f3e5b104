"""Feeds the logs of each task to its engine; reads the log with the earlier clock next."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Final, Protocol, runtime_checkable

from tqdm import tqdm

from evaluator.core.engine.engine import Engine
from evaluator.core.event_time.clock import next_log
from evaluator.core.types.records import LOGS, Log, Outputs, RankingColumns
from evaluator.core.types.skips import partition_missing
from evaluator.ports import UNKNOWN_END, Partition, RangeSource, SourceUnusable
from evaluator.replay.ranges import LogRange, ReadRules
from evaluator.wire.records import Records

MAX_LEAD_MS: Final = 60_000
"""Lead of the rankings; it bounds the early buffer and does not change results."""

OnRankings = Callable[[RankingColumns], RankingColumns]
"""Returns the rankings that the engine receives in place of a batch."""


Shown = bool | Callable[[int], object] | None
"""Whether a bar is shown on stderr (None: if it is a terminal), or a receiver of the progress."""


async def tasks_of(
    source: RangeSource, rules: ReadRules, *, show_progress: Shown = None
) -> AsyncGenerator[tuple[int, dict[Log, LogRange]], None]:
    """Each task with the ranges of its logs; opens and closes the source."""
    try:
        bounds = await opened(source, rules)
        with ProgressBar(n_to_read(source, bounds), source, shown=show_progress) as progress:
            for task in dict.fromkeys(task for _, task in bounds):
                ranges = {
                    log: LogRange(source, log, task, rules, on_read=progress.on_read)
                    for log in LOGS
                }
                yield task, ranges
    finally:
        await source.close()


async def opened(source: RangeSource, rules: ReadRules) -> dict[Partition, tuple[int, int]]:
    """Opens a source; returns the offsets of each partition of the tasks, in their order."""
    n_tasks = await source.open()
    for log, partition in rules.skips:
        if partition >= n_tasks:
            raise SourceUnusable(partition_missing(log, partition, n_tasks))
    tasks = range(n_tasks) if rules.tasks is None else rules.tasks
    if missing := [task for task in tasks if task >= n_tasks]:
        raise SourceUnusable(
            f"--tasks names task {missing[0]}, and the logs have {n_tasks} partitions. Name tasks "
            f"from 0 to {n_tasks - 1}."
        )
    return {(log, task): await source.bounds(log, task) for task in tasks for log in LOGS}


async def fed(
    engine: Engine,
    ranges: Mapping[Log, LogRange],
    *,
    at_end: str,
    on_rankings: OnRankings | None = None,
    order: Callable[[], Log] | None = None,
) -> AsyncGenerator[Outputs, None]:
    """The outputs of each batch and, if *at_end* is "settle", of settling all queries.

    *order* returns the log to read next; by default this is the one with the earlier clock.
    """
    async with AsyncExitStack() as closing:  # an error in one log ends the reading of both
        reading = {
            log: await closing.enter_async_context(aclosing(log_range.read()))
            for log, log_range in ranges.items()
        }
        while reading:
            log = order() if order else next_log(engine.clocks_ms, max_lead_ms=MAX_LEAD_MS)
            log = log if log in reading else next(iter(reading))
            batch = await anext(reading[log], None)
            if batch is None:
                del reading[log]
            elif isinstance(batch, RankingColumns):
                yield engine.receive(batch if on_rankings is None else on_rankings(batch), None)
            else:
                yield engine.receive(None, batch)
            await asyncio.sleep(0)  # yields, so that a signal is handled
    if at_end == "settle":
        for outputs in engine.finish():
            yield outputs


@runtime_checkable
class CountsBytes(Protocol):
    """A source of known size in bytes and unknown number of records."""

    def size_bytes(self, partitions: Iterable[Partition]) -> int:
        """Bytes to read of these partitions."""

    @property
    def bytes_read(self) -> int:
        """Bytes read so far."""


def n_to_read(source: RangeSource, bounds: Mapping[Partition, tuple[int, int]]) -> int | None:
    """Bytes of these partitions if the source counts them, else records, if that is known."""
    if isinstance(source, CountsBytes):
        return source.size_bytes(bounds)
    if any(end == UNKNOWN_END for _, end in bounds.values()):
        return None
    return sum(end - first for first, end in bounds.values())


class ProgressBar:
    """A bar on stderr: in bytes if the source counts them, else in records."""

    def __init__(self, total: int | None, source: RangeSource, *, shown: Shown) -> None:
        self._bytes_of = source if isinstance(source, CountsBytes) else None
        self._n = 0
        self._bar = tqdm(
            total=total,
            desc="replay",
            unit=" records" if self._bytes_of is None else "B",
            unit_scale=True,
            file=sys.stderr,
            disable=callable(shown) or not (sys.stderr.isatty() if shown is None else shown),
        )
        self.update: Callable[[int], object] = shown if callable(shown) else self._bar.update

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.close()

    def on_read(self, records: Records) -> None:
        """Advances the bar."""
        if self._bytes_of is None:
            self.update(len(records))
        else:
            n, self._n = self._n, self._bytes_of.bytes_read
            self.update(self._n - n)
