"""The promotion gate: the arithmetic of its bets, its rules, and restarts with the same bits."""

import doctest
import json
from fractions import Fraction
from math import log2
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import gate as benchmark
from evaluator.core.promotion import e_process, gate
from evaluator.core.promotion.blocks import BlockBets, OpenBlock
from evaluator.core.promotion.e_process import FRACTIONS, Wealth
from evaluator.core.promotion.gate import (
    Difference,
    Experiment,
    Gate,
    GateRules,
    Observation,
    decided,
    trace_observation,
    verdict,
)
from tests.repeats import examples

ONE = 1 << 40
DAY_MS = 86_400_000
units = st.integers(-ONE, ONE)
few_units = st.lists(units, max_size=6)


@pytest.mark.parametrize("module", [e_process, gate])
def test_docstring_examples_are_correct(module):
    assert doctest.testmod(module).failed == 0


def wealth_after(*differences):
    wealth = Wealth.of_one()
    for difference in differences:
        wealth = wealth.after(np.array(float(difference)))
    return wealth


def experiment_after(*observations, rules, start_ms=0):
    """Every block ends with its last trace."""
    experiment = Experiment(start_ms, start_ms)
    for observation in observations:
        until_ms = observation.time_ms + rules.block_ms
        experiment = decided(experiment, [observation], rules, until_ms=until_ms)[0]
    return experiment


