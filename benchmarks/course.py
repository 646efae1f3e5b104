"""A real broker with filled topics, and the processes that are measured on it.

Broker and loader have one core, the measured process has another core of its own.
"""

import asyncio
import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.foreign import REGISTRY, ForeignWorld
from benchmarks.peers import java
from benchmarks.topics import TRAFFIC, count_records, empty, load, make_topics, read_totals
from benchmarks.world import USUAL, Shape, make_world
from evaluator.adapters.kafka.connection import Connection
from evaluator.adapters.kafka.schemas import KafkaAnswers
from evaluator.tables import format_table
from tests.kafka.broker import KAFKA_VERSION, Broker, free_ports

CHILD_TIMEOUT_SECONDS = 600
PATIENT_SESSIONS = {  # Kafka's own defaults: the broker shares its core with the loader
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
}
PACKAGES = ("aiokafka", "numpy", "msgspec", "pydantic", "cramjam")
BUSY_LOAD = 2.5  # broker, loader and the measured process make about two
PEERS_PYTHON = Path(".venv/peers/bin/python")
"""The environment of Quix Streams (`make bench-peers` makes it)."""
WITHOUT_ALARMS = "evaluator without alarms"
WORDS = {
    "streams": "Kafka Streams, Processor API",
    "quix": "Quix Streams",
    "getmany": "bare getmany",
    "evaluator": "evaluator run --until-end",
    WITHOUT_ALARMS: "evaluator run --until-end --set alarms=off",
    "naive": "naive evaluator",
}

Report = dict[str, Any]


class Load(NamedTuple):
    """The pairs of one prefix, and the form in which they are written."""

    prefix: str
    n_pairs: int
    traffic: str = "plain"
    shape: Shape = USUAL
    form: str = ""
    """The foreign format of its records."""


