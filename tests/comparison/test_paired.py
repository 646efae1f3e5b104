"""Paired differences: exact means, coverage of intervals, p of the randomisation test."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.comparison import paired as module
from evaluator.comparison.paired import paired

UNIT = 2.0**-40


def values(rng, n):
    """Values that a measure can have: multiples of 2^-40."""
    return np.rint(rng.random(n) / UNIT) * UNIT


def compared(baseline, other, traces=None, **options):
    traces = range(len(baseline)) if traces is None else traces
    return paired(np.array(baseline), np.array(other), np.array(traces), **options)


def test_wins_ties_and_losses_are_of_the_other_ranker():
    result = compared([0.5, 0.5, 0.5, 0.5], [1.0, 0.5, 0.25, 0.5 + UNIT])
    assert (result.wins, result.ties, result.losses) == (2, 1, 1)
    assert result.difference == (0.5 + 0.0 - 0.25 + UNIT) / 4


def test_every_query_has_the_same_weight_for_any_trace_length():
    result = compared([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], ["t", "t", "t", "u"])
    assert (result.pairs, result.traces) == (4, 2)
    assert result.difference == 3 / 4


units = st.integers(0, 2**40)


@given(st.lists(st.tuples(units, units), min_size=1, max_size=40))
def test_means_are_the_floats_nearest_to_the_exact_ones(pairs):
    result = compared([a * UNIT for a, _ in pairs], [b * UNIT for _, b in pairs], resamples=1)
    n = len(pairs) * 2**40
    assert result.baseline_mean == float(Fraction(sum(a for a, _ in pairs), n))
    assert result.other_mean == float(Fraction(sum(b for _, b in pairs), n))
    assert result.difference == float(Fraction(sum(b - a for a, b in pairs), n))


@given(st.lists(st.tuples(units, units, st.integers(0, 3)), min_size=1, max_size=30))
def test_swapping_the_rankers_negates_every_sign(rows):
    a, b, traces = [r[0] * UNIT for r in rows], [r[1] * UNIT for r in rows], [r[2] for r in rows]
    one, two = compared(a, b, traces, resamples=50), compared(b, a, traces, resamples=50)
    assert (one.wins, one.ties, one.losses) == (two.losses, two.ties, two.wins)
    assert one.difference == -two.difference
    assert one.p == two.p
    if one.interval is not None:
        assert one.interval.low == pytest.approx(-two.interval.high, abs=1e-12)


def exact_p(sums):
    """Over all sign flips: how many have a sum at least as far from 0."""
    far = [
        abs(sum(sign * one for sign, one in zip(signs, sums, strict=True))) >= abs(sum(sums))
        for signs in product((-1, 1), repeat=len(sums))
    ]
    return sum(far) / len(far)


@pytest.mark.parametrize("n", [2, 3, 8, 12])
def test_p_is_the_share_of_all_sign_flips(n):
    rng = np.random.default_rng(n)
    a, b = values(rng, n), values(rng, n)
    expected, flips = exact_p(((b - a) / UNIT).astype(np.int64).tolist()), 20_000
    # Four standard errors of a share of 20,000 flips, and the one that is added.
    error = 4 * math.sqrt(expected * (1 - expected) / flips) + 1 / flips
    assert compared(a, b, resamples=flips).p == pytest.approx(expected, abs=error)


def test_flips_that_tie_with_the_observed_difference_count():
    # Differences 1/4 and 1/4: sums of 1/2, 0, 0, -1/2, so half of the flips are as far from 0.
    p = compared([0.5, 0.25], [0.75, 0.5], resamples=1_000).p
    assert p == pytest.approx(0.5, abs=4 * math.sqrt(0.25 / 1_000))


def test_the_smallest_p_is_one_of_one_more_than_the_flips():
    assert compared(np.zeros(60), np.ones(60), resamples=999).p == 1 / 1_000


def test_the_signs_of_a_trace_are_flipped_together():
    # Thirty queries that win: as traces of one they are evidence, as two traces they are none.
    wins = np.zeros(30), np.full(30, 0.25)
    assert compared(*wins, resamples=999).p == 1 / 1_000
    assert compared(*wins, np.arange(30) % 2, resamples=999).p == pytest.approx(0.5, abs=0.07)


@pytest.mark.parametrize("difference", [0.0, 0.25])
def test_equal_differences_have_an_interval_without_width(difference):
    result = compared([0.5, 0.25, 0.0], [0.5 + difference, 0.25 + difference, difference])
    assert (result.interval.low, result.interval.high) == (difference, difference)
    assert result.p == (1.0 if not difference else pytest.approx(2 / 8, abs=0.02))


def test_a_single_trace_has_neither_interval_nor_p():
    result = compared([0.0, 0.5], [1.0, 0.5], ["t", "t"])
    assert (result.interval, result.p) == (None, None)


def test_sums_that_would_overflow_are_kept_in_a_coarser_unit():
    # 40,000 differences of 2^10 are 2^(10 + 40) units each, 2^65 in all.
    n = 40_000
    result = compared(np.zeros(n), np.full(n, 1024.0), np.arange(n) // 2, resamples=99)
    assert result.difference == result.interval.low == result.interval.high == 1024.0
    assert result.p == 1 / 100


def test_the_interval_of_two_traces_has_three_possible_means():
    # Draws of two: both the first (1/4), one of each (1/2), both the second (1/4).
    result = compared([0.0, 0.0], [0.0, 1.0], resamples=2_000, confidence=0.4)
    assert (result.interval.low, result.interval.high) == (0.5, 0.5)  # 30 % to 70 %
    result = compared([0.0, 0.0], [0.0, 1.0], resamples=2_000, confidence=0.6)
    assert (result.interval.low, result.interval.high) == (0.0, 1.0)  # 20 % to 80 %


def test_traces_are_resampled_as_a_whole():
    # Each trace holds one win and one loss of 1/2, so every resample has the mean 0.
    traces = np.repeat(np.arange(50), 2)
    other = np.tile([1.0, 0.0], 50)
    result = compared(np.full(100, 0.5), other, traces)
    assert (result.interval.low, result.interval.high) == (0.0, 0.0)
    alone = compared(np.full(100, 0.5), other)
    assert alone.interval.low < -0.05 < 0.05 < alone.interval.high


def test_a_mean_is_over_the_queries_of_the_drawn_traces():
    # One trace of three queries at 1, one of a single query at 0: means 1, 3/4, 0 and no other.
    result = compared([0.0] * 4, [1.0, 1.0, 1.0, 0.0], ["t", "t", "t", "u"], confidence=0.4)
    assert (result.interval.low, result.interval.high) == (0.75, 0.75)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another():
    rng = np.random.default_rng(1)
    a, b = values(rng, 300), values(rng, 300)
    assert compared(a, b, seed=3) == compared(a, b, seed=3)
    assert compared(a, b, seed=3).interval != compared(a, b, seed=4).interval


@pytest.mark.parametrize("draws", [1, 1_000, 10**7])
def test_the_number_of_draws_at_once_does_not_change_the_result(monkeypatch, draws):
    rng = np.random.default_rng(1)
    a, b, traces = values(rng, 300), values(rng, 300), np.arange(300) // 2
    expected = compared(a, b, traces, resamples=500)
    monkeypatch.setattr(module, "_DRAWS_AT_ONCE", draws)
    assert compared(a, b, traces, resamples=500) == expected


def test_trace_ids_may_be_strings_or_numbers():
    rng = np.random.default_rng(1)
    a, b, traces = values(rng, 90), values(rng, 90), np.arange(90) // 3
    names = np.array([f"{trace:04}" for trace in traces])
    assert compared(a, b, names) == compared(a, b, traces)


@pytest.mark.slow
def test_groups_of_many_traces_give_the_interval_of_the_traces(monkeypatch):
    rng = np.random.default_rng(5)
    n = 40_000
    a = np.zeros(n)
    b = np.rint(rng.random(n) ** 8 / UNIT) * UNIT  # skewed: most near 0
    traces = np.arange(n) // 2
    of_groups = compared(a, b - 0.11, traces, resamples=4_000)
    monkeypatch.setattr(module, "MAX_RESAMPLED", n)
    of_traces = compared(a, b - 0.11, traces, resamples=4_000)
    grouped, direct = of_groups.interval, of_traces.interval
    assert of_groups.p == pytest.approx(of_traces.p, abs=0.04)
    width = direct.high - direct.low
    assert grouped.low == pytest.approx(direct.low, abs=0.05 * width)
    assert grouped.high == pytest.approx(direct.high, abs=0.05 * width)
    assert grouped != direct


def world(rng, n_traces, *, mean):
    """Differences that the queries of a trace share in part, and skewed; their mean is *mean*."""
    sizes = rng.integers(1, 6, n_traces)
    shared = np.repeat(rng.exponential(0.1, n_traces) - 0.1, sizes)
    own = rng.exponential(0.1, len(shared)) - 0.1
    return mean + shared + own, np.repeat(np.arange(n_traces), sizes)


def covered(mean=0.05, *, n_worlds=400, n_traces=80, by_trace=True):
    """The number of worlds in which a 90 % interval contains the true mean."""
    rng = np.random.default_rng(11)
    hits = 0
    for seed in range(n_worlds):
        differences, traces = world(rng, n_traces, mean=mean)
        traces = traces if by_trace else np.arange(len(traces))
        zeros = np.zeros(len(differences))
        found = paired(zeros, differences, traces, resamples=500, confidence=0.9, seed=seed)
        hits += found.interval.low <= mean <= found.interval.high
    return hits / n_worlds


@pytest.mark.slow
def test_a_90_percent_interval_contains_the_true_mean_in_90_percent_of_worlds():
    # One standard error of 400 worlds at 0.9 is sqrt(0.9 * 0.1 / 400) = 0.015; 3 of them, and
    # a skewed mean of 80 traces that the percentile interval covers a little too seldom.
    assert 0.9 - 0.06 <= covered() <= 0.9 + 3 * math.sqrt(0.9 * 0.1 / 400)


@pytest.mark.slow
def test_resampling_queries_of_one_trace_separately_gives_too_narrow_intervals():
    assert covered(by_trace=False) < 0.8


@pytest.mark.parametrize(
    ("arrays", "options", "words"),
    [
        (([], [], []), {}, "not empty"),
        (([0.5], [0.5, 0.5], [1]), {}, "of one length"),
        (([0.5], [math.nan], [1]), {}, "not finite"),
        (([0.5], [0.5], [1]), {"resamples": 0}, "resamples 0"),
        (([0.5], [0.5], [1]), {"confidence": 1.0}, "confidence 1.0"),
        (([0.5], [0.5], [1]), {"seed": -1}, "seed -1"),
    ],
)
def test_incomparable_values_are_refused(arrays, options, words):
    with pytest.raises(ValueError, match=words):
        compared(*arrays, **options)


@pytest.mark.slow
def test_p_below_a_twentieth_is_as_rare_as_claimed_without_a_difference():
    # 4 standard errors of 400 worlds at 0.05: 4 * sqrt(0.05 * 0.95 / 400) = 0.044.
    rng, rejected = np.random.default_rng(12), 0
    for seed in range(400):
        differences, traces = world(rng, 40, mean=0.0)
        symmetric = differences * np.repeat(rng.choice([-1, 1], 40), np.bincount(traces))
        p = paired(np.zeros(len(traces)), symmetric, traces, resamples=199, seed=seed).p
        rejected += p <= 0.05
    assert abs(rejected / 400 - 0.05) <= 0.044
