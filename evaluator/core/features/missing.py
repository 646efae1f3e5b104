"""Missing features, which make a candidate neither better nor worse."""

import numpy as np

from evaluator.core.types.records import FloatArray


def filled(features: FloatArray) -> FloatArray:
    """The features of a query with the mean of the other candidates in place of NaN.

    Args:
        features: `[n_candidates, n_features]`, NaN where missing.
    Returns:
        A copy; 0 where no candidate has the feature. Sums run candidate by candidate.

    >>> filled(np.array([[1.0, np.nan], [np.nan, np.nan], [4.0, np.nan]]))
    array([[1. , 0. ],
           [2.5, 0. ],
           [4. , 0. ]])
    """
    missing = np.isnan(features)
    counts = np.maximum(np.count_nonzero(~missing, axis=0), 1)
    means = np.zeros(features.shape[1])
    for row in np.where(missing, 0.0, features) / counts:  # divided first: no sum overflows
        means += row
    return np.where(missing, means, features)
