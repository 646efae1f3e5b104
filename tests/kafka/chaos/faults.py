"""What goes wrong: one method for each kind of fault, chosen and timed by a seed."""

import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
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
"""Of event time; a second of life is fifteen of it."""


class Faults:
    """Everything that is done to two workers, their broker and their inputs, and when."""

    def __init__(
        self,
        broker: Broker,
        nodes: list[Node],
        world: World,
        now_ms: Callable[[], int],
        *,
        seed: int,
    ) -> None:
        self._broker = broker
        self._nodes = nodes
        self._world = world
        self._now_ms = now_ms
        self._names = (f"hostile-{seed}-{number}" for number in itertools.count())
        self._random = Random(f"{seed}-faults")
        self._began = time.monotonic()
        self.said: list[str] = []
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
            self.disk_lost: 3,
            self.both_killed: 2,
            self.both_killed_one_disk_lost: 1,
            self.idle_connections: 2,
            self.poisoned: 3,
            self.poisoned_and_killed: 1,
            self.clock_ahead: 2,
        }
        self.counts: Counter[str] = Counter()

    def one(self) -> None:
        """Waits for a while, then does one of these; every worker runs afterwards."""
        time.sleep(min(self._random.expovariate(1 / MEAN_CALM_SECONDS), MOST_CALM_SECONDS))
        (kind,) = self._random.choices(list(self._kinds), list(self._kinds.values()))
        self.counts[kind.__name__] += 1
        kind()
        for node in self._nodes:
            if not node.is_up:
                ended = f"worker {node.number} ended by itself with {node.worker.wait()}"
                raise AssertionError(f"{ended}: {node.worker.err[-2_000:]}")

    def tell(self, text: str, kind: str) -> None:
        """Notes what somebody else has done."""
        self.counts[kind] += 1
        self._say(text)

    def _say(self, text: str) -> None:
        self.said.append(f"{time.monotonic() - self._began:7.2f} s  {text}")

    def _node(self) -> Node:
        return self._random.choice(self._nodes)

    def _wait(self, least: float, most: float) -> None:
        time.sleep(self._random.uniform(least, most))

    # Of a worker

    def killed(self) -> None:
        node = self._node()
        self._say(f"worker {node.number} killed, started at once")
        node.kill()
        node.start()

    def killed_for_a_while(self) -> None:
        node = self._node()
        self._say(f"worker {node.number} killed for a while")
        node.kill()
        self._wait(0.5, 2 * SESSION_SECONDS)
        self._say(f"worker {node.number} started")
        node.start()

    def frozen(self) -> None:
        self._freeze(self._node())

    def frozen_twice(self) -> None:
        """The second time while it comes back."""
        node = self._node()
        self._freeze(node)
        self._wait(0, 1.5)
        self._freeze(node)

    def _freeze(self, node: Node) -> None:
        self._say(f"worker {node.number} stands still")
        node.freeze()
        self._wait(SESSION_SECONDS + 0.5, 2 * SESSION_SECONDS)
        self._say(f"worker {node.number} goes on")
        node.thaw()

    def stopped(self) -> None:
        node = self._node()
        self._say(f"worker {node.number} told to stop")
        self._say(f"worker {node.number} took {node.stop():.2f} s to stop, started")
        node.start()

    def disk_lost(self) -> None:
        node = self._node()
        self._say(f"worker {node.number} killed, its disk lost, started")
        node.kill()
        node.lose_disk()
        node.start()

    # Of both

    def both_killed(self) -> None:
        self._kill_both()
        self._start_both()

    def both_killed_one_disk_lost(self) -> None:
        self._kill_both()
        node = self._node()
        self._say(f"worker {node.number} has lost its disk")
        node.lose_disk()
        self._start_both()

    def _kill_both(self) -> None:
        self._say("both workers killed")
        for node in self._nodes:
            node.kill()
        self._wait(0, SESSION_SECONDS)

    def _start_both(self) -> None:
        self._say("both workers started")
        for node in self._nodes:
            node.start()
            self._wait(0, 0.5)

    # Of the world around

    def idle_connections(self) -> None:
        node = self._node()
        node.worker.eventually(lambda: node.worker.get("/livez"))
        self._say(f"idle connections to worker {node.number}")
        with hostile.idle_connections(self._random, node.port):
            self._wait(0.5, 2 * SESSION_SECONDS)
        node.worker.eventually(lambda: (node.worker.get("/livez") or (0,))[0] == 200)
        self._say("they are closed, and it answers")

    def poisoned(self) -> None:
        task = self._random.randrange(self._world.n_tasks)
        self._say(f"poison for task {task}")
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
        self._say(f"a producer of task {task} is {by_ms} ms ahead")
        self._append(task, hostile.ahead(next(self._names), self._now_ms(), by_ms))

    def _append(self, task: int, records: list[tuple[str, Raw]]) -> None:
        """One log after the other, each in the order given."""
        of_logs = {(log, task): [raw for of, raw in records if of == log] for log in LOGS}
        self._world.produce(of_logs)

    # Of the broker

    def broker_killed(self) -> None:
        self._say("broker killed")
        self._broker.kill()
        self._wait(0, 3)
        self._broker.start()
        self._say("broker is back")

    def stopped_without_broker(self) -> None:
        node = self._node()
        self._say("broker killed")
        self._broker.kill()
        self._wait(0, 3)
        self._say(f"worker {node.number} told to stop")
        self._say(f"worker {node.number} took {node.stop():.2f} s to stop")
        self._broker.start()
        self._say(f"broker is back, worker {node.number} started")
        node.start()

    def broker_frozen(self) -> None:
        """Nothing is answered, and nothing is refused."""
        self._say("broker stands still")
        os.kill(self._broker.pid, signal.SIGSTOP)
        self._wait(0.5, 3)
        os.kill(self._broker.pid, signal.SIGCONT)
        self._say("broker goes on")

    def killed_without_broker(self) -> None:
        """What was not acknowledged has to be said again by the next process."""
        node = self._node()
        self._say("broker stands still")
        os.kill(self._broker.pid, signal.SIGSTOP)
        self._wait(0.5, 2)
        self._say(f"worker {node.number} and the broker killed")
        node.kill()
        self._broker.kill()
        self._broker.start()
        self._say(f"broker is back, worker {node.number} started")
        node.start()
