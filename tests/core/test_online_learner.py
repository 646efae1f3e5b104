"""Learning and promotion over a stream of settled queries, in worlds with a known truth."""

import itertools
import json
import math
from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.core.learning.groups import Group, padded
from evaluator.core.learning.learner import EXTREME, Learner
from evaluator.core.measures import MISSING, MeasureSet
from evaluator.core.online import experiment
from evaluator.core.online import model_learner as model_learner_module
from evaluator.core.online import online_learner as leader_module
from evaluator.core.online.events import Command, Version
from evaluator.core.online.experiment import Experiments
from evaluator.core.online.model_learner import ModelLearner
from evaluator.core.online.offline_ranking import OfflineRanking, Ranked
from evaluator.core.online.online_learner import IntervalResult, OnlineLearner, view_of
from evaluator.core.online.ordered_merge import NO_FEATURES
from evaluator.core.online.progress import ProgressiveValidation
from evaluator.core.online.states import ModelState
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
    INTERVAL_MS,
    MATURITY_MS,
    N_TASKS,
    NAMES,
    TRUTH,
    interleaved,
    numbered,
    parts,
    releases,
    rules,
    run,
    settled_query,
    step,
    units_of,
    world,
)
from tests.repeats import examples, repeated

ONE = 1 << 40
WORLD = world(1, 700)


@cache
def all_intervals():
    return run(WORLD, rules())


def statuses(results_by_interval):
    return [release.status for release in releases(results_by_interval)]


def ndcg_of(weights, queries):
    """Mean NDCG@10 of some weights."""
    units = units_of(rules().offline_ranking, queries, weights)[:, 0]
    return units.sum() / ONE / len(units)


# --- order and continuation ---------------------------------------------------------------------


@pytest.mark.parametrize("n_bytes", [pytest.param(1, marks=pytest.mark.slow(alone=False)), 7])
def test_chunks_are_bounded_in_bytes_and_do_not_change_results(monkeypatch, n_bytes):
    expected = all_intervals()
    monkeypatch.setattr(leader_module, "_CHUNK_BYTES", 20)
    study, sizes = ModelLearner.learn_from, []

    def watched(model_learner, queries, made):
        sizes.append(len(queries))
        study(model_learner, queries, made)

    monkeypatch.setattr(ModelLearner, "learn_from", watched)
    assert run([query._replace(n_bytes=n_bytes) for query in WORLD], rules()) == expected
    assert max(sizes) == -(-20 // n_bytes)


@pytest.mark.slow(alone=False)
@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 1 << 64))
def test_results_do_not_depend_on_how_partitions_are_read(seed):
    assert run(WORLD, rules(), Random(seed)) == all_intervals()


@pytest.mark.slow(alone=False)
def test_chunk_size_does_not_change_results(monkeypatch):
    monkeypatch.setattr(leader_module, "_CHUNK", 3)
    assert run(WORLD, rules()) == all_intervals()


@pytest.mark.slow(alone=False)
def test_a_successor_continues_with_equal_results_from_any_interval():
    assert len(all_intervals()) > 5
    for place, interval in enumerate(all_intervals()[:-1]):
        state = json.loads(json.dumps(interval.state))
        successor = OnlineLearner(rules(), n_tasks=N_TASKS, state=state)
        results = [
            each for batch in interleaved(WORLD, Random(place)) for each in successor.receive(batch)
        ]
        assert [*results, *successor.end()] == all_intervals()[place + 1 :]


def test_a_state_goes_through_json_unchanged():
    for interval in all_intervals():
        state = json.loads(json.dumps(interval.state))
        again = OnlineLearner(rules(), n_tasks=N_TASKS, state=state).state()
        assert json.dumps(again) == json.dumps(interval.state)


# --- learning and promotion ---------------------------------------------------------------------


def test_weights_are_promoted_and_the_champion_becomes_better():
    assert statuses(all_intervals())[:2] == ["challenger", "promoted"]
    promoted = [release for release in releases(all_intervals()) if release.status == "promoted"]
    unseen = world(99, 300)
    served = sum(query.served_units["ndcg@10"] for query in unseen) / ONE / len(unseen)
    values = [ndcg_of(release.weights, unseen) for release in promoted]
    assert served + 0.2 < values[0]
    assert values == sorted(values)
    assert values[-1] > 0.9 * ndcg_of(TRUTH, unseen)


