"""The rankings that start a query, and the places of their candidates."""

import json

import numpy as np
import pytest

from evaluator.core.measures.order import exact_order
from evaluator.wire.messages.codec import decode_rankings
from evaluator.wire.records import Records
from tests.core.build import Task, heartbeat, judgment, ranking, units

KEY_RESERVED_MS = 1_000 + 50 + 10  # retention + remember + early, as the tasks here have them


# Keys


def test_a_repeated_key_is_duplicate_with_equal_bytes_and_else_conflicting():
    task = Task()
    task.rank(ranking("a b"))
    task.rank(ranking("a b", at=1))
    task.rank(ranking("b a", at=2))
    assert task.counts("rankings") == {"open": 1, "duplicate": 1, "conflicting": 1}
    assert task.reasons == [("rankings", 2, "conflicting")]
    assert task.count("queries", "started") == 1


def test_the_first_ranking_of_a_key_is_used():
    task = Task()
    task.rank(ranking("a b"), ranking("b a"))
    task.judge(judgment({"b": 1}, at=1))
    assert task.value() == 1 / 2


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_duplicate_equals_the_ranking_before_it_even_a_conflicting_one(size):
    task = Task()
    rankings = [ranking(order) for order in ("a b", "b a", "b a", "a b")]
    for first in range(0, 4, size):
        task.rank(*rankings[first : first + size])
    assert task.counts("rankings") == {"open": 1, "duplicate": 1, "conflicting": 2}
    assert [offset for _, offset, _ in task.reasons] == [1, 3]


def test_a_batch_with_repeated_keys_starts_each_key_once():
    task = Task()
    task.rank(*(ranking("a b", trace=trace) for trace in "tutvw"))
    assert task.counts("rankings") == {"open": 4, "duplicate": 1}
    task.judge(*(judgment({"b": 1}, at=1, trace=trace) for trace in "tuvw"))
    assert task.total("running") == (4, 4 / 2)


def test_every_list_keeps_its_order_in_a_batch_with_repeated_keys():
    task = Task()
    task.rank(
        ranking("x", trace="u"),
        ranking("a b c", trace="t"),
        ranking("y", trace="u"),
        ranking("c b a", trace="v"),
    )
    task.judge(judgment({"c": 1}, at=1), judgment({"c": 1}, at=1, trace="v"))
    assert task.last("t").first_ranks == [3]
    assert task.last("v").first_ranks == [1]


