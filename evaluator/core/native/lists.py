"""Judged lists by the compiled part (`dense.h`), for lists that are not too wide."""

import ctypes
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from evaluator.core.measures import JudgedLists
from evaluator.core.native.library import Library
from evaluator.core.native.structs import NUMBER, PLACE, address, filled, struct
from evaluator.core.types.records import FloatArray, IntArray

MOST_COLUMNS: Final = 64
"""As in `basics.h`: wider lists are sorted as quickly by numpy."""

_LINE: Final = 8  # numbers in a line of the cache
_NOTHING: Final = np.empty(0, np.int64)
_Entry = TypeVar("_Entry", np.int64, np.float64)

_Shape = struct((NUMBER, "n_columns whole"))
_Lists = struct(
    (NUMBER, "n_decided"),
    (PLACE, "decided positions"),
    (PLACE, "n_ranked n_relevant ranks grades columns ideal_grades judged_grades"),
)
_Spans = struct(
    (PLACE, "candidate_starts n_candidates rank_starts n_rankers"),
    (PLACE, "judged_starts n_judged"),
)
_Pools = struct((PLACE, "candidate_codes ranks judged_codes judged_grades"))
_Aligned = struct(
    (NUMBER, "n_columns n_lists"),
    (PLACE, "ranks grades columns judged_grades ideal_grades n_relevant"),
)
"""As in `dense.h` and `align.h`."""


def native_lists(
    library: Library,
    scores: FloatArray,
    grades: FloatArray,
    tie_order: Callable[[IntArray], IntArray] | None,
) -> JudgedLists:
    """As `dense_lists`; there is a list, of 1 to MOST_COLUMNS columns, and no mean over ties."""
    scores, grades = np.ascontiguousarray(scores), np.ascontiguousarray(grades)
    n, width = scores.shape
    given = (address(scores), address(grades), n, width)
    shape: Any = _Shape()
    library.find_shape(*given, ctypes.byref(shape))
    decided, positions = _decided(library, scores, tie_order)
    n_columns = shape.n_columns
    integers = _columns(2 + 2 * n_columns, n, np.int64)
    numbers = _columns(2 * n_columns, n, np.float64)
    ordered, ideal = numbers[:n_columns], numbers[n_columns:]
    judged_grades = grades if shape.whole else np.empty((n, width))
    first, row = address(integers), n * 8
    lists = _Lists(
        *(len(decided), address(decided), address(positions)),
        *(first, first + row, first + 2 * row, address(ordered)),
        *(first + (2 + n_columns) * row, address(ideal), address(judged_grades)),
    )
    library.judge_lists(*given, ctypes.byref(shape), ctypes.byref(lists))
    ranks = integers[2 : 2 + n_columns].T
    return JudgedLists(
        ranks=np.broadcast_to(np.arange(1, width + 1), (n, width)) if shape.whole else ranks,
        grades=ordered.T,
        columns=integers[2 + n_columns :].T,
        n_ranked=integers[0],
        query_of=np.arange(n),
        judged_grades=judged_grades,
        ideal_grades=ideal.T,
        n_relevant=integers[1],
    )


def _columns(n_columns: int, n: int, kind: type[_Entry]) -> NDArray[_Entry]:
    """Room for columns that lie together each, from the beginning of a line of the cache on."""
    room = np.empty(n_columns * n + _LINE, kind)
    first = -(address(room) // 8) % _LINE
    return room[first : first + n_columns * n].reshape(n_columns, n)


def _decided(
    library: Library, scores: FloatArray, tie_order: Callable[[IntArray], IntArray] | None
) -> tuple[IntArray, IntArray]:
    """Lists with ties that are decided elsewhere, and the positions of their columns."""
    if tie_order is None:
        return _NOTHING, _NOTHING
    n, width = scores.shape
    tied = np.empty(n, np.uint8)
    library.find_ties(address(scores), n, width, address(tied))
    decided = np.flatnonzero(tied)
    if not len(decided):
        return _NOTHING, _NOTHING
    positions = np.ascontiguousarray(tie_order(decided), np.int64)
    if positions.shape != (len(decided), width) or not (
        positions.min() >= 0 and positions.max() < width
    ):
        raise ValueError(f"{positions.shape} positions are not those of {width} columns each")
    return decided, positions


Flat = tuple[NDArray[np.int32], NDArray[np.uint16], NDArray[np.int32], FloatArray]
"""Codes of candidates and their ranks; codes of judged candidates and their grades."""


def aligned_lists(
    library: Library,
    candidate_starts: IntArray,
    n_candidates: IntArray,
    rank_starts: IntArray,
    n_rankers: IntArray,
    judged_starts: IntArray,
    n_judged: IntArray,
    flat: Flat,
    n_ranked: IntArray,
) -> JudgedLists:
    """Brings spans of judged candidates, at most MOST_COLUMNS each, and ranks together.

    The first six and *n_ranked* are `[n_queries]`: spans of *flat*, as in `QuerySpans`.
    """
    spans = (candidate_starts, n_candidates, rank_starts, n_rankers, judged_starts, n_judged)
    n, n_lists, n_columns = len(n_judged), int(n_rankers.sum()), int(n_judged.max())
    ranks = np.empty((2, n_columns, n_lists), np.int64)
    ordered, ideal = np.empty((n_columns, n_lists)), np.empty((n_columns, n))
    judged_grades, n_relevant = np.empty((n, n_columns)), np.empty(n, np.int64)
    found = (ranks[0], ordered, ranks[1], judged_grades, ideal, n_relevant)
    library.align(
        filled(_Spans, *spans),
        n,
        filled(_Pools, *flat),
        ctypes.byref(_Aligned(n_columns, n_lists, *(address(array) for array in found))),
    )
    query_of = np.arange(n)
    if n_lists > n or not n_rankers.all():
        query_of, n_ranked = np.repeat(query_of, n_rankers), np.repeat(n_ranked, n_rankers)
    return JudgedLists(
        ranks=ranks[0].T,
        grades=ordered.T,
        columns=ranks[1].T,
        n_ranked=n_ranked,
        query_of=query_of,
        judged_grades=judged_grades,
        ideal_grades=ideal.T,
        n_relevant=n_relevant,
    )
