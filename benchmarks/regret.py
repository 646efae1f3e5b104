"""The leader on a seeded world: regret of the live weights, and the time until they catch up.

`python -m benchmarks.regret`. Queries settle one after the other; the champion's weights serve, the
leader learns, tries and promotes as `evaluator run --set learning=auto` does. Halfway the true
weights of the world change.
"""

import argparse
import os
import platform
import time
from collections.abc import Iterator

import numpy as np

from evaluator.cli.leader import rules_of
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.online.events import LIVE
from evaluator.core.online.offline_ranking import OfflineRanking, Ranked
from evaluator.core.online.online_learner import OnlineLearner
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.tables import format_table

N_CANDIDATES, NAMES = 20, ("a", "b", "c", "d")
TRUTHS = np.array([[1.0, -2.0, 0.5, 0.25], [-0.5, 1.0, 2.0, 0.25]])
"""Before and after the change."""
UNITS = np.array([1.0, 100.0, 0.01, 10.0])
GRADES = (2.0, 1.0, 1.0)
MEASURE = "ndcg@10"
HELD_OUT = 4_000
WIDEST = 0.01
"""Regret below which the live weights have caught up."""


def queries(
    n: int,
    first: int,
    truth: np.ndarray,
    rng: np.random.Generator,
    every_ms: int = 1_000,
    served: float = 0.25,
) -> list[SettledQuery]:
    """Settled ones; the three best by a linear utility with noise have grades."""
    features = rng.normal(size=(n, N_CANDIDATES, len(NAMES)))
    features += rng.normal(size=(n, 1, len(NAMES)))
    utility = features @ truth + rng.normal(size=(n, N_CANDIDATES))
    best = np.argsort(-utility, axis=1)[:, : len(GRADES)].tolist()
    ids = [f"c{i}" for i in range(N_CANDIDATES)]
    rounded = features * UNITS
    return [
        SettledQuery(
            task=0,
            n=first + i,
            settled_time_ms=(first + i) * every_ms + 3_600_000,
            event_time_ms=(first + i) * every_ms,
            trace_id=f"t{first + i:08d}",
            node_id="n",
            model="m",
            grades={ids[place]: grade for place, grade in zip(best[i], GRADES, strict=True)},
            units={"served": {MEASURE: round(served * UNITS_PER_ONE)}},
            sources={"human": 1},
            candidate_ids=ids,
            feature_names=NAMES,
            features=rounded[i],
            propensities=None,
        )
        for i in range(n)
    ]


def mean_of(
    offline_ranking: OfflineRanking, asked: list[SettledQuery], weights: tuple[float, ...]
) -> float:
    column = offline_ranking.measures.columns[MEASURE]
    ranked = Ranked(range(len(asked)), [query.features for query in asked], weights)
    units = offline_ranking.units_of(asked, [ranked])[0, :, column]
    return float(units.mean() / UNITS_PER_ONE)


def stream(asked: argparse.Namespace) -> Iterator[list[SettledQuery]]:
    rng = np.random.default_rng(asked.seed)
    for first in range(0, asked.queries, 500):
        truth = TRUTHS[int(first >= asked.change_at)]
        yield queries(500, first, truth, rng, asked.every_ms, asked.served)


def live(settings: Settings, asked: argparse.Namespace) -> tuple[list[list[str]], float]:
    """Rows of a table, and microseconds of the leader per query."""
    n, change_at = asked.queries, asked.change_at
    rules = rules_of(settings, measure_set(settings))
    offline_ranking = rules.offline_ranking
    held_out = [
        queries(HELD_OUT, 0, truth, np.random.default_rng(asked.seed + 1 + i))
        for i, truth in enumerate(TRUTHS)
    ]
    optimum = [
        mean_of(offline_ranking, of_world, tuple((truth / UNITS).tolist()))
        for of_world, truth in zip(held_out, TRUTHS, strict=True)
    ]
    leader = OnlineLearner(rules, n_tasks=1)
    champion, rows, seconds, seen = (0.0,) * len(NAMES), [], 0.0, 0
    caught_up = [0, 0]
    looks = {1_000, 10_000, 100_000, change_at, change_at + 1_000, change_at + 10_000, n}
    for batch in stream(asked):
        began = time.perf_counter()
        turned = leader.receive(batch)
        seconds += time.perf_counter() - began
        seen += len(batch)
        world = int(seen > change_at)
        promoted = [r for each in turned for r in each.releases if r.status in LIVE]
        if promoted:
            champion = promoted[-1].weights
        ended = [r for each in turned for r in each.releases if r.evidence]
        if ended or seen in looks:
            found = mean_of(offline_ranking, held_out[world], champion)
            learner = leader.model_learners["m"].training.learner
            learned = rules.learner.snapshot(learner) if learner and learner.scale else champion
            best = optimum[world]
            if best - found < WIDEST and not caught_up[world]:
                caught_up[world] = seen - world * change_at
            rows.append(
                [
                    f"{seen:,}",
                    "".join(r.reason or r.status for r in ended[-1:]),
                    *(f"{value:.4f}" for value in (best, found, best - found)),
                    f"{best - mean_of(offline_ranking, held_out[world], learned):.4f}",
                ]
            )
    for world, what in enumerate(("from nothing", "after the change")):
        print(
            f"{what}: live weights within {WIDEST} of the best after {caught_up[world]:,} queries"
        )
    return rows, seconds / n * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=200_000)
    parser.add_argument("--change-at", type=int, default=100_000)
    parser.add_argument("--every-ms", type=int, default=1_000, help="event time between queries")
    parser.add_argument("--served", type=float, default=0.25, help="value of the served order")
    parser.add_argument("--gate", default="standard")
    parser.add_argument("--max-age-ms", type=int, help="of an experiment; without it the gate's")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    settings = Settings(
        learning="auto",
        gate=asked.gate,
        gate_max_age_ms=asked.max_age_ms,
        source_weights=(("human", 1.0),),
    )
    rows, cost_us = live(settings, asked)
    header = ["queries", "", "best", "live", "regret", "regret of what is learned"]
    print(format_table(header, rows, numbers=range(2, 6)))
    print(f"\nthe leader takes {cost_us:.1f} us per query")
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}")


if __name__ == "__main__":
    main()
