"""What restarts and several workers cost: how often the input is read, and what moves.

`python -m benchmarks.fleet`: each case has topics of its own on one broker, and its totals are
compared with the oracle. Counts do not depend on the machine; seconds do, and are not printed.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.course import say
from evaluator.adapters.kafka import Connection
from evaluator.tables import format_table
from tests.kafka.broker import Broker
from tests.kafka.process import Worker, arguments_of
from tests.kafka.world import World
from tests.waiting import until
from tests.worker.traffic import traffic
from tests.worker.truth import merged

N_TASKS = 6
N_RESTARTED = 3
DELAY = {"group.initial.rebalance.delay.ms": "3000"}
"""As brokers have by default: the first assignment waits for workers that start together."""


class Figures(NamedTuple):
    """What one case took: times that the input was read, assignments, and tasks without stores."""

    times_read: float
    assignments: int
    rebuilt: int


class Fleet:
    """The workers of one case, and their topics."""

    def __init__(self, broker: Broker, directory: Path, name: str, n_queries: int) -> None:
        directory.mkdir()
        self._directory = directory
        self._n_queries = n_queries
        self.world = World(Connection(broker.bootstrap), f"{name}.", n_tasks=N_TASKS)
        self.processes: list[Worker] = []

    def append(self, begin: float, end: float) -> None:
        """The same share of the traffic of every task."""
        parts = {n: traffic(n, n_queries=self._n_queries) for n in range(N_TASKS)}
        self.world.append({n: part.part(begin, end) for n, part in parts.items()})

    def start(self, *flags: str, **settings: object) -> Worker:
        settings = {"heartbeats": "off", **arguments_of(self.world.settings), **settings}
        worker = Worker(
            self._directory, self.world.bootstrap, self.world.prefix, *flags, **settings
        )
        self.processes.append(worker)
        return worker

    def until_read(self, workers: Iterable[Worker]) -> dict[str, Any]:
        """Until workers share all tasks and have read everything; their totals together."""
        ends, shared = self.world.ends(), list(workers)

        def documents() -> Sequence[Mapping[str, Any]]:
            found = [worker.totals for worker in shared]
            tasks = sorted(task for each in found for task in each.get("tasks", ()))
            read = {name: at for each in found for name, at in each.get("positions", {}).items()}
            return found if tasks == list(range(N_TASKS)) and read == ends else []

        totals: dict[str, Any] = merged(list(until(documents)))
        return totals

    def figures(self, since: Mapping[int, int] | None = None) -> Figures:
        """Of all processes, which have ended; of assignments those after *since*, by process."""
        before = since or {}
        n_read = sum(each.events("worker_stopped")[0]["records"] for each in self.processes)
        return Figures(
            n_read / sum(self.world.ends().values()),
            sum(
                len(each.events("tasks_assigned")) - before.get(each.pid, 0)
                for each in self.processes
            ),
            sum(len(each.events("task_restored")) for each in self.processes),
        )


def until_end(fleet: Fleet, n_workers: int) -> Figures:
    """Workers that start together, and read what is there."""
    fleet.append(0, 1)
    for worker in [fleet.start("--until-end") for _ in range(n_workers)]:
        if worker.wait(600) != 0:
            sys.exit(worker.err)
    return fleet.figures()


def rolling_restart(fleet: Fleet, *, named: bool) -> Figures:
    """SIGTERM to one worker after the other, each started again at once, under traffic."""
    names = [f"worker-{n}" for n in range(N_RESTARTED)]
    of = {name: {"group_instance_id": name} if named else {} for name in names}
    workers = {name: fleet.start(session_timeout_ms=30_000, **of[name]) for name in names}
    until(lambda: all(each.tasks for each in workers.values()))
    fleet.append(0, 0.4)
    fleet.until_read(workers.values())
    since = {each.pid: len(each.events("tasks_assigned")) for each in fleet.processes}
    for number, name in enumerate(names):
        old = workers[name]
        if old.stop() != 0:
            sys.exit(old.err)
        again = {"port": old.port, "state_dir": old.settings["state_dir"], **of[name]}
        workers[name] = fleet.start(session_timeout_ms=30_000, **again)
        workers[name].until_ready()
        fleet.append(0.4 + 0.2 * number, 0.6 + 0.2 * number)
        fleet.until_read(workers.values())
    if fleet.until_read(workers.values()) != fleet.world.truth().totals:
        sys.exit("the totals differ from those of the oracle")
    for worker in workers.values():
        worker.stop()
    return fleet.figures(since)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--queries", type=int, default=400, help="of each task")
    arguments = parser.parse_args()
    cases = {
        "1 worker, --until-end": lambda fleet: until_end(fleet, 1),
        "2 workers, --until-end": lambda fleet: until_end(fleet, 2),
        "rolling restart of 3, without names": lambda fleet: rolling_restart(fleet, named=False),
        "rolling restart of 3, with names": lambda fleet: rolling_restart(fleet, named=True),
    }
    rows = []
    with tempfile.TemporaryDirectory(prefix="fleet-") as scratch:
        home = Path(scratch)
        with Broker(home / "broker", properties=DELAY) as broker:
            for number, (name, case) in enumerate(cases.items()):
                fleet = Fleet(broker, home / str(number), f"case-{number}", arguments.queries)
                try:
                    found = case(fleet)
                finally:
                    for process in fleet.processes:
                        process.end()
                rows.append(
                    [name, f"{found.times_read:.2f}", str(found.assignments), str(found.rebuilt)]
                )
                say(f"{name}: done")
    header = ["", "input read, times", "assignments", "tasks caught up"]
    say("\n" + format_table(header, rows, numbers=[1, 2, 3]))


if __name__ == "__main__":
    main()
