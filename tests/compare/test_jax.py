"""Comparison with JAX, which differentiates the losses from their formulas."""

import numpy as np
import pytest

from evaluator.core.learning.losses import loss_of
from evaluator.core.learning.names import LABEL_MODES, LOSSES

pytestmark = [
    pytest.mark.slow,  # it compiles
    pytest.mark.xdist_group("jax"),  # in one process, once
    pytest.mark.filterwarnings("ignore"),  # of its start
]

LOSSES_AND_MODES = [("softmax", mode) for mode in LABEL_MODES] + [
    (name, "distribution") for name in LOSSES[1:]
]
N_LISTS = 300


@pytest.fixture(scope="module")
def jax():
    jax = pytest.importorskip("jax", reason="installed by `make test`, not by `make install`")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    return jax


def softmax(jax, mode):
    def loss(scores, grades):
        targets = 2**grades - 1 if mode == "gain" else grades
        if mode != "sum":
            targets = targets / targets.sum()
        return -(targets * jax.nn.log_softmax(scores)).sum()

    return loss


def mean_over_pairs(jax, link):
    def loss(scores, grades):
        pairs = grades[:, None] > grades[None, :]
        terms = link(scores[:, None] - scores[None, :])
        return (pairs * terms).sum() / pairs.sum()

    return loss


def lambdarank(jax):
    np_ = jax.numpy

    def loss(scores, grades):
        ranks = 1 + (scores[:, None] < scores[None, :]).sum(axis=1)
        gains, discounts = 2**grades - 1, 1 / np_.log2(ranks + 1)
        ideal = (-np_.sort(-gains) / np_.log2(np_.arange(len(gains)) + 2)).sum()
        changes = np_.abs(gains[:, None] - gains[None, :])
        changes *= np_.abs(discounts[:, None] - discounts[None, :]) / ideal
        pairs = grades[:, None] > grades[None, :]
        terms = jax.nn.softplus(-(scores[:, None] - scores[None, :]))
        return (jax.lax.stop_gradient(changes) * pairs * terms).sum()

    return loss


def reference_values(jax, name, mode):
    np_ = jax.numpy
    return {
        "softmax": softmax(jax, mode),
        "pairwise_logistic": mean_over_pairs(jax, lambda d: jax.nn.softplus(-d)),
        "pairwise_hinge": mean_over_pairs(jax, lambda d: np_.maximum(0, 1 - d)),
        "pairwise_exponential": mean_over_pairs(jax, lambda d: np_.exp(-d)),
        "lambdarank": lambdarank(jax),
        "pointwise_squared": lambda s, y: ((s - y) ** 2).mean(),
        "pointwise_logistic": lambda s, y: (jax.nn.softplus(s) - (y > 0) * s).mean(),
    }[name]


@pytest.mark.parametrize(("name", "mode"), LOSSES_AND_MODES)
@pytest.mark.parametrize("width", [2, 20])
def test_losses_and_gradients_equal_those_of_jax(jax, name, mode, width):
    rng = np.random.default_rng((width, len(name)))
    scores = rng.normal(size=(N_LISTS, width)) * 3
    grades = rng.integers(0, 4, (N_LISTS, width)).astype(float) * rng.choice((1, 0.7), (N_LISTS, 1))
    grades[:, 0], grades[:, 1] = 3.0, 0.0
    loss, mask = loss_of(name, label_mode=mode), np.ones(scores.shape, bool)
    found = loss.of(scores, loss.of_grades(grades, mask), mask)
    both = jax.jit(jax.vmap(jax.value_and_grad(reference_values(jax, name, mode))))
    values, gradients = both(scores, grades)
    assert found.values == pytest.approx(np.array(values), rel=1e-12, abs=1e-13)
    assert found.gradients == pytest.approx(np.array(gradients), rel=1e-10, abs=1e-13)
    assert np.abs(found.gradients).max() > 0.04
