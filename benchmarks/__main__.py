"""`make bench`: pairs per second on a real Apache Kafka, beside bare reading and a naive evaluator.

Broker and loader on one core, the measured process alone on another, one after the other, in
rounds; medians over the rounds.
"""

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.contestants import LEARNING, STORE
from benchmarks.peers import java
from benchmarks.topics import count_records, load, make_topics, read_totals
from benchmarks.world import make_world
from evaluator.tables import format_table
from tests.kafka.broker import KAFKA_VERSION, Broker, free_ports

CONTESTANTS = ("getmany", "evaluator", LEARNING, "naive")
PEERS = ("getmany", "evaluator", "streams", "quix", "naive")
WORDS = {
    "streams": "Kafka Streams, Processor API",
    "quix": "Quix Streams",
    "getmany": "bare getmany",
    "evaluator": "evaluator run --until-end",
    LEARNING: "the same, with learning=propose",
    "naive": "naive evaluator",
}
CHILD_TIMEOUT_SECONDS = 600
PATIENT_SESSIONS = {  # Kafka's own defaults: the broker shares its core with what fills topics
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
}
PACKAGES = ("aiokafka", "numpy", "msgspec", "pydantic", "cramjam")
BUSY_LOAD = 2.5  # broker, loader and what is measured make about two
BARS = {"of bare getmany": 0.13, "naive evaluators": 6.0}
PEERS_PYTHON = Path(".venv/peers/bin/python")
"""The environment of Quix Streams (`make bench-peers` makes it)."""

Report = dict[str, Any]


class Course:
    """A filled broker on which processes are measured."""

    def __init__(self, broker: Broker, directory: Path, n_pairs: dict[str, int]) -> None:
        self._broker = broker
        self._directory = directory
        self._n_pairs = n_pairs  # by prefix
        self._n_runs = 0

    def run(self, name: str, prefix: str, *, profile: bool = False) -> Report:
        """One process from its start to its end; its report with figures per pair."""
        self._n_runs += 1
        report = self._directory / f"report-{self._n_runs}.json"
        n_pairs = self._n_pairs[prefix]
        command = self._command(name, prefix, n_pairs, report) + ["--profile"] * profile
        n_before = self._n_evaluations(prefix)
        log = self._directory / f"process-{self._n_runs}.log"
        with log.open("wb") as output:
            done = subprocess.run(
                [*pinned(0), *command],
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=CHILD_TIMEOUT_SECONDS,
                check=False,
            )
        if done.returncode or not report.exists():
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
            sys.exit(f"{name} ended with exit code {done.returncode}:\n{tail}")
        n_written = self._n_evaluations(prefix) - n_before
        if name in {"evaluator", LEARNING} and n_written < n_pairs:
            sys.exit(f"{name} wrote {n_written} evaluations of {n_pairs}: it restored a checkpoint")
        measured: Report = json.loads(report.read_text())
        measured["pairs_per_second"] = n_pairs / measured["wall_seconds"]
        measured["cpu_us"] = measured["cpu_seconds"] / n_pairs * 1e6
        second = measured["second_half_cpu_seconds"]
        measured["second_half_cpu_us"] = second / (n_pairs / 2) * 1e6
        measured["stages_us"] = {
            stage: seconds / n_pairs * 1e6 for stage, seconds in measured["stages"].items()
        }
        return measured

    def _command(self, name: str, prefix: str, n_pairs: int, report: Path) -> list[str]:
        group, state_dir = f"bench-{self._n_runs}", self._directory / f"state-{self._n_runs}"
        if name == "streams":
            return java.command(
                bootstrap=self._broker.bootstrap,
                prefix=prefix,
                group=group,
                pairs=n_pairs,
                report=report,
                state_dir=state_dir,
            )
        of_quix = [str(PEERS_PYTHON), "-m", "benchmarks.peers.quix"]
        command = [sys.executable, "-m", "benchmarks.contestants", name]
        command = of_quix if name == "quix" else command
        command += ["--prefix", prefix, "--bootstrap", self._broker.bootstrap]
        command += ["--pairs", str(n_pairs), "--group", group, "--report", str(report)]
        command += ["--state-dir", str(state_dir)]
        if name in {"evaluator", LEARNING}:  # a fingerprint of its own: nothing is restored
            command += ["--http-port", str(free_ports(1)[0])]
            command += ["--skew-ms", str(300_000 + self._n_runs)]
        return command

    def _n_evaluations(self, prefix: str) -> int:
        return asyncio.run(count_records(self._broker.bootstrap, f"{prefix}evaluations"))


