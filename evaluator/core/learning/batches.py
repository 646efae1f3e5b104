"""Batches of groups, with all that is known of them before there are weights.

What does not depend on weights is made for many groups at once, and only for those that count: an
update for a single group would else be mostly calls on a few numbers. None of it depends on which
groups are taken together.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from evaluator.core.learning.groups import Group, Groups, padded, squares_within
from evaluator.core.learning.losses import BoolArray, Loss
from evaluator.core.types.records import FloatArray

_MOST_CELLS: Final = 1 << 16
"""Features that are padded together, but for a batch that has more."""


class Batch(NamedTuple):
    """The groups of one update.

    `n_groups` has those that are skipped too; the rest is of those that count alone. `features` is
    `[n_features, n_counted, n_candidates]`; `of_grades` is what the loss makes of the grades;
    `mask` is None where nothing is padding. `squares`, `[n_features, n_counted]`, are None where
    nothing is scaled.
    """

    n_groups: int
    n_counted: int
    n_candidates: int
    finite: bool
    features: FloatArray
    of_grades: tuple[FloatArray | BoolArray, ...]
    mask: BoolArray | None
    squares: FloatArray | None


def batches_of(
    groups: Sequence[Group], n_features: int, size: int, *, loss: Loss, scaled: bool
) -> Iterator[list[Batch]]:
    """Batches of *size* groups in their order, the last one perhaps shorter, some at a time."""
    first, end, width = 0, 0, 1
    while end < len(groups):
        following = min(end + size, len(groups))
        wider = max(width, *(len(group.grades) for group in groups[end:following]))
        if first < end and (following - first) * wider * n_features > _MOST_CELLS:
            yield prepared(padded(groups[first:end], n_features), size, loss=loss, scaled=scaled)
            first, width = end, 1
        else:
            end, width = following, wider
    if first < end:
        yield prepared(padded(groups[first:end], n_features), size, loss=loss, scaled=scaled)


def prepared(groups: Groups, size: int, *, loss: Loss, scaled: bool) -> list[Batch]:
    """Batches of *size* groups in their order, the last one perhaps shorter."""
    counted = groups.counted
    bounds = np.concatenate(([0], np.cumsum(counted)))
    bounds = bounds[np.r_[0 : len(counted) : size, len(counted)]].tolist()
    if not counted.all():
        groups = Groups(groups.features[:, counted], groups.grades[counted], groups.mask[counted])
    counts = np.count_nonzero(groups.mask, axis=1).tolist()
    finite = np.asarray(np.isfinite(groups.grades).all(axis=1))
    finite &= np.isfinite(groups.features).all(axis=(0, 2))
    grades = groups.grades if finite.all() else np.where(finite[:, None], groups.grades, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):  # such a batch ends learning
        squares = squares_within(groups) if scaled else None
        of_grades = loss.of_grades(grades, groups.mask)
    fine: list[bool] = finite.tolist()
    made = []
    for number, (first, end) in enumerate(pairwise(bounds)):
        sizes = counts[first:end]
        width = max(sizes, default=0)
        rows = slice(first, end)
        whole = not sizes or min(sizes) == width
        made.append(
            Batch(
                n_groups=min(size, len(counted) - number * size),
                n_counted=end - first,
                n_candidates=sum(sizes),
                finite=all(fine[first:end]),
                features=groups.features[:, rows, :width],
                of_grades=tuple(each[rows, :width] for each in of_grades),
                mask=None if whole else groups.mask[rows, :width],
                squares=None if squares is None else squares[:, rows],
            )
        )
    return made
