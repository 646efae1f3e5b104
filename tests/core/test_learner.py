"""The learner: updates, queries without effect, freezing, and success."""

import itertools
import os
import platform
import subprocess
import sys
from functools import cache
from math import log

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from evaluator.core.learning.elementary import linear_scores
from evaluator.core.learning.groups import Group, Groups, padded
from evaluator.core.learning.learner import WARM_UP_GROUPS, Learner, LearnerState
from evaluator.core.learning.names import LABEL_MODES, LOSSES, OPTIMIZERS, SCHEDULES
from tests.core.learned import step
from tests.repeats import first_quick
from tests.tidy.tree import ROOT

EVERY = [("softmax", mode) for mode in LABEL_MODES] + [
    (name, "distribution") for name in LOSSES[1:]
]
every_loss = pytest.mark.parametrize(("loss", "mode"), EVERY)
every_optimizer = pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [
        *(("sgd", "constant"), ("sgd", "inv_sqrt"), ("adam", "inv_sqrt")),
        *(
            pytest.param(optimizer, schedule, marks=pytest.mark.slow)
            for optimizer, schedule in (
                *(("adagrad", "constant"), ("adagrad", "inv_sqrt"), ("adam", "constant")),
            )
        ),
    ],
)
TRUTH = np.array([1.0, -2.0, 0.5, 0.25])


