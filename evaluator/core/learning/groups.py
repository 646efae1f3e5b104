"""Groups of candidates to learn from, padded; a group is a query with features and grades.

Decided here: which groups count (two candidates or more, one of them relevant).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from evaluator.core.learning.elementary import FEW_CELLS, ZERO, column_sum
from evaluator.core.learning.losses import BoolArray
from evaluator.core.types.records import FloatArray

LEAST_CANDIDATES: Final = 2


class Group(NamedTuple):
    """One group: features `[n_candidates, n_features]`, grades `[n_candidates]`, 0 for unjudged."""

    features: FloatArray
    grades: FloatArray


@dataclass(frozen=True, slots=True)
class Groups:
    """Some groups, padded with zeros.

    `features` is `[n_features, n_groups, n_candidates]`, so that one feature of all candidates lies
    together; `grades` and `mask` are `[n_groups, n_candidates]`, False in the mask being padding.
    """

    features: FloatArray
    grades: FloatArray
    mask: BoolArray

    def __len__(self) -> int:
        return len(self.grades)

    @property
    def counted(self) -> BoolArray:
        """Which groups have something to learn from: `[n_groups]`."""
        relevant = ((self.grades > 0) & self.mask).any(axis=1)
        counted: BoolArray = relevant & (np.count_nonzero(self.mask, axis=1) >= LEAST_CANDIDATES)
        return counted


def padded(groups: Sequence[Group], n_features: int) -> Groups:
    """Groups of any lengths, all of *n_features* features, in one."""
    lengths = [len(group.grades) for group in groups]
    width = max(lengths, default=0)
    if groups and min(lengths) == width:
        together = np.array([group.features for group in groups])
        features = np.ascontiguousarray(together.transpose(2, 0, 1))
        grades = np.array([group.grades for group in groups])
        return Groups(features, grades, np.ones(grades.shape, bool))
    features = np.zeros((n_features, len(groups), width))
    grades = np.zeros((len(groups), width))
    mask = np.arange(width) < np.array(lengths, np.int64)[:, None]
    for place, (group, n) in enumerate(zip(groups, lengths, strict=True)):
        features[:, place, :n] = group.features.T
        grades[place, :n] = group.grades
    return Groups(features, grades, mask)


def linear_scores(features: FloatArray, weights: Sequence[float] | FloatArray) -> FloatArray:
    """The sum over features of feature x weight, from the first feature on.

    Args:
        features: `[n_features, ...]`.
        weights: `[n_features]`.
    Returns:
        `[...]`. No dot product: it would depend on what lies beside.

    >>> linear_scores(np.array([[1.0, 2.0], [10.0, 20.0]]), [1.0, 0.5])
    array([ 6., 12.])
    """
    if 0 < features.size <= FEW_CELLS:
        each = np.asarray(weights, np.float64).reshape(-1, *(1,) * (features.ndim - 1))
        if len(each) != len(features):
            raise ValueError(f"{len(each)} weights are not those of {len(features)} features")
        return few_scores(features, each)
    scores = np.zeros(features.shape[1:])
    for feature, weight in zip(features, weights, strict=True):
        scores += feature * weight
    return scores


def few_scores(features: FloatArray, weights: FloatArray) -> FloatArray:
    """The same of few numbers, but some; *weights* have as many axes as *features*."""
    running: FloatArray = np.add.accumulate(features * weights, axis=0)[-1]
    running += ZERO  # as if it had begun at 0.0: no score is -0.0
    return running


def squares_within(groups: Groups) -> FloatArray:
    """Squared distances from the mean of the group, summed over it: `[n_features, n_groups]`."""
    if not groups.grades.size:
        return np.zeros(groups.features.shape[:2])
    counts = np.count_nonzero(groups.mask, axis=1)
    # From the first candidate, so that a constant feature has 0 and not what rounding leaves.
    distances = np.where(groups.mask, groups.features - groups.features[:, :, :1], 0.0)
    means = column_sum(distances) / counts
    distances = np.where(groups.mask, distances - means[:, :, None], 0.0)
    return column_sum(distances * distances)


def summed(start: Sequence[float] | FloatArray, terms: FloatArray) -> FloatArray:
    """*start* and then each group's terms, added in their order.

    Args:
        start: `[n_features]`.
        terms: `[n_features, n_groups]`.
    Returns:
        `[n_features]`: the same in one batch or in many.
    """
    if terms.shape[1] == 1:
        one: FloatArray = np.asarray(start, np.float64) + terms[:, 0]
        return one
    whole = np.hstack((np.reshape(np.asarray(start, np.float64), (-1, 1)), terms))
    total: FloatArray = np.add.accumulate(whole, axis=1)[:, -1]
    return total
