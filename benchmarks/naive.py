"""An evaluator of an afternoon: a model per message, a dict, numpy per query, `send`.

It joins, measures two rankers with five measures, keeps exact running totals and produces one
result per judgment, with the members of an evaluation. It is not slow on purpose: it reads
with `async for`, as the client's documentation does, validates with pydantic's JSON parser, sends
without waiting for each acknowledgement and compresses with zstd. It has no settling, expiry,
windows, corrections, duplicates or ties.
"""

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable
from decimal import Decimal, getcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

CUTOFF = 10
UNIT = 2**40
getcontext().prec = 40
DISCOUNTS = np.array(
    [float(Decimal(2).ln() / Decimal(rank + 1).ln()) for rank in range(1, CUTOFF + 1)]
)

Path = tuple[str, str, str, str]  # model, variant, ranker, measure


class RankingMessage(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)
    schema_version: int
    trace_id: str
    node_id: str
    timestamp_ms: int
    model: str = ""
    variant: str = ""
    query: str = ""
    candidate_ids: list[str]
    scores: list[float]
    scorers: dict[str, list[float]] = {}
    feature_names: list[str] = []
    features: list[list[float]] = []
    segments: dict[str, str] = {}


class JudgmentMessage(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)
    schema_version: int
    trace_id: str
    node_id: str
    timestamp_ms: int
    source: str = ""
    grades: dict[str, float]
    judgment_id: str | None = None


class Measured(NamedTuple):
    """One ranked list: values by measure, rank of the first relevant candidate, the first three."""

    values: dict[str, float]
    rank: int | None
    top3: list[tuple[str, float]]


def measure(scores: list[float], ids: list[str], grades: dict[str, float]) -> Measured:
    """top1, top3, mrr, ndcg@10 and map@10 of one ranked list."""
    order = np.argsort(-np.asarray(scores), kind="stable")
    ranked: NDArray[np.float64] = np.array([grades.get(ids[i], 0.0) for i in order])
    relevant = ranked > 0
    n_relevant = sum(1 for grade in grades.values() if grade > 0)
    first = int(np.argmax(relevant)) + 1 if relevant.any() else 0
    gains = 2.0 ** ranked[:CUTOFF] - 1.0
    ideal = 2.0 ** np.array(sorted(grades.values(), reverse=True)[:CUTOFF]) - 1.0
    dcg = np.cumsum(gains * DISCOUNTS[: len(gains)])[-1]
    best = np.cumsum(ideal * DISCOUNTS[: len(ideal)])[-1]
    hits = np.cumsum(relevant[:CUTOFF])
    precisions = np.where(relevant[:CUTOFF], hits / np.arange(1, len(hits) + 1), 0.0)
    values = {
        "top1": float(first == 1),
        "top3": float(0 < first <= 3),
        "mrr": 1.0 / first if first else 0.0,
        "ndcg@10": float(dcg / best) if best else 0.0,
        "map@10": float(np.cumsum(precisions)[-1] / n_relevant) if n_relevant else 0.0,
    }
    return Measured(values, first or None, [(ids[i], scores[i]) for i in order[:3]])


class NaiveEvaluator:
    """State of the naive evaluator; *send* takes (key, value) of one result."""

    def __init__(self, send: Callable[[bytes, bytes], Awaitable[Any]]) -> None:
        self._send = send
        self._rankings: dict[tuple[str, str], RankingMessage] = {}
        self._early: dict[tuple[str, str], JudgmentMessage] = {}
        self.queries: dict[Path, int] = defaultdict(int)
        self.sums: dict[Path, int] = defaultdict(int)

    async def on_ranking(self, value: bytes) -> None:
        ranking = RankingMessage.model_validate_json(value)
        key = (ranking.trace_id, ranking.node_id)
        self._rankings[key] = ranking
        if key in self._early:
            await self._evaluate(ranking, self._early.pop(key))

    async def on_judgment(self, value: bytes) -> None:
        judgment = JudgmentMessage.model_validate_json(value)
        key = (judgment.trace_id, judgment.node_id)
        if key in self._rankings:
            await self._evaluate(self._rankings[key], judgment)
        else:
            self._early[key] = judgment

    async def _evaluate(self, ranking: RankingMessage, judgment: JudgmentMessage) -> None:
        rankers = {"served": ranking.scores, **ranking.scorers}
        lists = {
            ranker: measure(scores, ranking.candidate_ids, judgment.grades)
            for ranker, scores in rankers.items()
        }
        for ranker, measured in lists.items():
            for name, value in measured.values.items():
                path = (ranking.model, ranking.variant, ranker, name)
                self.queries[path] += 1
                self.sums[path] += round(value * UNIT)
        result = {
            "trace_id": ranking.trace_id,
            "node_id": ranking.node_id,
            "event_time_ms": ranking.timestamp_ms,
            "model": ranking.model,
            "variant": ranking.variant,
            "query": ranking.query,
            "revision": 1,
            "grades": judgment.grades,
            "rank": {ranker: measured.rank for ranker, measured in lists.items()},
            "top3": {ranker: measured.top3 for ranker, measured in lists.items()},
            "values": {ranker: measured.values for ranker, measured in lists.items()},
        }
        await self._send(ranking.trace_id.encode(), json.dumps(result).encode())
