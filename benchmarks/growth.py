"""`make bench-growth`: how CPU time per pair grows with candidates, measures, scorers and more.

Each case changes one thing of the usual traffic. All cases take turns within a round, each with
bare reading of the same topics; medians over the rounds.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.course import Course, Load, Report, course, kept, medians, say, write_json
from benchmarks.world import USUAL, Shape
from evaluator.tables import format_table

MEASURES = ("p", "r", "f1", "ndcg", "map", "hit")
CUTOFFS = (1, 3, 5, 10, 20)
THIRTY_MEASURES = ",".join(f"{measure}@{k}" for measure in MEASURES for k in CUTOFFS)


class Case(NamedTuple):
    """One change of the usual traffic or settings."""

    axis: str
    value: str
    shape: Shape = USUAL
    settings: tuple[str, ...] = ()
    n_workers: int = 1
    form: str = ""
    """The foreign format in which the pairs arrive."""
    share: float = 1.0
    """Share of the pairs, for cases whose pairs cost much more."""


CASES = (
    Case("candidates", "5", Shape(candidates=5)),
    Case("candidates", "20"),
    Case("candidates", "100", Shape(candidates=100), share=0.25),
    Case("candidates", "1,000", Shape(candidates=1_000), share=0.04),
    Case("measures", "5"),
    Case("measures", "30", settings=(f"measures={THIRTY_MEASURES}",)),
    Case("scorers", "0", Shape(scorers=())),
    Case("scorers", "3", Shape(scorers=("bm25", "clicks", "price"))),
    Case("model and variant", "1", Shape(variants=("prod",))),
    Case("model and variant", "400", Shape(variants=tuple(f"v{n}" for n in range(400)))),
    Case("alarms", "on"),
    Case("alarms", "off", settings=("alarms=off",)),
    Case("learning", "off"),
    Case("learning", "propose", settings=("learning=propose",)),
    Case("format", "canonical"),
    Case("format", "JSON", form="json"),
    Case("format", "Avro", form="avro"),
    Case("format", "Protobuf", form="protobuf"),
    Case("workers", "1"),
    Case("workers", "2", n_workers=2),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--axis", choices=sorted({case.axis for case in CASES}), help="only this")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    cases = [case for case in CASES if arguments.axis in {None, case.axis}]
    shapes = {(case.shape, case.form): case.share for case in cases}
    shapes[USUAL, ""] = 1.0
    loads = {
        of: Load(f"shape-{number}.", int(share * arguments.pairs), shape=of[0], form=of[1])
        for number, (of, share) in enumerate(shapes.items())
    }
    with course() as here:
        here.fill(loads.values(), seed=arguments.seed)
        rounds = []
        for number in range(arguments.rounds):
            rounds.append(measure(here, loads, cases))
            say(f"round {number + 1} of {arguments.rounds}")
    rows = table(rounds, cases)
    header = ["", "", "CPU us per pair", "of bare getmany"]
    say("\n" + format_table(header, [list(row) for row in rows], numbers=[2, 3]))
    figures = {"growth": rows, "pairs": arguments.pairs, "rounds": kept(rounds)}
    write_json(arguments.json, figures)


def measure(
    here: Course, loads: dict[tuple[Shape, str], Load], cases: Sequence[Case]
) -> dict[str, Report]:
    """One round: bare reading of every shape, then every case that differs from the others."""
    found = {load.prefix: here.run("getmany", load) for load in loads.values()}
    usual = None
    for case in cases:
        if case[2:] == CASES[1][2:]:  # the usual traffic is measured once
            usual = usual or here.run("evaluator", loads[USUAL, ""])
            found[_name(case)] = usual
        else:
            found[_name(case)] = here.run(
                "evaluator",
                loads[case.shape, case.form],
                settings=case.settings,
                n_workers=case.n_workers,
            )
        found[f"{_name(case)} bare"] = found[loads[case.shape, case.form].prefix]
    return found


def table(
    rounds: list[dict[str, Report]], cases: Sequence[Case]
) -> list[tuple[str, str, str, str]]:
    """Axis, value, CPU time per pair, and that relative to bare reading.

    Two workers share the pairs, so neither has a second half, and a leader learns from many pairs
    of the first half during the second one: their figures are of the whole run.
    """
    result, rows = medians(rounds), []
    for case in cases:
        key = "cpu_us" if case.axis in {"workers", "learning"} else "second_half_cpu_us"
        ratio = statistics.median(
            one[_name(case)][key] / one[f"{_name(case)} bare"][key] for one in rounds
        )
        rows.append((case.axis, case.value, f"{result[_name(case)][key]:.1f}", f"{ratio:.1f}"))
    return rows


def _name(case: Case) -> str:
    return f"{case.axis} {case.value}"


if __name__ == "__main__":
    main()
