"""Linear scores, and sums over groups, in a fixed order."""

from collections.abc import Sequence

import numpy as np

from evaluator.core.learning.elementary import FEW_CELLS, ZERO
from evaluator.core.types.records import FloatArray


def linear_scores(features: FloatArray, weights: Sequence[float] | FloatArray) -> FloatArray:
    """The sum over features of feature x weight, from the first feature on.

    Args:
        features: `[n_features, ...]`.
        weights: `[n_features]`.
    Returns:
        `[...]`. It is not a dot product, because the rounding of one would depend on other scores.

    >>> linear_scores(np.array([[1.0, 2.0], [10.0, 20.0]]), [1.0, 0.5])
    array([ 6., 12.])
    """
    if len(weights) != len(features):
        raise ValueError(f"{len(weights)} weights are not those of {len(features)} features")
    if 0 < features.size <= FEW_CELLS:  # fewer calls are quicker for few numbers
        each = np.asarray(weights, np.float64).reshape(-1, *(1,) * (features.ndim - 1))
        running: FloatArray = np.add.accumulate(features * each, axis=0)[-1]
        running += ZERO  # as if it had begun at 0.0: no score is -0.0
        return running
    scores = np.zeros(features.shape[1:])
    for feature, weight in zip(features, weights, strict=True):
        scores += feature * weight
    return scores


def summed(start: Sequence[float], terms: FloatArray) -> FloatArray:
    """*start* plus the terms of each group, added in order.

    Args:
        start: `[n_features]`.
        terms: `[n_features, n_groups]`.
    Returns:
        `[n_features]`: the same in one batch or in many.
    """
    first = np.asarray(start, np.float64)
    if terms.shape[1] == 1:
        one: FloatArray = first + terms[:, 0]
        return one
    total: FloatArray = np.add.accumulate(np.hstack((first[:, None], terms)), axis=1)[:, -1]
    return total