@pytest.mark.parametrize(
    ("again", "outcome"), [(KEY_RESERVED_MS, "duplicate"), (KEY_RESERVED_MS + 1, "started")]
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_key_is_reserved_for_key_reserved_ms_inclusive(again, outcome, at_once):
    task = Task()
    rankings = [ranking("a b"), ranking("a b", at=again)]
    for batch in [rankings] if at_once else [[one] for one in rankings]:
        task.rank(*batch)
    assert task.count("queries", "started") == (2 if outcome == "started" else 1)
    assert task.count("rankings", "duplicate") == (0 if outcome == "started" else 1)


@pytest.mark.parametrize("expire", [True, False])
@pytest.mark.parametrize("first_word", ["a b", "b a"])
def test_a_duplicate_or_conflicting_ranking_extends_the_reservation_of_its_key(expire, first_word):
    task = Task(expire=expire)
    task.rank(ranking("a b"))
    task.rank(ranking(first_word, at=700))
    task.beat(KEY_RESERVED_MS + 1)
    task.rank(ranking("a b", at=KEY_RESERVED_MS + 1))
    assert task.count("queries", "started") == 1
    task.rank(ranking("a b", at=2 * KEY_RESERVED_MS + 1))
    assert task.count("queries", "started") == 1
    task.rank(ranking("a b", at=3 * KEY_RESERVED_MS + 2))
    assert task.count("queries", "started") == 2


@pytest.mark.parametrize(("watermark", "started"), [(KEY_RESERVED_MS, 1), (KEY_RESERVED_MS + 1, 2)])
def test_a_key_is_reserved_while_a_ranking_in_its_time_can_still_arrive(watermark, started):
    task = Task()
    task.rank(ranking("a b"))
    task.beat(watermark)
    task.rank(ranking("a b", at=watermark))
    assert task.count("queries", "started") == started


def test_a_key_with_an_extended_reservation_is_released_finally():
    task = Task()
    task.rank(ranking("a b"), ranking("a b", at=700))
    task.beat(700 + KEY_RESERVED_MS)
    assert len(task.engine._queries.table) == 1
    task.beat(700 + KEY_RESERVED_MS + 1)
    assert len(task.engine._queries.table) == 0


def test_the_latest_ranking_in_a_batch_extends_the_reservation_of_its_key():
    task = Task()
    task.rank(*(ranking("a b", at=at) for at in (0, 1_000, 2_000, 3_061)))
    assert task.counts("rankings") == {"open": 2, "duplicate": 2}


@pytest.mark.parametrize("expire", [True, False])
def test_a_released_key_can_be_used_again_and_both_queries_count(expire):
    task = Task(expire=expire)
    task.rank(ranking("a b"))
    task.judge(judgment({"b": 1}, at=5))
    task.rank(ranking("a b c", at=2_000))
    task.judge(judgment({"c": 1}, at=2_005))
    task.beat(4_000)
    assert task.counts("rankings") == {"expired": 2, "heartbeat": 1}
    assert task.engine.tally()["running", "m", "v", "served", "mrr", "sum_units"] == sum(
        units(1 / 2, 1 / 3)
    )
    assert [(s.event_time_ms, s.units) for s in task.settled] == [
        (0, units(1 / 2)),
        (2_000, units(1 / 3)),
    ]


@pytest.mark.parametrize("expire", [True, False])
@pytest.mark.parametrize("order", [(5, 2_005), (2_005, 5)])
def test_judgments_of_a_reused_key_belong_to_the_query_of_their_time(expire, order):
    task = Task(expire=expire, out_of_orderness_ms=5_000)
    task.rank(ranking("a b"), ranking("a b c", at=2_000))
    for at in order:
        task.judge(judgment({"b": 1} if at == 5 else {"c": 1}, at=at))
    found = {e.event_time_ms: e.first_ranks for e in task.evaluations}
    assert found == {0: [2], 2_000: [3]}


def test_a_late_judgment_of_the_first_query_of_a_reused_key_is_late():
    task = Task(out_of_orderness_ms=5_000)
    task.rank(ranking("a b"), ranking("a b c", at=2_000))
    task.judge(*(judgment({"b": 1}, at=at, name=str(at)) for at in (1_001, 1_051, 1_990)))
    assert task.counts("judgments") == {"late": 1, "early": 1, "applied": 1}


def test_a_remembered_key_is_found_only_by_late_judgments():
    task = Task()
    task.rank(ranking("a b"))
    task.beat(1_030)
    assert task.counts("rankings") == {"expired": 1, "heartbeat": 1}
    task.rank(ranking("a b", at=1_040))
    assert task.count("rankings", "duplicate") == 1


# Order of candidates


def first_rank(*rankings, of="x"):
    """Rank of candidate *of* in a ranking, as the first relevant one."""
    task = Task()
    task.rank(*rankings)
    task.judge(judgment({of: 1}, at=1))
    return task.last().first_ranks[0]


def test_the_empty_candidate_list_is_measured_as_0():
    task = Task("mrr,top1,ndcg,map@3")
    task.rank(ranking(""))
    task.judge(judgment({"a": 2}, at=1))
    assert task.last().units == [0, 0, 0, 0]
    assert task.last().first_ranks == [0]
    assert task.last().top == [[]]
    assert task.total("running", "ndcg") == (1, 0.0)


def test_empty_and_full_lists_in_one_batch_are_measured_separately():
    task = Task()
    task.rank(*(ranking(order, trace=f"t{i}") for i, order in enumerate(["", "a x", "", "x"])))
    task.judge(*(judgment({"x": 1}, at=1, trace=f"t{i}") for i in range(4)))
    assert [e.first_ranks for e in task.evaluations] == [[0], [2], [0], [1]]


def test_repeated_candidates_count_once_at_their_best_rank():
    task = Task("mrr,map")
    task.rank(ranking("a b a x b y", scores=[9, 8, 7, 6, 5, 4]))
    task.judge(judgment({"x": 1, "y": 1}, at=1))
    # without the repetitions the list is a, b, x, y
    assert task.last().first_ranks == [3]
    assert task.last().units == units(1 / 3, (1 / 3 + 2 / 4) / 2)
    assert task.last().top == [[("a", 9.0), ("b", 8.0), ("x", 6.0)]]


def test_the_best_rank_of_a_repeated_candidate_may_be_its_last():
    task = Task("mrr,map")
    task.rank(ranking("x a b x", scores=[1, 5, 4, 9]))
    task.judge(judgment({"x": 1, "a": 1}, at=1))
    assert task.last().units == units(1, (1 / 1 + 2 / 2) / 2)
    assert task.last().top == [[("x", 9.0), ("a", 5.0), ("b", 4.0)]]


def test_explicit_ranks_beat_scores():
    assert first_rank(ranking("x a b", scores=[9, 8, 7], ranks=[3, 1, 2])) == 3


def test_explicit_ranks_may_have_gaps_and_ties_go_to_the_larger_id():
    task = Task("map")
    task.rank(ranking("x y a", ranks=[40, 40, 7], scores=[None, None, None]))
    task.judge(judgment({"x": 1}, at=1))
    assert [name for name, _ in task.last().top[0]] == ["a", "y", "x"]
    assert task.last().units == units(1 / 3)


def test_without_scores_the_top_has_none():
    task = Task()
    task.rank(ranking("a b", ranks=[2, 1], scores=[None, None]))
    task.judge(judgment({"a": 1}, at=1))
    assert task.last().top == [[("b", None), ("a", None)]]


def test_explicit_ranks_apply_to_the_served_order_only():
    task = Task("mrr")
    task.rank(ranking("x y", ranks=[2, 1], scores=[1, 2], scorers={"bm25": [5, 4]}))
    task.judge(judgment({"x": 1}, at=1))
    assert task.last().first_ranks == [2, 1]


@pytest.mark.parametrize("n", [2, 8, 9, 33, 129, 1_000])
def test_ties_go_to_the_larger_id(n):
    names = [f"c{i:04}" for i in range(n)]
    assert first_rank(ranking(names, scores=[1.0] * n), of="c0000") == n
    assert first_rank(ranking(names, scores=[1.0] * n), of=f"c{n - 1:04}") == 1


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [("a", "b"), ("a", "aa"), ("B", "a"), ("10", "9"), ("z", "é"), ("\uffff", "\U00010000")],
)
def test_ids_are_compared_by_their_bytes(smaller, larger):
    assert smaller.encode() < larger.encode()
    task = Task()
    task.rank(ranking([smaller, larger], scores=[0.5, 0.5]))
    task.judge(judgment({smaller: 1}, at=1))
    assert task.last().first_ranks == [2]


