"""Queries that cannot be learned from, and the ends of learning when most are such."""

import json
from functools import cache
from random import Random

import numpy as np
import pytest

from evaluator.core.learning.groups import Group
from evaluator.core.learning.learner import EXTREME, Learner
from evaluator.core.online.events import Version
from evaluator.core.online.model_learner import ModelLearner
from evaluator.core.online.online_learner import OnlineLearner, view_of
from evaluator.core.online.ordered_merge import NO_FEATURES
from evaluator.core.online.training import (
    MOST_KINDS,
    OTHER_KINDS,
    OVERFLOW,
    PROPENSITIES,
    Training,
    Unusable,
)
from evaluator.core.promotion.source_weights import SourceRule, SourceWeights
from tests.core.learned import (
    N_TASKS,
    NAMES,
    OTHERS,
    TRUTH,
    interleaved,
    parts,
    releases,
    rules,
    run,
    statuses,
    world,
)

WORLD = world(1, 700)


@cache
def long_world():
    return world(1, 1_400)


def with_others(those):
    """Queries of which some have other features."""
    return [
        query._replace(feature_names=OTHERS) if those(i) else query
        for i, query in enumerate(long_world())
    ]


@pytest.mark.slow(alone=False)
def test_changed_features_freeze_learning_and_the_reason_names_the_first_query():
    results_by_interval = run(with_others(lambda i: i >= 400), rules())
    frozen = [release for release in releases(results_by_interval) if release.status == "frozen"]
    assert len(frozen) == 1
    assert "phi_x from t-450, n-0 on" in frozen[0].reason  # the 501st
    assert results_by_interval[-1].state["models"][0]["learner"]["updates"] == frozen[0].updates
    assert statuses(results_by_interval)[-1] != "challenger"


@pytest.mark.slow(alone=False)
def test_queries_with_other_features_are_excluded_and_counted_by_their_hash():
    some = run(with_others(lambda i: i % 5 == 2), rules())
    assert "frozen" not in statuses(some)
    recent, counts, n_noted = some[-1].state["models"][0]["unusable"]
    assert n_noted == 1_400
    assert list(counts.values()) == [280]
    assert view_of(ModelLearner.load(some[-1].state["models"][0]), rules()).unusable == {
        "features": 280,
        "propensities": 0,
        "overflow": 0,
        "invalid": 0,
    }
    assert int(recent, 16).bit_count() == 200
    without = [
        query._replace(grades={}) if i % 5 == 2 else query for i, query in enumerate(long_world())
    ]
    learners = [
        results_by_interval[-1].state["models"][0]["learner"]
        for results_by_interval in (some, run(without, rules()))
    ]
    assert learners[0] == learners[1]


@pytest.mark.slow(alone=False)
def test_invalid_training_data_are_excluded_and_counted():
    odd = [
        query._replace(features=NO_FEATURES, feature_names=None, invalid_training_data=True)
        if i % 5 == 2
        else query
        for i, query in enumerate(long_world())
    ]
    results_by_interval, others = run(odd, rules()), run(with_others(lambda i: i % 5 == 2), rules())
    model, other = (each[-1].state["models"][0] for each in (results_by_interval, others))
    assert model["unusable"] == [other["unusable"][0], {"invalid": 280}, 1_400]
    assert model["learner"] == other["learner"]
    assert "frozen" not in statuses(results_by_interval)
    most = [
        query._replace(invalid_training_data=i % 2 == 1 or i == 1_002)
        for i, query in enumerate(long_world())
    ]
    assert "frozen" in statuses(run(most, rules()))


@pytest.mark.slow(alone=False)
def test_at_most_half_of_the_last_queries_may_have_other_features():
    halves = run(with_others(lambda i: i % 2 == 1), rules())
    assert "frozen" not in statuses(halves)
    more = run(with_others(lambda i: i % 2 == 1 or i == 1_002), rules())
    assert "frozen" in statuses(more)


