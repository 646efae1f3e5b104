"""The oracle itself: worked examples, and results that are never withdrawn."""

import gzip
from math import log2
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.oracle.measures import (
    ONE,
    average_precision,
    discount,
    gain,
    ndcg,
    ranked_ids,
    square_units,
    units,
    value,
)
from tests.oracle.messages import Heartbeat, Judgment, Malformed, Ranking
from tests.oracle.oracle import judge
from tests.oracle.pieces import positions, steps
from tests.oracle.rules import MINUS_INFINITY, Settings, event_times, merged_grades
from tests.oracle.totals import comparable, totals_of_files, totals_of_tasks
from tests.oracle.worlds import worlds
from tests.repeats import examples

SETTINGS = Settings(
    retention_ms=100,
    maturity_ms=40,
    early_ms=10,
    remember_ms=20,
    out_of_orderness_ms=5,
    window_ms=10,
    measures=("top1", "mrr"),
)


def ranking(offset, at_ms, *, ids=("a", "b"), scores=(2.0, 1.0), ranks=None, value=None):
    return Ranking(
        offset=offset,
        timestamp_ms=at_ms,
        value=b"%d" % at_ms if value is None else value,
        trace_id="t",
        node_id="n",
        model="m",
        variant="v",
        query="",
        candidate_ids=tuple(ids),
        scores=tuple(scores),
        ranks=ranks,
        scorers=(),
    )


def judgment(offset, at_ms, grades, *, judgment_id=None, value=None):
    return Judgment(
        offset=offset,
        timestamp_ms=at_ms,
        value=repr((at_ms, grades, judgment_id)).encode() if value is None else value,
        trace_id="t",
        node_id="n",
        source="",
        judgment_id=judgment_id,
        grades=tuple(grades.items()),
    )


# -- measures ------------------------------------------------------------------------------------


def test_ndcg_is_dcg_over_the_ideal_dcg_of_all_judged():
    expected = (0 / log2(2) + 3 / log2(3)) / (7 / log2(2) + 3 / log2(3))
    assert ndcg(["b", "a"], {"a": 2.0, "z": 3.0}, 10) == pytest.approx(expected)


def test_average_precision_divides_by_all_relevant_ranked_or_not():
    expected = (1 / 1 + 2 / 3) / 3
    assert average_precision(["a", "b", "c"], {"a": 1, "c": 1, "z": 1}, 10) == expected
    assert average_precision(["a", "b", "c"], {"a": 1, "c": 1, "z": 1}, 2) == (1 / 1) / 3


def test_discounts_and_gains_are_nearest_doubles():
    assert discount(1) == 1.0
    assert discount(3) == 0.5
    assert discount(2) == pytest.approx(1 / log2(3), rel=1e-15)
    assert gain(0.0) == 0.0
    assert gain(31.0) == 2.0**31 - 1
    assert gain(0.5) == pytest.approx(2**0.5 - 1, rel=1e-15)
    assert gain(1e-300) == pytest.approx(0.6931471805599453e-300, rel=1e-15)


def test_values_and_their_squares_round_half_to_even():
    assert units(1.5 / ONE) == 2
    assert units(2.5 / ONE) == 2
    assert square_units(2**20) == 1
    assert square_units(ONE) == ONE


def test_ties_go_by_the_bytes_of_the_id_descending_and_repeats_keep_the_best():
    ids = ("a", "aa", "～", "😀", "a")
    assert ranked_ids(ranking(0, 1, ids=ids, scores=(1.0,) * 5), "served") == (
        "😀",
        "～",
        "aa",
        "a",
    )
    best_last = ranking(0, 1, ids=("a", "b", "a"), scores=(0.0, 1.0, 2.0))
    assert ranked_ids(best_last, "served") == ("a", "b")
    shown = ranking(0, 1, ids=("a", "b", "c"), scores=(3.0, 2.0, 1.0), ranks=(9, 9, 1))
    assert ranked_ids(shown, "served") == ("c", "b", "a")


def test_a_measure_without_cutoff_uses_the_whole_list():
    assert value("mrr", ["a", "b", "c"], {"c": 1.0}) == 1 / 3
    assert value("mrr@2", ["a", "b", "c"], {"c": 1.0}) == 0.0
    assert value("top3", ["a", "b", "c"], {"c": 1.0}) == 1.0


# -- the join ------------------------------------------------------------------------------------


def test_an_event_time_is_bounded_by_the_clock_before_the_record():
    log = [ranking(0, 50), Heartbeat(1, 100), Malformed(2, "decode"), ranking(3, 94)]
    assert event_times(log, 5) == {0: 50, 1: 100, 3: 95}


def test_there_is_no_watermark_until_both_logs_have_a_clock():
    assert judge([ranking(0, 50)], [], SETTINGS).watermark == MINUS_INFINITY
    assert judge([ranking(0, 50)], [Heartbeat(0, 500)], SETTINGS).watermark == 45


@pytest.mark.parametrize(
    ("age_ms", "outcome"),
    [
        (-11, "early"),
        (-10, "applied"),
        (100, "applied"),
        (101, "late"),
        (120, "late"),
        (121, "early"),
    ],
)
def test_bounds_of_an_age_are_inclusive(age_ms, outcome):
    task = judge([ranking(0, 1_000)], [judgment(0, 1_000 + age_ms, {"a": 1.0})], SETTINGS)
    assert task.judgment_outcomes == {0: outcome}


@pytest.mark.parametrize(("clock_ms", "outcome"), [(1_015, "early"), (1_016, "orphan")])
def test_a_judgment_is_an_orphan_once_the_watermark_has_passed_it(clock_ms, outcome):
    logs = [Heartbeat(0, clock_ms)], [judgment(0, 1_000, {"a": 1.0}), Heartbeat(1, clock_ms)]
    assert judge(*logs, SETTINGS).judgment_outcomes == {0: outcome}


