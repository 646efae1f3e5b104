"""Grades of further judgments merged by the compiled part (`merge.h`)."""

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from evaluator.core.native.library import Library
from evaluator.core.native.structs import address, filled, places
from evaluator.core.types.records import FloatArray, IntArray

_Judged = places("starts n codes grades by")
_Judgments = places("starts n timestamps_ms offsets")
_Further = places("n codes grades timestamps_ms offsets")
_Merged = places("n codes grades by")

_Item = TypeVar("_Item", bound=np.generic)


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
    return Merged(merged.n, merged.codes[:total], merged.grades[:total], merged.by[:total])


def with_one_more(
    library: Library, starts: IntArray, n: IntArray, flat: NDArray[_Item], added: NDArray[_Item]
) -> NDArray[_Item]:
    """Spans of a flat column, each with one more item behind it: `[sum of n, and n_spans]`.

    The items are numbers or bytes.
    """
    if flat.dtype.hasobject or flat.dtype != added.dtype:
        raise ValueError(f"{flat.dtype} and {added.dtype} are not the same plain items")
    longer = np.empty(int(n.sum()) + len(n), flat.dtype)
    library.append_one(
        *(len(n), address(starts), address(n), flat.dtype.itemsize),
        *(address(flat), address(added), address(longer)),
    )
    return longer
