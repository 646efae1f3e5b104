"""State larger than memory: pairs per second with millions of open queries, and a warm start.

`python -m benchmarks.open_queries --open 1000000`: an engine with its store on a disk, without
Kafka, a commit every 25,000 pairs. Rankings come evenly over event time, so that in steady state as
many settle, expire and have their keys released as start. Three cases are measured:

- ten thousand open queries, all in memory;
- all of them open, 90 % of the judgments of queries in memory, 10 % of any;
- all of them open, judgments of any query.

A query is judged once. With `--cached` the files of the store are read before each of the last two,
so that they are in the page cache as far as the machine has memory for them.

The first case has a process of its own, so that memory is measured separately; it is that of the
task and of its generator. The processes take turns. At the end the stores are closed and reopened.
"""

import argparse
import gc
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.meter import peak_mb
from benchmarks.pipeline import GC_THRESHOLD, MEASURES, SKEW_MS, encode
from benchmarks.world import START_MS, Message, make_world
from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.core.engine.engine import Engine
from evaluator.core.join.rules import JoinRules
from evaluator.core.measures import MeasureSet
from evaluator.core.types.records import Log
from evaluator.tables import format_table
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.wire.records import Records
from evaluator.worker.task_state import TaskState

FEW: Final = "ten thousand open"
BODIES: Final = 4_096
"""Different rankings, each of which recurs under other names."""
BATCH: Final = 5_000
COMMIT_EVERY: Final = 25_000
RETENTION_MS: Final = 86_400_000
REMEMBER_MS: Final = 3_600_000
EARLY_MS: Final = 60_000
MATURITY_MS: Final = 3_600_000
YOUNG_MS: Final = 2_400_000
"""The longest delay of most judgments."""


class Traffic:
    """Message i of either log is a function of i; rankings come *step_ms* apart."""

    def __init__(self, step_ms: float) -> None:
        world = make_world(BODIES)
        self._step_ms = step_ms
        self._rankings = [_parts(message) for message in world.rankings]
        by_trace = {message.key: message for message in world.judgments}
        self._judgments = [_parts(by_trace[message.key]) for message in world.rankings]

    def time_ms(self, i: int) -> int:
        """Timestamp of ranking *i*."""
        return START_MS + int(i * self._step_ms)

    def rankings(self, first: int, end: int) -> Records:
        """Rankings *first* to before *end*."""
        rows = range(first, end)
        values = [_filled(self._rankings[i % BODIES], b"%032x" % i, self.time_ms(i)) for i in rows]
        return _records("rankings", first, values)

    def judgments(self, offset: int, queries: list[int], at_ms: int) -> Records:
        """A judgment of each of these queries, all at one time."""
        values = [_filled(self._judgments[i % BODIES], b"%032x" % i, at_ms) for i in queries]
        return _records("judgments", offset, values)


def _parts(message: Message) -> tuple[bytes, bytes, bytes, int]:
    """The text before, between and after trace_id and timestamp; the row of these."""
    before, _, rest = message.value.partition(message.key)
    middle, _, behind = rest.partition(b"%d" % message.timestamp_ms)
    return before, middle, behind, message.timestamp_ms


def _filled(parts: tuple[bytes, bytes, bytes, int], trace_id: bytes, at_ms: int) -> bytes:
    before, middle, behind, _ = parts
    return b"%b%b%b%d%b" % (before, trace_id, middle, at_ms, behind)


def _records(log: Log, first: int, values: list[bytes]) -> Records:
    n = len(values)
    return Records.of(
        log=log,
        partition=0,
        offsets=list(range(first, first + n)),
        keys=[None] * n,
        values=list(values),
        timestamps_ms=[(1 << 62)] * n,
        next_offset=first + n,
    )


