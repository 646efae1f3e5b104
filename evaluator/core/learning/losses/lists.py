"""Types and helpers of all losses."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.core.types.records import FloatArray, IntArray

BoolArray = NDArray[np.bool_]


class Losses(NamedTuple):
    """The loss of each list, `[n_lists]`, and its gradient by score, `[n_lists, n_candidates]`.

    The gradient is 0 for padding. A list without a positive grade, or without two different ones
    where pairs are compared, has loss 0 and gradient 0.
    """

    values: FloatArray
    gradients: FloatArray


def or_zero(numerators: FloatArray, denominators: FloatArray | IntArray) -> FloatArray:
    """Quotients, 0 where the denominator is not above 0.

    >>> or_zero(np.array([1.0, 1.0]), np.array([2, 0]))
    array([0.5, 0. ])
    """
    some = denominators > 0
    quotients: FloatArray = np.divide(
        numerators, denominators, out=np.zeros(np.broadcast(numerators, some).shape), where=some
    )
    return quotients
