"""Losses of pairs (i, j) of one list, of which i has the higher grade; d = s_i - s_j.

A list of n candidates has up to n^2 / 2 pairs, so lists are taken some at a time.
"""

from collections.abc import Callable

import numpy as np

from evaluator.core.learning.elementary import column_sum, exp, softplus
from evaluator.core.learning.losses.lists import BoolArray, Losses, descending_ranks, or_zero
from evaluator.core.measures.tables import discount, gain
from evaluator.core.types.records import FloatArray

_CELLS = 1 << 20
"""Pairs handled at once."""

Link = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
"""From differences to the loss of each, and its slope."""
Weigh = Callable[[FloatArray, FloatArray, BoolArray, BoolArray], FloatArray]
"""From scores, grades, mask and pairs to the weight of each pair, `[n_lists, n, n]`."""


def pairwise_logistic(scores: FloatArray, grades: FloatArray, mask: BoolArray) -> Losses:
    """Mean over the pairs of ln(1 + e^-d).

    Args:
        scores: `[n_lists, n_candidates]`, finite.
        grades: the same shape, >= 0.
        mask: the same shape; False is padding.
    Source: Burges et al. 2005 (RankNet), as a mean instead of a sum.

    >>> pairwise_logistic(np.zeros((1, 2)), np.array([[1.0, 0.0]]), np.ones((1, 2), bool))
    Losses(values=array([0.69314718]), gradients=array([[-0.5,  0.5]]))
    """
    return _over_pairs(scores, grades, mask, _logistic, _evenly)


def pairwise_hinge(scores: FloatArray, grades: FloatArray, mask: BoolArray) -> Losses:
    """Mean over the pairs of max(0, 1 - d); at d = 1 the slope is 0.

    Arguments as for `pairwise_logistic`. Source: Joachims 2002.

    >>> pairwise_hinge(np.zeros((1, 2)), np.array([[1.0, 0.0]]), np.ones((1, 2), bool))
    Losses(values=array([1.]), gradients=array([[-1.,  1.]]))
    """
    return _over_pairs(scores, grades, mask, _hinge, _evenly)


def pairwise_exponential(scores: FloatArray, grades: FloatArray, mask: BoolArray) -> Losses:
    """Mean over the pairs of e^-d.

    Arguments as for `pairwise_logistic`. Source: Freund et al. 2003 (RankBoost).

    >>> pairwise_exponential(np.zeros((1, 2)), np.array([[1.0, 0.0]]), np.ones((1, 2), bool))
    Losses(values=array([1.]), gradients=array([[-1.,  1.]]))
    """
    return _over_pairs(scores, grades, mask, _exponential, _evenly)


def lambdarank(scores: FloatArray, grades: FloatArray, mask: BoolArray) -> Losses:
    """Sum over the pairs of w ln(1 + e^-d), w being what swapping the two changes in NDCG.

    w = |2^y_i - 2^y_j| |D(r_i) - D(r_j)| / IDCG, with D(r) = 1/log2(r + 1), r the ranks by the
    scores as they are (the first of tied candidates first) and the ideal of the whole list. In
    the gradient the weights are constants.

    Arguments as for `pairwise_logistic`, grades at most 31. Source: Burges 2010.

    >>> lambdarank(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), np.ones((1, 2), bool))
    Losses(values=array([0.48468581]), gradients=array([[ 0.26981197, -0.26981197]]))
    """
    return _over_pairs(scores, grades, mask, _logistic, _by_ndcg)


def _logistic(differences: FloatArray) -> tuple[FloatArray, FloatArray]:
    values, slopes = softplus(-differences)
    return values, -slopes


def _hinge(differences: FloatArray) -> tuple[FloatArray, FloatArray]:
    short = 1.0 - differences
    return np.maximum(short, 0.0), np.where(short > 0, -1.0, 0.0)


def _exponential(differences: FloatArray) -> tuple[FloatArray, FloatArray]:
    terms = exp(-differences)
    return terms, -terms


def _evenly(
    scores: FloatArray,  # noqa: ARG001 - every pair counts the same, whatever its scores
    grades: FloatArray,  # noqa: ARG001 - the same
    mask: BoolArray,  # noqa: ARG001 - the same
    pairs: BoolArray,
) -> FloatArray:
    return or_zero(pairs.astype(np.float64), np.count_nonzero(pairs, axis=(1, 2))[:, None, None])


def _by_ndcg(
    scores: FloatArray, grades: FloatArray, mask: BoolArray, pairs: BoolArray
) -> FloatArray:
    gains = gain(np.where(mask, grades, 0.0))
    ranks = np.arange(1, scores.shape[1] + 1)
    ideal = column_sum(-np.sort(-gains, axis=1) * discount(ranks))
    shares = discount(descending_ranks(scores, mask))
    changes = np.abs(_differences(gains)) * np.abs(_differences(shares))
    return np.where(pairs, or_zero(changes, ideal[:, None, None]), 0.0)


def _differences(values: FloatArray) -> FloatArray:
    """`[n_lists, n]` -> `[n_lists, n, n]`: of candidate i, that of j subtracted."""
    differences: FloatArray = values[:, :, None] - values[:, None, :]
    return differences


def _over_pairs(
    scores: FloatArray, grades: FloatArray, mask: BoolArray, link: Link, weigh: Weigh
) -> Losses:
    n_lists, width = scores.shape
    values, gradients = np.zeros(n_lists), np.zeros(scores.shape)
    step = max(1, _CELLS // max(1, width * width))
    for first in range(0, n_lists, step):
        part = slice(first, first + step)
        values[part], gradients[part] = _of_some(
            scores[part], grades[part], mask[part], link, weigh
        )
    return Losses(values, gradients)


def _of_some(
    scores: FloatArray, grades: FloatArray, mask: BoolArray, link: Link, weigh: Weigh
) -> Losses:
    pairs = mask[:, :, None] & mask[:, None, :] & (grades[:, :, None] > grades[:, None, :])
    terms, slopes = np.zeros(pairs.shape), np.zeros(pairs.shape)
    terms[pairs], slopes[pairs] = link(_differences(scores)[pairs])  # of all cells they are few
    weights = weigh(scores, grades, mask, pairs)
    terms *= weights
    slopes *= weights
    gradients = column_sum(slopes) - column_sum(slopes.transpose(0, 2, 1))
    return Losses(column_sum(column_sum(terms)), gradients)