@pytest.mark.slow(alone=False)
def test_a_first_query_with_other_features_does_not_fix_the_feature_names():
    results_by_interval = run(with_others(lambda i: i == 0), rules(learning_interval_ms=3_600_000))
    state = results_by_interval[-1].state["models"][0]
    assert state["feature_names"] == list(NAMES)
    assert state["learner"]["frozen"] == ""
    assert state["learner"]["updates"] > 0


@cache
def ordinary_world():
    return world(1, 620)


def model_after(queries, made, *, reads_again=False, **of):
    """The state of the model, and the releases; with *reads_again* in small batches too."""
    at_once = [record for part in parts(queries) for record in part]
    found = []
    for batches in [[at_once], *([interleaved(queries, Random(0))] if reads_again else [])]:
        leader = OnlineLearner(made, n_tasks=N_TASKS, **of)
        ended = [each for batch in batches for each in leader.receive(batch)]
        found.append([*ended, *leader.end()])
    assert found[0] == found[-1]
    (model,) = found[0][-1].state["models"]
    return model, releases(found[0])


def with_first(**changes):
    """Queries of which the first ranking is another than all others."""
    return [ordinary_world()[0]._replace(**changes), *ordinary_world()[1:]]


def new_epoch_after(names):
    """A state with live weights for these features, under other rules."""
    before = OnlineLearner(rules(), n_tasks=N_TASKS)
    live = before.model_learners["m"] = ModelLearner("m", version=7)
    live.experiments.champions = [Version(7, 5, TRUTH, names)]
    return {"state": json.loads(json.dumps(before.state())), "new_epoch": True}


@pytest.mark.slow(alone=False)
def test_a_new_epoch_with_new_features_tries_weights_against_the_served_order():
    """The live weights have no value on any query, so they are no usable baseline."""
    _, published = model_after(ordinary_world(), rules(), **new_epoch_after(OTHERS))
    assert [each.status for each in published][:2] == ["challenger", "promoted"]
    assert published[1].feature_names == NAMES


@pytest.mark.slow(alone=False)
def test_a_first_query_of_a_new_epoch_does_not_fix_the_feature_names():
    """A change of settings, a gap and `forget` keep the version and the live weights."""
    made = rules(learning_interval_ms=3_600_000)
    of = {**new_epoch_after(NAMES), "reads_again": True}
    model, published = model_after(with_first(feature_names=OTHERS), made, **of)
    assert (model["feature_names"], model["epoch"]) == (list(NAMES), 1)
    assert model["learner"]["frozen"] == ""
    assert model["learner"]["updates"] > 0
    assert "frozen" not in [each.status for each in published]
    of_champion = np.corrcoef(snapshot_of(model), TRUTH)[0, 1]
    assert of_champion > 0.99  # it has continued from the live weights: 119 queries are left


def snapshot_of(model):
    learner = model["learner"]
    return np.array(learner["weights"]) / (learner["scale"] or 1.0)


@pytest.mark.slow(alone=False)
def test_a_first_query_does_not_fix_the_names_of_initial_weights():
    """They are live under these names, until 501 queries have had others."""
    model, published = model_after(with_others(lambda i: i == 0), rules(initial_weights=TRUTH))
    assert model["learner"]["frozen"] == ""
    initial = [each for each in published if each.status == "initial"]
    assert [each.feature_names for each in initial] == [OTHERS, NAMES]
    assert (initial[1].weights, initial[1].from_ms) == (TRUTH, 0)
    assert [each[3] for each in model["champions"]] == [NAMES]


@pytest.mark.slow(alone=False)
def test_a_first_query_with_more_features_than_initial_weights_is_excluded():
    wide = np.zeros((5, 4))
    odd = {"feature_names": (*NAMES, "phi_d"), "features": wide}
    made = rules(initial_weights=TRUTH)
    model, published = model_after(with_first(**odd), made, reads_again=True)
    assert model["unusable"][2] == 620
    assert sum(model["unusable"][1].values()) == 1
    without, _ = model_after(with_first(grades={}), made)
    assert model["learner"] == without["learner"]
    assert (published[0].status, published[0].feature_names) == ("initial", NAMES)