def test_a_challenger_is_not_measured_on_queries_ranked_before_it_was_learned():
    """Prequential: weights are live from the settled time of their last training example."""
    candidate, promoted = releases(all_intervals())[:2]
    learned = [query for query in WORLD if query.n < candidate.ranges[query.task][1]]
    assert candidate.from_ms == max(query.settled_time_ms for query in learned)
    until = [query for query in WORLD if query.n < promoted.ranges[query.task][1]]
    tried = [query for query in until if query.event_time_ms >= candidate.from_ms]
    state = next(each.state for each in all_intervals() if promoted in each.releases)
    assert state["models"][0]["sums"]["challenger"]["ndcg@10"][0] == len(tried)


@pytest.mark.slow(alone=False)
def test_queries_ranked_before_a_promotion_are_measured_with_the_old_champion():
    promoted = [release for release in releases(all_intervals()) if release.status == "promoted"]
    first_ms = promoted[0].from_ms
    measured = [query for query in WORLD if query.event_time_ms >= first_ms]
    n, units_in_all = all_intervals()[-1].state["models"][0]["sums"]["champion"]["ndcg@10"]
    units = np.concatenate(
        [
            units_of(rules().offline_ranking, [query], weights)
            for query in measured
            for weights in [
                next(
                    release.weights
                    for release in reversed(promoted)
                    if release.from_ms <= query.event_time_ms
                )
            ]
        ]
    )
    assert (n, units_in_all) == (len(measured), int(units[:, 0].sum()))


@pytest.fixture
def untested(monkeypatch):
    """Every snapshot is tried."""
    monkeypatch.setattr(ProgressiveValidation, "beats", lambda progress: True)


def served_at_best():
    hard = world(1, 1_500, noise=2.0)
    return [query._replace(units={"served": {"ndcg@10": ONE, "mrr": ONE}}) for query in hard]


@pytest.mark.slow(alone=False)
def test_the_served_order_is_the_baseline_until_there_is_a_champion(untested):
    published = statuses(run(served_at_best(), rules()))
    assert "promoted" not in published
    assert "rejected" in published


@pytest.mark.slow(alone=False)
def test_weights_without_progress_against_the_champion_are_not_tried():
    assert statuses(run(served_at_best(), rules())) == []
    tried = [each.state["models"][0]["progress"] for each in all_intervals()]
    first = next(i for i, each in enumerate(all_intervals()) if each.releases)
    assert first == 1  # nothing was learned when the first interval began
    assert tried[first] == [0.0, 0.0, 0.0]


def test_learned_weights_are_validated_on_unseen_queries(monkeypatch):
    """Also within an interval: the validated weights are replaced after some queries."""
    monkeypatch.setattr(model_learner_module, "REFRESH", 64)
    measured, measure = [], Experiments.measure

    def watched(experiments, queries, made, learned=None):
        measured.append((len(queries), learned and learned.weights))
        measure(experiments, queries, made, learned)

    monkeypatch.setattr(Experiments, "measure", watched)
    whole = run(WORLD[:300], rules(learning_interval_ms=3_600_000))
    assert len({weights for _, weights in measured}) == 5  # none, and after 64, 128, 192, 256
    progress = whole[-1].state["models"][0]
    assert releases(whole)[0].status == "challenger"
    monkeypatch.setattr(leader_module, "_CHUNK", 3)
    assert run(WORLD[:300], rules(learning_interval_ms=3_600_000)) == whole
    assert progress["progress"] == [0.0, 0.0, 0.0]


