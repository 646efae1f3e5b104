"""The cost of restarts and of several workers: repeated reads, moved tasks, pauses.

`python -m benchmarks.fleet`: each case has topics of its own on one broker, and its totals are
compared with the oracle. Counts do not depend on the machine; seconds do. A task stands still while
it reads no new records although there are some; starts of processes are part of that.
"""

import argparse
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.course import say
from evaluator.adapters.kafka import Connection
from evaluator.tables import format_table
from tests.kafka.broker import Broker
from tests.kafka.chaos.feed import Feed
from tests.kafka.process import Worker, arguments_of, checkpoint_totals
from tests.kafka.world import World
from tests.oracle.totals import comparable
from tests.waiting import until
from tests.worker.traffic import traffic
from tests.worker.truth import merged

N_TASKS = 6
N_RESTARTED = 3
DELAY = {"group.initial.rebalance.delay.ms": "3000"}
"""The default of brokers: the first assignment waits for workers that start together."""


SESSION_MS = 30_000
SPEED = 20.0
"""Queries per second and task during the measurement of pauses."""
KILLED_SECONDS = 1.0
"""Seconds from `kill -9` to the next process."""


class Figures(NamedTuple):
    """The figures of one case; a cell is empty where it does not apply.

    Times that the input was read, assignments, tasks without stores, seconds for which a task of a
    stopped worker and of another one stood still.
    """

    times_read: str
    assignments: str
    rebuilt: str
    own_seconds: str = ""
    others_seconds: str = ""


class Watch(threading.Thread):
    """Polls workers for their positions; `still` has the longest pause of each task."""

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        super().__init__(daemon=True)
        self._workers = workers
        self._ending = threading.Event()
        self._furthest: dict[int, tuple[int, float]] = {}
        self.still: dict[int, float] = {}

    def run(self) -> None:
        while not self._ending.wait(0.05):
            for worker in list(self._workers.values()):
                for task in worker.document("/status").get("tasks", ()):
                    self._note(task["task"], sum(task["positions"].values()))

    def _note(self, task: int, progress: int) -> None:
        now = time.monotonic()
        furthest, at = self._furthest.get(task, (-1, now))
        if progress > furthest:
            self.still[task] = max(self.still.get(task, 0.0), now - at)
            self._furthest[task] = progress, now

    def end(self) -> None:
        self._ending.set()
        self.join()


class Fleet:
    """The workers of one case, and their topics."""

    def __init__(self, broker: Broker, directory: Path, name: str, n_queries: int) -> None:
        directory.mkdir()
        self.directory = directory
        self._n_queries = n_queries
        self.world = World(Connection(broker.bootstrap), f"{name}.", n_tasks=N_TASKS)
        self.processes: list[Worker] = []
        self._snapshots = directory / "snapshots"
        self.snapshots = {
            "snapshot_url": f"file://{self._snapshots}",
            "snapshot_interval_ms": 1_000,
        }

    def append(self, begin: float, end: float) -> None:
        """An equal share of the traffic of every task."""
        parts = {n: traffic(n, n_queries=self._n_queries) for n in range(N_TASKS)}
        self.world.append({n: part.part(begin, end) for n, part in parts.items()})

    def has_snapshots(self, tasks: Iterable[int]) -> bool:
        return all(any(self._snapshots.glob(f"*/*/{task}/*/*.json")) for task in tasks)

    def start(self, *flags: str, **settings: object) -> Worker:
        settings = {"heartbeats": "off", **arguments_of(self.world.settings), **settings}
        worker = Worker(self.directory, self.world.bootstrap, self.world.prefix, *flags, **settings)
        self.processes.append(worker)
        return worker

    def until_read(self, workers: Iterable[Worker]) -> dict[str, Any]:
        """Waits until workers share all tasks and have read all records; returns their totals
        together."""
        ends, shared = self.world.ends(), list(workers)

        def documents() -> Sequence[Mapping[str, Any]]:
            found = [worker.totals for worker in shared]
            tasks = sorted(task for each in found for task in each.get("tasks", ()))
            read = {name: at for each in found for name, at in each.get("positions", {}).items()}
            return found if tasks == list(range(N_TASKS)) and read == ends else []

        totals: dict[str, Any] = merged(list(until(documents)))
        return totals

    def require(self, totals: Mapping[str, Any]) -> None:
        """Ends the program if these are not the totals of the oracle."""
        if totals != self.world.truth().totals:
            sys.exit("the totals differ from those of the oracle")

    @contextmanager
    def watched(self, workers: Mapping[str, Worker]) -> Iterator[Watch]:
        """Sends traffic, and watches the tasks from the moment at which all of them read it."""
        watch, feed = Watch(workers), self._feed()
        feed.start()
        watch.start()
        try:
            until(lambda: len(watch.still) == N_TASKS)
            time.sleep(2)
            watch.still = dict.fromkeys(watch.still, 0.0)
            yield watch
            feed.stop()
        finally:
            feed.abandon()
            watch.end()

    def _feed(self) -> Feed:
        world = self.world
        return Feed(
            world.connection,
            world.prefix,
            n_tasks=N_TASKS,
            settings=world.settings,
            speed=SPEED,
            seed=1,
        )

    def figures(self, since: Mapping[int, int] | None = None) -> Figures:
        """Figures of all processes, which have ended; of assignments those after *since*, by
        process.

        A killed one does not report what it has read.
        """
        before = since or {}
        stopped = [event for each in self.processes for event in each.events("worker_stopped")]
        n_read = sum(event["records"] for event in stopped)
        assignments = sum(
            len(each.events("tasks_assigned")) - before.get(each.pid, 0) for each in self.processes
        )
        rebuilt = sum(len(each.events("task_restored")) for each in self.processes)
        all_stopped = len(stopped) == len(self.processes)
        times = f"{n_read / sum(self.world.ends().values()):.2f}" if all_stopped else ""
        return Figures(times, str(assignments), str(rebuilt))


