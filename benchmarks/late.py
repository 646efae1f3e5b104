"""One late judgment in the worker, beside measuring its query again.

Again: its ranking and all its judgments, as the worker would take them for a query that it has
never seen: decode, rank, hold, match, measure. Late: one more judgment of a query that is held:
decode, match, measure, take the old values out of the sums. Both in batches, CPU time per query.
"""

import json
import statistics
import time
from collections.abc import Iterator

import numpy as np

from evaluator.core.engine import Engine
from evaluator.core.measures import MeasureSet
from evaluator.core.types import Log
from evaluator.wire.codec import decode_judgments, decode_rankings
from evaluator.wire.records import Records

MEASURES = ["ndcg@10", "map@10", "mrr", "p@1"]
DAY_MS = 86_400_000


class Late:
    """Queries of 20 candidates with one judgment of five, and one more judgment that is late."""

    def __init__(self, *, n_queries: int, n_rounds: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._n_queries = n_queries
        self._n_rounds = n_rounds
        names = [f"d{number:05d}" for number in range(10_000)]
        self._rankings, self._judgments, self._late = [], [], []
        for query in range(n_queries):
            ids = [names[place] for place in rng.choice(len(names), 20, replace=False)]
            about = {"schema_version": 1, "trace_id": f"t{query}", "node_id": "n"}
            scores = rng.random(20).round(6).tolist()
            ranking = {**about, "timestamp_ms": query, "candidate_ids": ids, "scores": scores}
            self._rankings.append(json.dumps(ranking).encode())
            for at, messages, chosen in ((1, self._judgments, ids[:5]), (2, self._late, ids[5:6])):
                grades = dict(zip(chosen, rng.integers(0, 5, len(chosen)).tolist(), strict=True))
                judgment = {**about, "timestamp_ms": at * n_queries + query, "grades": grades}
                messages.append(json.dumps(judgment).encode())

    def seconds(self) -> Iterator[tuple[float, float]]:
        """Of measuring all queries again, and of one late judgment for each; round by round."""
        for number in range(self._n_rounds + 1):
            engine = new_engine()
            began = time.process_time()
            self._rank(engine)
            self._judge(engine, self._judgments)
            between = time.process_time()
            self._judge(engine, self._late)
            if number:  # the first one warms up
                yield between - began, time.process_time() - between

    def _rank(self, engine: Engine) -> None:
        records = records_of("rankings", self._rankings, engine)
        engine.receive(decode_rankings(records, max_future_skew_ms=DAY_MS), None)

    def _judge(self, engine: Engine, values: list[bytes]) -> None:
        records = records_of("judgments", values, engine)
        engine.receive(None, decode_judgments(records, max_future_skew_ms=DAY_MS))

    def report(self, bar: float) -> dict[str, float]:
        """Prints the medians and gives them."""
        again, late = (
            statistics.median(column) / self._n_queries * 1e6
            for column in zip(*self.seconds(), strict=True)
        )
        verdict = "reached" if late / again <= bar else "MISSED"
        print(
            f"\nmeasuring a query again {again:.2f} us, one late judgment {late:.2f} us: "
            f"{late / again:.2f} of it (bar {bar:.2f}: {verdict})"
        )
        return {"again_us": again, "late_us": late}


def new_engine() -> Engine:
    return Engine(
        task=0,
        measures=MeasureSet.parse(MEASURES),
        retention_ms=DAY_MS,
        maturity_ms=DAY_MS,
        early_ms=60_000,
        remember_ms=60_000,
        out_of_orderness_ms=60_000,
        window_ms=60_000,
    )


def records_of(log: Log, values: list[bytes], engine: Engine) -> Records:
    first = engine.positions[log]
    return Records(
        log=log,
        partition=0,
        offsets=list(range(first, first + len(values))),
        keys=[None] * len(values),
        values=list(values),
        timestamps_ms=None,
        next_offset=first + len(values),
    )
