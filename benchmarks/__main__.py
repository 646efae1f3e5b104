"""`make bench`: CPU time per pair on a real Apache Kafka, compared with bare reading and other
programs.

One program after the other, in rounds; medians over the rounds. The figure to compare is the CPU
time per pair in the second half of a run, when start-up is over and queries settle.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from benchmarks.contestants import STORE
from benchmarks.course import (
    WITHOUT_ALARMS,
    WORDS,
    Course,
    Load,
    Report,
    course,
    kept,
    medians,
    result_table,
    say,
    write_json,
)
from benchmarks.topics import TRAFFIC
from evaluator.tables import format_table

ALONE = ("getmany", "evaluator", WITHOUT_ALARMS)
PEERS = (*ALONE, "streams")
SLOW = ("naive", "quix")
"""Programs that run on a share of the pairs, as they take much longer."""
MOST_OF_GETMANY, LEAST_OF_STREAMS = 4.0, 1.4
"""Limits of the CPU time per pair relative to bare reading, and of Kafka Streams relative to it."""


def arguments_of(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--pairs", type=int, nargs="+", default=[200_000, 400_000])
    parser.add_argument("--share", type=int, default=20_000, help="pairs for slow programs")
    parser.add_argument("--traffic", nargs="+", choices=list(TRAFFIC), default=list(TRAFFIC))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peers", action="store_true", help="beside stream processors")
    parser.add_argument("--without", nargs="+", choices=[*SLOW, "streams"], default=[])
    parser.add_argument("--profile", action="store_true", help="one more run, stage by stage")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args(argv)


def main() -> None:
    arguments = arguments_of()
    left_out = set(arguments.without)
    slow = [name for name in (SLOW if arguments.peers else SLOW[:1]) if name not in left_out]
    fast = [name for name in (PEERS if arguments.peers else ALONE) if name not in left_out]
    figures = {}
    with course() as here:
        checked = [*slow, *(name for name in fast if name not in ALONE)]
        check(here, Load("check.", arguments.share), checked, arguments.seed)
        if slow:
            load = Load("share.", arguments.share)
            figures[f"plain, {arguments.share:,} pairs"] = compete(here, load, slow, arguments)
        for traffic in arguments.traffic:
            for n_pairs in arguments.pairs:
                name = f"{traffic}, {n_pairs:,} pairs"
                say(f"{name}: {TRAFFIC[traffic]}")
                load = Load(f"{traffic}-{n_pairs}.", n_pairs, traffic)
                figures[name] = compete(here, load, fast, arguments)
    write_json(arguments.json, figures)


def check(here: Course, load: Load, names: list[str], seed: int) -> None:
    """All programs must find the same totals, to the last bit, or the benchmark ends."""
    here.fill([load], seed=seed)
    here.run("evaluator", load)
    for name in names:
        here.check_totals(name, load)


def compete(
    here: Course, load: Load, names: list[str], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Rounds of these programs on one load."""
    here.fill([load], seed=arguments.seed)
    rounds: list[dict[str, Report]] = []
    for number in range(arguments.rounds):
        rounds.append({name: here.run(name, load) for name in names})
        cpu = [f"{name} {rounds[-1][name]['second_half_cpu_us']:.1f}" for name in names]
        say(f"round {number + 1}: " + ", ".join(cpu) + " us")
    result = medians(rounds)
    say("\n" + result_table(result) + "\n")
    found = {"medians": result, "rounds": kept(rounds)}
    if "evaluator" not in names:
        return found
    ratios = say_ratios(rounds)
    stored = statistics.median(one["evaluator"]["stages_us"][STORE] for one in rounds)
    say(f"its store takes {stored:.1f} us per pair\n")
    if arguments.profile:
        say(stage_table(here.run("evaluator", load, profile=True)) + "\n")
    return {**found, "ratios": ratios, "store_us": stored}


def say_ratios(rounds: list[dict[str, Report]]) -> dict[str, dict[str, float]]:
    """CPU time per pair of second halves: medians over the rounds of ratios within a round.

    Of the evaluator as it is, and without alarms, which the other jobs do not have.
    """
    ratios: dict[str, dict[str, float]] = {}
    for ours in ("evaluator", WITHOUT_ALARMS):
        for name in [name for name in rounds[0] if name not in {"evaluator", WITHOUT_ALARMS}]:
            within = [
                one[ours]["second_half_cpu_us"] / one[name]["second_half_cpu_us"] for one in rounds
            ]
            ratio = statistics.median(within)
            ratios[f"{ours}, {name}"] = {"median": ratio, "least": min(within), "most": max(within)}
            spread = f"{min(within):.2f} to {max(within):.2f}"
            share = f"{ratio:.2f} of the CPU of {WORDS[name]}"
            say(f"{WORDS[ours]} takes {share} ({spread})")
        verdicts = [ratios[f"{ours}, getmany"]["median"] <= MOST_OF_GETMANY]
        if "streams" in rounds[0]:
            verdicts.append(1 / ratios[f"{ours}, streams"]["median"] >= LEAST_OF_STREAMS)
        say("targets " + ", ".join("reached" if verdict else "MISSED" for verdict in verdicts))
    return ratios


def stage_table(profiled: Report) -> str:
    stages = profiled["stages_us"]
    rest = 1e6 / profiled["pairs_per_second"] - sum(stages.values())
    rows = [[stage, f"{cost:.2f}"] for stage, cost in {**stages, "(rest)": rest}.items()]
    return format_table(["stage", "us per pair"], rows, numbers=[1])


if __name__ == "__main__":
    main()