def _have_read(workers: Iterable[Worker], ends: Mapping[str, int]) -> bool:
    """Whether workers have together read up to *ends*."""
    found = {name: at for each in workers for name, at in each.positions.items()}
    return all(found.get(name, -1) >= end for name, end in ends.items())


def until_end(fleet: Fleet, n_workers: int) -> Figures:
    """Workers that start together and read the present records."""
    fleet.append(0, 1)
    for worker in [fleet.start("--until-end") for _ in range(n_workers)]:
        if worker.wait(600) != 0:
            sys.exit(worker.err)
    fleet.require(comparable(checkpoint_totals(fleet.world, fleet.directory)))
    return fleet.figures()


def restart(fleet: Fleet, *, named: bool, kill: bool, back: bool = True) -> Figures:
    """Under traffic, sends SIGTERM to one worker after the other, or with *kill* `kill -9` to one.

    Each is restarted, after a SIGTERM at once. One that does not come *back* has written snapshots,
    from which the others continue its tasks.
    """
    names = [f"worker-{n}" for n in range(N_RESTARTED)]
    of: dict[str, dict[str, object]] = {
        name: {"group_instance_id": name} if named else {} for name in names
    }
    for each in of.values():
        each |= {"session_timeout_ms": SESSION_MS, **({} if back else fleet.snapshots)}
    workers = {name: fleet.start(**of[name]) for name in names}
    until(lambda: sorted(n for each in workers.values() for n in each.tasks) == [*range(N_TASKS)])
    since = {each.pid: len(each.events("tasks_assigned")) for each in fleet.processes}
    own = set(workers[names[0]].tasks) if kill else set(range(N_TASKS))
    with fleet.watched(workers) as watch:
        until(lambda: back or fleet.has_snapshots(own))
        for name in names[:1] if kill else names:
            _end(workers[name], kill=kill)
            if not back:
                del workers[name]
                until(partial(_have_read, workers.values(), fleet.world.ends()))
                continue
            again = {"port": workers[name].port, "state_dir": workers[name].settings["state_dir"]}
            workers[name] = fleet.start(**again, **of[name])
            workers[name].until_ready()
            until(partial(_have_read, workers.values(), fleet.world.ends()))
    fleet.require(fleet.until_read(workers.values()))
    n_fetched = sum(len(each.events("snapshot_fetched")) for each in fleet.processes)
    if not back and n_fetched < len(own):
        sys.exit("tasks of the lost worker were not continued from snapshots")
    for worker in workers.values():
        worker.stop()
    others = [seconds for task, seconds in watch.still.items() if task not in own]
    longest = max(seconds for task, seconds in watch.still.items() if task in own)
    return fleet.figures(since)._replace(
        own_seconds=f"{longest:.1f}", others_seconds=f"{max(others):.1f}" if others else ""
    )


def _end(worker: Worker, *, kill: bool) -> None:
    if kill:
        worker.signal(signal.SIGKILL)
        worker.wait()
        time.sleep(KILLED_SECONDS)
    elif worker.stop() != 0:
        sys.exit(worker.err)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--queries", type=int, default=400, help="of each task")
    parser.add_argument("--only", default="", help="cases that contain this text")
    arguments = parser.parse_args()
    cases = {
        **{
            f"{n} worker{'s' * (n > 1)}, --until-end": partial(until_end, n_workers=n)
            for n in (1, 2, 4)
        },
        **{
            f"{what}, {'with' if named else 'without'} names": partial(
                restart, named=named, kill=kill
            )
            for what, kill in (("rolling restart of 3", False), ("kill -9 of 1 of 3", True))
            for named in (False, True)
        },
        "kill -9 of 1 of 3, which stays away, with names and snapshots": partial(
            restart, named=True, kill=True, back=False
        ),
    }
    rows = []
    with tempfile.TemporaryDirectory(prefix="fleet-") as scratch:
        home = Path(scratch)
        with Broker(home / "broker", properties=DELAY) as broker:
            for number, (name, case) in enumerate(cases.items()):
                if arguments.only not in name:
                    continue
                fleet = Fleet(broker, home / str(number), f"case-{number}", arguments.queries)
                try:
                    found = case(fleet)
                finally:
                    for process in fleet.processes:
                        process.end()
                rows.append([name, *found])
                say(f"{name}: {found}")
    header = ["", "input read, times", "assignments", "tasks caught up"]
    header += ["own tasks stand still, s", "others, s"]
    say("\n" + format_table(header, rows, numbers=[1, 2, 3, 4, 5]))


if __name__ == "__main__":
    main()
