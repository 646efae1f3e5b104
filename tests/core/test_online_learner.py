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
from evaluator.core.learning.learner import Learner
from evaluator.core.online import experiment
from evaluator.core.online import model_learner as model_learner_module
from evaluator.core.online import online_learner as leader_module
from evaluator.core.online.events import Command
from evaluator.core.online.experiment import Experiments
from evaluator.core.online.model_learner import ModelLearner
from evaluator.core.online.online_learner import IntervalResult, OnlineLearner, view_of
from evaluator.core.online.progress import ProgressiveValidation
from evaluator.core.online.states import ModelState
from tests.core.learned import (
    INTERVAL_MS,
    MATURITY_MS,
    N_TASKS,
    NAMES,
    OTHERS,
    TRUTH,
    interleaved,
    numbered,
    releases,
    rules,
    run,
    settled_query,
    statuses,
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
