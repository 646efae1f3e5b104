"""The weights of judgments by source; floods of bad judgments promote no challenger."""

import doctest
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.core.promotion import source_weights
from evaluator.core.promotion.e_process import Wealth
from evaluator.core.promotion.gate import (
    Experiment,
    GateRules,
    decided,
    trace_observation,
    verdict,
)
from evaluator.core.promotion.source_weights import (
    OTHERS,
    SourceRule,
    SourceWeights,
    window_weights,
)
from tests.repeats import examples

HUMAN, CLICK = SourceRule(), SourceRule(weight=0.5, max_judgments=100, max_share=0.2)
RULES = SourceWeights({"human": HUMAN, "click": CLICK})


def judgment_weights(sources, times_ms, rules, *, window_ms=1_000):
    """The weight of each judgment, window by window."""
    places = [
        (ms // window_ms, rules.group(source)) for source, ms in zip(sources, times_ms, strict=True)
    ]
    counts = defaultdict(Counter)
    for window, source_group in places:
        counts[window][source_group] += 1
    weights = {window: window_weights(each, rules) for window, each in counts.items()}
    return [weights[window][source_group] for window, source_group in places]


def test_docstring_examples_are_correct():
    assert doctest.testmod(source_weights).failed == 0


def test_a_few_judgments_have_the_weight_of_their_source():
    assert window_weights({"human": 80, "click": 10}, RULES) == {"human": 1.0, "click": 0.5}


def test_many_judgments_share_the_rate_of_their_source():
    # 1,000 clicks share 100 x 0.5 = 50, which is less than 0.2 of 1,050
    assert window_weights({"human": 1_000, "click": 1_000}, RULES) == {
        "human": 1.0,
        "click": 100 * 0.5 / 1_000,
    }


def test_a_source_has_at_most_its_share_of_the_final_weight():
    # 80 of humans are 0.8 of 100, so 20 are left for 90 clicks
    weights = window_weights({"human": 80, "click": 90}, RULES)
    assert weights["human"] == 1.0
    assert weights["click"] * 90 == pytest.approx(0.2 * 100)


def test_two_capped_sources_both_get_their_share():
    half, tenth = SourceRule(max_share=0.5), SourceRule(max_share=0.1)
    rules = SourceWeights({"human": HUMAN, "llm": half, "click": tenth})
    weights = window_weights({"human": 40, "llm": 900, "click": 900}, rules)
    # 40 are 1 - 0.5 - 0.1 of 100
    assert [weights[name] * 900 for name in ("llm", "click")] == pytest.approx([50, 10])


def test_capping_one_source_may_require_capping_another():
    half, tenth = SourceRule(max_share=0.5), SourceRule(max_share=0.1)
    rules = SourceWeights({"human": HUMAN, "llm": half, "click": tenth})
    # llm has 30 of 1,040 at first; without the flood of clicks it would have 30 of 40/0.9
    weights = window_weights({"human": 10, "llm": 30, "click": 1_000}, rules)
    assert weights["llm"] * 30 == pytest.approx(0.5 * 10 / 0.4)
    assert weights["click"] * 1_000 == pytest.approx(0.1 * 10 / 0.4)


def test_a_capped_source_alone_has_weight_0():
    rules = SourceWeights({"click": SourceRule(max_share=0.9)})
    assert window_weights({"click": 10}, rules) == {"click": 0.0}
    assert window_weights({"click": 10, OTHERS: 0}, rules) == {"click": 0.0, OTHERS: 0.0}


def test_unlisted_sources_share_one_group():
    rules = SourceWeights({"human": HUMAN}, others=SourceRule(max_share=0.5))
    sources = ["human"] * 10 + [f"bot-{n}" for n in range(99)] + [""]
    weights = judgment_weights(sources, [0] * 110, rules)
    assert weights[:10] == [1.0] * 10
    assert sum(weights[10:]) == pytest.approx(10)


def test_unlisted_sources_have_weight_0_by_default():
    assert judgment_weights(["nobody", "human"], [0, 0], RULES) == [0.0, 1.0]


def test_a_flood_affects_only_its_window():
    sources, times_ms = ["click"] * 201 + ["human"] * 1_000, [999] * 200 + [1_000] + [0] * 1_000
    weights = judgment_weights(sources, times_ms, RULES)
    assert weights[0] == 100 * 0.5 / 200
    assert weights[200] == 0.0  # alone in the next window: a share of one source is 0
    assert judgment_weights(["click", "human", "human"], [1_000] * 3, RULES)[0] == 0.5


shares = st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0])
rules_of = st.builds(SourceRule, shares, st.none() | st.integers(0, 50), shares)
counts_of = st.dictionaries(st.sampled_from(["a", "b", "c", OTHERS]), st.integers(0, 200))