@pytest.mark.slow(alone=False)
@pytest.mark.parametrize("n_of_others", [0, 1])
def test_initial_weights_that_do_not_fit_most_queries_freeze_learning(n_of_others):
    """Also after one query that they fit; live weights are not changed."""
    made = rules(initial_weights=(*TRUTH, 0.0))
    odd = {"feature_names": (*NAMES, "phi_d"), "features": np.zeros((5, 4))}
    model, published = model_after(with_first(**(odd if n_of_others else {})), made)
    assert model["learner"]["frozen"] == "initial_weights are 4, features 3"
    assert [each.status for each in published] == ["initial"] * n_of_others + ["frozen"]
    few, published = model_after(ordinary_world()[:500], made)
    assert (few["learner"], published) == (None, [])


@pytest.mark.slow(alone=False)
def test_initial_weights_stay_live_when_features_change_later():
    """They fit the features of most queries, and mean nothing for other features."""
    made = rules(initial_weights=TRUTH, gate={"min_traces": 10_000}, learning_interval_ms=300_000)
    calm = [q._replace(grades={}) for q in long_world()]  # nothing is tried
    queries = [q._replace(feature_names=OTHERS) if i >= 600 else q for i, q in enumerate(calm)]
    model, published = model_after(queries, made)
    assert [each.status for each in published] == ["initial", "frozen"]
    assert "they were phi_a, phi_b, phi_c" in model["learner"]["frozen"]


@pytest.mark.slow(alone=False)
def test_frozen_learning_does_not_restart():
    """In any order of reading: first most queries lack features, later most have others."""
    queries = [
        query._replace(feature_names=OTHERS) if i >= 560 else query._replace(propensities=[0.5] * 5)
        for i, query in enumerate(ordinary_world())
    ]
    made = rules(learning_interval_ms=3_600_000)
    model, published = model_after(queries, made, reads_again=True)
    assert "label_mode = sum" in model["learner"]["frozen"]
    assert [each.status for each in published] == ["frozen"]


def test_kinds_of_unusable_queries_are_bounded():
    unusable = Unusable()
    for number in range(100):
        unusable.note(str(number))
    assert len(unusable.counts) == MOST_KINDS + 1
    assert (unusable.counts[OTHER_KINDS], sum(unusable.counts.values())) == (100 - MOST_KINDS, 100)
    unusable.note(PROPENSITIES)
    unusable.note_overflow(100)
    assert unusable.by_reason() == {"features": 100, "propensities": 1, "overflow": 1, "invalid": 0}
    assert unusable.share == 101 / 1_000  # the hundredth was excluded before
    assert Unusable.load(json.loads(json.dumps(unusable.state()))) == unusable
    assert Unusable.load(["7", {"invalid": 3}]).n_noted == 3  # written before it was a member


@pytest.mark.parametrize(
    "tampered",
    [
        ["f" * 251, {}],
        ["-1", {}],
        ["0x1", {}],
        ["", {}],
        ["0", {str(n): 1 for n in range(MOST_KINDS + 5)}],
    ],
)
def test_invalid_counts_of_unusable_queries_are_refused(tampered):
    with pytest.raises(ValueError, match=r".+"):
        Unusable.load(tampered)


def with_overflow(those, queries=WORLD):
    """Queries of which some have features whose squares overflow."""
    return [
        query._replace(features=query.features * 1e200) if those(i) else query
        for i, query in enumerate(queries)
    ]


@pytest.mark.slow(alone=False)
def test_queries_that_overflow_are_excluded_and_counted():
    some = run(with_overflow(lambda i: 300 <= i < 310), rules())
    assert "frozen" not in statuses(some)
    without = [
        query._replace(grades={}) if 300 <= i < 310 else query for i, query in enumerate(WORLD)
    ]
    states = [
        results_by_interval[-1].state["models"][0]
        for results_by_interval in (some, run(without, rules()))
    ]
    assert states[0]["learner"] == states[1]["learner"]
    recent, counts, _ = states[0]["unusable"]
    assert counts == {OVERFLOW: 10}
    assert f"{int(recent, 16):b}" == "1" * 10 + "0" * 390  # the places of the ten of 700