class Task:
    """An engine, its store, and the positions in both logs."""

    def __init__(
        self, directory: Path, retention_ms: int, max_bytes: int, traffic: Traffic
    ) -> None:
        self.directory = RocksStateDirectory(directory)
        self.retention_ms = retention_ms
        self.max_bytes = max_bytes
        self.traffic = traffic
        self.measures = MeasureSet.parse(MEASURES)
        self.n_ranked = self.n_judged = 0
        self.store_seconds = 0.0
        self.open()

    def open(self) -> None:
        self.state = TaskState(self.directory.open(0), task=0)
        rules = JoinRules(
            retention_ms=self.retention_ms,
            maturity_ms=min(MATURITY_MS, self.retention_ms),
            early_ms=EARLY_MS,
            remember_ms=REMEMBER_MS,
            out_of_orderness_ms=0,
            window_ms=60_000,
        )
        self.engine = Engine(
            0,
            rules,
            self.measures,
            disk_tier=self.state,
            max_bytes=self.max_bytes,
        )
        stored = self.state.load()
        if stored is not None:
            self.engine.load(stored)

    def take(self, n: int, judged: Callable[[int], list[int]]) -> None:
        """*n* more rankings, then the judgments of the queries that *judged* names."""
        end = self.n_ranked + n
        rankings = decode_rankings(
            self.traffic.rankings(self.n_ranked, end), max_future_skew_ms=SKEW_MS
        )
        encode(self.engine.receive(rankings, None), self.measures)
        self.n_ranked = end
        queries = judged(end)
        at_ms = self.traffic.time_ms(end)
        records = self.traffic.judgments(self.n_judged, queries, at_ms)
        judgments = decode_judgments(records, max_future_skew_ms=SKEW_MS)
        encode(self.engine.receive(None, judgments), self.measures)
        self.n_judged += len(queries)
        if self.n_ranked % COMMIT_EVERY == 0:
            self.commit()

    def commit(self) -> None:
        began = time.perf_counter()
        self.state.commit(self.engine)
        self.store_seconds += time.perf_counter() - began

    def close(self) -> None:
        self.state.close()


def first_open(task: Task, end: int, step_ms: float) -> int:
    """The oldest query that a judgment at the time of query *end* can belong to."""
    return max(0, end - int(task.retention_ms / step_ms) + 1)


class Recent:
    """Queries of the last moments, in any order, each once."""

    def __init__(self, chance: np.random.Generator, n_recent: int) -> None:
        self._chance = chance
        self._n_recent = n_recent
        self._waiting = np.empty(0, np.int64)
        self._seen = 0

    def some(self, n: int, end: int) -> list[int]:
        """*n* of them; *end* is after the latest."""
        first = end - self._n_recent
        waiting = self._waiting[self._waiting >= first]
        waiting = np.append(waiting, np.arange(max(self._seen, first), end))
        chosen = self._chance.choice(len(waiting), n, replace=False)
        queries: list[int] = waiting[chosen].tolist()
        self._waiting, self._seen = np.delete(waiting, chosen), end
        return queries


Judged = Callable[[int], list[int]]
"""The queries that are judged once that many rankings were read."""
Makes = Callable[[argparse.Namespace, Path], tuple[Task, dict[str, Judged]]]


def few_open(arguments: argparse.Namespace, directory: Path) -> tuple[Task, dict[str, Judged]]:
    """A task with ten thousand queries, all in memory."""
    step_ms = RETENTION_MS / arguments.open
    task = _begin(arguments, directory, int(10_000 * step_ms))
    last = Recent(np.random.default_rng(1), BATCH)

    def recent(end: int) -> list[int]:
        return last.some(BATCH, end)

    n_until_keys_come_free = int((task.retention_ms + REMEMBER_MS + EARLY_MS) / step_ms)
    while task.n_ranked < max(100_000, 1.1 * n_until_keys_come_free):
        task.take(BATCH, recent)
    return task, {FEW: recent}