def test_progress_must_exceed_0_by_a_standard_error():
    def after(*differences):
        progress = ProgressiveValidation()
        progress.add(round(each * ONE) for each in differences)
        return progress

    assert after(*[0.1] * 50).beats()
    assert not after(*[0.1] * 49).beats()
    assert not after(*[0.0] * 50).beats()
    assert not after(*[-0.1] * 50).beats()
    assert after(*[1.0] * 59, *[-1.0] * 41).beats()  # the mean 0.18, its error 0.098
    assert not after(*[1.0] * 54, *[-1.0] * 46).beats()  # the mean 0.08
    few, halved = after(*[0.1] * 999), after(*[0.1] * 1_000)
    for progress in (few, halved):
        progress.end_interval()
    assert (few.n, halved.n, halved.beats()) == (999.0, 500.0, True)
    assert ProgressiveValidation.load(json.loads(json.dumps(halved.state()))) == halved
    for tampered in ([-1, 0, 0], [1, 0, -1], [0, 1, 0]):
        with pytest.raises(ValueError, match="not a progressive"):
            ProgressiveValidation.load(tampered)


def test_propose_reports_what_auto_would_promote_and_changes_no_champion():
    proposed = run(WORLD, rules(mode="propose"))
    assert "promoted" not in statuses(proposed)
    first = next(release for release in releases(proposed) if release.status == "proposed")
    promoted = next(
        release for release in releases(all_intervals()) if release.status == "promoted"
    )
    assert first == promoted._replace(status="proposed")
    assert all(each.state["models"][0]["champions"] == [] for each in proposed)


def test_initial_weights_are_the_first_champion_and_the_first_of_the_learner():
    first = releases(run(WORLD, rules(initial_weights=TRUTH)))[0]
    assert (first.status, first.weights, first.from_ms) == ("initial", TRUTH, 0)


@pytest.mark.slow(alone=False)
def test_a_guardrail_prevents_a_promotion():
    blind = [query._replace(units={"served": {"ndcg@10": 0, "mrr": ONE}}) for query in WORLD]
    assert "promoted" in statuses(run(blind, rules()))
    guarded = statuses(run(blind, rules(gate={"tolerances": {"mrr": 0.0}})))
    assert guarded[0] == "challenger"
    assert "promoted" not in guarded


def test_a_gate_cools_down_between_experiments():
    resting = run(WORLD, rules(gate={"cool_down_ms": 200_000}))
    published = releases(resting)
    ends = [each.now_ms for each in resting if any(r.status == "promoted" for r in each.releases)]
    starts = [release.from_ms for release in published if release.status == "challenger"]
    assert all(start >= end + 200_000 for end, start in zip(ends, starts[1:], strict=False))
    assert len(starts) < statuses(all_intervals()).count("challenger") or len(starts) == 2


def test_an_experiment_without_a_difference_ends_by_age_so_that_later_weights_are_tried():
    gate = {"max_age_ms": 180_000, "min_traces": 1 << 40}
    intervals = run(WORLD, rules(gate=gate))
    published = releases(intervals)
    assert [each.status for each in published[:3]] == ["challenger", "rejected", "challenger"]
    tried, ended = published[:2]
    assert (ended.reason, ended.of_version) == ("undecided", tried.version)
    assert ended.evidence["traces"] > 0
    (at,) = [i for i, each in enumerate(intervals) if ended in each.releases]
    # the end of the interval that makes the experiment 180 s old or more, and no earlier one
    ends_ms = [
        (each.now_ms - MATURITY_MS) // INTERVAL_MS * INTERVAL_MS + INTERVAL_MS for each in intervals
    ]
    assert ends_ms[at - 1] - tried.from_ms < 180_000 <= ends_ms[at] - tried.from_ms
    of_model = intervals[at].state["models"][0]
    assert of_model["last_experiment"] == [tried.version, "rejected", "undecided"]
    assert view_of(ModelLearner.load(of_model), rules(gate=gate)).last_experiment == (
        tried.version,
        "rejected",
        "undecided",
    )


def test_an_experiment_whose_features_no_longer_occur_ends_by_age():
    queries = [
        query._replace(feature_names=OTHERS) if i >= 300 else query for i, query in enumerate(WORLD)
    ]
    gate = {"max_age_ms": 180_000, "min_traces": 1 << 40}
    published = releases(run(queries, rules(gate=gate)))
    assert ("rejected", "undecided") in [(each.status, each.reason) for each in published]


