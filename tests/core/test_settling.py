"""The time at which a query settles, its grades then, and its figures."""

import random

import pytest

from evaluator.core.types.records import Stratum, WatermarkRecord
from tests.core.build import (
    Task,
    heartbeat,
    judgment,
    judgment_columns,
    malformed,
    ranking,
    ranking_columns,
    units,
)


def test_a_query_settles_when_the_watermark_has_passed_its_maturity():
    task = Task(maturity_ms=100)
    task.rank(ranking("a b", at=50))
    task.judge(judgment({"b": 1}, at=60))
    task.beat(150)
    assert task.settled == []
    task.beat(151)
    assert [(s.trace_id, s.event_time_ms, s.grades) for s in task.settled] == [("t", 50, {"b": 1})]
    assert task.settled[0].units == units(1 / 2)
    assert task.total("settled") == (1, 1 / 2)
    assert task.count("settled", "m", "v", "served", "mrr", "square_units") == units(1 / 4)[0]


def test_a_watermark_record_follows_a_second_after_the_last_one_or_settled_query():
    task = Task(maturity_ms=100)
    task.rank(ranking("a b", at=50))
    for at in (151, 1_149, 1_150, 2_149, 2_150):  # the query settles at 50 + 100
        task.beat(at)
    assert task.watermark_records == [WatermarkRecord(1_150, 1), WatermarkRecord(2_150, 1)]


def test_a_query_settles_once():
    task = Task()
    task.rank(ranking("a b"))
    for at in (101, 102, 500, 5_000):
        task.beat(at)
    task.finish()
    assert len(task.settled) == 1


@pytest.mark.parametrize(("at", "grades"), [(100, {"b": 1}), (101, {})])
@pytest.mark.parametrize("name", ["j", None])
def test_a_judgment_exactly_maturity_ms_old_is_in_time_and_one_ms_more_is_not(at, grades, name):
    task = Task(maturity_ms=100)
    task.rank(ranking("a b"))
    task.judge(judgment({"b": 1}, at=at, name=name))
    task.beat(2_000)
    assert task.settled[0].grades == grades


def with_one_in_time_and_one_after():
    return (
        judgment({"b": 1}, at=100),
        judgment({"a": 1}, at=101),
    )


def test_settling_uses_judgments_up_to_maturity_in_any_reading_order():
    early, late = with_one_in_time_and_one_after()
    orders = {
        "judgments read ahead": lambda task: (
            task.rank(ranking("a b")),
            task.judge(early, late, heartbeat(at=900)),
            task.rank(heartbeat(at=900)),
        ),
        "one by one": lambda task: (
            task.rank(ranking("a b")),
            task.judge(early),
            task.judge(late, heartbeat(at=900)),
            task.rank(heartbeat(at=900)),
        ),
        "judgments before rankings": lambda task: (
            task.judge(early, late, heartbeat(at=900)),
            task.rank(ranking("a b"), heartbeat(at=900)),
        ),
        "all at once": lambda task: task.read(
            [ranking("a b"), heartbeat(at=900)], [early, late, heartbeat(at=900)]
        ),
    }
    for order, read in orders.items():
        task = Task()
        read(task)
        assert task.settled[0].grades == {"b": 1}, order
        assert task.total("settled") == (1, 1 / 2), order
        assert task.last().grades == {"b": 1, "a": 1}, order
        assert task.total("running") == (1, 1.0), order


def test_later_judgments_change_running_totals_and_never_settled_ones():
    task = Task()
    task.rank(ranking("a b"))
    task.judge(judgment({"b": 1}, at=50))
    task.beat(200)
    assert (task.total("settled"), task.total("running")) == ((1, 1 / 2), (1, 1 / 2))
    task.judge(judgment({"a": 1}, at=300))
    assert (task.total("settled"), task.total("running")) == ((1, 1 / 2), (1, 1.0))
    task.judge(judgment({"a": None, "b": None}, at=400))
    assert (task.total("settled"), task.total("running")) == ((1, 1 / 2), (0, 0.0))
    task.beat(5_000)
    assert len(task.settled) == 1
    assert task.count("queries", "settled_judged") == 1


def test_a_withdrawal_after_maturity_leaves_the_settled_grade():
    task = Task()
    task.rank(ranking("a b"))
    task.judge(judgment({"b": 1}, at=50), judgment({"b": None}, at=101))
    task.beat(2_000)
    assert task.settled[0].grades == {"b": 1}
    assert task.total("running") == (0, 0.0)


