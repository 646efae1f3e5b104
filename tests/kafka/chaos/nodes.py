"""Workers from the view of an orchestrator: a port, a disk, and successive processes."""

import json
import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.kafka.broker import free_ports
from tests.kafka.process import Process, Worker
from tests.kafka.world import World
from tests.waiting import STOP_SECONDS

SESSION_TIMEOUT_MS = 2_000
SCRAPE_SECONDS = 1.0
MOST_FILES = 2_304
"""The requirement of `docs/capacity.md` for four tasks with snapshots."""
ONLY_GROW = ("_total", "_bucket", "_count", "_sum")


class Node:
    """One worker of the group, which is restarted on its port and with its disk."""

    def __init__(
        self, number: int, directory: Path, world: World, settings: Mapping[str, object]
    ) -> None:
        self.number = number
        self.state_dir = directory / f"state-{number}"
        (self.port,) = free_ports(1)
        self._directory = directory
        self._world = world
        self._settings = settings
        self._old_disk = directory / f"old-state-{number}"
        self.processes: list[Worker] = []

    @property
    def worker(self) -> Worker:
        """The current process, or the last one."""
        return self.processes[-1]

    @property
    def is_up(self) -> bool:
        return bool(self.processes) and self.worker.running

    def start(self) -> None:
        assert not self.is_up
        self.processes.append(
            Worker(
                self._directory,
                self._world.bootstrap,
                self._world.prefix,
                port=self.port,
                state_dir=self.state_dir,
                most_files=MOST_FILES,
                **self._settings,
            )
        )

    def kill(self) -> None:
        """kill -9."""
        self.worker.signal(signal.SIGKILL)
        assert self.worker.wait() == -signal.SIGKILL, "it had ended by itself"

    def stop(self) -> float:
        """SIGTERM; returns the duration.

        The process must end with code 0, in time. Before its first output it is only the
        interpreter, which ends like any program.
        """
        began = time.monotonic()
        code = self.worker.stop(STOP_SECONDS)
        if code != -signal.SIGTERM or self.worker.err:
            assert code == 0, f"it ended with {code}"
        return time.monotonic() - began

    def freeze(self) -> None:
        self.worker.freeze()

    def thaw(self) -> None:
        self.worker.signal(signal.SIGCONT)

    def lose_disk(self) -> None:
        assert not self.is_up
        shutil.rmtree(self.state_dir, ignore_errors=True)

    def keep_disk(self) -> None:
        """Copies the present disk, for `put_old_disk_back`."""
        assert not self.is_up
        shutil.rmtree(self._old_disk, ignore_errors=True)
        shutil.copytree(self.state_dir, self._old_disk)

    def restore_old_disk(self) -> None:
        """Replaces the disk by the copy, as if a backup had been restored."""
        self.lose_disk()
        self._old_disk.rename(self.state_dir)

    def leave(self) -> None:
        """SIGTERM without a restart: a member with a name is removed from the group."""
        self.stop()
        name = self._settings.get("group_instance_id")
        if name is not None:
            group = f"group_id={self.worker.settings['group_id']}"
            source = f"--source=kafka://{self._world.bootstrap}"
            remove = Process(self._directory, "group", "remove", str(name), source, "--set", group)
            assert remove.wait() in {0, 3}, remove.err  # 3: the broker has removed it already

    def end(self) -> None:
        if self.is_up:
            self.worker.end()

    def events(self, name: str) -> list[dict[str, object]]:
        """Of all its processes."""
        return [event for process in self.processes for event in process.events(name)]

    def warnings(self) -> list[str]:
        """Warnings of all its processes, and output that is no log line."""
        lines = [line for process in self.processes for line in process.err.splitlines()]
        return [line for line in lines if not line.startswith("{") or _is_warning(line)]


def _is_warning(line: str) -> bool:
    return json.loads(line)["level"] not in {"debug", "info"}


class Scraper(threading.Thread):
    """Scrapes one node as Prometheus would, and checks that counters only grow."""

    def __init__(self, node: Node) -> None:
        super().__init__(name=f"scraper-{node.number}", daemon=True)
        self._node = node
        self._stopping = threading.Event()
        self._process: Worker | None = None
        self._before: dict[str, float] = {}
        self.n_scrapes = 0
        self.differences: list[str] = []

    def stop(self) -> None:
        self._stopping.set()
        if self.ident is not None:
            self.join(30)

    def run(self) -> None:
        while not self._stopping.wait(SCRAPE_SECONDS):
            if self._node.processes:
                process = self._node.worker
                samples = _scraped(process.port)
                if samples and process is self._node.worker:
                    self._compare(process, samples)

    def _compare(self, process: Worker, samples: dict[str, float]) -> None:
        if process is not self._process:
            self._process, self._before = process, {}
        self.n_scrapes += 1
        for name, before in self._before.items():
            now = samples.get(name)
            if now is None or now < before:
                self.differences.append(
                    f"worker {self._node.number}, process {process.pid}: {name} was {before}, "
                    f"then {now}"
                )
        self._before = {
            name: value
            for name, value in samples.items()
            if name.partition("{")[0].endswith(ONLY_GROW)
        }


def _scraped(port: int) -> dict[str, float]:
    """Values by name with labels; {} without an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as reply:
            text = reply.read().decode()
    except OSError:
        return {}
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}