def random_groups(n, *, seed=0, widths=(2, 12), spread=(1.0, 1.0, 1.0, 1.0), noise=0.1):
    """Groups whose best candidates, by the truth, have grades 1 and 2."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        features = rng.normal(size=(rng.integers(*widths), 4)) + rng.normal(size=4)
        utility = features @ TRUTH + noise * rng.normal(size=len(features))
        grades = np.zeros(len(features))
        best = np.argsort(-utility)
        grades[best[0]], grades[best[1]] = 2.0, 1.0
        found.append(Group(features * spread, grades))
    return found


ONE_CANDIDATE = Group(np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([1.0]))
NO_POSITIVE = Group(np.ones((3, 4)), np.zeros(3))
NOTHING = Group(np.zeros((0, 4)), np.zeros(0))
SKIPPED = [ONE_CANDIDATE, NO_POSITIVE, NOTHING]


def learned(learner, groups, *, batch=1, start=(0.0,) * 4):
    state = learner.start(start)
    for first in range(0, len(groups), batch):
        state, _ = step(learner, state, padded(groups[first : first + batch], 4))
    return state


def cosine(a, b):
    return float(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))


# Updates

TWO = Group(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([1.0, 0.0]))  # p = 1/2, 1/2 at the start


def test_an_update_equals_one_computed_by_hand():
    """Scores 0, 0: gradient by score -1/2, 1/2; by weight -1/2, 1/2; twice l2 times weight is 0.

    Then scores 0.05, -0.05 and p = 1/(1 + e^-0.1); half of the second batch has no positive.
    """
    learner = Learner(learning_rate=0.1, l2=0.25)
    state, losses = step(learner, learner.start([0.0, 0.0]), padded([TWO], 2))
    assert (state.weights, losses) == ((0.05, -0.05), [pytest.approx(log(2))])
    p = 1 / (1 + np.exp(-0.1))
    none = Group(TWO.features, np.zeros(2))
    after, losses = step(learner, state, padded([none, TWO], 2))
    gradient = [(p - 1) + 2 * 0.25 * 0.05, (1 - p) + 2 * 0.25 * -0.05]
    assert after.weights == pytest.approx([0.05 - 0.1 * gradient[0], -0.05 - 0.1 * gradient[1]])
    assert losses == [pytest.approx(-np.log(p))]
    assert after.updates == 2


@every_loss
def test_a_batch_is_one_update_by_its_mean_gradient_plus_l2(loss, mode):
    learner = Learner(loss=loss, label_mode=mode, learning_rate=0.1)
    start = (0.3, -0.1, 0.2, 0.0)
    groups = random_groups(7)
    steps = [np.array(learned(learner, [one], start=start).weights) - start for one in groups]
    expected = np.mean(steps, axis=0) - 0.1 * 2 * 0.5 * np.array(start)
    state = learned(replace(learner, l2=0.5), [*SKIPPED, *groups, *SKIPPED], batch=99, start=start)
    assert np.array(state.weights) - start == pytest.approx(expected, rel=1e-9)
    assert state.updates == 1


def test_clipping_applies_to_the_gradient_including_l2():
    """Equal weights 1/4, so p = 1/2, 1/2: -1/2 + 2 x 1 x 1/4 = 0 and 1/2 + 1/2 = 1, cut to 1/2."""
    learner = Learner(learning_rate=0.1, l2=1.0, clip_norm=0.5)
    state = learned(learner, [], start=(0.25, 0.25))
    found, _ = step(learner, state, padded([TWO], 2))
    assert found.weights == (0.25, 0.25 - 0.1 * 0.5)


@every_optimizer
def test_inv_sqrt_rate_counts_updates_not_groups(optimizer, schedule):
    learner = Learner(optimizer=optimizer, schedule=schedule, learning_rate=0.1)
    groups = random_groups(9)
    with_skipped = [one for group in groups for one in (NO_POSITIVE, group, ONE_CANDIDATE)]
    assert learned(learner, with_skipped) == learned(learner, groups)


# No effect


def check_that_skipped_groups_change_nothing(learner):
    before = learned(learner, random_groups(60, widths=(2, 4)), batch=30)
    assert before.updates == (1 if learner.scale == "within_query" else 2)
    for skipped in ([], [ONE_CANDIDATE], [NO_POSITIVE], [NOTHING], SKIPPED):
        assert step(learner, before, padded(skipped, 4)) == (before, [])


@pytest.mark.parametrize("scale", ["none", "within_query"])
@every_optimizer
def test_a_batch_of_skipped_groups_changes_nothing(optimizer, schedule, scale):
    check_that_skipped_groups_change_nothing(
        Learner(optimizer=optimizer, schedule=schedule, scale=scale, l2=0.5, clip_norm=1.0)
    )


@pytest.mark.parametrize("scale", ["none", "within_query"])
@every_loss
def test_skipped_groups_change_nothing_for_every_loss(loss, mode, scale):
    check_that_skipped_groups_change_nothing(
        Learner(loss=loss, label_mode=mode, optimizer="adam", scale=scale, l2=0.5)
    )


@every_loss
def test_padding_does_not_change_results(loss, mode):
    learner = Learner(loss=loss, label_mode=mode, scale="within_query")
    groups = random_groups(120)
    state = learner.start((0.0,) * 4)
    for first in range(0, 120, 10):
        batch = padded(groups[first : first + 10], 4)
        wider = Groups(
            np.pad(batch.features, ((0, 0), (0, 0), (0, 5))),
            np.pad(batch.grades, ((0, 0), (0, 5))),
            np.pad(batch.mask, ((0, 0), (0, 5))),
        )
        assert step(learner, state, batch) == step(learner, state, wider)
        state, _ = step(learner, state, batch)
    assert state.updates == 8


# Scale


def test_there_is_no_update_before_the_warm_up_groups():
    learner = Learner(scale="within_query")
    groups = random_groups(WARM_UP_GROUPS + 1)
    before = learned(learner, groups[: WARM_UP_GROUPS - 1], start=(1.0, 0.0, 0.0, 0.0))
    assert (before.updates, before.scale, before.weights) == (0, None, (1.0, 0.0, 0.0, 0.0))
    state, _ = step(learner, before, padded([NO_POSITIVE], 4))
    assert state == before
    state, _ = step(learner, before, padded(groups[WARM_UP_GROUPS - 1 : WARM_UP_GROUPS], 4))
    assert state.updates == 1


def test_the_scale_is_the_standard_deviation_within_groups():
    """Offsets of a whole group do not count; the scale of a constant feature is 1."""
    groups = [
        Group(group.features * [1, 1, 1, 0] + [0, 0, 0, 0.1], group.grades)
        for group in random_groups(WARM_UP_GROUPS)
    ]
    centred = [group.features - group.features.mean(axis=0) for group in groups]
    n_free = sum(len(one) for one in centred) - len(centred)
    expected = np.sqrt(sum((one**2).sum(axis=0) for one in centred) / n_free)
    state = learned(Learner(scale="within_query"), groups)
    assert state.scale[:3] == pytest.approx(expected[:3])
    assert state.scale[3] == 1.0


def test_the_scale_does_not_depend_on_the_batches():
    groups = random_groups(64)
    learner = Learner(scale="within_query", learning_rate=1e-9)
    one, many = (learned(learner, groups, batch=batch) for batch in (1, 64))
    assert (one.squares, one.n_free, one.n_groups) == (many.squares, many.n_free, many.n_groups)


@every_optimizer
def test_a_scaled_learner_does_not_depend_on_feature_units(optimizer, schedule):
    units = np.array([1.0, 1024.0, 2.0**-10, 4.0])
    learner = Learner(
        scale="within_query", optimizer=optimizer, schedule=schedule, l2=0.01, clip_norm=0.5
    )
    plain = learned(learner, random_groups(90))
    other = learned(learner, random_groups(90, spread=units))
    assert learner.snapshot(other) == tuple(np.array(learner.snapshot(plain)) / units)


def test_initial_and_published_weights_are_for_raw_features():
    start = (0.5, -0.25, 3.0, 1e-3)
    learner = Learner(scale="within_query", learning_rate=1e-12)
    groups = random_groups(60, spread=(1.0, 300.0, 0.01, 7.0))
    assert learner.snapshot(learned(learner, groups, start=start)) == pytest.approx(start)


@every_optimizer
def test_the_scale_is_frozen_until_weights_are_published(optimizer, schedule):
    learner = Learner(scale="within_query", optimizer=optimizer, schedule=schedule)
    first = learned(learner, random_groups(60))
    state = first
    for group in random_groups(60, seed=1, spread=(9.0, 9.0, 9.0, 9.0)):
        state, _ = step(learner, state, padded([group], 4))
        assert state.scale == first.scale
    after = learner.published(state)
    assert after.scale[0] > 3 * state.scale[0]
    assert learner.snapshot(after) == pytest.approx(learner.snapshot(state), rel=1e-12)
    assert learner.published(after) == after
    plain = Learner(optimizer=optimizer)
    unscaled = learned(plain, random_groups(60))
    assert plain.published(unscaled) == unscaled


def test_only_the_initial_weights_are_published_before_the_warm_up():
    learner = Learner(scale="within_query")
    state = learned(learner, random_groups(10), start=(1.0, 2.0, 3.0, 4.0))
    assert learner.published(state) == state
    assert learner.snapshot(state) == (1.0, 2.0, 3.0, 4.0)


# Freezing


@every_loss
@pytest.mark.parametrize("scale", ["none", "within_query"])
@pytest.mark.parametrize("bad", first_quick(np.nan, np.inf, -np.inf))
def test_non_finite_values_freeze_the_learner_without_other_changes(loss, mode, scale, bad):
    learner = Learner(loss=loss, label_mode=mode, scale=scale)
    before = learned(learner, random_groups(60), batch=20)
    good, broken = random_groups(2, seed=5)
    broken.features[0, 2] = bad
    frozen, losses = step(learner, before, padded([good, broken], 4))
    assert losses == []
    assert replace(frozen, frozen="") == before
    assert frozen.frozen
    assert step(learner, frozen, padded([good], 4)) == (frozen, [])


@pytest.mark.parametrize("loss", ["pairwise_exponential", "pointwise_squared", "softmax"])
def test_diverging_weights_freeze_the_learner_while_still_finite(loss):
    learner = Learner(loss=loss, learning_rate=1e308)
    state = learned(learner, random_groups(20, spread=(1e5,) * 4))
    assert state.frozen
    assert np.isfinite(state.weights).all()


# State


@every_optimizer
@pytest.mark.parametrize("scale", ["none", "within_query"])
def test_a_state_restored_from_json_learns_the_same_bits(optimizer, schedule, scale):
    learner = Learner(optimizer=optimizer, schedule=schedule, scale=scale, l2=0.01)
    groups = random_groups(70)
    state = learner.start((0.0,) * 4)
    for group in groups:
        state, _ = step(learner, state, padded([group], 4))
        stored = msgspec.json.decode(msgspec.json.encode(state), type=LearnerState)
        assert stored == state
        state = stored
    assert state == learned(learner, groups)


# It learns


@every_loss
def test_the_loss_decreases_on_separable_groups(loss, mode):
    learner = Learner(loss=loss, label_mode=mode, learning_rate=0.05)
    groups = padded(random_groups(50, noise=0.0), 4)
    state, means = learner.start((0.0,) * 4), []
    for _ in range(60):
        state, losses = step(learner, state, groups)
        means.append(np.mean(losses))
    assert means[-1] < 0.95 * means[0]
    if loss not in ("lambdarank", "pairwise_hinge"):  # their loss has steps or corners
        assert (np.diff(means) < 0).all()


def every_way_to_learn():
    """Losses of differences with every optimiser; one of them alone is quick."""
    for loss, mode in EVERY:
        for optimizer, schedule in itertools.product(OPTIMIZERS, SCHEDULES):
            if "point" not in loss:
                ways = (mode, loss, optimizer, schedule)
                quick = ways == ("distribution", "softmax", "adam", "constant")
                marks = () if quick else pytest.mark.slow
                yield pytest.param(loss, mode, optimizer, schedule, marks=marks)


@cache
def noisy_batches():
    groups = random_groups(600, widths=(8, 12), noise=0.3)
    return [padded(groups[first : first + 4], 4) for first in range(0, len(groups), 4)]


@pytest.mark.parametrize(("loss", "mode", "optimizer", "schedule"), [*every_way_to_learn()])
def test_the_learner_recovers_the_direction_of_a_linear_truth(loss, mode, optimizer, schedule):
    learner = Learner(
        loss=loss,
        label_mode=mode,
        optimizer=optimizer,
        schedule=schedule,
        learning_rate=0.1 if schedule == "constant" else 1.0,
    )
    state = learner.start((0.0,) * 4)
    for _ in range(2):
        for batch in noisy_batches():
            state, _ = step(learner, state, batch)
    assert cosine(learner.snapshot(state), TRUTH) > 0.99


LEARN_AND_PRINT = """
from tests.core.test_learner import Learner, learned, random_groups
for loss in ("softmax", "pairwise_logistic", "lambdarank", "pointwise_logistic"):
    learner = Learner(loss=loss, optimizer="adam", scale="within_query", l2=0.01)
    print(learned(learner, random_groups(300), batch=5))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of features of its processors")
def test_other_cpu_instruction_sets_give_the_same_bits():
    plain = dict(os.environ)
    plain.pop("NPY_DISABLE_CPU_FEATURES", None)
    found = set()
    for disabled in ("", "X86_V4 AVX512_ICL AVX512_SPR", "X86_V4 X86_V3 AVX512_ICL AVX512_SPR"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", LEARN_AND_PRINT],
            env={**plain, **({"NPY_DISABLE_CPU_FEATURES": disabled} if disabled else {})},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1
    assert found.pop().count("updates=") == 4


def test_scores_are_summed_feature_by_feature():
    features = np.random.default_rng(0).normal(size=(5, 3, 4))
    weights = [0.1, 0.2, 0.3, 0.4, 0.5]
    expected = np.zeros((3, 4))
    for feature, weight in zip(features, weights, strict=True):
        expected = expected + feature * weight
    assert linear_scores(features, weights).tolist() == expected.tolist()