def test_a_withdrawal_in_time_leaves_no_settled_grade():
    task = Task()
    task.rank(ranking("a b"))
    task.judge(judgment({"b": 1}, at=50), judgment({"b": None}, at=100))
    task.judge(judgment({"b": 2}, at=101))
    task.beat(2_000)
    assert task.settled[0].grades == {}
    assert task.settled[0].units is None
    assert task.total("running") == (1, 1 / 2)


def test_in_time_is_decided_by_event_time_and_precedence_by_timestamp():
    task = Task(out_of_orderness_ms=30)
    task.rank(ranking("a b c"))
    task.judge(judgment({"a": 1}, at=90), judgment({"b": 1}, at=140))
    # 80 is 60 behind the clock of 140: its event time is 140 - 30 = 110, past maturity
    task.judge(judgment({"a": 0, "c": 1}, at=80))
    task.beat(3_000)
    assert task.settled[0].grades == {"a": 1}
    assert task.last().grades == {"a": 1, "b": 1, "c": 1}
    assert task.count("extra", "out_of_order") == 1


def test_grades_in_time_read_after_a_later_one_still_settle():
    task = Task(out_of_orderness_ms=200)
    task.rank(ranking("a b c"))
    task.judge(judgment({"a": 1}, at=150))
    task.judge(judgment({"b": 1}, at=60), judgment({"b": 0, "c": 1}, at=50))
    task.beat(3_000)
    assert task.settled[0].grades == {"b": 1, "c": 1}
    assert task.last().grades == {"a": 1, "b": 1, "c": 1}


# Coverage and empty


def test_unjudged_at_maturity_has_no_value_and_counts_as_coverage():
    task = Task()
    task.rank(ranking("a b", trace="t"), ranking("a b", trace="u"), ranking("a b", trace="w"))
    task.judge(judgment({"b": 1}, at=1, trace="u"), judgment({"b": 1}, at=101, trace="w"))
    task.beat(500)
    assert [(s.trace_id, s.units) for s in task.settled] == [
        ("t", None),
        ("u", units(1 / 2)),
        ("w", None),
    ]
    assert task.total("settled") == (1, 1 / 2)
    assert task.count("settled_queries", "m", "v", "yes") == 1
    assert task.count("settled_queries", "m", "v", "no") == 2
    settled = [task.count("queries", name) for name in ("settled_judged", "settled_unjudged")]
    assert settled == [1, 2]
    assert task.count("queries", "settled") == 1 + 2


def test_a_query_with_no_relevant_candidate_counts_0_and_has_its_counter():
    task = Task("mrr,ndcg,map", empty="zero")
    task.rank(ranking("a b"))
    task.judge(judgment({"a": 0, "b": 0}, at=1))
    assert task.last().units == [0, 0, 0]
    assert task.total("running") == (1, 0.0)
    task.beat(500)
    assert task.total("settled", "map") == (1, 0.0)
    assert task.count("extra", "nothing_relevant") == 1


@pytest.mark.parametrize("apart", [True, False])
def test_with_empty_skip_a_query_with_nothing_relevant_is_judged_without_value(apart):
    task = Task("mrr", empty="skip")
    task.rank(ranking("a b"))
    task.judge(judgment({"a": 0, "b": 0}, at=1))
    assert task.value() is None
    assert task.last().grades == {"a": 0, "b": 0}
    if apart:
        task.judge(judgment({"a": 1}, at=101))
    task.beat(500)
    assert task.total("settled") == (0, 0.0)
    assert task.settled[0].units is None
    assert task.settled[0].grades == {"a": 0, "b": 0}
    assert task.count("queries", "settled_judged") == 1
    assert task.count("queries", "with_value") == 1
    assert task.count("extra", "nothing_relevant") == 1
    assert task.total("running") == ((1, 1.0) if apart else (0, 0.0))


def test_unranked_relevant_candidates_count_in_recall_and_the_ideal():
    task = Task("map,ndcg@2,mrr,ndcg")
    task.rank(ranking("a b"))
    task.judge(judgment({"a": 1, "never": 1}, at=1))
    best_of_two = 1 + 0.6309297535714574  # 1/log2(2) + 1/log2(3)
    assert task.last().units == units(1 / 2, 1 / best_of_two, 1, 1 / best_of_two)


