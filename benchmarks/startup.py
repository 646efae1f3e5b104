"""CPU time from the start of a process to its first poll, and of importing its libraries alone.

Fresh processes in turns on one core: the interpreter, the imports of the libraries that the worker
has loaded at its first poll of an assigned partition, the worker up to that poll on a real broker,
and two commands that only print. All read bytecode files, as installed packages do.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.course import PATIENT_SESSIONS, pinned, say
from benchmarks.topics import make_topics
from evaluator.tables import format_table
from tests.kafka.broker import Broker

WORKER, LIBRARIES = "evaluator run", "its libraries"
COMMANDS = ("evaluator --version", "evaluator --help")
BAR_SECONDS = 0.2


class Course:
    """Processes on one core, with bytecode files of their own."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap, self._directory = bootstrap, directory
        self._n_workers = 0
        self._libraries: list[str] = []

    def run(self, name: str) -> float:
        """CPU seconds of one process."""
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(self._directory / "bytecode")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "benchmarks.first_poll", *self._arguments(name)]
        done = subprocess.run(
            [*pinned(0), *command], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{name} ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
        seconds, *modules = done.stdout.splitlines()[-1].split()
        if name == WORKER:
            self._libraries = modules
        return float(seconds)

    def _arguments(self, name: str) -> list[str]:
        if name in COMMANDS:
            return name.split()
        if name != WORKER:
            return ["modules", *(self._libraries if name == LIBRARIES else [])]
        self._n_workers += 1
        settings = {
            "state_dir": self._directory / f"state-{self._n_workers}",
            "group_id": f"startup-{self._n_workers}",
            "http_port": 0,
        }
        assignments = [f"--set={name}={value}" for name, value in settings.items()]
        return ["evaluator", "run", "--source", f"kafka://{self._bootstrap}", *assignments]


def measure(course: Course, rounds: int) -> dict[str, list[float]]:
    names = (WORKER, LIBRARIES, "the interpreter", *COMMANDS)
    for name in names:  # writes the bytecode files
        course.run(name)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            seconds[name].append(course.run(name))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    cpu = 1 if (os.cpu_count() or 1) > 1 else None
    with tempfile.TemporaryDirectory(prefix="startup-") as scratch:
        directory = Path(scratch)
        with Broker(directory / "broker", cpu=cpu, properties=PATIENT_SESSIONS) as broker:
            asyncio.run(make_topics(broker.bootstrap, ""))
            seconds = measure(Course(broker.bootstrap, directory), arguments.rounds)
    rows = [
        [name, f"{statistics.median(each):.3f}", f"{min(each):.3f}", f"{max(each):.3f}"]
        for name, each in seconds.items()
    ]
    say(format_table(["CPU seconds", "median", "least", "most"], rows, numbers=range(1, 4)))
    pairs = zip(seconds[WORKER], seconds[LIBRARIES], strict=True)
    above = statistics.median(worker - libraries for worker, libraries in pairs)
    verdict = "reached" if above <= BAR_SECONDS else "MISSED"
    say(f"above its libraries: {above:.3f} s (bar {BAR_SECONDS}: {verdict})")
    if arguments.json:
        arguments.json.write_text(json.dumps(seconds, indent=1) + "\n")


if __name__ == "__main__":
    main()
