"""Faults: one method for each kind, chosen and timed by a seed."""

import itertools
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from evaluator.core.types.records import LOGS
from tests.kafka.broker import Broker
from tests.kafka.chaos import hostile
from tests.kafka.chaos.nodes import SESSION_TIMEOUT_MS, Node
from tests.kafka.world import World
from tests.oracle.messages import Raw

SESSION_SECONDS = SESSION_TIMEOUT_MS / 1_000
MEAN_CALM_SECONDS = 2.0
MOST_CALM_SECONDS = 6.0
AHEAD_MS = (20_000, 60_000, 90_000)
"""Of event time, which runs at fifteen times real time."""


class Faults:
    """Injects faults into workers, their disks, their broker and their inputs.

    The last of *nodes* is the spare one: it runs from a `scaled_out` until a `scaled_in`.
    """

    def __init__(
        self,
        broker: Broker,
        nodes: list[Node],
        world: World,
        now_ms: Callable[[], int],
        *,
        seed: int,
        snapshots: Path,
    ) -> None:
        self._broker = broker
        self._nodes, self._spare = nodes[:-1], nodes[-1]
        self._scaled_out = False
        self._snapshots = snapshots
        self._world = world
        self._now_ms = now_ms
        self._names = (f"hostile-{seed}-{number}" for number in itertools.count())
        self._random = Random(f"{seed}-faults")
        self._began = time.monotonic()
        self.log_lines: list[str] = []
        self._kinds: dict[Callable[[], None], int] = {
            self.killed: 3,
            self.killed_for_a_while: 3,
            self.frozen: 4,
            self.frozen_twice: 1,
            self.stopped: 3,
            self.broker_killed: 3,
            self.broker_frozen: 1,
            self.stopped_without_broker: 1,
            self.killed_without_broker: 2,
            self.disk_lost: 2,
            self.disk_lost_with_snapshot: 2,
            self.disk_of_another_age: 3,
            self.rolling_restart: 2,
            self.scaled_out: 2,
            self.scaled_in: 2,
            self.all_killed: 2,
            self.all_killed_one_disk_lost: 1,
            self.idle_connections: 2,
            self.poisoned: 3,
            self.poisoned_and_killed: 1,
            self.clock_ahead: 2,
        }
        self._once = self._random.sample(list(self._kinds), len(self._kinds))
        self.counts: Counter[str] = Counter()

    def one(self) -> str:
        """Waits for a while, then injects one of these faults; returns its kind. Every worker runs
        afterwards.

        Each kind comes once before any comes again.
        """
        time.sleep(min(self._random.expovariate(1 / MEAN_CALM_SECONDS), MOST_CALM_SECONDS))
        (kind,) = self._random.choices(list(self._kinds), list(self._kinds.values()))
        kind = self._once.pop() if self._once else kind
        self.counts[kind.__name__] += 1
        kind()
        for node in self.nodes:
            if not node.is_up:
                ended = f"worker {node.number} ended by itself with {node.worker.wait()}"
                raise AssertionError(f"{ended}: {node.worker.err[-2_000:]}")
        return kind.__name__

    @property
    def nodes(self) -> list[Node]:
        """The workers that share the tasks now."""
        return [*self._nodes, self._spare] if self._scaled_out else self._nodes

    def note(self, text: str, kind: str) -> None:
        """Notes an action of another part of the round."""
        self.counts[kind] += 1
        self._log_line(text)

    def _log_line(self, text: str) -> None:
        self.log_lines.append(f"{time.monotonic() - self._began:7.2f} s  {text}")

    def _node(self) -> Node:
        return self._random.choice(self.nodes)

    def _wait(self, least: float, most: float) -> None:
        time.sleep(self._random.uniform(least, most))

    # Of a worker

    def killed(self) -> None:
        node = self._node()
        self._log_line(f"worker {node.number} killed, started at once")
        node.kill()
        node.start()

    def killed_for_a_while(self) -> None:
        node = self._node()
        self._log_line(f"worker {node.number} killed for a while")
        node.kill()
        self._wait(0.5, 2 * SESSION_SECONDS)
        self._log_line(f"worker {node.number} started")
        node.start()

    def frozen(self) -> None:
        self._freeze(self._node())

    def frozen_twice(self) -> None:
        """The second fault comes during the recovery."""
        node = self._node()
        self._freeze(node)
        self._wait(0, 1.5)
        self._freeze(node)

    def _freeze(self, node: Node) -> None:
        self._log_line(f"worker {node.number} is frozen")
        node.freeze()
        self._wait(SESSION_SECONDS + 0.5, 2 * SESSION_SECONDS)
        self._log_line(f"worker {node.number} continues")
        node.thaw()

    def stopped(self) -> None:
        node = self._node()
        self._log_line(f"worker {node.number} gets SIGTERM")
        self._log_line(f"worker {node.number} took {node.stop():.2f} s to stop, started")
        node.start()

    def disk_lost(self) -> None:
        node = self._node()
        self._log_line(f"worker {node.number} killed, its disk and all snapshots lost, started")
        node.kill()
        node.lose_disk()
        shutil.rmtree(self._snapshots, ignore_errors=True)
        node.start()

    def disk_lost_with_snapshot(self) -> None:
        """The fault comes after this process has written a snapshot of each of its tasks."""
        node = self._node()
        node.worker.eventually(lambda: _has_snapshots(node))
        self._log_line(f"worker {node.number} killed, its disk lost, started")
        node.kill()
        node.lose_disk()
        node.start()

    def disk_of_another_age(self) -> None:
        """Restores a backup of the disk that is some seconds old."""
        node = self._node()
        node.kill()
        node.keep_disk()
        node.start()
        node.worker.eventually(lambda: node.worker.tasks)
        self._wait(1, 2 * SESSION_SECONDS)
        self._log_line(f"worker {node.number} killed, its disk replaced by an older one, started")
        node.kill()
        node.restore_old_disk()
        node.start()

    # Of all

    def rolling_restart(self) -> None:
        """Each worker is ready again before the next one stops."""
        for node in self.nodes:
            self._log_line(f"worker {node.number} restarted in {node.stop():.2f} s")
            node.start()
            node.worker.until_ready()

    def scaled_out(self) -> None:
        if self._scaled_out:
            self.scaled_in()
        self._scaled_out = True
        self._log_line(f"worker {self._spare.number} joins")
        self._spare.start()
        self._spare.worker.eventually(lambda: self._spare.worker.tasks)

    def scaled_in(self) -> None:
        if not self._scaled_out:
            self.scaled_out()
        self._log_line(f"worker {self._spare.number} leaves")
        self._scaled_out = False
        self._spare.leave()

    def all_killed(self) -> None:
        self._kill_all()
        self._start_all()

    def all_killed_one_disk_lost(self) -> None:
        self._kill_all()
        node = self._node()
        self._log_line(f"worker {node.number} has lost its disk")
        node.lose_disk()
        self._start_all()

    def _kill_all(self) -> None:
        self._log_line("all workers killed")
        for node in self.nodes:
            node.kill()
        self._wait(0, SESSION_SECONDS)

    def _start_all(self) -> None:
        self._log_line("all workers started")
        for node in self.nodes:
            node.start()
            self._wait(0, 0.5)

    # Of clients, producers and topics

    def idle_connections(self) -> None:
        node = self._node()
        node.worker.eventually(lambda: node.worker.get("/livez"))
        self._log_line(f"idle connections to worker {node.number}")
        with hostile.idle_connections(self._random, node.port):
            self._wait(0.5, 2 * SESSION_SECONDS)
        node.worker.eventually(lambda: (node.worker.get("/livez") or (0,))[0] == 200)
        self._log_line("they are closed, and it answers")

    def poisoned(self) -> None:
        task = self._random.randrange(self._world.n_tasks)
        self._log_line(f"poison for task {task}")
        self._append(task, hostile.poison(self._random, next(self._names), self._now_ms()))
        log = self._random.choice(LOGS)
        hostile.append_compressed(self._world, (log, task), self._now_ms())

    def poisoned_and_killed(self) -> None:
        """While it is read, perhaps."""
        self.poisoned()
        self._wait(0, 1)
        self.killed()

    def clock_ahead(self) -> None:
        """Of one producer of one log, within the bound and beyond it."""
        task, by_ms = self._random.randrange(self._world.n_tasks), self._random.choice(AHEAD_MS)
        self._log_line(f"a producer of task {task} is {by_ms} ms ahead")
        self._append(task, hostile.ahead(next(self._names), self._now_ms(), by_ms))

    def _append(self, task: int, records: list[tuple[str, Raw]]) -> None:
        """One log after the other, each in the order given."""
        of_logs = {(log, task): [raw for of, raw in records if of == log] for log in LOGS}
        self._world.produce(of_logs)

    # Of the broker

    def broker_killed(self) -> None:
        self._log_line("broker killed")
        self._broker.kill()
        self._wait(0, 3)
        self._broker.start()
        self._log_line("broker is back")

    def stopped_without_broker(self) -> None:
        node = self._node()
        self._log_line("broker killed")
        self._broker.kill()
        self._wait(0, 3)
        self._log_line(f"worker {node.number} gets SIGTERM")
        self._log_line(f"worker {node.number} took {node.stop():.2f} s to stop")
        self._broker.start()
        self._log_line(f"broker is back, worker {node.number} started")
        node.start()

    def broker_frozen(self) -> None:
        """The broker neither answers nor refuses requests."""
        self._log_line("broker is frozen")
        os.kill(self._broker.pid, signal.SIGSTOP)
        self._wait(0.5, 3)
        os.kill(self._broker.pid, signal.SIGCONT)
        self._log_line("broker continues")

    def killed_without_broker(self) -> None:
        """The next process has to send unacknowledged records again."""
        node = self._node()
        self._log_line("broker is frozen")
        os.kill(self._broker.pid, signal.SIGSTOP)
        self._wait(0.5, 2)
        self._log_line(f"worker {node.number} and the broker killed")
        node.kill()
        self._broker.kill()
        self._broker.start()
        self._log_line(f"broker is back, worker {node.number} started")
        node.start()


def _has_snapshots(node: Node) -> bool:
    """Whether this process has written a snapshot of each of its tasks."""
    written = {event["task"] for event in node.worker.events("snapshot_written")}
    return bool(node.worker.tasks) and written >= set(node.worker.tasks)
