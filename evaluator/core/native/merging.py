"""Grades of further judgments merged by the compiled part (`merge.h`)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.core.native.library import Library
from evaluator.core.native.structs import filled, places
from evaluator.core.types import FloatArray, IntArray

_Judged = places("starts n codes grades by")
_Judgments = places("starts n timestamps_ms offsets")
_Further = places("n codes grades timestamps_ms offsets")
_Merged = places("n codes grades by")


class JudgedSpans(NamedTuple):
    """What stands: spans of the flat columns, `[n_queries]` of them."""

    starts: IntArray
    n: IntArray
    codes: NDArray[np.int32]
    grades: FloatArray
    by: NDArray[np.uint16]


class JudgmentSpans(NamedTuple):
    """The judgments so far: spans of the flat columns, `[n_queries]` of them."""

    starts: IntArray
    n: IntArray
    timestamps_ms: IntArray
    offsets: IntArray


class Further(NamedTuple):
    """One more judgment of each query: its grades, flat, and when it came."""

    n: IntArray
    codes: NDArray[np.int32]
    grades: FloatArray
    timestamps_ms: IntArray
    offsets: IntArray


class Merged(NamedTuple):
    """What stands then: lengths of spans, and flat columns of them, one after the other."""

    n: IntArray
    codes: NDArray[np.int32]
    grades: FloatArray
    by: NDArray[np.uint16]


def native_merge(
    library: Library, judged: JudgedSpans, judgments: JudgmentSpans, further: Further
) -> Merged:
    """As `JudgedCandidates.merge` has it."""
    room = int(judged.n.sum() + further.n.sum())
    merged = Merged(
        np.empty(len(judged.n), np.int64),
        np.empty(room, np.int32),
        np.empty(room),
        np.empty(room, np.uint16),
    )
    library.merge(
        len(judged.n),
        filled(_Judged, *judged),
        filled(_Judgments, *judgments),
        filled(_Further, *further),
        filled(_Merged, *merged),
    )
    total = int(merged.n.sum())
    n, *columns = merged
    return Merged(n, *(column[:total] for column in columns))