class Course:
    """Runs processes on a broker, one after the other."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.bootstrap = broker.bootstrap
        self._directory = directory
        self._mappings: dict[str, Path] = {}
        self._n_runs = 0

    def fill(self, loads: Iterable[Load], *, seed: int) -> None:
        """Creates the topics of each load and writes its pairs."""
        began = time.monotonic()
        for each in loads:
            asyncio.run(make_topics(self.bootstrap, each.prefix))
            world = make_world(each.n_pairs, seed=seed, shape=each.shape)
            if each.form:
                foreign = ForeignWorld(world, each.form, self._directory / each.form)
                connection = Connection(self.bootstrap, has_schemas=True)
                log = KafkaAnswers(connection, topic_prefix=each.prefix, registry=REGISTRY)
                asyncio.run(log.append(foreign.answers))
                world, self._mappings[each.form] = foreign.world, foreign.mapping
            asyncio.run(load(self.bootstrap, each.prefix, world, TRAFFIC[each.traffic]))
        say(f"topics filled in {time.monotonic() - began:.0f} s")

    def run(
        self,
        name: str,
        of: Load,
        *,
        settings: Sequence[str] = (),
        n_workers: int = 1,
        profile: bool = False,
    ) -> Report:
        """One program from its start to its end; its report with figures per pair.

        Several workers share the topics, each on a core of its own; their CPU times are added.
        """
        if name == WITHOUT_ALARMS:
            return self.run("evaluator", of, settings=["alarms=off"], profile=profile)
        if name == "evaluator":  # else its leader would read what earlier runs have settled
            asyncio.run(empty(self.bootstrap, f"{of.prefix}settled"))
        n_before = self._n_evaluations(of)
        self._n_runs += 1
        group = f"bench-{self._n_runs}"
        words = [f"--set={setting}" for setting in settings] + ["--profile"] * profile
        started = [self._start(name, of, group, core, words) for core in range(n_workers)]
        reports = [self._ended(name, *each) for each in started]
        n_written = self._n_evaluations(of) - n_before
        if name == "evaluator" and n_written < of.n_pairs:
            sys.exit(f"{n_written} evaluations of {of.n_pairs}: it restored a checkpoint")
        return _per_pair(reports, of.n_pairs)

    def _start(
        self, name: str, of: Load, group: str, core: int, words: list[str]
    ) -> tuple[subprocess.Popen[bytes], Path, Path]:
        stem = self._directory / f"{group}-{core}"
        report, log = stem.with_suffix(".json"), stem.with_suffix(".log")
        command = self._command(name, of, group, report, stem) + words
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*pinned(core), *command], stdout=output, stderr=subprocess.STDOUT
            )
        return process, report, log

    def _ended(
        self, name: str, process: subprocess.Popen[bytes], report: Path, log: Path
    ) -> Report:
        try:
            code = process.wait(CHILD_TIMEOUT_SECONDS)
        finally:
            process.kill()
        if code or not report.exists():
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
            sys.exit(f"{name} ended with exit code {code}:\n{tail}")
        measured: Report = json.loads(report.read_text())
        return measured

    def _command(self, name: str, of: Load, group: str, report: Path, state: Path) -> list[str]:
        if name == "streams":
            return java.command(
                bootstrap=self.bootstrap,
                prefix=of.prefix,
                group=group,
                pairs=of.n_pairs,
                report=report,
                state_dir=state,
            )
        of_quix = [str(PEERS_PYTHON), "-m", "benchmarks.peers.quix"]
        command = [sys.executable, "-m", "benchmarks.contestants", name]
        command = of_quix if name == "quix" else command
        command += ["--prefix", of.prefix, "--bootstrap", self.bootstrap]
        command += ["--pairs", str(of.n_pairs), "--group", group, "--report", str(report)]
        command += ["--state-dir", str(state)]
        if name == "evaluator":  # a fingerprint of its own: no state is restored
            command += ["--http-port", str(free_ports(1)[0])]
            command += ["--skew-ms", str(300_000 + self._n_runs)]
            if of.form:
                command += [f"--set=mapping={self._mappings[of.form]}"]
        return command

    def _n_evaluations(self, of: Load) -> int:
        return asyncio.run(count_records(self.bootstrap, f"{of.prefix}evaluations"))

    def check_totals(self, name: str, of: Load) -> None:
        """Exits unless a program gets the totals that the evaluator has written."""
        expected = {tuple(row[:4]): tuple(row[4:]) for row in self.run(name, of)["totals"]}
        written = asyncio.run(read_totals(self.bootstrap, of.prefix))
        if written != expected:
            differing = [
                f"{path}: {name} {expected.get(path)}, evaluator {written.get(path)}"
                for path in sorted(expected.keys() | written.keys())
                if expected.get(path) != written.get(path)
            ]
            sys.exit("the totals differ:\n" + "\n".join(differing[:20]))
        say(f"totals of {of.n_pairs:,} pairs: {WORDS[name]} has the same {len(expected)}")


@contextmanager
def course() -> Iterator[Course]:
    """Runs a broker until the end of the block."""
    cores = os.cpu_count() or 1
    if cores > 1:
        os.sched_setaffinity(0, {1})  # the measured process has core 0 to itself
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        Broker(
            Path(scratch) / "broker",
            cpu=1 if cores > 1 else None,
            heap_mb=1024,
            properties=PATIENT_SESSIONS,
        ) as broker,
    ):
        yield Course(broker, Path(scratch))
    load_after = os.getloadavg()[0]
    if load_after > BUSY_LOAD:
        say(f"the load average is {load_after:.1f}: other programs compete, wall time says little")


def _per_pair(reports: list[Report], n_pairs: int) -> Report:
    """Figures of all processes together.

    The second half is the whole run if none reports half of the records: bare reading has no
    warm-up, and reads the small judgments before the rankings, so its halves are not comparable.
    """
    cpu = sum(one["cpu_seconds"] for one in reports)
    second = sum(one["second_half_cpu_seconds"] for one in reports)
    n_second = sum(one["second_half_records"] for one in reports) / 2
    return {
        **reports[0],
        "pairs_per_second": n_pairs / max(one["wall_seconds"] for one in reports),
        "cpu_us": cpu / n_pairs * 1e6,
        "second_half_cpu_us": (second / n_second if n_second else cpu / n_pairs) * 1e6,
        "max_rss_mb": sum(one["max_rss_mb"] for one in reports),
        "stages_us": {
            stage: seconds / n_pairs * 1e6 for stage, seconds in reports[0]["stages"].items()
        },
    }


def pinned(core: int) -> list[str]:
    """The words before a command that keep it on a core; none on a machine without that core."""
    return ["taskset", "-c", str(core)] if (os.cpu_count() or 1) > max(core, 1) else []


def interpreter_seconds() -> float:
    """A measure of the speed of this host: ten million turns of an empty loop."""
    began = time.process_time()
    for _ in range(10_000_000):
        pass
    return time.process_time() - began


def environment() -> dict[str, str]:
    """The conditions of the figures."""
    model = "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "machine": f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "broker": f"Apache Kafka {KAFKA_VERSION}",
        **versions,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load average": f"{os.getloadavg()[0]:.1f}",
        "ten million turns of a loop": f"{interpreter_seconds():.2f} s",
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
    }


FIGURES = ("pairs_per_second", "cpu_us", "second_half_cpu_us", "max_rss_mb")


def kept(rounds: list[dict[str, Report]]) -> list[dict[str, Report]]:
    """The rounds with the members of FIGURES, for files."""
    return [{name: {k: one[k] for k in FIGURES} for name, one in each.items()} for each in rounds]


def medians(rounds: list[dict[str, Report]]) -> dict[str, Report]:
    """Medians of each contestant over the rounds, for the members of FIGURES."""
    return {
        name: {key: statistics.median(one[name][key] for one in rounds) for key in FIGURES}
        for name in rounds[0]
    }


def result_table(result: dict[str, Report]) -> str:
    rows = [
        [
            WORDS.get(name, name),
            f"{one['pairs_per_second']:,.0f}",
            f"{one['cpu_us']:.1f}",
            f"{one['second_half_cpu_us']:.1f}",
            f"{one['max_rss_mb']:,.0f}",
        ]
        for name, one in result.items()
    ]
    header = ["", "pairs/s", "CPU us per pair", "second half", "max RSS MB"]
    return format_table(header, rows, numbers=range(1, 5))


def say(text: str) -> None:
    print(text, flush=True)


def write_json(path: Path | None, figures: dict[str, Any]) -> None:
    """Writes the figures of a run, with their conditions, to a file if one was given."""
    if path is not None:
        path.write_text(json.dumps({**figures, "environment": environment()}, indent=1) + "\n")
