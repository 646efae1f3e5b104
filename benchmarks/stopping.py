"""A whole worker with a million open queries: time from SIGTERM to its end, and to its return.

`python -m benchmarks.stopping --open 1000000`: a broker of its own with one task, filled with
rankings of a day and a tenth more; then `evaluator run`, as an operator starts it. SIGTERM comes
once while it reads, with that many open queries, and once when it is idle; it is restarted after
the first.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from benchmarks.course import pinned
from benchmarks.meter import peak_mb
from benchmarks.open_queries import RETENTION_MS, Traffic
from evaluator.adapters.kafka import Connection, create_topics, plan_topics
from evaluator.core.types.records import LOGS
from tests.kafka.broker import Broker, free_ports

PART = 5_000
PATIENCE_SECONDS = 600


async def fill(bootstrap: str, n: int, step_ms: float) -> None:
    """*n* rankings, *step_ms* apart, with occasional judgments, so that event time advances."""
    connection = Connection(bootstrap)
    await create_topics(connection, await plan_topics(connection, partitions=1))
    traffic = Traffic(step_ms)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=900_000) as producer:
        for first in range(0, n, PART):
            end = min(first + PART, n)
            at_ms = traffic.time_ms(end)
            records = (
                traffic.rankings(first, end),
                traffic.judgments(first // PART, [end - 1], at_ms),
            )
            for log, part in zip(LOGS, records, strict=True):
                for value in part.values:
                    await producer.send(log, value, partition=0, timestamp_ms=at_ms)


class Run:
    """One `evaluator run`."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._port = free_ports(1)[0]
        self._began = time.perf_counter()
        self._log = (directory / "log").open("ab")
        command = [sys.executable, "-m", "evaluator", "run", "--source", f"kafka://{bootstrap}"]
        settings = {"http_port": self._port, "state_dir": directory / "state"}
        command += [f"--set={name}={value}" for name, value in settings.items()]
        self._process = subprocess.Popen([*pinned(0), *command], stderr=self._log)

    def _get(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}") as answer:
                document: dict[str, Any] = json.load(answer)
        except (urllib.error.URLError, ConnectionError):
            return {}
        return document

    def _answers(self, path: str) -> Iterator[dict[str, Any]]:
        """Its status, repeatedly, for a limited time."""
        while time.perf_counter() - self._began < PATIENCE_SECONDS:
            yield self._get(path)
            time.sleep(0.01)
        sys.exit("the worker did not come so far")

    def wait_for(self, n_open: int, *, end: bool) -> dict[str, Any]:
        """Its task, once it is ready and has this many open queries; with *end*, once it has read
        all."""
        for status in self._answers("/status"):
            for task in status.get("tasks", ()):
                at_end = not any(task["lag"].values())
                if status["ready"] and task["open"] >= n_open and (at_end or not end):
                    return dict(task)
        raise AssertionError

    def seconds_to_ready(self) -> float:
        any(answer.get("ready") for answer in self._answers("/readyz"))
        return time.perf_counter() - self._began

    def stop(self) -> float:
        """Seconds from SIGTERM to the end of the process, which must be clean."""
        began = time.perf_counter()
        os.kill(self._process.pid, signal.SIGTERM)
        code = self._process.wait(PATIENCE_SECONDS)
        spent = time.perf_counter() - began
        self._log.close()
        if code:
            sys.exit(f"the worker ended with exit code {code}")
        return spent


def measure(bootstrap: str, directory: Path, n_open: int) -> None:
    first = Run(bootstrap, directory)
    task = first.wait_for(n_open, end=False)
    left, spent = sum(task["lag"].values()), first.stop()
    print(f"{task['open']:,} open, {left:,} unread: ended {spent:.2f} s after SIGTERM", flush=True)
    again = Run(bootstrap, directory)
    ready = again.seconds_to_ready()
    task = again.wait_for(n_open, end=True)
    loaded = task["loaded_seconds"]
    print(f"started again: ready after {ready:.2f} s, {loaded:.2f} s of them the load", flush=True)
    print(f"at rest, {task['open']:,} open: ended {again.stop():.2f} s after SIGTERM", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stopping", description=__doc__)
    parser.add_argument("--open", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stopping-", dir="/var/tmp") as scratch:
        broker = Broker(Path(scratch) / "broker", cpu=1).start()
        try:
            began = time.perf_counter()
            n = arguments.open * 11 // 10
            asyncio.run(fill(broker.bootstrap, n, RETENTION_MS / arguments.open))
            spent = time.perf_counter() - began
            print(f"{n:,} rankings written in {spent:.0f} s, {peak_mb():,.0f} MB", flush=True)
            measure(broker.bootstrap, Path(scratch), arguments.open)
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