def pinned(core: int) -> list[str]:
    """The words before a command that keep it on a core; none on a machine with a single one."""
    return ["taskset", "-c", str(core)] if (os.cpu_count() or 1) > 1 else []


def environment() -> dict[str, str]:
    """What the figures depend on."""
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
    }


def say(text: str) -> None:
    print(text, flush=True)


def check_totals(bootstrap: str, naive: Report, prefix: str) -> int:
    """Compares what both wrote of the same pairs; the number of equal series. Exits if not."""
    expected = {tuple(row[:4]): tuple(row[4:]) for row in naive["totals"]}
    written = asyncio.run(read_totals(bootstrap, prefix))
    if written != expected:
        differing = [
            f"{path}: naive {expected.get(path)}, evaluator {written.get(path)}"
            for path in sorted(expected.keys() | written.keys())
            if expected.get(path) != written.get(path)
        ]
        sys.exit("the totals differ:\n" + "\n".join(differing[:20]))
    return len(expected)


def medians(rounds: list[dict[str, Report]]) -> dict[str, Report]:
    keys = ("pairs_per_second", "wall_seconds", "cpu_us", "second_half_cpu_us", "max_rss_mb")
    return {
        name: {key: statistics.median(one[name][key] for one in rounds) for key in keys}
        for name in rounds[0]
    }


def result_table(result: dict[str, Report]) -> str:
    rows = [
        [
            WORDS[name],
            f"{one['pairs_per_second']:,.0f}",
            f"{1e6 / one['pairs_per_second']:.1f}",
            f"{one['cpu_us']:.1f}",
            f"{one['second_half_cpu_us']:.1f}",
            f"{one['max_rss_mb']:,.0f}",
        ]
        for name, one in result.items()
    ]
    header = ["", "pairs/s", "us per pair", "CPU us per pair", "second half", "max RSS MB"]
    return format_table(header, rows, numbers=range(1, 6))


def arguments_of(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--share", type=int, default=20_000, help="pairs for the naive evaluator")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peers", action="store_true", help="beside stream processors instead")
    parser.add_argument("--profile", action="store_true", help="one more run, stage by stage")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args(argv)


def main() -> None:
    arguments = arguments_of()
    cores = os.cpu_count() or 1
    if cores > 1:
        os.sched_setaffinity(0, {1})  # what is measured has core 0 to itself
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        directory = Path(scratch)
        with Broker(
            directory / "broker",
            cpu=1 if cores > 1 else None,
            heap_mb=1024,
            properties=PATIENT_SESSIONS,
        ) as broker:
            compete(arguments, broker, directory)


def fill(bootstrap: str, seed: int, n_pairs: dict[tuple[str, ...], int]) -> None:
    """Topics under every prefix, with as many pairs as are asked for its group of prefixes."""
    began = time.monotonic()
    for prefixes, n in n_pairs.items():
        world = make_world(n, seed=seed)
        for prefix in prefixes:
            asyncio.run(make_topics(bootstrap, prefix))
            asyncio.run(load(bootstrap, prefix, world))
    say(f"topics filled in {time.monotonic() - began:.0f} s")


def stage_table(profiled: Report) -> str:
    stages = profiled["stages_us"]
    rest = 1e6 / profiled["pairs_per_second"] - sum(stages.values())
    rows = [[stage, f"{cost:.2f}"] for stage, cost in {**stages, "(rest)": rest}.items()]
    return format_table(["stage", "us per pair"], rows, numbers=[1])