def test_a_query_whose_relevant_candidates_were_never_ranked_counts_0():
    task = Task("mrr,top3,ndcg,map")
    task.rank(ranking("a b"))
    task.judge(judgment({"never": 2}, at=1))
    assert task.last().units == [0, 0, 0, 0]
    assert task.last().first_ranks == [0]
    task.beat(500)
    assert task.count("extra", "nothing_relevant") == 0


def test_queries_that_settle_together_keep_their_own_values():
    task = Task("mrr", empty="skip")
    task.rank(*(ranking("a b c d", trace=trace) for trace in "stuvwxyz"))
    task.judge(
        judgment({"b": 1}, at=1, trace="t"),
        judgment({"c": 1}, at=2, trace="u"),
        judgment({"d": 1}, at=3, trace="v"),
        judgment({"a": 0}, at=4, trace="s"),
        judgment({"a": 0}, at=4, trace="w"),
        judgment({"a": 0}, at=5, trace="x"),
    )
    task.judge(*(judgment({"a": 1}, at=200, trace=trace) for trace in "suxy"))
    task.beat(900)
    found = {s.trace_id: (s.grades, s.units) for s in task.settled}
    assert found == {
        "s": ({"a": 0}, None),  # relevant only after its maturity
        "t": ({"b": 1}, units(1 / 2)),
        "u": ({"c": 1}, units(1 / 3)),  # judged again after its maturity
        "v": ({"d": 1}, units(1 / 4)),
        "w": ({"a": 0}, None),
        "x": ({"a": 0}, None),  # as s
        "y": ({}, None),  # judged only after its maturity
        "z": ({}, None),
    }
    path = ("settled", "m", "v", "served", "mrr", "sum_units")
    assert task.engine.tally()[path] == sum(units(1 / 2, 1 / 3, 1 / 4))
    assert task.total("settled")[0] == 3
    assert task.count("extra", "nothing_relevant") == 3  # s, w and x


# Order


def test_settled_queries_are_ordered_by_time_and_key_and_numbered_from_0():
    task = Task()
    keys = [(20, "b", "n"), (10, "z", "n"), (10, "a", "y"), (10, "a", "x"), (15, "c", "n")]
    task = Task(out_of_orderness_ms=50)
    task.rank(*(ranking("a", at=at, trace=trace, node=node) for at, trace, node in keys))
    task.beat(162)
    assert [(s.n, s.event_time_ms, s.trace_id) for s in task.settled] == [
        (0, 10, "a"),
        (1, 10, "a"),
        (2, 10, "z"),
    ]
    task.beat(1_000)
    assert [(s.n, s.event_time_ms, s.trace_id) for s in task.settled[3:]] == [
        (3, 15, "c"),
        (4, 20, "b"),
    ]


def test_settled_queries_are_in_the_order_of_their_ids_if_these_begin_alike():
    ids = ["a", "a\0", "a\0b", "ab", "abcdefg", "abcdefgh", "é", "日本語", "🙂"]
    ids += [f"{'x' * n}{end}" for n in (8, 15, 16, 31, 32, 40) for end in ("", "\0", "\x1f", "y")]
    given = [*((trace, "n") for trace in ids), *(("abcdefghij", node) for node in ids)]
    random.Random(1).shuffle(given)
    task = Task()
    task.rank(*(ranking("a", at=10, trace=trace, node=node) for trace, node in given))
    task.beat(1_000)
    assert [(s.trace_id, s.node_id) for s in task.settled] == sorted(given)


def test_settled_rows_carry_the_offset_and_stratum_of_their_ranking():
    task = Task()
    task.rank(heartbeat(at=0), ranking("a b", model="x", scorers={"bm25": [1, 2]}), ranking("c"))
    task.finish()
    (settled,) = task.settled
    assert settled.offset == 1
    assert settled.node_id == "n"
    assert settled.stratum == Stratum("x", "v", ("served", "bm25"))


