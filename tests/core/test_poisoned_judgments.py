"""The largest effect of hostile judgments with learning = auto: the figures of docs/gate.md."""

from random import Random

import pytest

from evaluator.core.online.events import Command
from evaluator.core.online.online_learner import OnlineLearner
from evaluator.core.promotion.source_weights import SourceRule, SourceWeights
from tests.core.learned import (
    MATURITY_MS,
    N_TASKS,
    NAMES,
    TRUTH,
    numbered,
    parts,
    releases,
    rules,
    settled_query,
    units_of,
    world,
)

WRONG = tuple(-weight for weight in TRUTH)
MINUTE_MS = 60_000
GATE = {"min_age_ms": MINUTE_MS, "max_age_ms": 10 * MINUTE_MS, "cool_down_ms": 2 * MINUTE_MS}
HELD_OUT = world(99, 300)


def ndcg_of(weights):
    """Mean NDCG@10 by honest judgments."""
    units = units_of(rules().offline_ranking, HELD_OUT, weights)[:, 0]
    return units.sum() / (1 << 40) / len(units)


def flooded(n, per_query):
    """Of so many queries one is judged by people, the others by a source that inverts grades."""
    random = Random(5)
    return numbered(
        [
            settled_query(i, random, sources={"human": 1})
            if i % per_query == 0
            else settled_query(i, random, truth=WRONG, sources={"click": 1})
            for i in range(n)
        ]
    )


def run_of(queries, **changes):
    """The releases, and the leader at the end."""
    leader = OnlineLearner(rules(gate=GATE, **changes), n_tasks=N_TASKS)
    intervals = [
        *leader.receive(record for part in parts(queries) for record in part),
        *leader.end(),
    ]
    return releases(intervals), leader


@pytest.mark.slow
def test_a_flooding_source_with_a_capped_share_promotes_nothing():
    """Four of five queries have inverted grades. Learning has no caps, so it follows them."""
    queries = flooded(1_600, 5)
    of = {"initial_weights": TRUTH}
    free = SourceWeights({"human": SourceRule(), "click": SourceRule()})
    (promoted,) = [
        each for each in run_of(queries, source_weights=free, **of)[0] if each.status == "promoted"
    ]
    assert (ndcg_of(TRUTH), ndcg_of(promoted.weights)) == pytest.approx((0.97, 0.45), abs=0.01)
    capped = SourceWeights({"human": SourceRule(), "click": SourceRule(max_share=0.3)})
    published, _ = run_of(queries, source_weights=capped, **of)
    assert "promoted" not in [each.status for each in published]
    rejected = [each for each in published if each.status == "rejected" and not each.reason]
    assert [ndcg_of(each.weights) for each in rejected] == pytest.approx([0.45], abs=0.01)
    assert rejected[0].evidence["mean_difference"] < -0.2


@pytest.mark.slow
def test_a_weighted_source_that_turns_bad_is_learned_from_until_a_rollback():
    """The grades of people are inverted after 700 s: resulting weights are promoted once."""
    random = Random(7)
    queries = numbered(
        [
            settled_query(i, random, truth=TRUTH if i < 700 else WRONG, sources={"human": 1})
            for i in range(2_000)
        ]
    )
    trust = SourceWeights({"human": SourceRule()})
    published, leader = run_of(queries, source_weights=trust)
    live = [each for each in published if each.status == "promoted"]
    assert [ndcg_of(each.weights) for each in live] == pytest.approx([0.97, 0.45], abs=0.01)
    turned_ms = 700_000 + MATURITY_MS  # when the first of the bad grades settles
    assert live[1].from_ms - turned_ms >= GATE["min_age_ms"]
    good = live[0]
    model = leader.model_learners["m"]
    model.command = Command(1, "roll_back", "as it was", good.weights, NAMES)
    (back, *_) = model.end_interval(
        3_000_000, rules(gate=GATE), until_ms=3_000_000, max_table_bytes=1 << 20
    )
    assert (back.status, back.weights) == ("rolled_back", good.weights)
