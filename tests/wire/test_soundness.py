"""Arbitrary bytes: the fast path and the models agree on the verdict and on every value."""

import json
import os
import random
from typing import Any

import pytest

from evaluator.core.types.records import Columns, Log
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from tests.repeats import repeated
from tests.wire import messages, mutations

MUTANTS = int(os.environ.get("WIRE_MUTANTS", "15000"))
SEED = int(os.environ.get("WIRE_SEED", "20251121"))
BATCH = 512
PARTS = 20

RANKINGS = [
    messages.ranking(),
    messages.ranking(
        scorers={"bm25": [0.9, 1.1]},
        feature_names=["phi_rel", "phi_hist"],
        features=[[0.8, 0.5], [0.4, 1e-7]],
        segments={"locale": "de"},
    ),
    messages.ranking(features=[[1, 2, 3], [4, 5, 6]], scorers={"b": [1, 2], "a": [-0.0, 3]}),
    messages.ranking(scores=..., ranks=[2, 1], scorers={"bm25": [1e-5, 2]}),
    messages.ranking(ranks=[2, 1], propensities=[0.5, 1], published_ms=[1, None]),
    messages.ranking(
        candidate_ids=...,
        scores=...,
        candidates=[
            {"id": "a", "score": 1, "features": [1]},
            {"id": "b", "score": 2, "features": [2]},
        ],
    ),
    messages.ranking(candidate_ids=[], scores=[], features=[]),
    messages.ranking(candidate_ids=["a"], scores=[1], features=[[0.25]], scorers={"bm25": [2]}),
    messages.ranking(query="nach München, größer ✈", candidate_ids=["ä", "ö"]),
    messages.ranking(query='say "hi"\n', extra={"deep": [[{"er": "ä"}]]}, model=None),
    messages.ranking(subtopics={"weather": ["sky"]}, timestamp_ms=...),
    messages.ranking(candidate_kind="tool", descriptions=["finds flights", None]),
    messages.ranking(graphs=[{"type": "plan", "nodes": [1, 2], "edges": [[1, 2]]}, {"text": "x"}]),
    messages.ranking(candidate_ids=["a", "a", "b"], scores=[3, 2.5, 1]),
    messages.ranking(exposed=[True, False], segments={"gerät": "x", "locale": None, "other": "y"}),
    messages.ranking(exposed_top=1, segments={"channel": "", "locale": "größe", "gerät": "\u00e4"}),
    messages.ranking(candidate_ids=[], scores=[], exposed=[], exposed_top=None),
]
JUDGMENTS = [
    messages.judgment(),
    messages.judgment(judgment_id=..., source=...),
    messages.judgment(grades={"a": None, "b": -1, "c": 0.5, "d": -0.0, "e": 31}),
    messages.judgment(note={"by": "größer", "at": [1, 2]}, source="löwe"),
    messages.judgment(subtopics={"a": ["x", "y"]}, timestamp_ms=None),
]


@pytest.mark.parametrize("part", repeated(PARTS, quick=1))
@pytest.mark.parametrize("log", ["rankings", "judgments"])
def test_the_fast_path_agrees_with_the_models_on_every_mutant(log: Log, part: int) -> None:
    n_mutants = MUTANTS // 2 // PARTS
    rng = random.Random(f"{SEED} {log} {part}")
    print(f"WIRE_SEED={SEED}, {n_mutants} mutants of {log}")  # noqa: T201  # seen on failure
    valid = [
        messages.as_bytes(message) for message in (RANKINGS if log == "rankings" else JUDGMENTS)
    ]
    valid += [json.dumps(json.loads(value), ensure_ascii=False).encode() for value in valid]
    by_the_models = messages.BY_THE_MODELS[log]
    expected_of_valid = {value: by_the_models(value) for value in valid}
    done = 0
    while done < n_mutants:
        share = rng.choice([0.02, 0.3, 1.0])  # odd ones among many ordinary ones, and alone
        size = rng.choice([1, 7, BATCH])
        values: list[bytes] = []
        for _ in range(size):
            value = rng.choice(valid)
            if rng.random() < share:
                value = mutations.mutant(value, rng)
                done += 1
            values.append(value)
        assert_agreement(
            log, values, [expected_of_valid.get(value) or by_the_models(value) for value in values]
        )


def assert_agreement(log: Log, values: list[bytes], expected: list[messages.Row | str]) -> None:
    """Decodes the values together; every row and every refusal is the models' own."""
    batch = messages.records(log, values)
    rows: dict[int, Any]
    decoded: Columns
    if log == "rankings":
        rankings = decode_rankings(
            batch, max_future_skew_ms=messages.SKEW_MS, segments=messages.SEGMENTS
        )
        decoded, rows = rankings, messages.ranking_rows_of(rankings)
    else:
        judgments = decode_judgments(batch, max_future_skew_ms=messages.SKEW_MS)
        decoded, rows = judgments, messages.judgment_rows_of(judgments)
    reasons = {letter.offset: letter.reason for letter in decoded.malformed}
    assert sorted(rows | reasons) == batch.offsets.tolist()
    for offset, value in enumerate(values):
        assert rows.get(offset, reasons.get(offset)) == expected[offset], value