@settings(max_examples=examples(100))
@given(st.dictionaries(st.sampled_from("abc"), rules_of), rules_of, counts_of)
def test_caps_are_never_exceeded_and_sources_far_below_them_keep_their_weight(
    sources, others, counts
):
    rules = SourceWeights(sources, others)
    counts = {rules.group(name): n for name, n in counts.items()}
    weights = window_weights(counts, rules)
    total = sum(weights[source_group] * n for source_group, n in counts.items())
    for source_group, n in counts.items():
        rule = rules.rule(source_group)
        assert 0 <= weights[source_group] <= rule.weight
        assert weights[source_group] * n <= (rule.max_share * total) * (1 + 1e-9) + 1e-9
        if rule.max_judgments is not None:
            assert weights[source_group] * n <= rule.weight * rule.max_judgments * (1 + 1e-12)
        elif rule.max_share == 1 and n:
            assert weights[source_group] == pytest.approx(rule.weight, rel=1e-15, abs=0)


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.sampled_from(["human", "click", "x"]), st.integers(0, 3_000))),
    st.randoms(),
)
def test_order_does_not_matter(judgments, random):
    def weights(some):
        values = judgment_weights([s for s, _ in some], [ms for _, ms in some], RULES)
        return sorted(zip(some, values, strict=True))

    assert weights(random.sample(judgments, len(judgments))) == weights(judgments)


# -- hostile judgments --------------------------------------------------------------------------

ONE = 1 << 40
N_TRACES = 6_000
TRUE_DIFFERENCE = -0.02


def verdict_with(trust_rules, seed):
    """A candidate worse by 0.02, which one judgment in twenty rates better by 1."""
    rng = np.random.default_rng(seed)
    hostile = rng.random(N_TRACES) < 0.05
    honest = np.where(rng.random(N_TRACES) < 0.5 + TRUE_DIFFERENCE / 0.4, 0.2, -0.2)
    sources = ["bot" if each else "human" for each in hostile]
    weights = judgment_weights(
        sources, [n * 1_000 for n in range(N_TRACES)], trust_rules, window_ms=3_600_000
    )
    rules = GateRules("ndcg@10", block_ms=40, min_traces=100, min_age_ms=0)
    experiment = Experiment(0, 0)
    statuses = set()
    for n in range(N_TRACES):
        units = ONE if hostile[n] else int(honest[n] * ONE)
        observation = trace_observation(n, {"ndcg@10": [units]}, {"ndcg@10": [weights[n]]})
        experiment, _ = decided(experiment, [observation], rules)
        statuses.add(verdict(experiment, rules).status)
        if statuses - {"undecided"}:
            break
    return statuses


CAPPED = SourceWeights({"human": HUMAN}, others=SourceRule(max_share=0.01))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_one_hostile_judgment_in_twenty_does_not_promote_worse_weights(seed):
    assert "promoted" not in verdict_with(CAPPED, seed)


@pytest.mark.slow
def test_without_caps_hostile_judgments_promote_the_worse_weights():
    """Shows that the test above can fail."""
    assert "promoted" in verdict_with(SourceWeights({}, others=SourceRule()), 0)


@pytest.mark.slow
def test_in_many_runs_hostile_judgments_promote_at_most_alpha():
    n_runs, alpha = 2_000, 0.01
    counts = {"human": 95, "": 5}
    weight = window_weights(counts, CAPPED)[OTHERS]
    assert weight * 5 == pytest.approx(95 / 99)  # 1 of 100 parts
    rng = np.random.default_rng(5)
    wealth, promoted = Wealth.of_one(n_runs), np.zeros(n_runs, bool)
    for _ in range(2_000):
        honest = np.where(rng.random(n_runs) < 0.5 + TRUE_DIFFERENCE / 0.4, 0.2, -0.2)
        wealth = wealth.after(np.where(rng.random(n_runs) < 0.05, weight, honest))
        promoted |= wealth.evidence() >= 1 / alpha
    assert promoted.mean() <= alpha
