"""The kernel compared with pytrec_eval and ranx: queries per second, interleaved in one run.

`python -m benchmarks.kernel` (`make bench-kernel`). Every contestant measures the same queries once
per round, in rounds; medians over the rounds. Values are compared before the measurement.
"""

import argparse
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytrec_eval

import evaluator
from benchmarks.late import Late
from evaluator.config.measures import parse_measures
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.library.measuring import Rules, measured_arrays
from evaluator.tables import format_table

N_CANDIDATES = 20
BATCH = 1_024
OURS = ["ndcg@10", "map@10", "mrr", "p@1"]
TREC = {
    "ndcg_cut.10": "ndcg_cut_10",
    "map_cut.10": "map_cut_10",
    "recip_rank": "recip_rank",
    "P.1": "P_1",
}
RANX = ["ndcg_burges@10", "map@10", "mrr", "precision@1"]
ARRAYS, LISTS, DICTS = "evaluator, ready arrays", "evaluator, Python lists", "evaluator, dicts"
TREC_DICTS, RANX_DICTS, RANX_ARRAYS = "pytrec_eval, dicts", "ranx, dicts", "ranx, ready arrays"
BARS = {ARRAYS: 6.0, LISTS: 3.0}
"""Targets, in multiples of the speed of pytrec_eval."""
LATE_BAR = 0.4

Means = list[float]
Contestant = Callable[[], Any]
"""Measures all queries once; returns a result from which the four means follow."""


