"""One late judgment in the worker, compared with processing its query again.

Late: one more judgment, of one grade, of an open query with a judgment of five grades. Again: the
query in another engine, with its final grades: its ranking, and one judgment of all six grades.
Both are `Engine.receive`, from decoded batches to evaluations: match, merge, measure, change the
sums; the second also ranks and stores. Decoding is measured separately. CPU time per query, in
batches, with the thresholds of the worker's garbage collector.
"""

import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from evaluator.cli.live import GC_THRESHOLD
from evaluator.core.engine.engine import Engine
from evaluator.core.join.rules import JoinRules
from evaluator.core.measures import MeasureSet
from evaluator.core.types.records import Log
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.wire.records import Records

MEASURES = ["ndcg@10", "map@10", "mrr", "p@1"]
DAY_MS = 86_400_000


class Batch(NamedTuple):
    """Messages about the same queries, in the same order."""

    rankings: list[bytes]
    first: list[bytes]  # judgments of five grades
    late: list[bytes]  # of one more
    whole: list[bytes]  # of all six


class Seconds(NamedTuple):
    """CPU time that a batch took."""

    again: float
    late: float
    decode_again: float
    decode_late: float


class Late:
    """Batches of queries of 20 candidates; no query stands in two of them."""

    def __init__(self, *, n_queries: int, n_rounds: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._n_queries = n_queries
        self._batches = [make_batch(number, n_queries, rng) for number in range(n_rounds + 1)]

    def seconds(self) -> Iterator[Seconds]:
        """Of each batch but the first one, which warms up."""
        held, anew = new_engine(), new_engine()
        for number, batch in enumerate(self._batches):
            receive(held, "rankings", batch.rankings)
            receive(held, "judgments", batch.first)
            late = receive(held, "judgments", batch.late)
            ranked = receive(anew, "rankings", batch.rankings)
            judged = receive(anew, "judgments", batch.whole)
            if number:
                yield Seconds(ranked[1] + judged[1], late[1], ranked[0] + judged[0], late[0])
        if running(held) != running(anew):
            sys.exit("late judgments lead to other sums than measuring again")

    def report(self, bar: float) -> dict[str, float]:
        """Prints the medians and gives them."""
        thresholds = gc.get_threshold()
        gc.set_threshold(*GC_THRESHOLD)
        columns = zip(*self.seconds(), strict=True)
        found = Seconds(*(statistics.median(one) / self._n_queries * 1e6 for one in columns))
        gc.set_threshold(*thresholds)
        again, late = found.again + found.decode_again, found.late + found.decode_late
        ratio = found.late / found.again
        verdict = "reached" if ratio <= bar else "MISSED"
        print(
            f"\nmeasuring a query again {found.again:.2f} us, one late judgment "
            f"{found.late:.2f} us: {ratio:.2f} of it (bar {bar:.2f}: {verdict}); "
            f"with decoding {again:.2f} and {late:.2f} us: {late / again:.2f}"
        )
        return {f"{name}_us": value for name, value in found._asdict().items()}


def running(engine: Engine) -> dict[tuple[str, ...], int]:
    """The running sums."""
    return {path: value for path, value in engine.tally().items() if path[0] == "running"}


def make_batch(number: int, n_queries: int, rng: np.random.Generator) -> Batch:
    names = [f"d{name:05d}" for name in range(10_000)]
    batch = Batch([], [], [], [])
    for query in range(number * n_queries, (number + 1) * n_queries):
        ids = [names[place] for place in rng.choice(len(names), 20, replace=False)]
        about = {"schema_version": 1, "trace_id": f"t{query}", "node_id": "n"}
        scores = rng.random(20).round(6).tolist()
        ranking = {**about, "timestamp_ms": query, "candidate_ids": ids, "scores": scores}
        batch.rankings.append(json.dumps(ranking).encode())
        grades = dict(zip(ids, rng.integers(0, 5, 6).tolist(), strict=False))
        parts = ((batch.first, ids[:5]), (batch.late, ids[5:6]), (batch.whole, ids[:6]))
        for messages, chosen in parts:
            said = {
                **about,
                "timestamp_ms": query,
                "grades": {name: grades[name] for name in chosen},
            }
            messages.append(json.dumps(said).encode())
    return batch


def receive(engine: Engine, log: Log, values: list[bytes]) -> tuple[float, float]:
    """Lets the engine read messages: seconds of decoding them, and of the rest."""
    records = records_of(log, values, engine)
    began = time.process_time()
    if log == "rankings":
        columns = (decode_rankings(records, max_future_skew_ms=DAY_MS), None)
    else:
        columns = (None, decode_judgments(records, max_future_skew_ms=DAY_MS))
    decoded = time.process_time()
    engine.receive(*columns)
    return decoded - began, time.process_time() - decoded


def new_engine() -> Engine:
    rules = JoinRules(
        retention_ms=DAY_MS,
        maturity_ms=DAY_MS,
        early_ms=60_000,
        remember_ms=60_000,
        out_of_orderness_ms=60_000,
        window_ms=60_000,
    )
    return Engine(0, rules, MeasureSet.parse(MEASURES))


def records_of(log: Log, values: list[bytes], engine: Engine) -> Records:
    first = engine.positions[log]
    return Records.of(
        log=log,
        partition=0,
        offsets=list(range(first, first + len(values))),
        keys=[None] * len(values),
        values=list(values),
        timestamps_ms=None,
        next_offset=first + len(values),
    )
