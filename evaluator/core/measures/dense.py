"""Judged lists from arrays in which every candidate has its column: scores beside grades.

The way of whoever has whole lists at hand; `align` is the way of what comes bit by bit. Both lead
to the same lists, hence to the same values. What is here in numpy the compiled part does where it
was built, for lists that are not too wide: the same to the last bit.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from evaluator.core.measures import NEVER_RANKED, JudgedLists, TieGroups
from evaluator.core.measures.lists import BoolArray, counts_of, first_equal
from evaluator.core.measures.order import packed_order
from evaluator.core.native import library
from evaluator.core.native.lists import MOST_COLUMNS, native_lists
from evaluator.core.types.records import FloatArray, IntArray

_Entry = TypeVar("_Entry", np.int64, np.float64)

TieOrder = Callable[[IntArray], IntArray]
"""From rows to the positions of all their columns, best first, what is not ranked last."""


def dense_lists(
    scores: FloatArray,
    grades: FloatArray,
    *,
    tie_order: TieOrder | None = None,
    with_ties: bool = False,
) -> JudgedLists:
    """Brings scores and grades together: one list per query.

    Args:
        scores: `[n_lists, width]`; NaN for a candidate that is not ranked, else finite.
        grades: `[n_lists, width]`; NaN or below 0 for one that is not judged, else finite.
        tie_order: of lists that may have ties; without it the last of tied columns comes first.
        with_ties: whether values are to be averaged over the orders of tied candidates.

    >>> lists = dense_lists(np.array([[0.1, 0.9, 0.5]]), np.array([[2.0, 0.0, np.nan]]))
    >>> lists.ranks, lists.grades
    (array([[1, 3]]), array([[0., 2.]]))
    """
    n, width = scores.shape
    if library.BUILT is not None and n and 0 < width <= MOST_COLUMNS and not with_ties:
        return native_lists(library.BUILT, scores, grades, tie_order)
    ranked = np.isfinite(scores)
    all_ranked = bool(ranked.all())
    positions, tied = packed_order(scores, None if all_ranked else ranked)
    if tied.any():
        rows = np.flatnonzero(tied)
        positions[rows] = tie_order(rows) if tie_order else _last_first(scores[rows])
    cells = positions.T + np.arange(n) * width
    ordered = grades.take(cells).T
    columns = np.arange(width)
    n_ranked = np.full(n, width) if all_ranked else np.count_nonzero(ranked, axis=1)
    ranks = np.broadcast_to(columns + 1, (n, width))
    if not all_ranked:
        ranks = np.where(columns < n_ranked[:, None], ranks, NEVER_RANKED)
    ties = _tie_groups(scores.take(cells).T, ranks) if with_ties else None
    judged = ordered >= 0
    if not judged.all():
        return _of_judged(judged, ranks, ordered, positions, grades, n_ranked, ties)
    return _lists(ranks, ordered, positions, grades, n_ranked, ties)


def _tie_groups(ordered: FloatArray, ranks: IntArray) -> TieGroups:
    """First and last rank of the run of equal scores that each rank is in: `[n_lists, width]`."""
    ranked = ranks < NEVER_RANKED
    width = ranks.shape[1]
    firsts = 1 + first_equal(ordered)
    lasts = width - first_equal(ordered[:, ::-1])[:, ::-1]
    return TieGroups(np.where(ranked, firsts, NEVER_RANKED), np.where(ranked, lasts, NEVER_RANKED))


def _last_first(scores: FloatArray) -> IntArray:
    """Positions by score descending, of equal ones the last first; NaN at the end, first first."""
    columns = np.arange(scores.shape[1])
    unranked = ~np.isfinite(scores)
    last_first: IntArray = np.lexsort(
        (np.where(unranked, columns, -columns), np.where(unranked, np.inf, -scores)), axis=1
    )
    return last_first


def _of_judged(
    judged: BoolArray,
    ranks: IntArray,
    ordered: FloatArray,
    positions: IntArray,
    grades: FloatArray,
    n_ranked: IntArray,
    ties: TieGroups | None,
) -> JudgedLists:
    """The judged candidates moved together to the first columns."""
    n, width = judged.shape
    counts = counts_of(judged)
    places = np.arange(int(counts.max(initial=0)))[:, None]
    inside = places < counts
    padded = not inside.all()
    found = np.flatnonzero(np.ascontiguousarray(judged))
    sources = found.take(np.cumsum(counts) - counts + places, mode="clip")
    rows = sources // width
    cells = (sources - rows * width) * n + rows  # of what lies column after column

    def moved(source: NDArray[_Entry], padding: int) -> NDArray[_Entry]:
        there = source.T.ravel().take(cells)
        return np.where(inside, there, source.dtype.type(padding)).T if padded else there.T

    return _lists(
        moved(ranks, NEVER_RANKED),
        moved(ordered, 0),
        moved(positions, 0),
        np.where(grades >= 0, grades, 0.0),  # NaN becomes 0 too
        n_ranked,
        None if ties is None else TieGroups(*(moved(bound, NEVER_RANKED) for bound in ties)),
    )


def _lists(
    ranks: IntArray,
    ordered: FloatArray,
    positions: IntArray,
    judged_grades: FloatArray,
    n_ranked: IntArray,
    ties: TieGroups | None,
) -> JudgedLists:
    return JudgedLists(
        ranks=ranks,
        grades=ordered,
        columns=positions,
        n_ranked=n_ranked,
        query_of=np.arange(len(ranks)),
        judged_grades=judged_grades,
        ideal_grades=_descending(
            judged_grades if ordered.shape == judged_grades.shape else ordered
        ),
        n_relevant=counts_of(ordered > 0),
        ties=ties,
    )


def _descending(grades: FloatArray) -> FloatArray:
    """Each list by itself, column after column in memory; whole numbers take half the time.

    0.0 stands for -0.0.
    """
    whole = grades.astype(np.int16)
    if (whole == grades).all():
        descending = np.sort(-np.ascontiguousarray(whole), axis=1).T.copy()
        return (-descending).astype(np.float64).T
    return np.asfortranarray(0.0 - np.sort(-np.ascontiguousarray(grades), axis=1))
