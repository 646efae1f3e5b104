"""Softmax cross-entropy: -sum of t ln p, with p the softmax of the scores and t the targets.

Source: Cao et al. 2007 (ListNet, top one); Bruch et al. 2019 for `distribution`.
"""

from typing import Final

import numpy as np

from evaluator.core.learning.elementary import column_sum, exp, log
from evaluator.core.learning.losses.lists import BoolArray, Losses, or_zero
from evaluator.core.measures.tables import gain
from evaluator.core.types.records import FloatArray

LABEL_MODES: Final = ("distribution", "gain", "sum")

Targets = tuple[FloatArray, FloatArray, BoolArray]
"""The target of each candidate, `[n_lists, n_candidates]`; the sum of targets, `[n_lists, 1]`; and
whether the target of each candidate is 0."""


def softmax_targets(grades: FloatArray, mask: BoolArray, *, label_mode: str) -> Targets:
    """The targets of lists, y being the grade.

    Args:
        grades: `[n_lists, n_candidates]`, >= 0; at most 31 with `gain`.
        mask: the same shape; False is padding.
        label_mode:
            distribution: t = y / sum(y); the gradient is p - t.
            gain: t = g / sum(g) with g = 2^y - 1; the gradient is p - t.
            sum: t = y; the gradient is sum(y) p - y. It is linear in y, so grades that were
            divided by propensities keep their expectation in it, and in no other mode.
    """
    targets = np.where(mask, grades, 0.0)
    if label_mode == "gain":
        targets = gain(targets)
    mass = column_sum(targets)
    if label_mode != "sum":
        targets = or_zero(targets, mass[:, None])
        mass = np.where(mass > 0, 1.0, 0.0)
    return targets, mass[:, None], ~(targets > 0)


def softmax_losses(scores: FloatArray, of_grades: Targets, mask: BoolArray | None) -> Losses:
    """The losses of finite scores, `[n_lists, n_candidates]`; *mask* is None without padding.

    Two candidates with equal scores, of which the first is relevant: -ln(1/2).

    >>> mask = np.ones((1, 2), bool)
    >>> targets = softmax_targets(np.array([[1.0, 0.0]]), mask, label_mode="distribution")
    >>> softmax_losses(np.zeros((1, 2)), targets, mask)
    Losses(values=array([0.69314718]), gradients=array([[-0.5,  0.5]]))
    """
    targets, mass, is_zero = of_grades
    if mask is None:
        below_best = scores - np.maximum.reduce(scores, axis=1, keepdims=True)
        shares = exp(below_best)
        total = column_sum(shares)[:, None]
    else:
        best = np.max(np.where(mask, scores, -np.inf), axis=1, keepdims=True, initial=-np.inf)
        some = mask.any(axis=1, keepdims=True)
        below_best = np.where(mask, scores - np.where(some, best, 0.0), 0.0)
        shares = np.where(mask, exp(below_best), 0.0)
        # The best candidate adds 1; an empty list has 0.
        total = np.maximum(column_sum(shares), 1.0)[:, None]
    shares /= total
    shares *= mass
    shares -= targets
    terms = log(total) - below_best  # -ln p: both parts are >= 0
    terms *= targets
    np.putmask(terms, is_zero, 0.0)
    return Losses(column_sum(terms), shares)
