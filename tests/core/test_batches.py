"""Results for many groups at once equal those of each batch alone."""

import hashlib
from itertools import chain

import numpy as np
import pytest

from evaluator.core.learning import groups as groups_module
from evaluator.core.learning.groups import Group, padded
from evaluator.core.learning.learner import Learner
from evaluator.core.learning.names import LABEL_MODES, LOSSES
from tests.core.learned import step
from tests.core.test_learner import NOTHING, SKIPPED, every_loss, random_groups
from tests.repeats import first_quick

GROUPS_WITH_SKIPPED = [
    *chain.from_iterable(zip(random_groups(40), [*SKIPPED, NOTHING] * 10, strict=True)),
    *random_groups(30, seed=2, widths=(5, 6)),
]
BROKEN = Group(np.full((3, 4), np.inf), np.ones(3))


def one_by_one(learner, groups, size):
    state, losses = learner.start((0.0,) * 4), []
    for first in range(0, len(groups), size):
        state, some = step(learner, state, padded(groups[first : first + size], 4))
        losses += some
    return state, losses


def together(learner, groups, size):
    state, losses = learner.start((0.0,) * 4), []
    for batches in learner.batches(groups, size):
        state, some = learner.learn(state, batches)
        losses += some
    return state, losses


@every_loss
@pytest.mark.parametrize("scale", ["none", "within_query"])
@pytest.mark.parametrize("size", first_quick(3, 1, 200))
def test_batches_learned_together_equal_batches_learned_one_by_one(loss, mode, scale, size):
    learner = Learner(loss=loss, label_mode=mode, scale=scale, learning_rate=0.01, l2=0.01)
    assert together(learner, GROUPS_WITH_SKIPPED, size) == one_by_one(
        learner, GROUPS_WITH_SKIPPED, size
    )


@pytest.mark.parametrize("most", [1, 100, 1_000])
def test_number_of_batches_padded_together_does_not_change_results(monkeypatch, most):
    learner = Learner(scale="within_query", optimizer="adam")
    expected = together(learner, GROUPS_WITH_SKIPPED, 3)
    monkeypatch.setattr(groups_module, "_MOST_CELLS", most)
    assert len(list(learner.batches(GROUPS_WITH_SKIPPED, 3))) > 1
    assert together(learner, GROUPS_WITH_SKIPPED, 3) == expected


def test_padded_batches_stay_within_the_cell_limit_unless_a_single_one_exceeds_it(monkeypatch):
    monkeypatch.setattr(groups_module, "_MOST_CELLS", 300)
    for batches in Learner().batches(GROUPS_WITH_SKIPPED, 2):
        n_groups = sum(batch.n_groups for batch in batches)
        widest = max(batch.features.shape[2] for batch in batches)
        assert n_groups * widest * 4 <= 300 or len(batches) == 1


def test_every_group_is_in_one_batch_and_skipped_ones_are_counted():
    batches = list(chain.from_iterable(Learner().batches(GROUPS_WITH_SKIPPED, 4)))
    assert [batch.n_groups for batch in batches] == [4] * 27 + [2]
    assert sum(batch.n_counted for batch in batches) == 70


@pytest.mark.parametrize("size", [1, 2])
def test_groups_after_a_non_finite_group_are_not_learned_from(size):
    learner = Learner(scale="within_query")
    groups = [*GROUPS_WITH_SKIPPED, BROKEN, *random_groups(10, seed=3)]
    state, losses = together(learner, groups, size)
    assert state.frozen
    assert (state, losses) == one_by_one(learner, groups, size)
    assert len(losses) == 70


PINNED = {
    "softmax distribution": "25a165a5a0efb158",
    "softmax gain": "36471266896e1ab1",
    "softmax sum": "7efed2d91dd79733",
    "pairwise_logistic distribution": "94e51b3c29a1d891",
    "pairwise_hinge distribution": "ff5c74a655053571",
    "pairwise_exponential distribution": "2348a8a52ac1dda2",
    "lambdarank distribution": "1f42a412cf10afcf",
    "pointwise_squared distribution": "aba23ef4a54281c9",
    "pointwise_logistic distribution": "ab797500dae78734",
}


@every_loss
def test_learned_weights_have_the_pinned_bits_of_earlier_versions(loss, mode):
    """Weights records are compared byte by byte with those of an older version."""
    found = hashlib.sha256()
    for optimizer, scale, size in (("sgd", "none", 1), ("adam", "within_query", 3)):
        learner = Learner(
            loss=loss, label_mode=mode, optimizer=optimizer, scale=scale, learning_rate=0.01
        )
        state, losses = together(learner, pinned_groups(), size)
        numbers = [*state.weights, *state.squares, *losses]
        found.update(" ".join(number.hex() for number in numbers).encode())
    assert found.hexdigest()[:16] == PINNED[f"{loss} {mode}"]


def pinned_groups():
    """Of numbers that are the same with every NumPy."""
    state, groups = 1, []

    def drawn(n):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (state >> 33) % n

    for _ in range(150):
        n = drawn(12)
        features = [[(drawn(2001) - 1000) / 256 for _ in range(4)] for _ in range(n)]
        grades = [float(max(0, drawn(8) - 4)) for _ in range(n)]
        groups.append(Group(np.array(features).reshape(n, 4), np.array(grades)))
    return groups


def test_every_loss_is_pinned():
    modes = {"softmax": LABEL_MODES}
    assert set(PINNED) == {
        f"{loss} {m}" for loss in LOSSES for m in modes.get(loss, LABEL_MODES[:1])
    }
