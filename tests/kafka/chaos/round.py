"""One round: traffic, faults, new inputs once, and a comparison with the oracle at each end."""

import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluator.adapters.kafka import Connection
from evaluator.core.types.records import LOGS
from evaluator.wire.records import Output
from tests.kafka.broker import Broker
from tests.kafka.chaos.faults import Faults
from tests.kafka.chaos.feed import Feed
from tests.kafka.chaos.nodes import SESSION_TIMEOUT_MS, Node, Scraper
from tests.kafka.process import arguments_of, checkpoint_totals
from tests.kafka.world import World
from tests.oracle.oracle import Settings
from tests.oracle.totals import comparable
from tests.waiting import until
from tests.worker.truth import Inputs, Outputs, Row, Truth, merged

N_WORKERS = 3
"""The last one runs between scale-out and scale-in."""
N_TASKS = 4
Lane = tuple[Output, int]
SPEED = 15.0
"""Seconds of event time per second."""
APART_MS = 1_000
"""Event time between two queries of a task."""
SETTINGS = Settings(
    retention_ms=300_000,
    maturity_ms=60_000,
    early_ms=5_000,
    remember_ms=60_000,
    out_of_orderness_ms=2_000,
    window_ms=30_000,
    measures=("top1", "hit@3", "mrr", "ndcg@10", "map"),
)
RUNNING: Mapping[str, object] = {
    **arguments_of(SETTINGS),
    "memory_tier_bytes": 1 << 20,
    "max_poll_records": 300,
    "idle_ms": 1_000,
    "checkpoint_interval_ms": 2_000,
    "session_timeout_ms": SESSION_TIMEOUT_MS,
    "snapshot_interval_ms": 1_000,  # the first, and later ones every 12 seconds
}


SNAPSHOTS = ("snapshot_written", "snapshot_fetched", "snapshot_failed")
CHECKED = frozenset({
    "disk_lost",
    "disk_lost_with_snapshot",
    "disk_of_another_age",
    "rolling_restart",
    "scaled_out",
    "scaled_in",
})  # fmt: skip
"""Kinds of faults after whose first the totals are compared at once, under traffic."""


def settings_of(number: int, seed: int, snapshots: Path) -> dict[str, object]:
    """Of one worker. All have names in the group if the seed is even, else the first one."""
    named = number == 0 or seed % 2 == 0
    name = {"group_instance_id": f"worker-{number}"} if named else {}
    return {**RUNNING, "snapshot_url": f"file://{snapshots}", **name}


@dataclass
class Report:
    """The faults and findings of a round."""

    seed: int
    faults: list[str] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    n_faults: int = 0
    n_records: int = 0
    n_outputs: int = 0
    n_scrapes: int = 0
    ledger: dict[str, Any] = field(default_factory=dict)
    n_checked: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        sections = {
            "differences": self.differences,
            "faults": self.faults,
            "warnings": self.warnings,
        }
        lines = [f"seed {self.seed}: {self.n_faults} faults, {len(self.differences)} differences"]
        for name, found in sections.items():
            lines += [f"-- {name}", *found]
        return "\n".join(lines)