@pytest.mark.parametrize("part", repeated(6, quick=0))
def test_an_equal_challenger_is_not_promoted(part, untested):
    """Grades are independent of features, so all weights are equal; served is drawn alike."""
    for seed in range(100 + 3 * part, 103 + 3 * part):
        random = Random(seed)
        queries = []
        for query in world(seed, 500):
            ids = list(query.candidate_ids)
            random.shuffle(ids)
            queries.append(query._replace(grades={ids[0]: 2.0, ids[1]: 1.0}))
        published = statuses(run(queries, rules(initial_weights=(0.1, 0.2, 0.3))))
        assert published[:2] == ["initial", "challenger"]
        assert "promoted" not in published


def test_the_scale_changes_only_when_a_challenger_is_frozen():
    scales = [each.state["models"][0]["learner"]["scale"] for each in all_intervals()]
    tried = [any(r.status == "challenger" for r in each.releases) for each in all_intervals()]
    changed = [a != b for a, b in itertools.pairwise(scales)]
    assert sum(changed) >= 2
    assert changed == tried[1:]


def test_a_repeated_candidate_is_learned_from_once_at_its_first_position():
    first = [1, 0, 2, 3, 4, 1]
    repeated_ids = [
        query._replace(
            candidate_ids=[query.candidate_ids[place] for place in first],
            features=np.vstack([query.features[first[:-1]], query.features[3:4]]),
        )
        for query in WORLD[:100]
    ]
    once = [
        query._replace(
            candidate_ids=[query.candidate_ids[place] for place in first[:-1]],
            features=query.features[first[:-1]],
        )
        for query in WORLD[:100]
    ]
    learners = [
        run(queries, rules())[-1].state["models"][0]["learner"] for queries in (repeated_ids, once)
    ]
    assert learners[0] == learners[1]


def test_at_most_so_many_queries_of_an_interval_are_bet_on(monkeypatch):
    monkeypatch.setattr(experiment, "MOST_IN_AN_INTERVAL", 4)
    few = run(WORLD, rules(gate={"min_traces": 1 << 40}))
    experiments = [each.state["models"][0]["gate"]["experiment"] for each in few]
    counts = [each["n_queries"] for each in experiments if each is not None]
    in_each = [b - a for a, b in itertools.pairwise(counts)]
    assert len(in_each) > 5
    assert in_each[0] <= 4
    assert set(in_each[1:]) == {4}


# --- hostile judgments --------------------------------------------------------------------------

WORSE = (1.0, -1.8, 0.5)


def attacked(seed):
    """Of twenty queries, only the one most favourable to WORSE is judged."""
    queries = world(seed, 5_000, noise=0.1)
    for first in range(0, len(queries), 20):
        _, place, praised = max(
            (won, place, candidate)
            for place in range(first, first + 20)
            for candidate, won in enumerate(places_won(queries[place]))
        )
        query = queries[place]
        queries[place] = query._replace(
            grades={query.candidate_ids[praised]: 1.0}, sources={"stranger": 1}
        )
    return queries


def places_won(query):
    """By how much WORSE ranks each candidate higher than the truth does."""
    worse, truth = (
        np.argsort(np.argsort(-(query.features @ np.array(weights)))) for weights in (WORSE, TRUTH)
    )
    return (truth - worse).tolist()


def trying_worse_weights(made):
    """A leader that tries WORSE from the start against the truth."""
    leader = OnlineLearner(made, n_tasks=N_TASKS)
    model_learner = leader.model_learners["m"] = ModelLearner("m", version=2)
    model_learner.training.begin(NAMES, None, made)
    model_learner.experiments.champions = [Version(1, 0, TRUTH, NAMES)]
    model_learner.experiments.start(Version(2, 0, WORSE, NAMES), now_ms=0)
    model_learner.current = ModelState.EXPERIMENT
    return leader


def experiment_with_worse_weights(queries, trust):
    """The outcome for WORSE."""
    leader = trying_worse_weights(rules(source_weights=trust, learner=Learner(learning_rate=1e-12)))
    for batch in interleaved(queries, Random(1)):
        for release in releases(leader.receive(batch)):
            if release.of_version == 2:
                return release.status
    ends = [release for release in releases(leader.end()) if release.of_version == 2]
    return ends[0].status if ends else "undecided"