@pytest.mark.slow(alone=False)
def test_features_far_beyond_their_spread_are_excluded_before_they_affect_the_scale():
    """1e150 is finite, and so is its square; the scale would be so large that learning stops."""
    without = run([q._replace(grades={}) if i == 300 else q for i, q in enumerate(WORLD)], rules())
    expected = without[-1].state["models"][0]["learner"]
    assert expected["updates"] > 50
    for factor in (1e150, 1e12):
        seen = [q._replace(features=q.features * factor) if i == 300 else q
                for i, q in enumerate(WORLD)]  # fmt: skip
        state = run(seen, rules())[-1].state["models"][0]
        assert state["learner"] == expected
        assert state["unusable"][1] == {OVERFLOW: 1}


@pytest.mark.parametrize("factor", [1e8, 1e30])
def test_large_features_are_learned_from_if_they_were_as_large_before(factor):
    """Features up to 1e9 are also used; a date in milliseconds is larger."""
    seen = [q._replace(features=q.features * (factor if factor > 1e9 else 1.0)) for q in WORLD]
    seen[300] = seen[300]._replace(features=seen[300].features * (2.0 if factor > 1e9 else factor))
    assert run(seen, rules())[-1].state["models"][0]["unusable"][1] == {}


def warm(features):
    """A learner with a scale, and its state after groups with one feature each."""
    learner = Learner(scale="within_query")
    state = learner.start([0.0])
    for batches in learner.batches([one_feature(each) for each in features], 1):
        state, _ = learner.learn(state, batches)
    return learner, state


def one_feature(values):
    return Group(np.array(values, float).reshape(-1, 1), np.array([1.0, 0.0, 0.0]))


def test_a_constant_feature_also_has_a_limit():
    learner, state = warm([[5.0, 5.0, 5.0]] * 60)
    for largest, is_left_out in [(1e14, False), (1e16, True), (1e150, True)]:
        [batches] = learner.batches([one_feature([0.0, 0.0, largest])], 1)
        after, _ = learner.learn(state, batches)
        assert (after.frozen == EXTREME) is is_left_out


def test_groups_within_the_limit_alone_are_within_it_together():
    """One is far from 0 with a small spread, the other wide and below the bound."""
    learner, state = warm(np.random.default_rng(0).normal(size=(60, 3)))
    groups = [one_feature([2e9, 2e9 + 1, 2e9 - 1]), one_feature([9e8, 0.0, -9e8])]
    [batches] = learner.batches(groups, 2)
    after, _ = learner.learn(state, batches)
    assert (after.frozen, after.updates) == ("", state.updates + 1)


def test_queries_whose_grades_overflow_are_excluded():
    learner = Learner(scale="within_query", label_mode="sum")
    seen = [query._replace(propensities=[0.5] * 5) for query in WORLD]
    seen[300] = seen[300]._replace(propensities=[1e-320] * 5)
    results_by_interval = run(seen, rules(learner=learner))
    assert results_by_interval[-1].state["models"][0]["unusable"][1] == {OVERFLOW: 1}
    assert "frozen" not in statuses(results_by_interval)


def test_no_group_of_a_batch_that_overflows_is_learned_from():
    """Their squares are finite, and the sum of them is not."""
    training, made = Training(), rules(batch_queries=4)
    training.begin(NAMES, None, made)
    for query in with_overflow(lambda i: 0 <= i < 4, WORLD[:8]):
        wide = np.array([[1.0, 0, 0], [-1.0, 0, 0], [0.0, 0, 0], [0.0, 0, 0], [0.0, 0, 0]])
        large = query.features.max() > 1e10
        training.add(query._replace(features=wide * (7e153 if large else 1.0)), made)
    training.learn(made, whole=True)
    assert training.unusable.counts == {OVERFLOW: 4}
    assert training.learner.n_groups == 4
    assert not training.frozen


