"""A seeded world of settled queries in several tasks, in which the values of one level fall."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from random import Random

import numpy as np

from evaluator.core.alarms.rules import AlarmRules
from evaluator.core.online.alarm_watch import AlarmWatch, WatchResult
from evaluator.core.online.ordered_merge import PLACE, SettledQuery
from evaluator.core.online.watched import WatchRules
from evaluator.core.types.records import WatermarkRecord
from evaluator.wire.outputs.settled import watched_of
from tests.core.alarms.worlds import FIRST, ONE

N_TASKS = 3
MATURITY_MS = 3_600_000
HOUR_MS = 3_600_000
START_MS = FIRST * HOUR_MS
HOURS = 2 * 168 + 40
DROP_HOUR = 2 * 168 + 9

RULES = WatchRules(
    alarms=AlarmRules(),
    measures=("ndcg@10",),
    levels=(("locale", "de"), ("locale", "fr")),
    pairs=(("served", "bm25"),),
    objectives=(("ndcg@10", 0.55),),
    maturity_ms=MATURITY_MS,
)


def settled_world(
    seed: int, *, per_hour: int = 16, hours: int = HOURS, drop_hour: int = DROP_HOUR
) -> list[SettledQuery]:
    """Queries in merged order. From *drop_hour* on, the served order of `de` is worse."""
    random = Random(seed)
    queries = []
    for hour in range(hours):
        for number in range(per_hour):
            event_ms = START_MS + hour * HOUR_MS + random.randrange(HOUR_MS)
            locale = "de" if random.random() < 0.5 else "fr"
            noise = random.gauss(0, 0.04)
            drop = 0.3 if hour >= drop_hour and locale == "de" else 0.0
            values = {"served": 0.6 + noise - drop, "bm25": 0.5 + noise}
            units = {ranker: {"ndcg@10": round(value * ONE)} for ranker, value in values.items()}
            judged = random.random() < 0.9
            queries.append(
                SettledQuery(
                    task=random.randrange(N_TASKS),
                    n=-1,
                    settled_time_ms=event_ms + MATURITY_MS,
                    event_time_ms=event_ms,
                    trace_id=f"t-{hour}-{number // 2}",
                    node_id=f"n-{number}",
                    model="m",
                    grades={"a": 1.0} if judged else {},
                    units=units if judged else {},
                    sources={},
                    candidate_ids=[],
                    feature_names=None,
                    features=np.zeros((0, 0)),
                    propensities=None,
                    variant="prod",
                    segments={"locale": locale},
                )
            )
    queries.sort(key=PLACE)
    ns, offsets = [0] * N_TASKS, [0] * N_TASKS
    numbered = []
    for query in queries:
        numbered.append(query._replace(n=ns[query.task], offset=offsets[query.task]))
        ns[query.task] += 1
        offsets[query.task] += 1
    return numbered


def receive(
    watch: AlarmWatch,
    batch: Sequence[SettledQuery | tuple[int, WatermarkRecord]],
    result: WatchResult,
    rules: WatchRules = RULES,
) -> None:
    """Passes records of several tasks to a watch, in order."""
    for task, run in groupby(batch, lambda of: getattr(of, "task", of[0])):
        records = list(run)
        found = watched_of(records, range(len(records)), rules.columns())
        watch.receive(task, [each if len(each) > 2 else each[1] for each in found], result)


def batches(
    queries: Sequence[SettledQuery], seed: int, *, most: int = 300
) -> Iterator[list[SettledQuery | tuple[int, WatermarkRecord]]]:
    """The records of all tasks, with the partitions in random order and a watermark at each end."""
    random = Random(seed)
    end_ms = queries[-1].settled_time_ms + 1
    left = []
    for task in range(N_TASKS):
        mine = [query for query in queries if query.task == task]
        left.append([*mine, (task, WatermarkRecord(end_ms, len(mine)))])
    while any(left):
        part = random.choice([part for part in left if part])
        n = random.choice((1, 5, most))
        yield part[:n]
        del part[:n]
