"""Softmax cross-entropy, with three ways to make targets of grades."""

from typing import Final

import numpy as np

from evaluator.core.learning.elementary import column_sum, exp, log
from evaluator.core.learning.losses.lists import BoolArray, Losses, or_zero
from evaluator.core.measures.tables import gain
from evaluator.core.types.records import FloatArray

LABEL_MODES: Final = ("distribution", "gain", "sum")

Targets = tuple[FloatArray, FloatArray, BoolArray]
"""The target of each candidate, `[n_lists, n_candidates]`; their sum as it is meant to be,
`[n_lists, 1]`; and again of each candidate whether there is nothing to aim at."""


def softmax_cross_entropy(
    scores: FloatArray, grades: FloatArray, mask: BoolArray, *, label_mode: str = "distribution"
) -> Losses:
    """-sum of t ln p, with p the softmax of the scores and t the targets.

    Args:
        scores: `[n_lists, n_candidates]`, finite.
        grades: the same shape, >= 0; at most 31 with `gain`.
        mask: the same shape; False is padding.
        label_mode: what the targets are, y being the grade:
            distribution: t = y / sum(y); the gradient is p - t.
            gain: t = g / sum(g) with g = 2^y - 1; the gradient is p - t.
            sum: t = y; the gradient is sum(y) p - y. It is linear in y, so grades that were
            divided by propensities keep their expectation in it, and in no other mode.
    Source: Cao et al. 2007 (ListNet, top one); Bruch et al. 2019 for `distribution`.

    Two candidates with equal scores, of which the first is relevant: -ln(1/2).

    >>> softmax_cross_entropy(np.zeros((1, 2)), np.array([[1.0, 0.0]]), np.ones((1, 2), bool))
    Losses(values=array([0.69314718]), gradients=array([[-0.5,  0.5]]))
    """
    targets = softmax_targets(grades, mask, label_mode=label_mode)
    return softmax_to_targets(scores, targets, mask)


def softmax_targets(grades: FloatArray, mask: BoolArray, *, label_mode: str) -> Targets:
    """What follows from the grades alone; arguments as for `softmax_cross_entropy`."""
    targets = np.where(mask, grades, 0.0)
    if label_mode == "gain":
        targets = gain(targets)
    mass = column_sum(targets)
    if label_mode != "sum":
        targets = or_zero(targets, mass[:, None])
        mass = np.where(mass > 0, 1.0, 0.0)
    return targets, mass[:, None], ~(targets > 0)


def softmax_to_targets(scores: FloatArray, of_grades: Targets, mask: BoolArray | None) -> Losses:
    """What is left to do once there are scores. Without a *mask* nothing is padding."""
    targets, mass, aimless = of_grades
    if mask is None:
        below_best = scores - np.maximum.reduce(scores, axis=1, keepdims=True)
        shares = exp(below_best)
        total = column_sum(shares)[:, None]
    else:
        best = np.max(np.where(mask, scores, -np.inf), axis=1, keepdims=True, initial=-np.inf)
        some = mask.any(axis=1, keepdims=True)
        below_best = np.where(mask, scores - np.where(some, best, 0.0), 0.0)
        shares = np.where(mask, exp(below_best), 0.0)
        # The best one alone adds 1; a list of none has 0.
        total = np.maximum(column_sum(shares), 1.0)[:, None]
    shares /= total
    shares *= mass
    shares -= targets
    terms = log(total) - below_best  # -ln p: both parts are >= 0
    terms *= targets
    np.putmask(terms, aimless, 0.0)
    return Losses(column_sum(terms), shares)
