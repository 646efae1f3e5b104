"""What all losses share: what they give, and what counts of a padded list."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.core.types.records import FloatArray, IntArray

BoolArray = NDArray[np.bool_]


class Losses(NamedTuple):
    """The loss of each list, `[n_lists]`, and its gradient by score, `[n_lists, n_candidates]`.

    The gradient is 0 for padding. A list that has nothing to learn from (no positive grade, or no
    two different ones where pairs are compared) has loss 0 and gradient 0.
    """

    values: FloatArray
    gradients: FloatArray


def or_zero(numerators: FloatArray, denominators: FloatArray | IntArray) -> FloatArray:
    """Quotients, 0 where the denominator is not above 0."""
    some = denominators > 0
    quotients: FloatArray = np.divide(
        numerators, denominators, out=np.zeros(np.broadcast(numerators, some).shape), where=some
    )
    return quotients


def descending_ranks(scores: FloatArray, mask: BoolArray) -> IntArray:
    """Ranks from 1 by score descending, of tied candidates the first one first; 0 for padding.

    >>> descending_ranks(np.array([[0.5, 2.0, 0.5]]), np.array([[True, True, True]]))
    array([[2, 1, 3]])
    """
    order = np.argsort(np.where(mask, -scores, np.inf), axis=1, kind="stable")
    ranks = np.zeros(scores.shape, np.int64)
    places = np.broadcast_to(np.arange(1, scores.shape[1] + 1), scores.shape)
    np.put_along_axis(ranks, order, places, axis=1)
    ranks[~mask] = 0
    return ranks
