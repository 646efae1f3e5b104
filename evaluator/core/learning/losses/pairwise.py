"""Losses of pairs (i, j) of one list, of which i has the higher grade; d = s_i - s_j.

Arguments of all: scores `[n_lists, n_candidates]`, finite; grades of the same shape, >= 0; and a
mask that is False for padding. A list of n candidates has up to n^2 / 2 pairs, so lists are
processed in parts.
"""

from collections.abc import Callable

import numpy as np

from evaluator.core.learning.elementary import column_sum, exp, softplus
from evaluator.core.learning.losses.lists import BoolArray, Losses, or_zero
from evaluator.core.measures.tables import discount, gain
from evaluator.core.types.records import FloatArray, IntArray

_CELLS = 1 << 20
"""Pairs of one part."""

Link = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
"""From differences to the loss of each, and its slope."""


def pairwise_logistic(scores: FloatArray, grades: FloatArray, mask: BoolArray) -> Losses:
    """Mean over the pairs of ln(1 + e^-d).

    Source: Burges et al. 2005 (RankNet), as a mean instead of a sum.

    >>> pairwise_logistic(np.zeros((1, 2)), np.array([[1.0, 0.0]]), np.ones((1, 2), bool))
    Losses(values=array([0.69314718]), gradients=array([[-0.5,  0.5]]))
    """
    return _over_pairs(scores, grades, mask, _logistic)


def pairwise_hinge(scores: FloatArray, grades: FloatArray, mask: BoolArray) -> Losses:
    """Mean over the pairs of max(0, 1 - d); at d = 1 the slope is 0. Source: Joachims 2002.

    >>> pairwise_hinge(np.zeros((1, 2)), np.array([[1.0, 0.0]]), np.ones((1, 2), bool))
    Losses(values=array([1.]), gradients=array([[-1.,  1.]]))
    """
    return _over_pairs(scores, grades, mask, _hinge)


def pairwise_exponential(scores: FloatArray, grades: FloatArray, mask: BoolArray) -> Losses:
    """Mean over the pairs of e^-d. Source: Freund et al. 2003 (RankBoost).

    >>> pairwise_exponential(np.zeros((1, 2)), np.array([[1.0, 0.0]]), np.ones((1, 2), bool))
    Losses(values=array([1.]), gradients=array([[-1.,  1.]]))
    """
    return _over_pairs(scores, grades, mask, _exponential)


def lambdarank(scores: FloatArray, grades: FloatArray, mask: BoolArray) -> Losses:
    """Sum over the pairs of w ln(1 + e^-d), w being the change of NDCG if the two are swapped.

    w = |2^y_i - 2^y_j| |D(r_i) - D(r_j)| / IDCG, with D(r) = 1/log2(r + 1), r the ranks by the
    scores (the first of tied candidates first) and the ideal of the whole list. In the gradient
    the weights are constants. Grades are at most 31. Source: Burges 2010.

    >>> lambdarank(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), np.ones((1, 2), bool))
    Losses(values=array([0.48468581]), gradients=array([[ 0.26981197, -0.26981197]]))
    """
    return _over_pairs(scores, grades, mask, _logistic, by_ndcg=True)


def _logistic(differences: FloatArray) -> tuple[FloatArray, FloatArray]:
    values, slopes = softplus(-differences)
    return values, -slopes


def _hinge(differences: FloatArray) -> tuple[FloatArray, FloatArray]:
    short = 1.0 - differences
    return np.maximum(short, 0.0), np.where(short > 0, -1.0, 0.0)


def _exponential(differences: FloatArray) -> tuple[FloatArray, FloatArray]:
    terms = exp(-differences)
    return terms, -terms


def _over_pairs(
    scores: FloatArray, grades: FloatArray, mask: BoolArray, link: Link, *, by_ndcg: bool = False
) -> Losses:
    n_lists, width = scores.shape
    values, gradients = np.zeros(n_lists), np.zeros(scores.shape)
    step = max(1, _CELLS // max(1, width * width))
    for first in range(0, n_lists, step):
        part = slice(first, first + step)
        y, of_part = grades[part], mask[part]
        pairs = of_part[:, :, None] & of_part[:, None, :] & (y[:, :, None] > y[:, None, :])
        terms, slopes = np.zeros(pairs.shape), np.zeros(pairs.shape)
        terms[pairs], slopes[pairs] = link(_differences(scores[part])[pairs])
        if by_ndcg:
            weights = np.where(pairs, _ndcg_changes(scores[part], y, of_part), 0.0)
        else:
            n_pairs = np.count_nonzero(pairs, axis=(1, 2))
            weights = or_zero(pairs.astype(np.float64), n_pairs[:, None, None])
        terms *= weights
        slopes *= weights
        values[part] = column_sum(column_sum(terms))
        gradients[part] = column_sum(slopes) - column_sum(slopes.transpose(0, 2, 1))
    return Losses(values, gradients)


def _ndcg_changes(scores: FloatArray, grades: FloatArray, mask: BoolArray) -> FloatArray:
    """The change of NDCG by swapping candidates i and j: `[n_lists, n, n]`."""
    gains = gain(np.where(mask, grades, 0.0))
    ranks = np.arange(1, scores.shape[1] + 1)
    ideal = column_sum(-np.sort(-gains, axis=1) * discount(ranks))
    shares = discount(descending_ranks(scores, mask))
    changes = np.abs(_differences(gains)) * np.abs(_differences(shares))
    return or_zero(changes, ideal[:, None, None])


def _differences(values: FloatArray) -> FloatArray:
    """`[n_lists, n]` -> `[n_lists, n, n]`: candidate i minus candidate j."""
    differences: FloatArray = values[:, :, None] - values[:, None, :]
    return differences


def descending_ranks(scores: FloatArray, mask: BoolArray) -> IntArray:
    """Ranks from 1 by score descending, the first of tied candidates first; 0 for padding.

    >>> descending_ranks(np.array([[0.5, 2.0, 0.5]]), np.array([[True, True, True]]))
    array([[2, 1, 3]])
    """
    order = np.argsort(np.where(mask, -scores, np.inf), axis=1, kind="stable")
    ranks = np.zeros(scores.shape, np.int64)
    places = np.broadcast_to(np.arange(1, scores.shape[1] + 1), scores.shape)
    np.put_along_axis(ranks, order, places, axis=1)
    ranks[~mask] = 0
    return ranks
