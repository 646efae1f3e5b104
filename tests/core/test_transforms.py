"""Declared transforms of features are the same wherever weights are learned or applied."""

import doctest
import json
import math
from functools import cache, partial

import numpy as np
import pytest

from evaluator.core.learning import transforms as module
from evaluator.core.learning.transforms import (
    Transform,
    documents,
    loaded,
    of_features,
    transformed,
)
from evaluator.core.online.events import Command, Version
from evaluator.core.online.model_learner import ModelLearner
from evaluator.core.online.online_learner import OnlineLearner
from evaluator.wire.weights.leader_state import RecordWriter, command_record, read_command
from evaluator.wire.weights.learner_state import check_state
from evaluator.wire.weights.weights_record import Weights
from tests.core.learned import N_TASKS, NAMES, releases, rules, run, world
from tests.repeats import sized

DECLARED = {"phi_a": Transform(log1p=True), "phi_c": Transform(-0.5, 0.5)}
WORLD = world(1, sized(700, quick=350))


@cache
def last_interval():
    """Of a leader with transforms; tests only read it."""
    return run(WORLD, rules(transforms=DECLARED))[-1]


def before_the_messages(queries):
    """The same queries whose features were transformed by their sender."""

    def of(query):
        log, clip = query.features[:, 0], query.features[:, 2]
        columns = [np.sign(log) * np.log1p(np.abs(log)), query.features[:, 1], clip.clip(-0.5, 0.5)]
        return query._replace(features=np.array(columns).T)

    return [of(query) for query in queries]


def test_docstring_examples_are_correct():
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("text", "x", "expected"),
    [
        ("log1p", -3.0, -math.log(4)),
        ("log1p", 1e300, math.log(1e300)),
        ("clip:-1:2", 7.0, 2.0),
        ("clip:-1e+0:2+log1p", -7.0, -math.log(2)),
    ],
)
def test_a_transform_clips_and_then_takes_the_logarithm(text, x, expected):
    found = transformed(np.array([[x, x]]), ("a", "b"), {"a": Transform.parse(text)})
    assert found[0].tolist() == pytest.approx([expected, x])


@pytest.mark.parametrize(
    "text", ["", "log", "clip:1", "clip:2:1", "clip:0:inf", "clip:0:1log1p", "+log1p", "clip:a:b"]
)
def test_an_invalid_transform_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        Transform.parse(text)


def test_transforms_are_read_back_as_written():
    assert loaded(json.loads(json.dumps(documents(DECLARED)))) == DECLARED
    version = Version(1, 2, (1.0, 2.0, 3.0), NAMES, None, DECLARED)
    assert Version.load(json.loads(json.dumps(version.state()))) == version
    assert len(version._replace(transforms={}).state()) == 5  # as without the setting
    command = Command(3, "roll_back", "as before", (1.0,), ("phi_a",), None, DECLARED)
    assert read_command(command_record(command)) == command
    assert b"transforms" not in command_record(command._replace(transforms={}))


@pytest.mark.slow(alone=False)
def test_a_leader_learns_and_measures_as_if_senders_had_transformed():
    live = run(WORLD, rules(transforms=DECLARED))
    sent = run(before_the_messages(WORLD), rules())
    ours, theirs = (releases(intervals) for intervals in (live, sent))
    assert [each.status for each in ours] == [each.status for each in theirs]
    assert "promoted" in [each.status for each in ours]
    for one, other in zip(ours, theirs, strict=True):
        assert one.weights == pytest.approx(other.weights, rel=1e-9)
        assert one.transforms == DECLARED
    for ranker in ("champion", "challenger"):
        sums = [each[-1].state["models"][0]["sums"][ranker] for each in (live, sent)]
        assert sums[0] == sums[1]


@pytest.mark.slow(alone=False)
def test_records_have_transforms_only_if_there_are_any():
    for made, expected in ((rules(transforms=DECLARED), documents(DECLARED)), (rules(), None)):
        writer = RecordWriter("", {})
        records = [record for each in run(WORLD, made) for record in writer.records(each)]
        logged = [json.loads(each.value) for output, each in records if output == "weights-log"]
        assert [each.get("transforms") for each in logged] == [expected] * len(logged)
        found = Weights.model_validate(logged[-1]).of_features
        assert found == of_features(made.transforms, NAMES)
        check_state(json.loads(records[-1][1].value)["state"])


@pytest.mark.slow(alone=False)
def test_views_name_transforms_of_features_that_no_model_has():
    for declared, expected in (
        ({**DECLARED, "prise": Transform(log1p=True)}, ("prise",)),
        (DECLARED, ()),
    ):
        learner = OnlineLearner(rules(transforms=declared), n_tasks=N_TASKS)
        assert learner.views == ()
        learner.receive(WORLD)
        learner.end()
        assert [view.unknown_transforms for view in learner.views] == [expected]


def test_weights_for_other_transforms_stay_live_and_do_not_initialise_the_learner():
    first = last_interval()
    after = partial(OnlineLearner, n_tasks=N_TASKS, state=first.state, new_epoch=True)
    for made, starts in ((rules(transforms=DECLARED), True), (rules(), False)):
        learner = after(made).model_learners["m"]
        learner.training.begin(NAMES, learner.experiments.champion, made)
        assert learner.experiments.champion.transforms == DECLARED
        assert any(learner.training.learner.weights) == starts
    model = ModelLearner("m")
    model.training.begin(NAMES, None, rules())
    model.command = Command(1, "roll_back", "back", (1.0, 2.0, 3.0), NAMES, None, DECLARED)
    (release,) = model.end_interval(0, rules(), until_ms=0, max_table_bytes=1)
    assert (release.weights, release.transforms) == ((1.0, 2.0, 3.0), DECLARED)
    assert not any(model.training.learner.weights)


@pytest.mark.parametrize("tampered", [{"low": 2.0, "high": 1.0}, {"low": None}, {"log1p": 1}])
def test_tampered_transforms_in_a_state_are_refused(tampered):
    state = json.loads(json.dumps(last_interval().state))
    state["models"][0]["champions"][0][5]["phi_c"] |= tampered
    with pytest.raises(ValueError, match=r".+"):
        check_state(state)