def test_minus_zero_equals_zero_in_scores():
    message = {
        "schema_version": 1, "trace_id": "t", "node_id": "n", "timestamp_ms": 5,
        "candidate_ids": ["a", "b", "c", "d"], "scores": [-0.0, 0.0, -0.0, 0.0],
        "scorers": {"other": [0, -0.0, 0, -0]},
    }  # fmt: skip
    columns = decode_rankings(
        Records.of("rankings", 0, [0], [None], [json.dumps(message).encode()], [5], 1),
        max_future_skew_ms=0,
    )
    assert not np.signbit(columns.scores).any()
    task = Task()
    task.engine.receive(columns, None)
    task.judge(judgment({"b": 1}, at=5))
    assert [[name for name, _ in top] for top in task.last().top] == [["d", "c", "b"]] * 2
    assert task.last().first_ranks == [3, 3]  # d, c, b, a


def test_exact_order_keeps_the_first_use_of_each_id():
    assert exact_order(["a", "b", "a"], [1.0, 1.0, 2.0]) == [2, 1]
    assert exact_order([], []) == []


def test_the_top_shows_three_candidates_with_their_scores_per_ranker():
    task = Task()
    task.rank(ranking("a b c d", scores=[1, 2, 3, 4.5], scorers={"bm25": [4, 3, 2, 1]}))
    task.judge(judgment({"a": 1}, at=1))
    assert task.last().top == [
        [("d", 4.5), ("c", 3.0), ("b", 2.0)],
        [("a", 4.0), ("b", 3.0), ("c", 2.0)],
    ]


