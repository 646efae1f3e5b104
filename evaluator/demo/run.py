"""Feeds the demo's world to a running worker and says at the end what the worker found."""

import asyncio
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tqdm import tqdm

from evaluator.core.online.online_learner import LeaderView
from evaluator.core.types.records import Log
from evaluator.demo.learned import learned_words
from evaluator.demo.report import n_read, report
from evaluator.demo.world import DemoWorld
from evaluator.exposition.snapshot import Snapshot
from evaluator.wire.records import Output, OutputRecord

Append = Callable[[Log, int, bytes | None, bytes, int], object]
"""Appends (log, partition, key, value, timestamp of the record in ms) to the embedded broker."""

CHUNK: Final = 500  # messages appended before the worker gets its turn
MAX_AHEAD: Final = 20_000  # messages that may wait for the worker


@dataclass(frozen=True, slots=True)
class Learning:
    """A running leader: its view, and the records of weights that it has published so far."""

    leader: asyncio.Task[None]
    view: Callable[[], LeaderView]
    said: Callable[[], Iterable[OutputRecord]]


async def run_demo(
    world: DemoWorld,
    *,
    worker: asyncio.Task[None],
    append: Append,
    produced: Callable[[Output], Iterable[OutputRecord]],
    snapshot: Callable[[], Snapshot],
    n_partitions: int,
    look_at: Sequence[tuple[str, str]],
    learning: Learning | None = None,
    seconds: float = 15.0,
    progress: bool | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Feeds the world to a running worker, waits until all of it is committed, says the report.

    Args:
        world: the traffic.
        worker: the worker loop, already running; if it ends before the world does, its
            exception (or RuntimeError) is raised here.
        append: hands one message to the embedded broker.
        produced: all records of an output topic so far, of every partition, in order.
        snapshot: what the worker last published.
        n_partitions: of each input topic; a message goes where the hash of its key says.
        look_at: (what it is, address) of the places to look at.
        learning: beside the worker; it is waited for too.
        seconds: over how long the traffic is spread, so that the page can be watched;
            0 feeds as fast as the worker reads.
        progress: whether to show a bar on stderr; None: if that is a terminal.
        say: takes the report.
    """
    progress = sys.stderr.isatty() if progress is None else progress
    n_appended = await _feed(world, worker, append, snapshot, n_partitions, seconds, progress)
    while n_read(snapshot()) < n_appended:
        await _turn(worker)
    settled = list(produced("settled"))
    learned = ""
    if learning is not None:
        while _n_read(learning.view()) < len(settled):
            await _turn(learning.leader)
        learned = learned_words(learning.view(), learning.said())
    say(report(world, snapshot(), settled, look_at, learned=learned))


def _n_read(view: LeaderView) -> int:
    return sum(n for key, n in view.counts.items() if key[0] == "records")


async def _feed(
    world: DemoWorld,
    worker: asyncio.Task[None],
    append: Append,
    snapshot: Callable[[], Snapshot],
    n_partitions: int,
    seconds: float,
    progress: bool,
) -> int:
    """Appends all messages, never far ahead of the worker; returns their number."""
    clock = asyncio.get_running_loop().time
    began, n_appended, n_shown = clock(), 0, 0
    minutes = world.span_ms // 60_000
    with tqdm(total=minutes, unit="min", desc="event time", disable=not progress) as bar:
        for message in world:
            partition = zlib.crc32(message.key or b"") % n_partitions
            append(message.log, partition, message.key, message.value, message.timestamp_ms)
            n_appended += 1
            if n_appended % CHUNK:
                continue
            passed = (message.timestamp_ms - world.start_ms) / world.span_ms
            while n_read(snapshot()) < n_appended - MAX_AHEAD or clock() - began < seconds * passed:
                await _turn(worker)
            await _turn(worker)
            minute = int(passed * minutes)
            bar.update(minute - n_shown)
            n_shown = minute
        bar.update(minutes - n_shown)
    return n_appended


async def _turn(running: asyncio.Task[None]) -> None:
    """Lets the worker or the leader work; raises what it raised if it is over."""
    if running.done():
        running.result()
        raise RuntimeError("the worker or the leader ended before the demo's traffic did")
    await asyncio.sleep(0.01)