class Round:
    """Two or three workers under traffic, and *n_faults* faults.

    Args:
        broker: running; it is killed and started again.
        directory: for files of the workers.
        topic_prefix: unique to the round.
        apart_ms: event time between two queries of a task.
    """

    def __init__(
        self,
        broker: Broker,
        directory: Path,
        topic_prefix: str,
        *,
        seed: int,
        apart_ms: int = APART_MS,
    ) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        connection = Connection(broker.bootstrap)
        self._broker = broker
        self._connection, self._seed, self._apart_ms = connection, seed, apart_ms
        self._world = World(connection, topic_prefix, n_tasks=N_TASKS, settings=SETTINGS)
        snapshots = directory / "snapshots"
        self._nodes = [
            Node(number, directory, self._world, settings_of(number, seed, snapshots))
            for number in range(N_WORKERS)
        ]
        self._scrapers = [Scraper(node) for node in self._nodes]
        self._feed = self._new_feed(seed)
        self._faults = Faults(
            broker, self._nodes, self._world, self._now_ms, seed=seed, snapshots=snapshots
        )
        self._before: Counter[Lane] = Counter()
        self.report = Report(seed)

    def _new_feed(self, seed: int, *, seconds: float = 0.0) -> Feed:
        return Feed(
            self._connection,
            self._world.prefix,
            n_tasks=N_TASKS,
            settings=SETTINGS,
            speed=SPEED,
            seed=seed,
            apart_ms=self._apart_ms,
            seconds=seconds,
        )

    def _now_ms(self) -> int:
        """Event time of the present inputs."""
        return self._feed.now_ms()

    def run(self, n_faults: int, *, until: float = float("inf")) -> Report:
        """Runs the round; fewer faults once the monotonic clock is past *until*."""
        try:
            self._work(n_faults, until)
        except BaseException as error:
            self.report.differences.append("".join(traceback.format_exception(error))[-4_000:])
            if isinstance(error, KeyboardInterrupt):
                raise
        finally:
            self._feed.abandon()
            for scraper in self._scrapers:
                scraper.stop()
            for node in self._nodes:
                node.end()
        self._sum_up()
        return self.report

    def _work(self, n_faults: int, until: float) -> None:
        for node in self._faults.nodes:
            node.start()
        self._feed.start()
        for scraper in self._scrapers:
            scraper.start()
        worker = self._nodes[0].worker
        worker.eventually(lambda: any(worker.positions.values()))
        recreated_at = n_faults // 3
        while self.report.n_faults < n_faults and time.monotonic() < until:
            if self.report.n_faults == recreated_at:
                self._recreate_inputs()
            elif (kind := self._faults.one()) in CHECKED and self._faults.counts[kind] == 1:
                self._check_totals_of_workers(f"after {kind}")
            self.report.n_faults += 1
        self._end()

    def _recreate_inputs(self) -> None:
        """Checks all results; then recreates both inputs, while the workers keep their disks.

        The new inputs have the same event times, and more records than were read of the old ones.
        """
        self._end()
        self._faults.note("inputs deleted and recreated", "inputs_recreated")
        for lane, records in self._world.outputs().items():
            self._before[lane] = len(records)
        read = self._world.ends()
        self._world.recreate_inputs()
        self._feed = self._new_feed(self._seed + 500_000, seconds=1.2 * self._feed.seconds + 5)
        self._feed.start()
        until(lambda: all(end > read[name] for name, end in self._world.ends().items()))
        for node in self._faults.nodes:
            node.start()

    # The end

    def _end(self) -> None:
        self._feed.stop()
        self._check_totals_of_workers("at the end")
        for node in self._faults.nodes:
            node.stop()
        self._check_outputs()

    def _check_totals_of_workers(self, when: str) -> None:
        """Checks that the workers together read all present records and have the right sums."""
        goals, nodes = self._world.ends(), self._faults.nodes

        def documents() -> list[Row]:
            found = [node.worker.totals for node in nodes]
            tasks = [task for each in found for task in each.get("tasks", ())]
            at = _positions(found)
            done = (
                all(found)
                and sorted(tasks) == list(range(N_TASKS))
                and all(at[name] >= end for name, end in goals.items())
            )
            return found if done else []

        found = nodes[0].worker.eventually(documents)
        with self._feed.paused():  # else a slow machine would have more and more to compare
            truth = self._truth(_positions(found))
            self._compare(f"/totals of the workers {when}", merged(found), truth)

    def _check_outputs(self) -> None:
        """Checks that outputs and checkpoints are those of the last positions."""
        found = checkpoint_totals(self._world, self._directory)
        truth = self._truth(found["positions"])
        if found["tasks_missing"]:
            self.report.differences.append(f"no checkpoint of tasks {found['tasks_missing']}")
        self._compare("evaluator totals", comparable(found), truth)
        outputs = {
            lane: records[self._before[lane] :] for lane, records in self._world.outputs().items()
        }
        self.report.n_outputs += sum(map(len, outputs.values()))
        self.report.n_records += sum(found["positions"].values())
        self.report.ledger = found["ledger"]
        self._check("evaluations", truth.check_evaluations, outputs)
        self._check("settled", truth.check_settled, outputs)
        self._check("windows", truth.check_windows, outputs)
        self._check("dead letters", lambda o: truth.check_dead_letters(o, once=False), outputs)

    def _truth(self, positions: Mapping[str, int]) -> Truth:
        """The oracle over the inputs up to these positions."""
        return Truth(_cut(self._world.inputs(), positions), SETTINGS, self._world.prefix)

    def _compare(self, what: str, found: Row, truth: Truth) -> None:
        expected = truth.totals
        for name in sorted(expected.keys() | found.keys()):
            if found.get(name) != expected.get(name):
                differences = _differing(found.get(name), expected.get(name))
                self.report.differences.append(f"{what}: {name}: {differences[:5]}")

    def _check(self, what: str, check: Callable[[Outputs], int], outputs: Outputs) -> None:
        try:
            self.report.n_checked[what] = check(outputs)
        except (AssertionError, LookupError, ValueError) as error:
            trace = "".join(traceback.format_exception(error))[-1_500:]
            self.report.differences.append(f"{what}: {trace}")

    def _sum_up(self) -> None:
        report = self.report
        report.faults = self._faults.log_lines
        report.kinds = dict(self._faults.counts)
        for scraper in self._scrapers:
            report.differences += scraper.differences[:20]
            report.n_scrapes += scraper.n_scrapes
        if report.differences:
            report.warnings += [f"broker: {line}" for line in self._broker.log_tail().splitlines()]
        for node in self._nodes:
            report.warnings += [f"worker {node.number}: {line}" for line in node.warnings()]
        for name in (
            "worker_started",
            "state_loaded",
            "store_quarantined",
            "task_restored",
            *SNAPSHOTS,
        ):
            report.starts[name] = sum(len(node.events(name)) for node in self._nodes)


def _positions(documents: list[Row]) -> dict[str, int]:
    return {
        name: position
        for document in documents
        for name, position in document.get("positions", {}).items()
    }


def _cut(inputs: Inputs, positions: Mapping[str, int]) -> Inputs:
    return {
        task: tuple(
            [raw for raw in records if raw.offset < positions[f"{log}-{task}"]]
            for log, records in zip(LOGS, logs, strict=True)
        )
        for task, logs in inputs.items()
    }


def _differing(found: Any, expected: Any) -> list[str]:
    if isinstance(found, dict) and isinstance(expected, dict):
        return [
            f"{name}: {found.get(name)} for {expected.get(name)}"
            for name in sorted(expected.keys() | found.keys(), key=str)
            if found.get(name) != expected.get(name)
        ]
    return [f"{found} for {expected}"]