def test_every_ranking_of_a_key_extends_its_reservation():
    log = [ranking(0, 1_000), ranking(1, 1_130), ranking(2, 1_260), ranking(3, 1_391)]
    outcomes = {0: "started", 1: "conflicting", 2: "conflicting", 3: "started"}
    assert judge(log, [], SETTINGS).ranking_outcomes == outcomes


def test_a_repeated_ranking_is_compared_with_the_one_before_it():
    log = [ranking(n, 1_000, value=v) for n, v in enumerate([b"A", b"B", b"B", b"A"])]
    outcomes = {0: "started", 1: "conflicting", 2: "duplicate", 3: "conflicting"}
    assert judge(log, [], SETTINGS).ranking_outcomes == outcomes


def test_judgments_are_compared_with_applied_ones_only():
    log = [
        judgment(0, 1_000, {"a": 1.0}, judgment_id="j"),
        judgment(1, 1_000, {"a": 2.0}, judgment_id="j"),
        judgment(2, 1_000, {"a": 2.0}, judgment_id="j"),
        judgment(3, 1_000, {"a": 1.0}, judgment_id="j"),
        judgment(4, 1_000, {"a": 1.0}),
        judgment(5, 1_000, {"a": 1.0}),
    ]
    task = judge([ranking(0, 1_000)], log, SETTINGS)
    assert list(task.judgment_outcomes.values()) == [
        *("applied", "conflicting", "conflicting", "duplicate"),
        *("applied", "duplicate"),
    ]


def test_the_latest_timestamp_wins_and_a_withdrawal_overrides():
    late = judgment(7, 30, {"a": 1.0, "b": 1.0})
    early = judgment(8, 20, {"a": 2.0, "c": 2.0})
    withdrawal = judgment(9, 30, {"b": None})
    assert merged_grades([late, early, withdrawal]) == {"a": 1.0, "c": 2.0}


def test_the_settled_value_counts_judgments_up_to_maturity_only():
    log = [judgment(0, 1_040, {"b": 1.0}), judgment(1, 1_041, {"a": 1.0}), Heartbeat(2, 2_000)]
    (query,) = judge([ranking(0, 1_000), Heartbeat(1, 1_046)], log, SETTINGS).settled
    assert query.settled_evaluation.units == {("served", "top1"): 0, ("served", "mrr"): ONE // 2}
    assert query.running.units == {("served", "top1"): ONE, ("served", "mrr"): ONE}
    assert not judge([ranking(0, 1_000), Heartbeat(1, 1_045)], log, SETTINGS).settled


def test_totals_of_two_tasks_add():
    log = [judgment(0, 1_040, {"b": 1.0})]
    task = judge([ranking(0, 1_000)], log, SETTINGS, at_end=True)
    totals = totals_of_tasks([task, task], SETTINGS)
    row = ("settled", "m", "v", "served", "mrr")
    assert comparable(totals)["totals"][row] == (2, ONE)
    assert totals["ledger"]["rankings"]["expired"] == 2


def test_totals_of_files_equal_those_of_their_lines(tmp_path):
    ranked = (
        b'{"schema_version":1,"trace_id":"t","node_id":"n","timestamp_ms":1000,'
        b'"candidate_ids":["a","b"],"scores":[2,1]}'
    )
    judged = (
        b'{"schema_version":1,"trace_id":"t","node_id":"n","timestamp_ms":1001,"grades":{"b":1}}'
    )
    (tmp_path / "rankings-0.ndjson").write_bytes(ranked + b"\r\n" + ranked + b"\n\n")
    (tmp_path / "judgments-0.ndjson.gz").write_bytes(gzip.compress(judged))
    (tmp_path / "rankings-1.ndjson").write_bytes(ranked)
    totals = comparable(totals_of_files(tmp_path, SETTINGS))
    assert totals["ledger"]["rankings"] == {
        **dict.fromkeys(("heartbeat", "conflicting", "left_out", "open"), 0),
        "read": 4,
        "malformed": 1,
        "duplicate": 1,
        "expired": 2,
    }
    assert totals["queries"]["settled_judged"] == 1
    assert totals["totals"]["settled", "", "", "served", "mrr"] == (1, ONE // 2)


# -- the law, of the oracle alone ----------------------------------------------------------------


@pytest.mark.slow(alone=False)
@hypothesis_settings(max_examples=examples(32), deadline=None)
@given(worlds(), st.integers(0, 2**32))
def test_results_of_a_prefix_are_never_withdrawn(world, seed):
    """Settled rows, final windows, dead letters and revisions are never withdrawn."""
    before = world.cut(0, 0).judge()
    for read in positions(steps(Random(seed), len(world.rankings), len(world.judgments))):
        now = world.cut(*read).judge()
        check_extends(now, before)
        before = now
    check_extends(world.judge(at_end=True), before)


def check_extends(now, before):
    def settled_rows(task):
        return [(q.identity, q.settled_evaluation) for q in task.settled]

    n = len(before.settled)
    assert settled_rows(now)[:n] == settled_rows(before)
    assert now.dead_letters >= before.dead_letters
    final = {w.start_ms: w.sums for w in now.windows if w.final}
    assert all(final.get(w.start_ms) == w.sums for w in before.windows if w.final)
    queries = {query.identity: query for query in now.queries}
    for query in before.queries:
        same = queries[query.identity]
        assert same.applied[: query.revision] == query.applied
        assert same.evaluation_at(query.revision) == query.running
        assert not query.expired or same.running == query.running