@pytest.mark.parametrize("seed", repeated(2, quick=0))
def test_capped_unlisted_sources_cannot_promote_worse_weights(seed):
    queries = attacked(seed)
    capped = SourceWeights({"human": SourceRule()}, SourceRule(max_share=0.01))
    assert experiment_with_worse_weights(queries, None) == "promoted"
    assert experiment_with_worse_weights(queries, capped) != "promoted"


def test_judgments_of_weight_0_are_not_learned_from():
    queries = [
        query._replace(sources={"stranger": 1}) if i % 2 else query for i, query in enumerate(WORLD)
    ]
    trusting = run(queries, rules(source_weights=SourceWeights({"human": SourceRule()})))
    alone = [query._replace(grades={}) if i % 2 else query for i, query in enumerate(WORLD)]
    for one, other in zip(trusting, run(alone, rules()), strict=True):
        learners = [each.state["models"][0]["learner"] for each in (one, other)]
        assert learners[0] == learners[1]


# --- repeated events count once ------------------------------------------------------------------


@pytest.mark.slow(alone=False)
@pytest.mark.parametrize(
    ("same", "n_counted"),
    [
        ((), 120),
        (("trace_id",), 3),
        (("features", "candidate_ids"), 3),
        (("features",), 120),
        (("candidate_ids",), 120),
    ],
)
def test_a_trace_and_a_query_count_once_in_an_experiment(same, n_counted):
    """Three queries are repeated for two intervals; a successor learns in the second one."""
    random, made, queries = Random(3), rules(), []
    lasting = [settled_query(2 * i, random) for i in range(3)]
    for i in range(120):
        own = {"trace_id": f"trace-{i}", "candidate_ids": [f"c{k}-{i}" for k in range(5)]}
        own |= {name: getattr(lasting[i % 3], name) for name in same}
        grades = {name: random.choice((0.0, 1.0, 2.0)) for name in own["candidate_ids"]}
        queries.append(settled_query(i, random, **{**own, "grades": grades}))
    records = [record for part in parts(numbered(queries)) for record in part]
    first_interval, *_ = trying_worse_weights(made).receive(records)
    state = json.loads(json.dumps(first_interval.state))
    (model,) = state["models"]
    assert view_of(ModelLearner.load(model), made).n_traces == min(n_counted, 60)
    successor = OnlineLearner(made, n_tasks=N_TASKS, state=state)
    successor.receive(records)
    successor.end()
    (view,) = successor.views
    assert (view.n_traces, view.challenger.number) == (n_counted, 2)


# --- ends of learning, and recovery --------------------------------------------------------------


OTHERS = ("phi_a", "phi_b", "phi_x")


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


def test_a_rollback_is_a_new_epoch_with_old_weights():
    made = rules()
    leader = OnlineLearner(made, n_tasks=N_TASKS)
    results_by_interval = []
    for batch in interleaved(WORLD, Random(2)):
        results_by_interval += leader.receive(batch)
        if "promoted" in statuses(results_by_interval) and "m" in leader.model_learners:
            break
    leader.accept_command("m", Command(5, "roll_back", "an operator's", (9.0, 8.0, 7.0), NAMES))
    after = leader.end()
    [back] = [release for release in releases(after) if release.status == "rolled_back"]
    assert (back.epoch, back.weights, back.from_ms) == (1, (9.0, 8.0, 7.0), after[0].now_ms)
    model = json.loads(json.dumps(after[0].state))["models"][0]
    assert model["champions"][-1][2] == [9.0, 8.0, 7.0]
    assert model["challenger"] is None
    assert model["last_command"] == 5


