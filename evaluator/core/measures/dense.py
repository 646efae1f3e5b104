"""Judged lists from arrays of scores and grades in which every candidate has its column.

`align` makes the same lists, with the same values, from rankings and judgments.
"""

from collections.abc import Callable

import numpy as np

from evaluator.core.measures.lists import (
    NEVER_RANKED,
    BoolArray,
    JudgedLists,
    TieGroups,
    counts_of,
    descending,
    tie_bounds,
)
from evaluator.core.measures.order import packed_order
from evaluator.core.types.records import FloatArray, IntArray

TieOrder = Callable[[IntArray], IntArray]
"""From rows to the positions of all their columns, best first, unranked columns last."""


def dense_lists(
    scores: FloatArray,
    grades: FloatArray,
    *,
    tie_order: TieOrder | None = None,
    with_ties: bool = False,
) -> JudgedLists:
    """One list per query.

    Args:
        scores: `[n_lists, width]`; NaN for a candidate that is not ranked, else finite.
        grades: `[n_lists, width]`; NaN or below 0 for one that is not judged, else finite.
        tie_order: the order of tied columns; without it the last of them comes first.
        with_ties: whether values are averaged over the orders of tied candidates.

    >>> lists = dense_lists(np.array([[0.1, 0.9, 0.5]]), np.array([[2.0, 0.0, np.nan]]))
    >>> lists.ranks, lists.grades
    (array([[1, 3]]), array([[0., 2.]]))
    """
    n, width = scores.shape
    ranked = np.isfinite(scores)
    all_ranked = bool(ranked.all())
    n_ranked = np.full(n, width) if all_ranked else np.count_nonzero(ranked, axis=1)
    positions, tied = packed_order(scores, None if all_ranked else ranked)
    if tied.any():
        rows = np.flatnonzero(tied)
        positions[rows] = tie_order(rows) if tie_order else _last_first(scores[rows])
    # From here on `[width, n_lists]`, so that a column of all lists is contiguous.
    cells = positions.T + np.arange(n) * width
    columns, ordered, judged_grades = positions.T, grades.take(cells), grades
    places = np.arange(width)[:, None]
    inside = ordered >= 0
    whole = bool(inside.all())
    bounds = _tie_bounds(scores.take(cells), places < n_ranked) if with_ties else ()
    if not whole:
        cells, places, inside = _judged_cells(inside)
        columns = np.where(inside, columns.ravel().take(cells), 0)
        ordered = np.where(inside, ordered.ravel().take(cells), 0.0)
        bounds = [np.where(inside, one.ravel().take(cells), NEVER_RANKED) for one in bounds]
        judged_grades = np.where(grades >= 0, grades, 0.0)
    if whole and all_ranked:
        ranks = np.broadcast_to(places + 1, (width, n))
    else:
        ranks = np.where(inside & (places < n_ranked), places + 1, NEVER_RANKED)
    return JudgedLists(
        ranks=ranks.T,
        grades=ordered.T,
        columns=columns.T,
        n_ranked=n_ranked,
        query_of=np.arange(n),
        judged_grades=judged_grades,
        ideal_grades=descending(judged_grades if len(ordered) == width else ordered.T),
        n_relevant=counts_of(ordered.T > 0),
        ties=TieGroups(*(bound.T for bound in bounds)) if with_ties else None,
    )


def _judged_cells(judged: BoolArray) -> tuple[IntArray, IntArray, BoolArray]:
    """The judged candidates moved to the first columns: `[n_columns, n_lists]` each.

    Flat indices into *judged* (`[width, n_lists]`), the original columns, and the mask without
    padding.
    """
    width, n = judged.shape
    counts = counts_of(judged.T)
    places = np.arange(int(counts.max(initial=0)))[:, None]
    found = np.flatnonzero(judged.T)
    sources = found.take(np.cumsum(counts) - counts + places, mode="clip")
    lists = sources // width
    columns = sources - lists * width
    return columns * n + lists, columns, places < counts


def _tie_bounds(ordered: FloatArray, ranked: BoolArray) -> list[IntArray]:
    """First and last rank of the run of equal scores of each rank: `[width, n_lists]` each."""
    return [np.where(ranked, bound.T, NEVER_RANKED) for bound in tie_bounds(ordered.T)]


def _last_first(scores: FloatArray) -> IntArray:
    """Positions by score descending, of equal ones the last first; NaN at the end, first first."""
    columns = np.arange(scores.shape[1])
    unranked = ~np.isfinite(scores)
    return np.lexsort(
        (np.where(unranked, columns, -columns), np.where(unranked, np.inf, -scores)), axis=1
    )
