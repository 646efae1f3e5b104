"""Feeds the traffic of the demo to a running worker, and prints the report."""

import asyncio
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct
from tqdm import tqdm

from evaluator.core.online.views import LeaderView
from evaluator.core.types.records import Log
from evaluator.demo.report import learned_text, n_read, report
from evaluator.demo.world import SPAN_MS, START_MS, DemoWorld
from evaluator.exposition.snapshot import Snapshot
from evaluator.wire.records import Output, OutputRecord

Append = Callable[[Log, int, bytes | None, bytes, int], object]
"""Appends (log, partition, key, value, timestamp of the record in ms) to the embedded broker."""

CHUNK: Final = 500  # messages appended before the worker runs
MAX_AHEAD: Final = 20_000  # messages that the worker has not read


class RunningWorker(Struct, frozen=True, kw_only=True):
    """A running worker and its embedded broker.

    `append` appends one message; `produced` has all records of an output topic so far, of every
    partition, in order; `snapshot` is the last snapshot of the worker. The hash of a key selects
    one of `n_partitions`.
    """

    task: asyncio.Task[None]
    append: Append
    produced: Callable[[Output], Iterable[OutputRecord]]
    snapshot: Callable[[], Snapshot]
    n_partitions: int


class Learning(Struct, frozen=True):
    """A running leader, its view, and its published weights records."""

    leader: asyncio.Task[None]
    view: Callable[[], LeaderView]
    records: Callable[[], Iterable[OutputRecord]]


async def run_demo(
    world: DemoWorld,
    *,
    worker: RunningWorker,
    places: Sequence[tuple[str, str]],
    learning: Learning | None = None,
    seconds: float = 15.0,
    output: Callable[[str], None] = print,
) -> None:
    """Feeds the traffic to a running worker until all is committed, and outputs the report.

    Args:
        world: the traffic.
        worker: if it ends before the traffic, its exception (or RuntimeError) is raised.
        places: (name, address) pairs of the report.
        learning: the leader, which must read all settled records.
        seconds: the duration of the traffic, so that the page can be watched; 0: no pauses.
        output: takes the report.
    """
    n_appended = await _feed(world, worker, seconds)
    while n_read(worker.snapshot()) < n_appended:
        await _turn(worker.task)
    settled = list(worker.produced("settled"))
    learned = ""
    if learning is not None:
        while _n_read(learning.view()) < len(settled):
            await _turn(learning.leader)
        learned = learned_text(learning.view(), learning.records())
    output(report(worker.snapshot(), settled, places, learned=learned))


def _n_read(view: LeaderView) -> int:
    return sum(n for key, n in view.counts.items() if key[0] == "records")


async def _feed(world: DemoWorld, worker: RunningWorker, seconds: float) -> int:
    """Appends all messages, at most MAX_AHEAD before the worker; returns their number."""
    clock = asyncio.get_running_loop().time
    began, n_appended, n_shown = clock(), 0, 0
    minutes = SPAN_MS // 60_000
    with tqdm(total=minutes, unit="min", desc="event time", disable=None) as bar:
        for message in world:
            partition = zlib.crc32(message.key or b"") % worker.n_partitions
            worker.append(message.log, partition, message.key, message.value, message.timestamp_ms)
            n_appended += 1
            if n_appended % CHUNK:
                continue
            passed = (message.timestamp_ms - START_MS) / SPAN_MS
            while (
                n_read(worker.snapshot()) < n_appended - MAX_AHEAD
                or clock() - began < seconds * passed
            ):
                await _turn(worker.task)
            await _turn(worker.task)
            minute = int(passed * minutes)
            bar.update(minute - n_shown)
            n_shown = minute
        bar.update(minutes - n_shown)
    return n_appended


async def _turn(running: asyncio.Task[None]) -> None:
    """Yields to the worker or leader; raises its error if it has ended."""
    if running.done():
        running.result()
        raise RuntimeError("the worker or the leader ended before the demo's traffic did")
    await asyncio.sleep(0.01)
