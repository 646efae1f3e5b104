"""Losses of single candidates; they depend on absolute scores, not only on differences."""

import numpy as np

from evaluator.core.learning.elementary import column_sum, softplus
from evaluator.core.learning.losses.lists import BoolArray, Losses, or_zero
from evaluator.core.types.records import FloatArray


def pointwise_squared(scores: FloatArray, grades: FloatArray, mask: BoolArray) -> Losses:
    """Mean over the n candidates of (s - y)^2; gradient 2 (s - y) / n.

    Args:
        scores: `[n_lists, n_candidates]`, finite.
        grades: the same shape, >= 0.
        mask: the same shape; False is padding.

    >>> pointwise_squared(np.zeros((1, 2)), np.array([[2.0, 0.0]]), np.ones((1, 2), bool))
    Losses(values=array([2.]), gradients=array([[-2.,  0.]]))
    """
    errors = np.where(mask, scores - grades, 0.0)
    return _mean(errors * errors, 2.0 * errors, mask)


def pointwise_logistic(scores: FloatArray, grades: FloatArray, mask: BoolArray) -> Losses:
    """Mean over the n candidates of ln(1 + e^s) - t s, t being 1 for a grade above 0, else 0.

    The gradient is (1/(1 + e^-s) - t) / n. Arguments as for `pointwise_squared`.

    >>> pointwise_logistic(np.zeros((1, 2)), np.array([[2.0, 0.0]]), np.ones((1, 2), bool))
    Losses(values=array([0.69314718]), gradients=array([[-0.25,  0.25]]))
    """
    relevant = grades > 0
    signed = np.where(relevant, -scores, scores)  # ln(1 + e^s) - s = ln(1 + e^-s)
    values, slopes = softplus(signed)
    return _mean(
        np.where(mask, values, 0.0),
        np.where(mask, np.where(relevant, -slopes, slopes), 0.0),
        mask,
    )


def _mean(terms: FloatArray, slopes: FloatArray, mask: BoolArray) -> Losses:
    n_candidates = np.count_nonzero(mask, axis=1)
    return Losses(or_zero(column_sum(terms), n_candidates), or_zero(slopes, n_candidates[:, None]))