# Rankers and strata


def test_named_scorers_are_measured_in_addition_to_served():
    task = Task("mrr,top1")
    task.rank(ranking("a b c", scores=[3, 2, 1], scorers={"bm25": [1, 2, 3], "dense": [1, 9, 2]}))
    task.judge(judgment({"c": 1}, at=1))
    assert task.last().first_ranks == [3, 1, 2]  # served a b c; bm25 c b a; dense b c a
    assert task.last().units == units(1 / 3, 0, 1, 1, 1 / 2, 0)
    assert task.total("running", ranker="bm25") == (1, 1.0)
    assert task.total("running", ranker="dense") == (1, 1 / 2)
    assert task.total("running", "top1", ranker="bm25") == (1, 1.0)


def test_rankings_with_and_without_a_scorer_are_summed_per_ranker():
    task = Task("mrr")
    task.rank(
        ranking("a b", trace="t", scorers={"bm25": [1, 2]}),
        ranking("a b", trace="u"),
    )
    task.judge(judgment({"b": 1}, at=1, trace="t"), judgment({"b": 1}, at=1, trace="u"))
    assert task.total("running") == (2, 1 / 2 + 1 / 2)
    assert task.total("running", ranker="bm25") == (1, 1.0)


def test_totals_are_separate_by_model_and_variant_and_start_at_zero():
    task = Task("mrr")
    task.rank(ranking("a b", trace="t", model="x"), ranking("a b", trace="u", variant="y"))
    task.judge(judgment({"b": 1}, at=1, trace="u"))
    tally = task.engine.tally()
    assert tally["running", "x", "v", "served", "mrr", "queries"] == 0
    assert tally["running", "x", "v", "served", "mrr", "sum_units"] == 0
    assert tally["settled", "x", "v", "served", "mrr", "square_units"] == 0
    assert tally["settled_queries", "x", "v", "no"] == 0
    assert tally["running", "m", "y", "served", "mrr", "sum_units"] == units(1 / 2)[0]


def test_totals_are_separate_if_a_query_loses_its_value_while_another_gets_one():
    task = Task("mrr")
    task.rank(ranking("a b", trace="t", model="x"), ranking("a b", trace="u", model="y"))
    task.judge(judgment({"a": 1}, at=1, trace="t"))
    task.judge(judgment({"a": None}, at=2, trace="t"), judgment({"b": 1}, at=2, trace="u"))
    tally = task.engine.tally()
    columns = [(model, of) for model in ("x", "y") for of in ("queries", "sum_units")]
    found = [tally["running", model, "v", "served", "mrr", of] for model, of in columns]
    assert found == [0, 0, 1, *units(1 / 2)]


def test_a_duplicate_creates_no_total():
    task = Task("mrr")
    task.rank(ranking("a b"), heartbeat(at=1))
    before = task.engine.tally().keys()
    task.rank(ranking("a b", at=2))
    assert task.engine.tally().keys() == before