@pytest.mark.slow(alone=False)
def test_learning_freezes_with_finite_weights_when_most_recent_queries_overflow():
    half = run(with_overflow(lambda i: i % 2 == 1, long_world()), rules())
    assert "frozen" not in statuses(half)
    more = run(with_overflow(lambda i: i % 2 == 1 or i == 1_002, long_world()), rules())
    [frozen] = [release for release in releases(more) if release.status == "frozen"]
    assert frozen.reason == f"{EXTREME}, in most of the last queries"
    weights = [weight for release in releases(more) for weight in release.weights]
    assert np.isfinite(weights).all()


@pytest.mark.slow(alone=False)
def test_chunk_size_does_not_change_which_queries_are_excluded():
    made = rules(batch_queries=1)
    odd = with_overflow(lambda i: i % 4 == 1, with_others(lambda i: i % 4 == 3 or i == 1_002))
    leader = OnlineLearner(made, n_tasks=N_TASKS)
    at_once = [*leader.receive(record for part in parts(odd) for record in part), *leader.end()]
    [frozen] = [release for release in releases(at_once) if release.status == "frozen"]
    assert "phi_x from t-501, n-0 on" in frozen.reason  # the 1,003rd
    assert run(odd, made) == at_once


IMPLICIT = {"implicit_sources": frozenset({"click"}), "learner": Learner(label_mode="sum")}


def clicked(those, **changes):
    """Queries of which some are judged by clicks."""
    return [
        query._replace(sources={"click": 1}, **changes) if those(i) else query
        for i, query in enumerate(ordinary_world())
    ]


@pytest.mark.slow(alone=False)
def test_clicks_without_propensities_are_excluded_and_counted():
    """They are not learned from, and do not end learning."""
    some = clicked(lambda i: i % 3 == 0)
    model, published = model_after(some, rules(**IMPLICIT))
    assert "frozen" not in [each.status for each in published]
    assert model["unusable"][1] == {PROPENSITIES: 207}
    unjudged = clicked(lambda i: i % 3 == 0, grades={})
    without, expected = model_after(unjudged, rules(learner=IMPLICIT["learner"]))
    assert model["learner"] == without["learner"]
    # nor bet on: only the numbers of judgments differ in what is published
    assert [each.evidence for each in published] == [each.evidence for each in expected]
    assert "promoted" in [each.status for each in published]


@pytest.mark.slow(alone=False)
def test_learning_freezes_when_most_queries_have_clicks_without_propensities():
    model, published = model_after(clicked(lambda i: True), rules(**IMPLICIT), reads_again=True)
    assert [each.status for each in published] == ["frozen"]
    frozen = model["learner"]["frozen"]
    assert "judgments of click are implicit, and the ranking of t-250, n-0 has no" in frozen
    proposing, published = model_after(clicked(lambda i: True), rules(mode="propose", **IMPLICIT))
    assert proposing["unusable"][1] == {}
    weighed, published = model_after(
        clicked(lambda i: True, propensities=[0.5] * 5), rules(**IMPLICIT)
    )
    assert weighed["unusable"][1] == {}
    assert "promoted" in [each.status for each in published]


@pytest.mark.slow(alone=False)
def test_clicks_of_a_source_without_weight_are_not_counted():
    """For any name: queries with weight 0 neither end learning nor fire an alert."""
    trust = SourceWeights({"human": SourceRule()})
    model, _ = model_after(clicked(lambda i: i), rules(source_weights=trust, **IMPLICIT))
    assert (model["unusable"][1], model["learner"]["frozen"]) == ({}, "")


@pytest.mark.slow(alone=False)
def test_propensities_require_label_mode_sum():
    seen = [query._replace(propensities=[0.5] * 5) for query in WORLD]
    [frozen] = [r for r in releases(run(seen, rules())) if r.status == "frozen"]
    assert "label_mode = sum" in frozen.reason
    halved = run(seen, rules(learner=Learner(label_mode="sum")))
    doubled = [
        query._replace(propensities=None, grades={k: 2 * g for k, g in query.grades.items()})
        for query in seen
    ]
    as_grades = run(doubled, rules(learner=Learner(label_mode="sum")))
    learners = [each[-1].state["models"][0]["learner"] for each in (halved, as_grades)]
    assert learners[0]["updates"] > 0
    assert learners[0] == learners[1]
