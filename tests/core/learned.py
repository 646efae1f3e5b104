"""A seeded world of settled queries in several tasks; grades are linear in the features."""

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np

from evaluator.core.learning.groups import prepared
from evaluator.core.learning.learner import Learner
from evaluator.core.learning.losses import loss_of
from evaluator.core.measures import MeasureSet
from evaluator.core.online.events import Release
from evaluator.core.online.offline_ranking import OfflineRanking, Ranked
from evaluator.core.online.online_learner import IntervalResult, OnlineLearner
from evaluator.core.online.ordered_merge import PLACE, SettledQuery
from evaluator.core.online.rules import Rules
from evaluator.core.promotion.gate import GateRules
from evaluator.core.types.records import WatermarkRecord

N_TASKS = 3
MATURITY_MS = 60_000
INTERVAL_MS = 60_000
NAMES = ("phi_a", "phi_b", "phi_c")
OTHERS = ("phi_a", "phi_b", "phi_x")
TRUTH = (1.0, -2.0, 0.5)
MEASURES = ("ndcg@10", "mrr")

Record = SettledQuery | tuple[int, WatermarkRecord]


def rules(**changes) -> Rules:
    gate = {"block_ms": 5_000, "min_traces": 50, "min_age_ms": 0, "cool_down_ms": 0}
    gate |= changes.pop("gate", {})
    made = {
        "mode": "auto",
        "learner": Learner(scale="within_query", schedule="inv_sqrt"),
        "batch_queries": 4,
        "offline_ranking": OfflineRanking(MeasureSet.parse(MEASURES)),
        "learning_interval_ms": INTERVAL_MS,
        **changes,
    }
    return Rules(gate=GateRules("ndcg@10", **gate), **made)


def settled_query(i: int, random: Random, *, truth=TRUTH, noise=0.3, **changes) -> SettledQuery:
    """A settled query of each second: the best two of five are relevant; the order is random."""
    task = random.randrange(N_TASKS)
    features = np.array([[round(random.gauss(0, 1), 3) for _ in NAMES] for _ in range(5)])
    worth = features @ np.array(truth) + [random.gauss(0, noise) for _ in range(5)]
    ids = [f"c{k}" for k in range(5)]
    order = np.argsort(-worth).tolist()
    grades = {ids[order[0]]: 2.0, ids[order[1]]: 1.0}
    best = random.randrange(5) + 1
    made = {
        "task": task,
        "n": -1,
        "settled_time_ms": 1_000 * i + MATURITY_MS,
        "event_time_ms": 1_000 * i,
        "trace_id": f"t-{i // 2}",
        "node_id": f"n-{i % 2}",
        "model": "m",
        "grades": grades,
        "units": {"served": {"ndcg@10": (1 << 40) // best, "mrr": (1 << 40) // best}},
        "sources": {"human": 1},
        "candidate_ids": ids,
        "feature_names": NAMES,
        "features": features,
        "propensities": None,
        **changes,
    }
    return SettledQuery(**made)


def numbered(queries: Sequence[SettledQuery]) -> list[SettledQuery]:
    """The queries in merged order, each with its number in its task."""
    ns = [0] * N_TASKS
    made = []
    for query in sorted(queries, key=PLACE):
        made.append(query._replace(n=ns[query.task]))
        ns[query.task] += 1
    return made


def world(seed: int, n_queries: int = 600, **how) -> list[SettledQuery]:
    random = Random(seed)
    return numbered([settled_query(i, random, **how) for i in range(n_queries)])


def parts(queries: Sequence[SettledQuery]) -> list[list[Record]]:
    """The partitions of `settled`, with a watermark record at the end of each."""
    end_ms = queries[-1].settled_time_ms + 1
    made: list[list[Record]] = []
    for task in range(N_TASKS):
        mine: list[Record] = [query for query in queries if query.task == task]
        made.append([*mine, (task, WatermarkRecord(end_ms, len(mine)))])
    return made


def interleaved(queries: Sequence[SettledQuery], random: Random) -> Iterator[list[Record]]:
    """The same records in batches, with the partitions in random order."""
    left = parts(queries)
    while any(left):
        batch: list[Record] = []
        for _ in range(random.choice((1, 2, 7, 40))):
            task = random.choice([task for task, part in enumerate(left) if part] or [0])
            n = random.choice((1, 1, 3, 20))
            batch += left[task][:n]
            left[task] = left[task][n:]
        yield batch


def run(
    queries: Sequence[SettledQuery], made: Rules, random: Random | None = None
) -> list[IntervalResult]:
    """All intervals of a world, including the last one."""
    leader = OnlineLearner(made, n_tasks=N_TASKS)
    intervals = [
        each
        for batch in interleaved(queries, random or Random(0))
        for each in leader.receive(batch)
    ]
    return [*intervals, *leader.end()]


def releases(intervals: Sequence[IntervalResult]) -> list[Release]:
    return [release for each in intervals for release in each.releases]


def statuses(results_by_interval):
    return [release.status for release in releases(results_by_interval)]


def units_of(offline_ranking: OfflineRanking, queries, weights):
    """The values of queries ranked by these weights, `[n_queries, n_measures]`."""
    features = [query.features for query in queries]
    return offline_ranking.units_of(queries, [Ranked(range(len(queries)), features, weights)])[0]


def step(learner: Learner, state, groups):
    """Learns from one batch of padded groups."""
    if not len(groups):
        return state, []
    loss = loss_of(learner.loss, label_mode=learner.label_mode)
    scaled = learner.scale != "none"
    return learner.learn(state, prepared(groups, len(groups), loss=loss, scaled=scaled))