# -- the bets -----------------------------------------------------------------------------------


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 1 << 64), st.integers(0, 40), st.sampled_from([0, 300]))
def test_traces_decided_together_equal_traces_decided_one_by_one(seed, min_traces, min_age_ms):
    random = Random(seed)
    rules = GateRules("m", {"n": 0.1}, block_ms=14, min_traces=min_traces, min_age_ms=min_age_ms)
    lean = random.choice((-ONE // 2, 0, ONE // 3))
    traces = [
        trace_observation(
            7 * i,
            {
                name: [random.randint(max(-ONE, lean - ONE), min(ONE, lean + ONE))]
                for name in ("m", "n")
                if random.random() < 0.9
            },
            None if random.random() < 0.5 else {"m": [random.choice((0, 0.3))], "n": [1.0]},
        )
        for i in range(60)
    ]
    start = Experiment(0, 0)
    experiment, found = start, verdict(start, rules)
    for trace in traces:
        experiment = decided(experiment, [trace], rules)[0]
        found = verdict(experiment, rules)
        if found.status != "undecided":
            break
    assert decided(start, traces, rules) == (experiment, found)


def test_wealth_is_the_product_of_the_factors_of_all_differences():
    differences = [1, -0.5, 0.25]
    products = [
        (1 + fraction) * (1 - 0.5 * fraction) * (1 + 0.25 * fraction) for fraction in FRACTIONS
    ]
    assert wealth_after(*differences).evidence() == pytest.approx(sum(products) / 6, rel=1e-14)
    assert FRACTIONS == (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)


def test_exact_fractions_agree():
    differences = [Fraction(n, 8) for n in (3, -8, 5, 8, -2, 0, 1)]
    exact = Fraction()
    for fraction in FRACTIONS:
        wealth = Fraction(1)
        for difference in differences:
            wealth *= 1 + Fraction(fraction) * difference
        exact += wealth / 6
    assert float(wealth_after(*differences).evidence()) == pytest.approx(float(exact), rel=1e-14)


@settings(max_examples=examples(100))
@given(st.lists(st.floats(-1, 1), max_size=40))
def test_wealth_stays_positive_and_finite(differences):
    wealth = wealth_after(*differences)
    assert ((wealth.mantissas >= 0.5) & (wealth.mantissas < 1)).all()
    assert 0 < wealth.evidence() < np.inf


@settings(max_examples=examples(100))
@given(st.lists(st.floats(-1, 1), max_size=20))
def test_runs_computed_together_equal_runs_computed_alone(differences):
    many = Wealth.of_one(3)
    for difference in differences:
        many = many.after(np.array([difference, -difference, 0.0]))
    alone = [wealth_after(*differences), wealth_after(*(-d for d in differences)), Wealth.of_one()]
    for row, one in enumerate(alone):
        assert Wealth(many.mantissas[row], many.exponents[row]) == one
    assert many.evidence().tolist() == [float(one.evidence()) for one in alone]


def after_a_billion(difference):
    """By doubling: the wealth after 2^30 equal differences, from that after 2^k of them."""
    wealth = wealth_after(difference)
    for _ in range(30):
        mantissas, shifts = np.frexp(wealth.mantissas * wealth.mantissas)
        wealth = Wealth(mantissas, 2 * wealth.exponents + shifts)
    return wealth


@pytest.mark.parametrize(("difference", "factor"), [(1, 1.8), (-1, 0.2)])
def test_a_billion_wins_or_losses_do_not_overflow(difference, factor):
    wealth = after_a_billion(difference)
    bits = int(wealth.exponents[-1])
    assert bits == pytest.approx(2**30 * log2(factor), rel=1e-6)
    one_more = wealth.after(np.array(float(difference)))
    assert (one_more.exponents != wealth.exponents).any()
    most, least = 2.0**1000, 0.0
    assert least <= one_more.evidence() <= most
    assert (one_more.evidence() > most / 2) == (difference > 0)
    assert Wealth.load(json.loads(json.dumps(one_more.state()))) == one_more


@pytest.mark.parametrize("mantissa", [0.25, 1.0, float("nan")])
def test_a_wealth_with_a_mantissa_out_of_range_is_refused(mantissa):
    state = Wealth.of_one().state()
    with pytest.raises(ValueError, match="not a wealth of 6 fractions"):
        Wealth.load([[mantissa, 1], *state[1:]])


def test_many_single_steps_keep_their_precision():
    n = 20_000
    wealth = wealth_after(*[1, -1] * (n // 2))
    exact = [n / 2 * (log2(1 + fraction) + log2(1 - fraction)) for fraction in FRACTIONS]
    bits = np.log2(wealth.mantissas) + wealth.exponents
    assert bits == pytest.approx(exact, rel=1e-9)


# -- the trace is the unit ----------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(st.dictionaries(st.sampled_from(["a", "b"]), few_units), st.randoms())
def test_the_order_of_queries_within_a_trace_does_not_matter(differences, random):
    shuffled = {name: random.sample(some, len(some)) for name, some in differences.items()}
    assert trace_observation(7, shuffled) == trace_observation(7, differences)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(units, st.floats(0, 1)), min_size=1, max_size=6), st.randoms())
def test_the_order_of_weighted_queries_within_a_trace_does_not_matter(pairs, random):
    def of(some):
        values, weights = ([pair[part] for pair in some] for part in (0, 1))
        return trace_observation(7, {"m": values}, {"m": weights}).differences["m"]

    assert of(random.sample(pairs, len(pairs))) == of(pairs)
    exact = sum(Fraction(weight) * value for value, weight in pairs) / len(pairs)
    assert abs(of(pairs).units - exact) <= Fraction(1, 2)
    whole = sum(Fraction(weight) for _, weight in pairs) / len(pairs) * ONE
    assert abs(of(pairs).weight - whole) <= Fraction(1, 2)


def test_queries_of_a_trace_are_averaged_before_a_bet():
    trace = trace_observation(0, {"m": [ONE, ONE, -ONE, 0]})
    together = decided(Experiment(0, 0), [trace], GateRules("m"))[0]
    assert together.block == together.day == OpenBlock(0, 1, ONE // 4)
    assert (together.n_traces, together.n_queries) == (1, 4)


def test_half_units_are_rounded_to_even():
    assert trace_observation(0, {"m": [1, 0]}).differences["m"] == Difference(0, ONE)
    assert trace_observation(0, {"m": [3, 0]}).differences["m"] == Difference(2, ONE)


def test_a_measure_without_values_has_no_difference():
    rules = GateRules("m", {"other": 0.0})
    observation = trace_observation(5, {"m": [], "other": [ONE]})
    assert observation == Observation(5, 1, {"other": Difference(ONE, ONE)})
    experiment = experiment_after(observation, rules=rules)
    assert (experiment.n_traces, experiment.bets) == (0, BlockBets.of_one())
    assert experiment.sums == {"other": Difference(ONE, ONE)}


def test_a_trace_without_weight_is_not_bet_on():
    rules = GateRules("m")
    experiment = experiment_after(
        trace_observation(5, {"m": [ONE, -ONE]}, {"m": [0.0, 0.0]}), rules=rules
    )
    assert (experiment.n_traces, experiment.n_queries, experiment.last_ms) == (0, 2, 5)
    assert (experiment.bets, experiment.block) == (BlockBets.of_one(), None)
    assert experiment.sums["m"].mean is None


def test_weights_shrink_differences_and_keep_means():
    rules = GateRules("m", {"other": 1 / 64}, **LOOSE)
    some = {"m": [ONE, ONE], "other": [-ONE // 32, -ONE // 32]}
    experiment = experiment_after(
        trace_observation(5, some, {"m": [0.25, 0.0], "other": [0.25, 0.0]}), rules=rules
    )
    assert experiment.bets.mean == (0.25 * 1 + 0 * 1) / 2
    assert (experiment.sums["m"].mean, experiment.sums["other"].mean) == (1.0, -1 / 32)
    assert "guardrail other" in verdict(experiment, rules).lacking


# -- the rules ----------------------------------------------------------------------------------

LOOSE = {"block_ms": 1, "min_traces": 0, "min_age_ms": 0}
ROUGH = GateRules("m", **LOOSE)


def wins(n, *, by=1.0, apart_ms=1, **others):
    whole = {"m": by, **others}
    differences = {name: Difference(int(each * ONE), ONE) for name, each in whole.items()}
    return [Observation(i * apart_ms, 1, differences) for i in range(1, n + 1)]


def test_a_winning_challenger_is_promoted_at_evidence_one_over_alpha():
    # n equal wins have no spread, so each bet after the first three is won whole:
    # the mean over the fractions of (1 + fraction)^(n - 3)
    rules = GateRules("m", alpha=0.01, **LOOSE)
    evidence = [sum((1 + fraction) ** n for fraction in FRACTIONS) / 6 for n in (10, 11)]
    assert evidence[0] < 100 <= evidence[1]
    before, then = (verdict(experiment_after(*wins(n), rules=rules), rules) for n in (13, 14))
    assert (before.status, before.lacking) == ("undecided", ("evidence",))
    assert (then.status, then.lacking) == ("promoted", ())
    assert [before.evidence_for, then.evidence_for] == pytest.approx(evidence)


def test_evidence_of_exactly_one_over_alpha_promotes():
    evidence = {
        n: verdict(experiment_after(*wins(n), rules=ROUGH), ROUGH).evidence_for for n in range(20)
    }
    exact = {n: each for n, each in evidence.items() if each > 1 and 1 / (1 / each) == each}
    assert exact
    for n, each in exact.items():
        rules = GateRules("m", alpha=1 / each, **LOOSE)
        assert verdict(experiment_after(*wins(n), rules=rules), rules).status == "promoted"
        assert verdict(experiment_after(*wins(n, by=-1.0), rules=rules), rules).status == "rejected"
        _, found = decided(Experiment(0, 0), wins(40), rules)
        assert found.evidence_for == each, "it ends at this block, not at a later one"


def test_a_losing_challenger_is_rejected_by_the_mirrored_bets_at_any_age():
    rules = GateRules("m", alpha=0.01, block_ms=1, min_traces=1_000, min_age_ms=DAY_MS)
    before, then = (
        verdict(experiment_after(*wins(n, by=-1.0), rules=rules), rules) for n in (13, 14)
    )
    assert (before.status, then.status) == ("undecided", "rejected")
    won = verdict(experiment_after(*wins(14), rules=rules), rules)
    assert then.evidence_against == won.evidence_for


@pytest.mark.parametrize(
    ("rules", "lacking"),
    [
        (GateRules("m", block_ms=1, min_traces=31, min_age_ms=0), ("traces",)),
        (GateRules("m", block_ms=1, min_traces=30, min_age_ms=30_001), ("age",)),
        (GateRules("m", block_ms=1, min_traces=30, min_age_ms=30_000), ()),
        (GateRules("m", block_ms=1, min_traces=31, min_age_ms=DAY_MS), ("traces", "age", "days")),
    ],
)
def test_promotion_also_needs_sample_and_age(rules, lacking):
    experiment = experiment_after(*wins(30, apart_ms=1_000), rules=rules)
    assert verdict(experiment, rules).lacking == lacking
    assert (verdict(experiment, rules).status == "promoted") == (not lacking)


@pytest.mark.parametrize(
    ("worse_by", "broken"),
    [(0.0, False), (-0.25, False), (1 / 64, False), (1 / 64 + 1 / ONE, True), (0.5, True)],
)
def test_a_guardrail_beyond_its_tolerance_prevents_promotion(worse_by, broken):
    rules = GateRules("m", {"other": 1 / 64}, **LOOSE)
    experiment = experiment_after(*wins(30, other=-worse_by), rules=rules)
    result = verdict(experiment, rules)
    assert result.lacking == (("guardrail other",) if broken else ())
    assert result.status == ("undecided" if broken else "promoted")


def test_a_guardrail_without_observations_prevents_promotion():
    rules = GateRules("m", {"b": 1.0, "a": 1.0}, **LOOSE)
    result = verdict(experiment_after(*wins(30), rules=rules), rules)
    assert result.lacking == ("guardrail a", "guardrail b")


def test_evidence_that_was_lost_again_does_not_count():
    rules = GateRules("m", block_ms=1, min_traces=16, min_age_ms=0)
    won = experiment_after(*wins(14), rules=rules)
    assert verdict(won, rules).lacking == ("traces",)
    lost = decided(won, [wins(15, by=-1.0)[-1]], rules, until_ms=16)[0]
    assert verdict(lost, rules).lacking == ("evidence", "traces")


def test_an_undecided_experiment_ends_at_max_age():
    rules = GateRules("m", **LOOSE, max_age_ms=100)
    won, equal = (experiment_after(*wins(14, by=by), rules=rules, start_ms=0) for by in (1.0, 0.0))
    for experiment, at_99, at_100 in (
        (equal, ("undecided", ""), ("rejected", "undecided")),
        (won, ("promoted", ""), ("promoted", "")),
    ):
        for now_ms, expected in ((99, at_99), (100, at_100)):
            _, found = decided(experiment, [], rules, until_ms=now_ms)
            assert (found.status, found.reason) == expected


def test_age_is_event_time_and_never_decreases():
    rules = GateRules("m")
    times_ms = [5_000, 90_000, 20_000]
    experiment = experiment_after(
        *(Observation(ms, 1, {"m": Difference(0, ONE)}) for ms in times_ms), rules=rules
    )
    assert (experiment.started_ms, experiment.last_ms) == (0, 90_000)


# -- the state ----------------------------------------------------------------------------------

observations = st.lists(
    st.builds(
        Observation,
        st.integers(0, 10**12),
        st.integers(1, 50),
        st.dictionaries(
            st.sampled_from(["m", "a", "ä"]), st.builds(Difference, units, st.integers(0, ONE))
        ),
    ),
    max_size=12,
)


@pytest.mark.parametrize(
    "there_and_back",
    [
        lambda state: json.loads(json.dumps(state)),
        lambda state: msgspec.json.decode(msgspec.json.encode(state)),
    ],
    ids=["json", "msgspec"],
)
@settings(max_examples=examples(100))
@given(some=observations, data=st.data())
def test_a_restored_gate_continues_with_the_same_bits(there_and_back, some, data):
    rules = GateRules("m", {"a": 0.0}, block_ms=10**10)
    cut = data.draw(st.integers(0, len(some)))
    before = decided(Experiment(0, 0), some[:cut], rules)[0]
    resumed = Gate.load(there_and_back(Gate(before, 17).state()))
    assert resumed == Gate(before, 17)
    experiment = decided(resumed.experiment, some[cut:], rules)[0]
    whole = decided(Experiment(0, 0), some, rules)[0]
    assert json.dumps(Gate(experiment).state()) == json.dumps(Gate(whole).state())
    assert verdict(experiment, rules) == verdict(whole, rules)


def test_an_empty_gate_is_restored():
    assert Gate.load(json.loads(json.dumps(Gate(None, 3).state()))) == Gate(None, 3)


def test_a_state_in_another_form_is_refused():
    state = Gate(Experiment(0, 0)).state()
    with pytest.raises(ValueError, match=r"wealth|not enough"):
        Gate.load({**state, "experiment": {**state["experiment"], "gain": [[0.5, 1]]}})


# -- chance -------------------------------------------------------------------------------------

RUNS = examples(8_000)


def shares_promoted(differences_of, n_steps, alphas, seed):
    """Of RUNS experiments that are looked at after every trace, those that ever reach 1/alpha."""
    rng = np.random.default_rng(seed)
    wealth, most = Wealth.of_one(RUNS), np.zeros(RUNS)
    for _ in range(n_steps):
        wealth = wealth.after(differences_of(rng))
        most = np.maximum(most, wealth.evidence())
    return [(most >= 1 / alpha).mean() for alpha in alphas]


def fair_coin(rng):
    return rng.choice([-1.0, 1.0], RUNS)


def rarely_but_much(rng):
    """Mean 0: one in ten loses 0.9, the others win 0.1."""
    return np.where(rng.random(RUNS) < 0.1, -0.9, 0.1)


ITS_BLOCKS_ONCE = pytest.mark.xdist_group("gate")
"""In one process, in which the traces that count are computed once for each preset."""


@pytest.mark.slow
@pytest.mark.parametrize("chance", [fair_coin, rarely_but_much])
def test_an_equal_challenger_is_promoted_with_probability_at_most_alpha(chance):
    alphas = (0.05, 0.01)
    for alpha, share in zip(alphas, shares_promoted(chance, 1_000, alphas, seed=20), strict=True):
        noise = 3 * np.sqrt(alpha * (1 - alpha) / RUNS)
        assert alpha / 20 < share <= alpha + noise


@pytest.mark.slow
def test_a_slightly_better_challenger_is_promoted_much_more_often():
    """Shows that the test above can fail: with a mean of 0.1 instead of 0, most are promoted."""
    (better,) = shares_promoted(lambda rng: fair_coin(rng) * 0.9 + 0.1, 1_000, [0.01], seed=20)
    assert better > 0.3


@pytest.mark.slow
@ITS_BLOCKS_ONCE
@pytest.mark.parametrize("preset", benchmark.PRESETS)
def test_equal_challengers_in_benchmark_worlds_are_promoted_at_most_by_chance(preset):
    """2,000 runs; 1.7 alpha is alpha and three deviations of 2,000 coins of 0.01.

    Both worlds have the same traces, which are generated once.
    """
    rules = benchmark.rules_of(preset)
    n_blocks = min(150, benchmark.n_blocks_of(preset, rules))
    for world in ("independent", "AR(1) 0.9 between traces"):
        hours = benchmark.promoted_after(benchmark.AT_ONCE[world], rules, 2_000, n_blocks, seed=7)
        assert np.isfinite(hours).mean() <= 1.7 * rules.alpha, world


@pytest.mark.slow
@ITS_BLOCKS_ONCE
@pytest.mark.parametrize(
    ("preset", "world"),
    [
        ("standard", "AR(1) 0.99 between traces"),
        ("standard", "100 lasting traces, or queries that return"),
        ("cautious", "daily cycle of 0.05"),
        ("cautious", "drift, 5%, correlation of 6 hours"),
    ],
)
def test_lasting_differences_are_not_mistaken_for_evidence(preset, world):
    worlds, rules = {**benchmark.AT_ONCE, **benchmark.SLOW}, benchmark.rules_of(preset)
    n_blocks = min(150, benchmark.n_blocks_of(preset, rules))
    hours = benchmark.promoted_after(worlds[world], rules, 500, n_blocks, seed=7)
    assert np.isfinite(hours).mean() <= 0.025  # alpha and three deviations of 500 coins


@pytest.mark.slow
def test_worlds_with_lasting_differences_deceive_a_gate_without_safeguards():
    """Shows that the tests above can fail."""
    minutes = benchmark.rules_of("standard", block_ms=60_000)
    tried = [
        (minutes, benchmark.AT_ONCE["AR(1) 0.99 between traces"]),
        (
            benchmark.rules_of("standard"),
            benchmark.COUNTED_OFTEN["100 lasting traces, each occurrence counted"],
        ),
        (benchmark.rules_of("standard"), benchmark.SLOW["daily cycle of 0.05"]),
    ]
    for rules, world in tried:
        hours = benchmark.promoted_after(world, rules, 500, 600, seed=7)
        assert np.isfinite(hours).mean() > 0.08


def test_traces_before_the_first_whole_block_count_in_that_block():
    """A trace at the end of a block, with a difference by chance, and then a true gain."""
    rules = GateRules("m", min_traces=1, min_age_ms=0)
    start_ms = 7_199_000
    gains = [(start_ms, -0.5), *((7_200_000 + 6_000 * i, 0.05) for i in range(14 * 100 + 1))]
    observations = [trace_observation(ms, {"m": [round(gain * ONE)]}) for ms, gain in gains]
    experiment, found = decided(Experiment(start_ms, start_ms), observations, rules)
    assert found.status == "promoted"
    assert (experiment.bets.n, experiment.n_traces) == (14, 1_402)
    assert float(experiment.bets.mean) == pytest.approx((14 * 0.05 - 0.55 / 101) / 14)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rules",
    [
        GateRules(
            "m",
            alpha=0.2,
            block_ms=60_000,
            min_traces=5,
            min_age_ms=2_220_000,
            max_age_ms=2_400_000,
        ),
        GateRules(
            "m", alpha=0.2, block_ms=60_000, min_traces=999, min_age_ms=0, max_age_ms=2_400_000
        ),
        GateRules(
            "m",
            alpha=0.2,
            block_ms=28_800_000,
            min_traces=5,
            min_age_ms=86_400_000,
            max_age_ms=1_728_000_000,
        ),
    ],
    ids=["age", "traces", "days"],
)
def test_benchmark_decisions_equal_those_of_the_gate(rules):
    """Each run, decided trace by trace, equals the benchmark, which computes all runs at once."""
    block_s, n_runs, n_blocks = rules.block_ms // 1_000, 12, 60
    world = benchmark.World(mean=0.04, deviation=0.15, every_s=block_s // 2)
    hours = benchmark.promoted_after(world, rules, n_runs, n_blocks, seed=3)
    values, blocks = (
        benchmark.Values(world, n_runs, 3),
        benchmark.blocks_of(world.every_s, None, False, block_s, n_blocks, 4),
    )
    found = np.array([values.of(block) for block in blocks])
    for run, promoted_h in enumerate(hours.tolist()):
        experiment, ended_h = Experiment(0, 0), None
        for block, value in zip(blocks, found[:, run].tolist(), strict=True):
            units = {"m": [round(value * ONE)]}
            for start_s in (block.start_s, block.start_s + world.every_s):
                experiment, verdict = decided(
                    experiment,
                    [trace_observation(1_000 * start_s, units)],
                    rules,
                    until_ms=1_000 * start_s,
                )
                if verdict.status != "undecided":
                    ended_h = block.start_s / 3_600 if verdict.status == "promoted" else np.inf
                    break
            if ended_h is not None:
                break
        assert promoted_h == (np.inf if ended_h is None else ended_h)
    n_promoted = np.isfinite(hours).sum()
    assert n_promoted == 0 if rules.min_traces == 999 else 0 < n_promoted < n_runs


@pytest.mark.slow
def test_the_standard_rules_find_a_true_gain_within_a_few_hours():
    world = benchmark.World(mean=0.05, deviation=0.3)
    hours = benchmark.promoted_after(world, benchmark.rules_of("standard"), 500, 24, seed=7)
    assert np.quantile(hours, 0.9) <= 4