def test_strata_with_equal_rankers_share_a_part_in_their_order():
    task = Task()
    scored = {"scorers": {"bm25": [1, 2]}}
    variants = [("a", {}), ("b", {}), ("c", scored), ("a", {}), ("b", {}), ("c", {})]
    traces = [f"t{n}" for n in range(len(variants))]
    rankings = [
        ranking("a b", trace=trace, variant=variant, **more)
        for trace, (variant, more) in zip(traces, variants, strict=True)
    ]
    task.engine.receive(ranking_columns([*rankings, heartbeat(at=900)]), None)
    judged = [judgment({"b": 1}, trace=trace) for trace in traces[:5]]
    outputs = task.engine.receive(None, judgment_columns([*judged, heartbeat(at=900)]))
    two, one = [("a", "t0"), ("a", "t3"), ("b", "t1"), ("b", "t4")], [("c", "t2")]
    assert [labelled(part) for part in outputs.evaluations] == [two, one]
    assert [sorted(labelled(part)) for part in outputs.settled] == [two, one, [("c", "t5")]]
    assert [part.rankers for part in outputs.settled][1] == ("served", "bm25")
    queries = [task.count("settled", "m", variant, "served", "mrr", "queries") for variant in "abc"]
    assert queries == [2, 2, 1]


def labelled(part):
    variants = [stratum.variant for stratum in part.strata.values()]
    return list(zip(variants, part.trace_ids, strict=True))


# Clocks


def test_there_is_no_watermark_until_both_logs_have_a_clock():
    task = Task(out_of_orderness_ms=30)
    assert task.engine.watermark_ms is None
    task.rank(ranking("a b", at=5), heartbeat(at=10_000))
    assert task.engine.clocks_ms == {"rankings": 10_000, "judgments": None}
    assert task.engine.watermark_ms is None
    assert task.settled == []
    task.judge(judgment({"b": 1}, at=70, trace="another"))
    assert task.engine.watermark_ms == 70 - 30
    task.judge(heartbeat(at=20_000))
    assert task.engine.watermark_ms == 10_000 - 30
    assert len(task.settled) == 1


def test_heartbeats_move_the_clock_only_forward():
    task = Task()
    task.beat(500)
    task.beat(400)
    assert task.engine.clocks_ms == {"rankings": 500, "judgments": 500}
    assert task.counts("rankings") == {"heartbeat": 2}


def test_a_record_out_of_order_beyond_the_bound_gets_the_bound_as_event_time():
    task = Task(out_of_orderness_ms=30)
    task.rank(ranking("a b", at=100, trace="u"), ranking("a b", at=69), heartbeat(at=50))
    task.judge(judgment({"b": 1}, at=70))
    assert task.last().event_time_ms == 100 - 30
    assert task.count("extra", "out_of_order") == 1


def test_a_heartbeat_counts_for_the_records_after_it_not_before_it():
    task = Task(out_of_orderness_ms=30)
    task.rank(ranking("a", at=10, trace="t"), heartbeat(at=200), ranking("a", at=20, trace="u"))
    task.beat(10_000)
    assert [(s.trace_id, s.event_time_ms) for s in task.settled] == [("t", 10), ("u", 200 - 30)]


def test_duplicates_and_refused_judgments_move_the_clock():
    task = Task()
    task.rank(ranking("a b"), ranking("a b", at=40))
    task.judge(judgment({"b": 1}, at=1, name="j"), judgment({"b": 2}, at=30, name="j"))
    assert task.engine.clocks_ms == {"rankings": 40, "judgments": 30}
    task.judge(judgment({"b": 2}, at=1_020))
    assert task.engine.clocks_ms["judgments"] == 1_020


def test_malformed_records_do_not_move_the_clock():
    task = Task()
    task.rank(malformed(at=9_999, reason="decode"))
    task.judge(malformed(at=9_999), heartbeat(at=7))
    assert task.engine.clocks_ms == {"rankings": None, "judgments": 7}
    assert task.engine.positions == {"rankings": 1, "judgments": 2}
    assert task.counts("rankings") == {"malformed": 1}
    assert task.counts("judgments") == {"malformed": 1, "heartbeat": 1}
    assert task.reasons == [("rankings", 0, "decode"), ("judgments", 0, "schema")]
    assert task.count("dead_letters", "decode") == 1
    assert task.count("dead_letters", "schema") == 1
    assert task.count("queries", "started") == 0


def test_dead_letters_are_counted_by_reason():
    task = Task()
    task.rank(ranking("a b"), malformed(at=1), malformed(at=1))
    task.judge(judgment({"b": 1}, at=1_001), judgment({"a": 1}, at=1_002), malformed(at=1))
    assert task.count("dead_letters", "late") == 2
    assert task.count("dead_letters", "schema") == 3