def many_open(arguments: argparse.Namespace, directory: Path) -> tuple[Task, dict[str, Judged]]:
    """A task with all queries; fills it first."""
    step_ms = RETENTION_MS / arguments.open
    task = _begin(arguments, directory, RETENTION_MS)
    chance = np.random.default_rng(1)
    last = Recent(chance, int(YOUNG_MS / step_ms))

    n_filled = int(arguments.open * (1 + (REMEMBER_MS + 2 * EARLY_MS) / RETENTION_MS))
    judged = np.zeros(n_filled + 2 * arguments.rounds * arguments.pairs + BATCH, bool)

    def anywhere(end: int, n: int = BATCH) -> list[int]:
        queries: list[int] = []
        while len(queries) < n:
            drawn = chance.integers(first_open(task, end, step_ms), end, n)
            new = list(dict.fromkeys(drawn[~judged[drawn]].tolist()))[: n - len(queries)]
            judged[new] = True
            queries += new
        return queries

    def mostly_young(end: int) -> list[int]:
        young = [query for query in last.some(BATCH * 9 // 10, end) if not judged[query]]
        judged[young] = True
        return young + anywhere(end, BATCH - len(young))

    began = time.perf_counter()
    while task.n_ranked < n_filled:
        task.take(BATCH, lambda end: [end - 1])  # only to advance event time
        if task.n_ranked % 500_000 == 0:
            spent = time.perf_counter() - began
            print(
                f"{task.n_ranked:,} rankings, {task.engine.n_open:,} open, {spent:.0f} s, "
                f"{peak_mb():,.0f} MB at most, {task.state.n_bytes() / 2**30:.1f} GiB on disk",
                flush=True,
            )
    return task, {"90 % in memory": mostly_young, "anywhere": anywhere}


def _begin(arguments: argparse.Namespace, directory: Path, retention_ms: int) -> Task:
    traffic = Traffic(RETENTION_MS / arguments.open)
    print(f"{directory.name}: {peak_mb():,.0f} MB before it has a task", flush=True)
    return Task(directory, retention_ms, arguments.memory_tier_mb << 20, traffic)


def serve(connection: Connection, make: Makes, arguments: argparse.Namespace, path: Path) -> None:
    """A task in a process of its own: measures pairs in the requested ways."""
    gc.set_threshold(*GC_THRESHOLD)
    task, ways = make(arguments, path)
    gc.collect()
    connection.send(list(ways))
    while (name := connection.recv()) is not None:
        if arguments.cached:
            read_files(path)
        task.store_seconds = 0.0
        began = time.perf_counter()
        for _ in range(arguments.pairs // BATCH):
            task.take(BATCH, ways[name])
        spent = time.perf_counter() - began
        connection.send((spent / arguments.pairs * 1e6, task.store_seconds / arguments.pairs * 1e6))
    tell_of_restart(path.name, task)


def read_files(path: Path) -> None:
    """Leaves the files of a store in the page cache."""
    for file in path.glob("*/*.sst"):
        with suppress(FileNotFoundError), file.open("rb", buffering=0) as opened:  # merged away
            while opened.read(8 << 20):
                pass


def rounds(arguments: argparse.Namespace, directory: Path) -> Iterator[tuple[str, float, float]]:
    """Name, microseconds per pair, and those of the store, round after round; fills first."""
    context = multiprocessing.get_context("spawn")
    ways: dict[str, Connection] = {}
    processes = []
    for name, make in {"many": many_open, "few": few_open}.items():
        here, there = context.Pipe()
        given = (there, make, arguments, directory / name)
        processes.append(context.Process(target=serve, args=given))
        processes[-1].start()
        there.close()  # else the parent would wait for a failed process
        ways |= dict.fromkeys(here.recv(), here)
    for number in range(arguments.rounds):
        costs = {}
        for name in (FEW, *(name for name in ways if name != FEW)):
            ways[name].send(name)
            costs[name], store = ways[name].recv()
            yield name, costs[name], store
        said = ", ".join(f"{name} {cost:.0f}" for name, cost in costs.items())
        print(f"round {number + 1}: {said} us per pair", flush=True)
    for connection, process in zip(dict.fromkeys(ways.values()), processes, strict=True):
        connection.send(None)
        process.join()


def tell_of_restart(name: str, task: Task) -> None:
    """Closes and reopens the store; prints the time of each, and the memory."""
    held, tally, peak = task.engine.n_open, task.engine.tally(), peak_mb()
    began = time.perf_counter()
    task.commit()
    task.close()
    closed = time.perf_counter()
    task.open()
    opened = time.perf_counter()
    assert task.engine.n_open == held
    assert task.engine.tally() == tally
    print(
        f"{name}: stopped in {closed - began:.2f} s and ready to poll in {opened - closed:.2f} s, "
        f"{held:,} open; {peak:,.0f} MB of memory at most, "
        f"{task.state.n_bytes() / 2**30:.1f} GiB on disk"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.open_queries", description=__doc__)
    parser.add_argument("--open", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=50_000, help="of each round, of each way")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory-tier-mb", type=int, default=512)
    parser.add_argument("--cached", action="store_true", help="with files in the page cache")
    parser.add_argument(
        "--directory", type=Path, help="where the stores go; default: a temporary one"
    )
    arguments = parser.parse_args()
    if arguments.open * YOUNG_MS < 2 * BATCH * RETENTION_MS:
        parser.error("--open: give at least 360000, or too few of them are young")
    spent: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="open-", dir=arguments.directory) as scratch:
        for name, whole, store in rounds(arguments, Path(scratch)):
            spent.setdefault(name, []).append((whole, store))
    base = statistics.median(whole for whole, _ in spent[FEW])
    rows = []
    for name, costs in spent.items():
        whole = statistics.median(whole for whole, _ in costs)
        store = statistics.median(store for _, store in costs)
        rows.append(
            [name, f"{1e6 / whole:,.0f}", f"{whole:.1f}", f"{store:.1f}", f"{base / whole:.2f}"]
        )
    header = ["judgments", "pairs/s", "us per pair", "of these the store", "to ten thousand open"]
    print(format_table(header, rows, numbers=range(1, 5)))


if __name__ == "__main__":
    main()