class World:
    """The same queries in every form. Grades 0 to 4 for the first *n_judged* candidates."""

    def __init__(self, n_queries: int, n_judged: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.scores = rng.random((n_queries, N_CANDIDATES))
        self.grades = rng.integers(0, 5, (n_queries, N_CANDIDATES)).astype(float)
        self.grades[:, n_judged:] = np.nan
        self.score_lists = self.scores.tolist()
        self.grade_lists = self.grades.tolist()
        names = [f"d{number:05d}" for number in range(10_000)]
        firsts = rng.integers(0, len(names) - N_CANDIDATES, n_queries).tolist()
        self.run, self.qrels = {}, {}
        for query, first in enumerate(firsts):
            ids = names[first : first + N_CANDIDATES]
            self.run[f"q{query}"] = dict(zip(ids, self.score_lists[query], strict=True))
            grades = map(int, self.grade_lists[query][:n_judged])
            self.qrels[f"q{query}"] = dict(zip(ids[:n_judged], grades, strict=True))

    def __len__(self) -> int:
        return len(self.scores)


def rules_of_a_worker() -> Rules:
    return Rules(
        measures=parse_measures(OURS), empty="zero", missing="skip", ties="id", judged_only=False
    )


def contestants(world: World) -> dict[str, Contestant]:
    """By name: measures all queries, once. From dicts both give dicts of values by query.

    The qrels of pytrec_eval are read before the measured time; ours are read each time.
    """
    asked = rules_of_a_worker()

    def ready_arrays() -> Any:
        units = [
            measured_arrays(
                world.grades[first : first + BATCH], world.scores[first : first + BATCH], asked
            ).units
            for first in range(0, len(world), BATCH)
        ]
        return np.concatenate(units)

    trec = pytrec_eval.RelevanceEvaluator(exponential(world.qrels), set(TREC))

    return {
        ARRAYS: ready_arrays,
        LISTS: lambda: evaluator.evaluate(world.grade_lists, world.score_lists, OURS),
        DICTS: lambda: evaluator.evaluate(world.qrels, world.run, OURS).per_query,
        TREC_DICTS: lambda: trec.evaluate(world.run),
        **ranx_contestants(world),
    }


def exponential(qrels: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Gains instead of grades: pytrec_eval's own gain is the number itself."""
    return {
        query: {name: (1 << grade) - 1 for name, grade in grades.items()}
        for query, grades in qrels.items()
    }


def ranx_contestants(world: World) -> dict[str, Contestant]:
    """None if ranx is not installed."""
    try:
        import ranx  # noqa: PLC0415 - it takes seconds, and may not be there
        from numba.typed import List  # noqa: PLC0415 - the same
    except ImportError:
        print("ranx is not installed (make .venv/.compare), so it is left out")
        return {}

    def ranx_dicts() -> Means:
        found = ranx.evaluate(ranx.Qrels(world.qrels), ranx.Run(world.run), RANX)
        return [float(found[name]) for name in RANX]

    ids = np.arange(N_CANDIDATES, dtype=float)
    qrels, run = List(), List()
    for grades, scores in zip(world.grades, world.scores, strict=True):
        judged = np.argsort(-grades)[: np.count_nonzero(grades >= 0)]  # best first
        qrels.append(np.column_stack((ids[judged], grades[judged])))
        order = np.argsort(-scores)
        run.append(np.column_stack((ids[order], scores[order])))

    def ranx_arrays() -> Means:
        found = ranx.evaluate(qrels, run, RANX)
        return [float(found[name]) for name in RANX]

    return {RANX_DICTS: ranx_dicts, RANX_ARRAYS: ranx_arrays}


def means_of(found: Any) -> Means:
    """The means of any result of a contestant."""
    if isinstance(found, evaluator.Measured):
        return [mean or 0.0 for mean in found.mean.values()]
    if isinstance(found, np.ndarray):
        return (found.mean(axis=0) / UNITS_PER_ONE).tolist()
    if isinstance(found, list):
        return found
    names = OURS if OURS[0] in next(iter(found.values())) else TREC.values()
    return [statistics.fmean(one[name] for one in found.values()) for name in names]


def seconds_of(measure: Contestant) -> float:
    gc.collect()
    began = time.perf_counter()
    measure()
    return time.perf_counter() - began


def check_equal(measures: dict[str, Contestant]) -> None:
    """Also warms up all contestants, compilers included."""
    expected = means_of(measures[ARRAYS]())
    for name, measure in measures.items():
        found = means_of(measure())
        if not np.allclose(found, expected, atol=1e-6):
            sys.exit(f"{name} finds {found}, the kernel {expected}")


def compete(n_queries: int, n_judged: int, n_rounds: int, seed: int) -> dict[str, float]:
    """Queries per second of each contestant: medians over the rounds."""
    measures = contestants(World(n_queries, n_judged, seed))
    check_equal(measures)
    gc.freeze()
    rounds = [{name: seconds_of(one) for name, one in measures.items()} for _ in range(n_rounds)]
    gc.unfreeze()
    return {name: n_queries / statistics.median(one[name] for one in rounds) for name in measures}


def told(speeds: dict[str, float]) -> str:
    rows = [
        [name, f"{speed:,.0f}", f"{1e6 / speed:.2f}", f"{speed / speeds[TREC_DICTS]:.2f}"]
        for name, speed in speeds.items()
    ]
    header = ["", "queries/s", "us per query", "times pytrec_eval"]
    return format_table(header, rows, numbers=range(1, 4))


def verdicts(speeds: dict[str, float]) -> None:
    for name, bar in BARS.items():
        ratio = speeds[name] / speeds[TREC_DICTS]
        verdict = "reached" if ratio >= bar else "MISSED"
        print(f"{name}: {ratio:.1f} times pytrec_eval (bar {bar:.0f}: {verdict})")


def import_times(n_rounds: int) -> dict[str, float]:
    """Median CPU seconds of a new interpreter for each program, less those of an empty one."""
    programs = {
        "nothing": "",
        "import numpy": "import numpy",
        "import evaluator": "import evaluator",
        "evaluate": "import evaluator; evaluator.evaluate",
    }
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(max(n_rounds, 3)):
        for name, program in programs.items():
            start = _children_seconds()
            subprocess.run([sys.executable, "-c", program], check=True)
            taken[name].append(_children_seconds() - start)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    return {name: medians[name] - medians["nothing"] for name in programs if name != "nothing"}


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    warnings.simplefilter("ignore")  # ranx casts more than it should
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel", description=__doc__)
    parser.add_argument("--queries", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    for n_judged in (N_CANDIDATES, 5):
        speeds = compete(arguments.queries, n_judged, arguments.rounds, arguments.seed)
        figures[f"{n_judged} judged"] = speeds
        print(f"\n{arguments.queries:,} queries of {N_CANDIDATES} candidates, {n_judged} judged")
        print(told(speeds) + "\n")
        verdicts(speeds)
    late = Late(n_queries=BATCH, n_rounds=max(arguments.rounds, 3) * 3, seed=arguments.seed)
    figures["late"] = late.report(LATE_BAR)
    figures["import seconds"] = import_times(arguments.rounds)
    for name, seconds in figures["import seconds"].items():
        print(f"{name}: {seconds * 1e3:.0f} ms of CPU in a new interpreter")
    names = ("numpy", "pytrec-eval-terrier")
    print(
        f"\n{os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in names)
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