def test_a_command_is_executed_once_even_by_a_successor():
    leader = OnlineLearner(rules(), n_tasks=N_TASKS, state=all_intervals()[-1].state)
    leader.accept_command("m", Command(1, "freeze", "enough"))
    leader.accept_command("nobody", Command(1, "freeze", "enough"))
    later = WORLD[-1]
    ms = later.settled_time_ms + 1_000_000
    more = [later._replace(n=later.n + 1, settled_time_ms=ms, event_time_ms=ms)]
    after = [*leader.receive(more), *leader.end()]
    assert [(each.status, each.reason) for each in releases(after)] == [("frozen", "enough")]
    assert leader.views[0].frozen == "enough"
    successor = OnlineLearner(
        rules(), n_tasks=N_TASKS, state=json.loads(json.dumps(after[-1].state))
    )
    successor.accept_command("m", Command(1, "roll_back", "too late", (1.0, 1.0, 1.0), NAMES))
    again = [more[0]._replace(n=later.n + 2, settled_time_ms=2 * ms, event_time_ms=2 * ms)]
    assert releases([*successor.receive(again), *successor.end()]) == []


def test_a_view_has_both_rankers_and_the_evidence():
    tried = [each for each in all_intervals() if each.state["models"][0]["gate"]["experiment"]]
    leader = OnlineLearner(rules(), n_tasks=N_TASKS, state=tried[-1].state)
    [view] = leader.views
    assert view.model == "m"
    assert view.champion is not None
    assert leader.sums()["m", "champion", "ndcg@10", "queries"] > 0
    assert view.evidence_for > 0
    assert view.evidence_against > 0


def test_a_view_shows_the_end_of_the_last_interval_as_for_a_successor():
    leader, results_by_interval = OnlineLearner(rules(), n_tasks=N_TASKS), list[IntervalResult]()
    for batch in interleaved(WORLD, Random(2)):
        now = leader.receive(batch)
        results_by_interval += now
        if now:
            successor = OnlineLearner(rules(), n_tasks=N_TASKS, state=now[-1].state)
            assert leader.views == successor.views
            assert now[-1].sums == successor.sums()
        elif results_by_interval:
            [view] = leader.views
            assert view.loss == results_by_interval[-1].state["models"][0]["loss"]


def test_the_loss_is_the_mean_over_the_counted_groups_of_the_interval():
    made = rules(learner=Learner(), batch_queries=4)
    queries = numbered([settled_query(i, Random(i)) for i in range(10)])
    queries[3] = queries[3]._replace(grades={})  # not judged: it changes nothing
    [interval] = run(queries, made)
    state, losses = made.learner.start((0.0, 0.0, 0.0)), list[float]()
    for first in (0, 4, 8):
        groups = [
            Group(q.features, np.array([q.grades.get(c, 0.0) for c in q.candidate_ids]))
            for q in queries[first : first + 4]
        ]
        state, more = step(made.learner, state, padded(groups, 3))
        losses += more
    assert len(losses) == 9
    assert interval.state["models"][0]["loss"] == pytest.approx(sum(losses) / 9)
    assert losses[0] == pytest.approx(math.log(5))  # of five candidates that all score 0


def test_changed_rules_keep_live_weights_and_begin_a_new_epoch():
    interval = next(each for each in all_intervals() if each.state["models"][0]["champions"])
    state = json.loads(json.dumps(interval.state))
    made = rules(learner=Learner(learning_rate=0.5))
    successor = OnlineLearner(made, n_tasks=N_TASKS, state=state, new_epoch=True)
    model_learner = successor.model_learners["m"]
    assert model_learner.epoch == 1
    assert [each.state() for each in model_learner.experiments.champions] == [
        [n, at, tuple(w), tuple(names), table]
        for n, at, w, names, table in state["models"][0]["champions"][-1:]
    ]
    experiments = model_learner.experiments
    assert model_learner.current is ModelState.WITHOUT_FEATURES
    assert model_learner.training.learner is None
    assert experiments.challenger is experiments.gate.experiment is None


# --- models -------------------------------------------------------------------------------------


@pytest.mark.slow(alone=False)
def test_models_are_learned_separately():
    random = Random(7)
    other = [
        query._replace(model="other", trace_id=f"o-{query.trace_id}", n=-1)
        for query in world(8, 700)
    ]
    both = numbered([*(query._replace(n=-1) for query in WORLD), *other])
    results_by_interval = run(both, rules(), random)
    assert {release.model for release in releases(results_by_interval)} == {"m", "other"}
    alone = [r._replace(ranges={}) for r in releases(all_intervals())]
    assert [r._replace(ranges={}) for r in releases(results_by_interval) if r.model == "m"] == alone


