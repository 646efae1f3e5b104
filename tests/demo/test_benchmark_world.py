"""The traffic of the benchmarks, and the naive method against arithmetic done by hand."""

import json
from fractions import Fraction
from math import log2

import pytest

from benchmarks import beside
from benchmarks.naive import UNIT, NaiveEvaluator, measure
from benchmarks.pipeline import MEASURES, Stopwatch, in_reading_order, run
from benchmarks.world import DELAYS_MS, N_GRADES, SPAN_MS, USUAL, Shape, make_world
from evaluator.core.measures import MeasureSet
from evaluator.core.online.ordered_merge import PLACE
from evaluator.core.types.records import WatermarkRecord
from evaluator.wire.outputs.encoding import encode_watermark
from evaluator.wire.outputs.settled import decode_settled, order_position_of
from tests.repeats import sized

N_PAIRS = 300


@pytest.fixture(scope="module")
def world():
    return make_world(N_PAIRS, seed=3)


def by_key(messages):
    decoded = (json.loads(message.value) for message in messages)
    return {(message["trace_id"], message["node_id"]): message for message in decoded}


def test_the_same_arguments_give_the_same_bytes(world):
    assert make_world(N_PAIRS, seed=3) == world
    assert make_world(N_PAIRS, seed=4) != world


def test_every_ranking_has_its_judgment_and_scores_have_no_ties(world):
    rankings, judgments = by_key(world.rankings), by_key(world.judgments)
    assert len(rankings) == len(judgments) == N_PAIRS
    assert rankings.keys() == judgments.keys()
    for key, ranking in rankings.items():
        for scores in (ranking["scores"], ranking["scorers"]["bm25"]):
            assert len(scores) == len(set(scores)) == USUAL.candidates
        assert len(set(ranking["candidate_ids"])) == USUAL.candidates
        delay_ms = judgments[key]["timestamp_ms"] - ranking["timestamp_ms"]
        assert DELAYS_MS[0] - 1 <= delay_ms <= DELAYS_MS[1]
        assert len(judgments[key]["grades"]) == N_GRADES


def test_a_world_has_the_given_numbers_of_candidates_scorers_and_variants():
    shape = Shape(1_000, ("one", "two", "three"), tuple(f"v{n}" for n in range(7)))
    rankings = by_key(make_world(sized(100, quick=20), shape=shape).rankings).values()
    assert {len(set(ranking["candidate_ids"])) for ranking in rankings} == {1_000}
    assert {tuple(ranking["scorers"]) for ranking in rankings} == {shape.scorers}
    assert {ranking["variant"] for ranking in rankings} == set(shape.variants)
    (bare,) = by_key(make_world(1, shape=Shape(3, ())).rankings).values()
    assert "scorers" not in bare


def test_both_logs_are_in_time_order_and_span_three_hours(world):
    for messages in world:
        times = [message.timestamp_ms for message in messages]
        assert times == sorted(times)
    times = [message.timestamp_ms for message in world.rankings]
    assert times[-1] - times[0] > 0.99 * SPAN_MS


def test_naive_measures_equal_arithmetic_by_hand():
    scores, ids = [0.1, 0.9, 0.5, 0.7], ["a", "b", "c", "d"]  # ranked b, d, c, a
    values = measure(scores, ids, {"d": 2, "a": 1, "b": 0, "never ranked": 1}).values
    ideal = 3 / log2(2) + 1 / log2(3) + 1 / log2(4)
    assert values == pytest.approx(
        {
            "top1": 0,
            "top3": 1,
            "mrr": 1 / 2,
            "ndcg@10": (3 / log2(3) + 1 / log2(5)) / ideal,
            "map@10": (1 / 2 + 2 / 4) / 3,  # hits at ranks 2 and 4, three relevant
        }
    )


@pytest.mark.slow(alone=False)
async def test_naive_totals_equal_those_of_the_engine_exactly(world):
    async def send(key: bytes, value: bytes) -> None:
        del key, value

    naive = NaiveEvaluator(send)
    for ranking in world.rankings:
        await naive.on_ranking(ranking.value)
    for judgment in world.judgments:
        await naive.on_judgment(judgment.value)
    reading = list(in_reading_order(world.rankings, world.judgments, 50))
    engine, _ = run(reading, Stopwatch())
    tally = engine.tally()
    assert len(naive.sums) == 2 * 2 * 5  # variants, rankers, measures
    for path, sum_units in naive.sums.items():
        assert tally["running", *path, "sum_units"] == sum_units
        assert tally["running", *path, "queries"] == naive.queries[path]


async def test_naive_totals_equal_a_batch_over_both_logs(world):
    sent = []

    async def send(key: bytes, value: bytes) -> None:
        sent.append((key, value))

    naive = NaiveEvaluator(send)
    for judgment in world.judgments[: N_PAIRS // 2]:  # half of them before their rankings
        await naive.on_judgment(judgment.value)
    for ranking in world.rankings:
        await naive.on_ranking(ranking.value)
    for judgment in world.judgments[N_PAIRS // 2 :]:
        await naive.on_judgment(judgment.value)
    expected = {"top1": Fraction(), "mrr": Fraction()}
    judgments = by_key(world.judgments)
    for key, ranking in by_key(world.rankings).items():
        if ranking["variant"] != "prod":
            continue
        ranked = sorted(zip(ranking["scores"], ranking["candidate_ids"], strict=True), reverse=True)
        ranks = [i for i, (_, name) in enumerate(ranked, 1) if judgments[key]["grades"].get(name)]
        expected["top1"] += 1 in ranks[:1]
        expected["mrr"] += Fraction(1, ranks[0]) if ranks else 0
    assert len(sent) == N_PAIRS
    for name, total in expected.items():
        sum_units = naive.sums["tool-ranker", "prod", "served", name]
        assert sum_units == pytest.approx(float(total * UNIT), rel=1e-11)


@pytest.mark.slow(alone=False)
def test_the_leader_of_the_benchmark_reads_the_queries_that_the_worker_settled(world):
    reading = list(in_reading_order(world.rankings, world.judgments, 50))
    _, plain = beside.worker(reading, learns=False)
    _, settled = beside.worker(reading, learns=True)
    queries = [decode_settled(value, MeasureSet.parse(MEASURES)) for value in settled]
    assert len(plain) == len(settled)
    assert not any(b'"features"' in value for value in plain)
    assert beside.watching(plain) > 0
    assert [query.n for query in queries] == list(range(len(settled)))
    assert {query.features.shape for query in queries} == {(USUAL.candidates, 4)}
    assert [order_position_of(value) for value in settled] == list(map(PLACE, queries))
    assert order_position_of(encode_watermark(WatermarkRecord(5, 7), task=0).value) is None
    assert min(beside.leader(settled)) > 0
