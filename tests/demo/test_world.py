"""The demo's world: repeatable, in order, full of faults, with one regression."""

import json
from collections import Counter
from typing import Any

import pytest

from evaluator.demo.world import FAULTS, REGRESSION_MS, RETENTION_MS, DemoMessage, DemoWorld
from tests.repeats import sized

SEED = 7
N_QUERIES = sized(12_000, quick=6_000)
pytestmark = pytest.mark.xdist_group("the demo's world")  # made once, for all of them


@pytest.fixture(scope="module")
def messages() -> list[DemoMessage]:
    return list(DemoWorld(SEED, n_queries=N_QUERIES))


@pytest.fixture(scope="module")
def read(messages: list[DemoMessage]) -> dict[str, list[dict[str, Any]]]:
    """Their JSON messages by kind."""
    kinds = ("ranking", "judgment", "late judgment")
    return {kind: [json.loads(m.value) for m in messages if m.kind == kind] for kind in kinds}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not():
    once, again, other = (list(DemoWorld(seed, n_queries=300)) for seed in (SEED, SEED, SEED + 1))
    assert once == again
    assert once != other


def test_a_world_can_be_read_twice():
    world = DemoWorld(SEED, n_queries=300)
    assert list(world) == list(world)


@pytest.mark.slow(alone=False)
def test_messages_are_in_the_order_of_their_arrival_at_the_broker(messages):
    times = [message.timestamp_ms for message in messages]
    assert times == sorted(times)


def test_every_kind_of_fault_occurs(messages):
    kinds = Counter(message.kind for message in messages)
    assert {kind for kind in FAULTS if kinds[kind] >= 5} == set(FAULTS)
    assert kinds["ranking"] == N_QUERIES


def test_rankings_have_5_to_20_named_candidates_with_4_features_and_two_rankers(messages):
    for message in messages[:2_000]:
        if message.kind != "ranking":
            continue
        ranking = json.loads(message.value)
        n = len(ranking["candidate_ids"])
        assert 5 <= n <= 20
        assert len(set(ranking["candidate_ids"])) == n
        assert len(ranking["scores"]) == len(ranking["scorers"]["bm25"]) == n
        assert [len(row) for row in ranking["features"]] == [4] * n


@pytest.mark.slow(alone=False)
def test_three_recommenders_and_three_sources(read):
    assert {(r["model"], r["variant"]) for r in read["ranking"]} == {
        ("tool-ranker", "prod"),
        ("tool-ranker", "canary"),
        ("graph-ranker", "prod"),
    }
    assert {j["source"] for j in read["judgment"]} == {"click", "llm-judge", "human"}


def test_late_judgments_are_older_than_retention_and_not_orphans(read):
    ranked_ms = {(r["trace_id"], r["node_id"]): r["timestamp_ms"] for r in read["ranking"]}
    late = read["late judgment"]
    ages_ms = [j["timestamp_ms"] - ranked_ms[j["trace_id"], j["node_id"]] for j in late]
    assert all(RETENTION_MS < age_ms <= RETENTION_MS + 3_600_000 for age_ms in ages_ms)


def test_the_canary_and_only_the_canary_becomes_worse_half_way(read):
    changes = {pair: after - before for pair, (before, after) in _top1(read).items()}
    assert changes.pop(("tool-ranker", "canary")) < -0.15
    assert all(abs(change) < 0.06 for change in changes.values())


def _top1(read: dict[str, list[dict[str, Any]]]) -> dict[tuple[str, str], tuple[float, float]]:
    """Share of judged queries whose first candidate the human grades 3, before and after."""
    rankings = {(r["trace_id"], r["node_id"]): r for r in read["ranking"]}
    judged: Counter[tuple[tuple[str, str], bool]] = Counter()
    hits: Counter[tuple[tuple[str, str], bool]] = Counter()
    for judgment in read["judgment"]:
        if judgment["source"] != "human":
            continue
        ranking = rankings[judgment["trace_id"], judgment["node_id"]]
        scores = ranking["scores"]
        first = ranking["candidate_ids"][scores.index(max(scores))]
        half = ((ranking["model"], ranking["variant"]), ranking["timestamp_ms"] >= REGRESSION_MS)
        judged[half] += 1
        hits[half] += judgment["grades"][first] == 3
    return {
        pair: (hits[pair, False] / judged[pair, False], hits[pair, True] / judged[pair, True])
        for pair, _ in judged
    }