def test_models_beyond_the_limit_are_counted_and_ignored(monkeypatch):
    monkeypatch.setattr(leader_module, "MOST_MODELS", 2)
    queries = [query._replace(model=f"m-{i % 5}") for i, query in enumerate(WORLD[:100])]
    last = run(queries, rules())[-1].state
    assert [model["model"] for model in last["models"]] == ["m-0", "m-1"]
    assert last["ignored"] == 60


def test_orders_measured_together_equal_orders_measured_alone():
    random = Random(5)
    asked = [query for query in WORLD[:60] if query.grades]
    offline_ranking, orders, expected = rules().offline_ranking, [], []
    for n in range(12):  # more than are measured at once
        places = [place for place in range(len(asked)) if random.random() < n / 11]
        weights = [random.choice((0.0, 1.0, -2.0, 1e308)) for _ in NAMES]
        features = [asked[place].features * random.choice((1.0, 1e10)) for place in places]
        orders.append(Ranked(places, features, weights))
        alone = np.full((len(asked), 2), MISSING)
        for place, of_query in zip(places, features, strict=True):
            query = asked[place]._replace(features=of_query)
            alone[place] = units_of(offline_ranking, [query], weights)[0]
        expected.append(alone.tolist())
    assert offline_ranking.units_of(asked, orders).tolist() == expected
    assert any(MISSING in of_query for of_query in expected[-1])
    assert offline_ranking.units_of([], orders[:1]).shape == (1, 0, 2)


# --- measuring ----------------------------------------------------------------------------------


def test_weights_are_measured_as_an_order_that_was_served():
    """c0 has the score 1, c1 2 and c2 2; the tie is for the greater id: c2, c1, c0."""
    query = settled_query(0, Random(0))._replace(
        candidate_ids=["c0", "c1", "c2"],
        features=np.array([[1.0, 0, 0], [2.0, 0, 0], [1.0, 1.0, 0]]),
        grades={"c1": 1.0, "elsewhere": 1.0},
    )
    offline_ranking = OfflineRanking(MeasureSet.parse(["mrr", "r@2"]))
    assert units_of(offline_ranking, [query], (1.0, 1.0, 0.0)).tolist() == [[ONE // 2, ONE // 2]]


def test_with_empty_skip_a_query_without_relevant_candidates_has_no_value():
    query = settled_query(0, Random(0))._replace(grades={"c0": 0.0})
    measures = MeasureSet.parse(["mrr"])
    assert units_of(OfflineRanking(measures), [query], TRUTH).tolist() == [[0]]
    assert units_of(OfflineRanking(measures, empty="skip"), [query], TRUTH).tolist() == [[MISSING]]


def test_an_overflowing_score_gives_no_value():
    fine = settled_query(0, Random(0))
    wild = fine._replace(features=fine.features * 1e300)
    units = units_of(rules().offline_ranking, [fine, wild, fine], (1e10, 0.0, 0.0))
    assert units[1].tolist() == [MISSING, MISSING]
    assert (
        units[0].tolist()
        == units[2].tolist()
        == units_of(rules().offline_ranking, [fine], (1, 0, 0))[0].tolist()
    )


def test_a_measure_whose_data_are_not_in_settled_has_no_value():
    offline_ranking = OfflineRanking(MeasureSet.parse(["alpha_ndcg@10", "mrr"]))
    units = units_of(offline_ranking, WORLD[:2], TRUTH)
    assert units[:, 0].tolist() == [MISSING, MISSING]
    assert (units[:, 1] > 0).all()


def test_an_empty_ranking_between_others_has_value_0():
    nothing = WORLD[1]._replace(candidate_ids=[], features=np.zeros((0, len(NAMES))))
    offline_ranking = rules().offline_ranking
    units = units_of(offline_ranking, [WORLD[0], nothing, WORLD[2]], TRUTH)
    assert units[1].tolist() == [0, 0]
    assert units[[0, 2]].tolist() == units_of(offline_ranking, [WORLD[0], WORLD[2]], TRUTH).tolist()
