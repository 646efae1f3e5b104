"""Sums are exact in any order, can be merged, and can be subtracted from."""

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.core.measures.exact_sums import (
    DELAY_BOUNDS_SECONDS,
    DelayHistogram,
    Sums,
    Totals,
    Windows,
    add_tally,
    squares_of,
)
from evaluator.core.types.records import FinalWindow, Stratum
from evaluator.core.types.tally import GroupedTally
from tests.core.build import Task, judgment, ranking

ONE = 1 << 40
tallies = st.dictionaries(st.sampled_from([("a",), ("b",), ("a", "b")]), st.integers())
parts = st.lists(
    st.tuples(st.integers(0, 9), st.lists(st.integers(0, ONE), min_size=3, max_size=3)), max_size=8
)


def without_zeros(tally):
    return {path: n for path, n in tally.items() if n}


@given(tallies, tallies, tallies)
def test_tallies_merge_in_any_order_and_grouping(a, b, c):
    one = add_tally(add_tally(dict(a), b), c)
    other = add_tally(dict(a), add_tally(dict(c), b))
    assert without_zeros(one) == without_zeros(other)


def test_add_to_adds_to_a_given_tally_in_place():
    total = {("a",): 1}
    assert add_tally(total, {("a",): 2, ("b",): 3}) is total
    assert total == {("a",): 3, ("b",): 3}


def summed(some):
    sums = Sums(0, [0] * 3)
    for queries, units in some:
        sums.add(queries, units)
    return sums


@given(parts, st.randoms(use_true_random=False))
def test_sums_do_not_depend_on_the_order(some, random):
    shuffled = random.sample(some, len(some))
    assert summed(some) == summed(shuffled)


@given(parts, parts)
def test_added_parts_equal_the_whole_and_can_be_subtracted(some, others):
    whole, part = summed(some + others), summed(others)
    merged = summed(some)
    merged.add(part.queries, part.units)
    assert merged == whole
    whole.add(-part.queries, [-unit for unit in part.units])
    assert whole == summed(some)


def test_sums_of_another_width_are_refused():
    with pytest.raises(ValueError, match="zip"):
        Sums(0, [0] * 3).add(1, [1, 2])


@given(st.lists(st.integers(0, ONE), min_size=1, max_size=50))
def test_squares_are_rounded_half_to_even(units):
    expected = [round(Fraction(u, ONE) ** 2 * ONE) for u in units]
    assert squares_of(np.array(units)).tolist() == expected


