"""Groups of candidates to learn from, and batches of groups.

A group counts if it has two candidates or more, one of them relevant. Values that do not depend on
weights are computed for many groups at once; results do not depend on this division.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from evaluator.core.learning.losses import Loss
from evaluator.core.measures.lists import BoolArray, column_sum
from evaluator.core.types.records import FloatArray

_LEAST_CANDIDATES: Final = 2
LARGE_FEATURE: Final = 1e9
"""Features beyond it are compared with their spread so far before they are learned from."""
_MOST_CELLS: Final = 1 << 16
"""Features that are padded together, except for a batch that has more."""


class Group(NamedTuple):
    """One group: features `[n_candidates, n_features]`, grades `[n_candidates]`, 0 for unjudged."""

    features: FloatArray
    grades: FloatArray


class Groups(Struct, frozen=True):
    """Several groups, padded with zeros.

    `features` is `[n_features, n_groups, n_candidates]`; `grades` and `mask` are `[n_groups,
    n_candidates]`. The mask is False for padding.
    """

    features: FloatArray
    grades: FloatArray
    mask: BoolArray

    def __len__(self) -> int:
        return len(self.grades)

    @property
    def counted(self) -> BoolArray:
        """Mask of the groups that count: `[n_groups]`."""
        relevant = ((self.grades > 0) & self.mask).any(axis=1)
        counted: BoolArray = relevant & (np.count_nonzero(self.mask, axis=1) >= _LEAST_CANDIDATES)
        return counted


def padded(groups: Sequence[Group], n_features: int) -> Groups:
    """Pads groups of *n_features* features to one length."""
    lengths = [len(group.grades) for group in groups]
    width = max(lengths, default=0)
    if groups and min(lengths) == width:
        features = np.array([group.features for group in groups]).transpose(2, 0, 1)
        grades = np.array([group.grades for group in groups])
        return Groups(np.ascontiguousarray(features), grades, np.ones(grades.shape, bool))
    features = np.zeros((n_features, len(groups), width))
    grades = np.zeros((len(groups), width))
    mask = np.arange(width) < np.array(lengths, np.int64)[:, None]
    for place, (group, n) in enumerate(zip(groups, lengths, strict=True)):
        features[:, place, :n] = group.features.T
        grades[place, :n] = group.grades
    return Groups(features, grades, mask)


def squares_within(groups: Groups) -> FloatArray:
    """Squared distances from the mean of the group, summed over it: `[n_features, n_groups]`."""
    if not groups.grades.size:
        return np.zeros(groups.features.shape[:2])
    counts = np.count_nonzero(groups.mask, axis=1)
    # From the first candidate, so that a constant feature has 0 and no rounding error.
    distances = np.where(groups.mask, groups.features - groups.features[:, :, :1], 0.0)
    means = column_sum(distances) / counts
    distances = np.where(groups.mask, distances - means[:, :, None], 0.0)
    return column_sum(distances * distances)


class UpdateBatch(NamedTuple):
    """The groups of one update.

    `n_groups` includes skipped groups; everything else is of the groups that count. `features` is
    `[n_features, n_counted, n_candidates]`; `of_grades` has the arrays of the loss for the grades;
    `mask` is None without padding. `large`: some feature is beyond LARGE_FEATURE. `squares`,
    `[n_features, n_counted]`, are None without a scale.
    """

    n_groups: int
    n_counted: int
    n_candidates: int
    finite: bool
    large: bool
    features: FloatArray
    of_grades: tuple[FloatArray | BoolArray, ...]
    mask: BoolArray | None
    squares: FloatArray | None


def batches_of(
    groups: Sequence[Group], size: int, *, loss: Loss, scaled: bool
) -> Iterator[list[UpdateBatch]]:
    """Batches of *size* groups in their order, several at a time; the last one may be shorter."""
    first, width, n_features = 0, 1, groups[0].features.shape[1] if groups else 0
    for start in range(0, len(groups), size):
        end = min(start + size, len(groups))
        wider = max(width, *(len(group.grades) for group in groups[start:end]))
        if first < start and (end - first) * wider * n_features > _MOST_CELLS:
            yield prepared(padded(groups[first:start], n_features), size, loss=loss, scaled=scaled)
            first, wider = start, max(1, *(len(group.grades) for group in groups[start:end]))
        width = wider
    if groups:
        yield prepared(padded(groups[first:], n_features), size, loss=loss, scaled=scaled)


def prepared(groups: Groups, size: int, *, loss: Loss, scaled: bool) -> list[UpdateBatch]:
    """Batches of *size* groups in their order; the last one may be shorter."""
    counted = groups.counted
    bounds = np.concatenate(([0], np.cumsum(counted)))
    bounds = bounds[np.r_[0 : len(counted) : size, len(counted)]].tolist()
    if not counted.all():
        groups = Groups(groups.features[:, counted], groups.grades[counted], groups.mask[counted])
    counts = np.count_nonzero(groups.mask, axis=1).tolist()
    finite = np.asarray(np.isfinite(groups.grades).all(axis=1))
    finite &= np.isfinite(groups.features).all(axis=(0, 2))
    large = np.asarray((np.abs(groups.features) > LARGE_FEATURE).any(axis=(0, 2)))
    grades = groups.grades if finite.all() else np.where(finite[:, None], groups.grades, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):  # such a batch ends learning
        squares = squares_within(groups) if scaled else None
        of_grades = loss.of_grades(grades, groups.mask)
    batches = []
    for number, (first, end) in enumerate(pairwise(bounds)):
        sizes, rows = counts[first:end], slice(first, end)
        width = max(sizes, default=0)
        batches.append(
            UpdateBatch(
                n_groups=min(size, len(counted) - number * size),
                n_counted=end - first,
                n_candidates=sum(sizes),
                finite=bool(finite[rows].all()),
                large=bool(large[rows].any()),
                features=groups.features[:, rows, :width],
                of_grades=tuple(each[rows, :width] for each in of_grades),
                mask=groups.mask[rows, :width] if min(sizes, default=0) < width else None,
                squares=None if squares is None else squares[:, rows],
            )
        )
    return batches
