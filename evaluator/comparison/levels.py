"""Comparisons by level of a segment, and the part of a difference that is due to the mix."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from evaluator.comparison.folder import NO_LEVEL, HashArray
from evaluator.comparison.paired import holm, paired_for
from evaluator.comparison.question import Question
from evaluator.comparison.report import Level, Mix
from evaluator.core.types.records import OTHER, FloatArray, IntArray

MAX_COMPARED: Final = 50
"""The levels with the most pairs are compared; the pairs of the others together, as OTHER."""


def compare_levels(
    levels: IntArray,
    names: Sequence[str],
    baseline: FloatArray,
    other: FloatArray,
    traces: HashArray,
    question: Question,
) -> tuple[Level, ...]:
    """The difference of each level, the largest first.

    Columns are `[n_pairs]`; *levels* are places in *names*, NO_LEVEL for a pair without one.
    """
    found = {}
    for name, pairs in _pairs_by_name(levels, names).items():
        found[name] = paired_for(question, baseline[pairs], other[pairs], traces[pairs])
    corrected = holm({name: one.p for name, one in found.items() if one.p is not None})
    ordered = sorted(found, key=lambda name: (-abs(found[name].difference), name))
    return tuple(
        Level(name=name, paired=found[name], p_holm=corrected.get(name)) for name in ordered
    )


def _pairs_by_name(levels: IntArray, names: Sequence[str]) -> dict[str, IntArray]:
    counts = np.bincount(levels[levels != NO_LEVEL], minlength=len(names))
    present = np.flatnonzero(counts).tolist()
    by_size = sorted(present, key=lambda place: (-counts[place], names[place]))
    own = [place for place in by_size if names[place] != OTHER][:MAX_COMPARED]
    found = {names[place]: np.flatnonzero(levels == place) for place in own}
    if rest := set(present) - set(own):
        found[OTHER] = np.flatnonzero(np.isin(levels, list(rest)))
    return found


def mix_of(
    baseline: FloatArray, baseline_levels: IntArray, other: FloatArray, other_levels: IntArray
) -> Mix:
    """The difference of the means of all queries of both sides, and its part due to the mix.

    Values are `[n_queries]` without NaN, of one or more queries each; levels are parallel to them
    and numbered alike on both sides.
    """
    difference = float(other.mean() - baseline.mean())
    first, second = _means(baseline, baseline_levels), _means(other, other_levels)
    common = first.keys() & second.keys()
    weight = sum(first[level][1] for level in common)
    if not weight:
        return Mix(difference=difference, from_mix=difference)
    alike = sum((second[level][0] - first[level][0]) * first[level][1] for level in sorted(common))
    return Mix(difference=difference, from_mix=difference - alike / weight)


def _means(values: FloatArray, levels: IntArray) -> dict[int, tuple[float, int]]:
    """The mean and the number of the values of each level."""
    sums, counts = np.bincount(levels + 1, values), np.bincount(levels + 1)
    return {
        level: (float(sums[level] / counts[level]), int(counts[level]))
        for level in np.flatnonzero(counts).tolist()
    }