def test_squares_by_hand():
    halves = np.array([0, ONE, ONE // 2, ONE // 4, 1])
    assert squares_of(halves).tolist() == [0, ONE, ONE // 4, ONE // 16, 0]


# Totals

PAIR = Stratum("m", "v", ("served", "bm25"))
ALONE = Stratum("m", "v", ("served",))


def tally_of(totals):
    groups, _ = totals.groups()
    return dict(GroupedTally(groups))


def test_totals_of_strata_are_ranker_major_and_sum_by_ranker():
    totals = Totals(["mrr", "map"])
    totals.of(PAIR).running.add(2, [1, 2, 3, 4])
    totals.of(ALONE).running.add(3, [10, 20])
    tally = tally_of(totals)
    running = {path[3:]: n for path, n in tally.items() if path[0] == "running"}
    assert running == {
        ("served", "mrr", "queries"): 5,
        ("served", "mrr", "sum_units"): 11,
        ("served", "map", "queries"): 5,
        ("served", "map", "sum_units"): 22,
        ("bm25", "mrr", "queries"): 2,
        ("bm25", "mrr", "sum_units"): 3,
        ("bm25", "map", "queries"): 2,
        ("bm25", "map", "sum_units"): 4,
    }


def test_settled_queries_and_squares_are_separate_from_running_ones():
    totals = Totals(["mrr"])
    one = totals.of(ALONE)
    one.settled.add(2, [7])
    one.settled_squares.add(2, [5])
    one.settled_judged, one.settled_unjudged = 3, 4
    totals.of(PAIR).settled_unjudged = 10
    tally = tally_of(totals)
    path = ("settled", "m", "v", "served", "mrr")
    assert [tally[*path, name] for name in ("queries", "sum_units", "square_units")] == [2, 7, 5]
    assert tally["settled_queries", "m", "v", "yes"] == 3
    assert tally["settled_queries", "m", "v", "no"] == 4 + 10
    assert totals.groups()[1] == {"yes": 3, "silent": 0, "no": 14}


def test_a_new_stratum_starts_at_zero():
    totals = Totals(["mrr"])
    assert totals.of(ALONE) is totals.of(ALONE)
    assert tally_of(totals)["settled", "m", "v", "served", "mrr", "square_units"] == 0


def test_totals_exceed_64_bits():
    task = Task("mrr")
    task.rank(ranking("a", trace="t"), ranking("b a", trace="u"))
    many = 20_000_000  # more queries than 2^63 units hold
    lifetime = task.engine._running.totals.of(ALONE)
    lifetime.running.add(many, [many * ONE])
    lifetime.settled.add(many, [many * ONE])
    lifetime.settled_squares.add(many, [many * ONE])
    assert many * ONE > 1 << 63
    task.judge(*(judgment({"a": 1}, trace=trace) for trace in "tu"))
    task.beat(5_000)
    tally = task.engine.tally()
    added = ONE + ONE // 2
    assert tally["running", "m", "v", "served", "mrr", "sum_units"] == many * ONE + added
    assert tally["settled", "m", "v", "served", "mrr", "sum_units"] == many * ONE + added
    squares = ONE + ONE // 4
    assert tally["settled", "m", "v", "served", "mrr", "square_units"] == many * ONE + squares
    assert tally["running", "m", "v", "served", "mrr", "queries"] == many + 2


def test_window_sums_exceed_64_bits():
    windows = Windows(("mrr",), 200, 1_000)
    for _ in range(3):
        windows.add(0, ALONE, [1 << 63, 1 << 23])
    assert windows.pop_final(10_000) == [
        FinalWindow(0, "m", "v", "served", "mrr", 3 << 23, 3 << 63),
    ]


def test_windows_sum_in_any_order_and_are_returned_earliest_first():
    random = Random(6)
    adds = [(200 * random.randrange(5), random.choice((PAIR, ALONE)), i) for i in range(40)]
    found = []
    for order in (adds, adds[::-1]):
        windows = Windows(("mrr",), 200, 1_000)
        for start_ms, stratum, i in order:
            windows.add(start_ms, stratum, [i] * len(stratum.rankers) + [1])
        assert windows.pop_final(0 + 200 - 1 + 1_000) == []
        final = windows.pop_final(10_000)
        assert [row.start_ms for row in final] == sorted(row.start_ms for row in final)
        assert windows.pop_final(10_000) == []
        found.append(final)
    assert found[0] == found[1]
    by_ranker = [row.sum_units for row in found[0] if row.ranker == "bm25"]
    assert sum(by_ranker) == sum(i for _, stratum, i in adds if stratum is PAIR)


# Delays


def test_delay_buckets_include_their_upper_bound():
    delays = DelayHistogram()
    bounds_ms = [1_000 * bound for bound in DELAY_BOUNDS_SECONDS]
    for bound_ms in bounds_ms:
        delays.add(np.array([bound_ms, bound_ms + 1]))
    delays.add(np.array([-5, 0, 1]))
    delays.add(np.empty(0, np.int64))
    tally = {}
    delays.add_to(tally)
    assert [tally["delay", str(i)] for i in range(len(bounds_ms) + 1)] == [4, *[2] * 11, 1]
    assert tally["delay_sum_ms",] == sum(2 * bound + 1 for bound in bounds_ms) + 1


def test_sums_of_delays_exceed_64_bits():
    delays = DelayHistogram()
    delays.add(np.array([(1 << 63) - 1] * 3))
    tally = {}
    delays.add_to(tally)
    assert tally["delay_sum_ms",] == 3 * ((1 << 63) - 1)


def test_groups_without_a_change_are_the_same_objects():
    totals = Totals(["mrr"])
    for model in ("m", "n"):
        totals.of(Stratum(model, "v", ("served",))).running.add(1, [5])
    before, _ = totals.groups()
    totals.of(Stratum("n", "v", ("served", "bm25"))).running.add(1, [2, 3])
    totals.of(Stratum("n", "v", ("served",))).settled_judged += 4
    after, n_settled = totals.groups()
    assert after["m", "v"] is before["m", "v"]
    assert before["n", "v"]["running", "n", "v", "served", "mrr", "sum_units"] == 5
    assert after["n", "v"]["running", "n", "v", "served", "mrr", "sum_units"] == 5 + 2
    assert n_settled == {"yes": 4, "silent": 0, "no": 0}
    totals.restore(totals.everything())
    assert totals.groups() == (after, n_settled)