def say_ratios(result: dict[str, Report], rounds: list[dict[str, Report]]) -> dict[str, float]:
    """The evaluator beside bare reading, the naive evaluator and itself with learning."""
    speed = {name: one["pairs_per_second"] for name, one in result.items()}
    ratios = {
        "of bare getmany": speed["evaluator"] / speed["getmany"],
        "naive evaluators": speed["evaluator"] / speed["naive"],
    }
    for words, ratio in ratios.items():
        verdict = "reached" if ratio >= BARS[words] else "MISSED"
        say(f"the evaluator's speed is {ratio:.2f} {words} (bar {BARS[words]}: {verdict})")
    cpu = {name: one["cpu_us"] for name, one in result.items()}
    by_cpu = [cpu["getmany"] / cpu["evaluator"], cpu["naive"] / cpu["evaluator"]]
    stored = statistics.median(one["evaluator"]["stages_us"][STORE] for one in rounds)
    share = stored * speed["evaluator"] / 1e6
    say(f"its store takes {stored:.1f} us per pair, {share:.0%} of its time")
    say(f"by CPU time alone: {by_cpu[0]:.2f} of bare getmany, {by_cpu[1]:.2f} naive evaluators")
    beside = statistics.median(
        one[LEARNING]["pairs_per_second"] / one["evaluator"]["pairs_per_second"] for one in rounds
    )
    say(f"with the leader in the same process it has {beside:.2f} of its speed")
    return ratios


def say_peers(result: dict[str, Report]) -> dict[str, float]:
    """CPU per pair of the second half of each, relative to the evaluator's."""
    cpu = {name: one["second_half_cpu_us"] for name, one in result.items()}
    ratios = {WORDS[name]: cpu[name] / cpu["evaluator"] for name in result if name != "evaluator"}
    for words, ratio in ratios.items():
        say(f"CPU per pair of {words}: {ratio:.2f} of the evaluator's")
    return ratios


def compete(arguments: argparse.Namespace, broker: Broker, directory: Path) -> None:
    whole, share, check = "whole.", "share.", "check."
    n_pairs = {whole: arguments.pairs, share: arguments.share, check: arguments.share}
    fill(
        broker.bootstrap,
        arguments.seed,
        {(whole,): arguments.pairs, (share, check): arguments.share},
    )
    course = Course(broker, directory, n_pairs)
    course.run("evaluator", check)
    names = PEERS if arguments.peers else CONTESTANTS
    for name in ("naive", "streams", "quix"):
        if name in names:
            n_series = check_totals(broker.bootstrap, course.run(name, check), check)
            say(f"totals of {arguments.share:,} pairs: {WORDS[name]} has the same {n_series}")
    rounds = []
    for number in range(arguments.rounds):
        prefix_of = {name: share if name in {"naive", "quix"} else whole for name in names}
        rounds.append({name: course.run(name, prefix_of[name]) for name in names})
        speeds = [f"{name} {rounds[-1][name]['pairs_per_second']:,.0f}" for name in names]
        say(f"round {number + 1}: " + ", ".join(speeds) + " pairs/s")
    result = medians(rounds)
    say("\n" + result_table(result) + "\n")
    ratios = say_peers(result) if arguments.peers else say_ratios(result, rounds)
    load_after = os.getloadavg()[0]
    if load_after > BUSY_LOAD:
        say(f"the load average is {load_after:.1f}: other programs compete, wall time says little")
    stages = {}
    if arguments.profile:
        profiled = course.run("evaluator", whole, profile=True)
        stages = profiled["stages_us"]
        say("\n" + stage_table(profiled))
    about = environment()
    say("\n" + format_table(["environment", ""], [list(pair) for pair in about.items()]))
    if arguments.json:
        figures = {
            "pairs": n_pairs[whole],
            "share": n_pairs[share],
            "medians": result,
            "ratios": ratios,
            "stages_us": stages,
            "rounds": rounds,
            "environment": about,
        }
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
