"""Groups of candidates to learn from, padded; a group is a query with features and grades.

Decided here: which groups count (two candidates or more, one of them relevant).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from evaluator.core.elementary import column_sum
from evaluator.core.losses import BoolArray
from evaluator.core.types import FloatArray

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

    def chosen(self, which: BoolArray) -> "Groups":
        """The groups where *which*, `[n_groups]`, is True."""
        if which.all():
            return self
        return Groups(self.features[:, which], self.grades[which], self.mask[which])

    def finite(self) -> bool:
        """Whether all features and grades are finite numbers."""
        return bool(np.isfinite(self.features).all() and np.isfinite(self.grades).all())


def padded(groups: Sequence[Group], n_features: int) -> Groups:
    """Groups of any lengths, all of *n_features* features, in one."""
    width = max((len(group.grades) for group in groups), default=0)
    features = np.zeros((n_features, len(groups), width))
    grades = np.zeros((len(groups), width))
    mask = np.zeros((len(groups), width), bool)
    for place, group in enumerate(groups):
        n = len(group.grades)
        features[:, place, :n] = group.features.T
        grades[place, :n] = group.grades
        mask[place, :n] = True
    return Groups(features, grades, mask)


def linear_scores(features: FloatArray, weights: Sequence[float]) -> FloatArray:
    """The sum over features of feature x weight, from the first feature on.

    Args:
        features: `[n_features, ...]`.
        weights: `[n_features]`.
    Returns:
        `[...]`. No dot product: it would depend on what lies beside.

    >>> linear_scores(np.array([[1.0, 2.0], [10.0, 20.0]]), [1.0, 0.5])
    array([ 6., 12.])
    """
    scores = np.zeros(features.shape[1:])
    for feature, weight in zip(features, weights, strict=True):
        scores += feature * weight
    return scores


def squares_within(groups: Groups) -> FloatArray:
    """Squared distances from the mean of the group, summed over it: `[n_features, n_groups]`."""
    counts = np.count_nonzero(groups.mask, axis=1)
    # From the first candidate, so that a constant feature has 0 and not what rounding leaves.
    distances = np.where(groups.mask, groups.features - groups.features[:, :, :1], 0.0)
    means = column_sum(distances) / counts
    distances = np.where(groups.mask, distances - means[:, :, None], 0.0)
    return column_sum(distances * distances)


def summed(start: Sequence[float], terms: FloatArray) -> FloatArray:
    """*start* and then each group's terms, added in their order.

    Args:
        start: `[n_features]`.
        terms: `[n_features, n_groups]`.
    Returns:
        `[n_features]`: the same in one batch or in many.
    """
    whole = np.hstack((np.reshape(np.asarray(start, np.float64), (-1, 1)), terms))
    total: FloatArray = np.add.accumulate(whole, axis=1)[:, -1]
    return total
