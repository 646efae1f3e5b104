"""Losses of ranked lists with their gradients: pure functions of scores, grades and a mask.

Each takes padded lists, `[n_lists, n_candidates]`: finite scores, grades >= 0, and a mask that is
False for padding; it gives a loss per list and the gradient by score. No list depends on other
lists, and padding changes no bit. docs/learning.md has the formulas.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import numpy as np

from evaluator.core.learning.elementary import exp, log, softplus
from evaluator.core.learning.names import LABEL_MODES
from evaluator.core.measures.lists import BoolArray, column_sum, ratio
from evaluator.core.measures.tables import discount, gain
from evaluator.core.types.records import FloatArray, IntArray

_CELLS: Final = 1 << 20
"""Pairs of lists that are processed together; a list of n candidates has n^2."""


class Losses(NamedTuple):
    """The loss of each list, `[n_lists]`, and its gradient by score, `[n_lists, n_candidates]`.

    The gradient is 0 for padding. A list without a positive grade, or without two different ones
    where pairs are compared, has loss 0 and gradient 0.
    """

    values: FloatArray
    gradients: FloatArray


class Loss(NamedTuple):
    """A loss in two steps: the part that depends on grades alone is computed once for many lists.

    `of_grades` takes grades and a mask and returns arrays with a row per list. `of` takes scores,
    these arrays, and the mask, or None without padding.
    """

    of_grades: Callable[[FloatArray, BoolArray], tuple[FloatArray | BoolArray, ...]]
    of: Callable[[FloatArray, Any, BoolArray | None], Losses]


# --- softmax: -sum of t ln p, with p the softmax of the scores and t the targets ---------------

Targets = tuple[FloatArray, FloatArray, BoolArray]
"""The target of each candidate, `[n_lists, n_candidates]`; the sum of targets, `[n_lists, 1]`; and
whether the target of each candidate is 0."""


def softmax_targets(grades: FloatArray, mask: BoolArray, *, label_mode: str) -> Targets:
    """The targets of lists, y being the grade.

    Args:
        grades: at most 31 with `gain`.
        mask: False is padding.
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
        targets = ratio(targets, mass[:, None])
        mass = np.where(mass > 0, 1.0, 0.0)
    return targets, mass[:, None], ~(targets > 0)


def softmax_losses(scores: FloatArray, of_grades: Targets, mask: BoolArray | None) -> Losses:
    """The losses of scores; *mask* is None without padding.

    Two candidates with equal scores, of which the first is relevant: -ln(1/2).
    Source: Cao et al. 2007 (ListNet, top one); Bruch et al. 2019 for `distribution`.

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


# --- single candidates: they depend on absolute scores, not only on differences ----------------


def pointwise_squared(scores: FloatArray, grades: FloatArray, mask: BoolArray) -> Losses:
    """Mean over the n candidates of (s - y)^2; gradient 2 (s - y) / n."""
    errors = scores - grades
    return _mean(errors * errors, 2.0 * errors, mask)


def pointwise_logistic(scores: FloatArray, grades: FloatArray, mask: BoolArray) -> Losses:
    """Mean over the n candidates of ln(1 + e^s) - t s, t being 1 for a grade above 0, else 0.

    The gradient is (1/(1 + e^-s) - t) / n.
    """
    relevant = grades > 0
    signed = np.where(relevant, -scores, scores)  # ln(1 + e^s) - s = ln(1 + e^-s)
    values, slopes = softplus(signed)
    return _mean(values, np.where(relevant, -slopes, slopes), mask)


def _mean(terms: FloatArray, slopes: FloatArray, mask: BoolArray) -> Losses:
    n_candidates = np.count_nonzero(mask, axis=1)
    sums = column_sum(np.where(mask, terms, 0.0))
    slopes = np.where(mask, slopes, 0.0)
    return Losses(ratio(sums, n_candidates), ratio(slopes, n_candidates[:, None]))


# --- pairs (i, j) of one list, of which i has the higher grade; d = s_i - s_j ------------------

Link = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
"""From differences d to the loss of each, and its slope."""


def _logistic(differences: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln(1 + e^-d). Source: Burges et al. 2005 (RankNet), here as a mean instead of a sum."""
    values, slopes = softplus(-differences)
    return values, -slopes


def _hinge(differences: FloatArray) -> tuple[FloatArray, FloatArray]:
    """max(0, 1 - d); at d = 1 the slope is 0. Source: Joachims 2002."""
    short = 1.0 - differences
    return np.maximum(short, 0.0), np.where(short > 0, -1.0, 0.0)


def _exponential(differences: FloatArray) -> tuple[FloatArray, FloatArray]:
    """e^-d. Source: Freund et al. 2003 (RankBoost)."""
    terms = exp(-differences)
    return terms, -terms


def pairwise(
    scores: FloatArray, grades: FloatArray, mask: BoolArray, *, link: Link, by_ndcg: bool = False
) -> Losses:
    """Mean of the link over the pairs; with *by_ndcg*, the sum weighted by the change of NDCG.

    >>> relevant_second = np.array([[0.0, 1.0]]), np.ones((1, 2), bool)
    >>> pairwise(np.array([[1.0, 0.0]]), *relevant_second, link=_logistic, by_ndcg=True)
    Losses(values=array([0.48468581]), gradients=array([[ 0.26981197, -0.26981197]]))
    """
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
            weights = ratio(pairs.astype(np.float64), n_pairs[:, None, None])
        terms *= weights
        slopes *= weights
        values[part] = column_sum(column_sum(terms))
        gradients[part] = column_sum(slopes) - column_sum(slopes.transpose(0, 2, 1))
    return Losses(values, gradients)


def _ndcg_changes(scores: FloatArray, grades: FloatArray, mask: BoolArray) -> FloatArray:
    """The change of NDCG by swapping candidates i and j: `[n_lists, n, n]`.

    |2^y_i - 2^y_j| |D(r_i) - D(r_j)| / IDCG, with D(r) = 1/log2(r + 1), r the ranks by the scores
    and the ideal of the whole list; constant in the gradient. Grades are at most 31.
    Source: Burges 2010 (LambdaRank).
    """
    gains = gain(np.where(mask, grades, 0.0))
    ranks = np.arange(1, scores.shape[1] + 1)
    ideal = column_sum(-np.sort(-gains, axis=1) * discount(ranks))
    shares = discount(descending_ranks(scores, mask))
    changes = np.abs(_differences(gains)) * np.abs(_differences(shares))
    return ratio(changes, ideal[:, None, None])


def _differences(values: FloatArray) -> FloatArray:
    """`[n_lists, n]` -> `[n_lists, n, n]`: candidate i minus candidate j."""
    return values[:, :, None] - values[:, None, :]


def descending_ranks(scores: FloatArray, mask: BoolArray) -> IntArray:
    """Ranks from 1 by score descending, the first of tied candidates first; 0 for padding.

    >>> descending_ranks(np.array([[0.5, 2.0, 0.5]]), np.array([[True, True, True]]))
    array([[2, 1, 3]])
    """
    order = np.argsort(np.where(mask, -scores, np.inf), axis=1, kind="stable")
    ranks: IntArray = np.argsort(order, axis=1) + 1
    return np.where(mask, ranks, 0)


# --- by name -----------------------------------------------------------------------------------

_OTHERS: Final[Mapping[str, Callable[[FloatArray, FloatArray, BoolArray], Losses]]] = {
    "pairwise_logistic": partial(pairwise, link=_logistic),
    "pairwise_hinge": partial(pairwise, link=_hinge),
    "pairwise_exponential": partial(pairwise, link=_exponential),
    "lambdarank": partial(pairwise, link=_logistic, by_ndcg=True),
    "pointwise_squared": pointwise_squared,
    "pointwise_logistic": pointwise_logistic,
}


@lru_cache
def loss_of(name: str, *, label_mode: str = LABEL_MODES[0]) -> Loss:
    """The loss of this name; *label_mode* is for `softmax`."""
    if name == "softmax":
        return Loss(partial(softmax_targets, label_mode=label_mode), softmax_losses)
    function = _OTHERS[name]

    def of(scores: FloatArray, grades: tuple[FloatArray], mask: BoolArray | None) -> Losses:
        return function(scores, *grades, np.ones(scores.shape, bool) if mask is None else mask)

    return Loss(lambda grades, _: (grades,), of)
