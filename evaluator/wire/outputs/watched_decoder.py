"""Reads records of `settled` to the columns that alarms need, by the compiled part."""

import ctypes
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import nan
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from evaluator.core.alarms.sums import N_UNITS
from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.event_time.clock import MAX_TIMESTAMP_MS
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.online.watched_queries import Label, WatchedQueries
from evaluator.core.types.records import FloatArray, IntArray
from evaluator.wire.native import library
from evaluator.wire.native.library import SEPARATOR, Arrays, MessageTexts, NumberedNames

_MAX_WATCHED: Final = 64
_N_COLUMNS: Final = 12

WatermarkRows = list[tuple[int, int]]
"""Rows that are watermark records, and their watermarks."""


class _Watched(ctypes.Structure):
    _fields_ = (
        *(("ranker", ctypes.c_char_p), ("ranker_size", ctypes.c_int64)),
        *(("measure", ctypes.c_char_p), ("measure_size", ctypes.c_int64)),
    )


def _label(text: str) -> Label:
    parts = text.split(SEPARATOR)[:-1]
    model, variant, segments = (part and msgspec.json.decode(part) for part in parts)
    return Label(model, variant, segments or {})


class WatchedDecoder:
    """Reads records into reused arrays: all of them, or none.

    Args:
        spelled: ranker, and spellings of its measure, of each column.
    """

    def __init__(self, spelled: Sequence[tuple[str, Sequence[str]]]) -> None:
        pairs = [(of.encode(), name.encode()) for of, names in spelled for name in names]
        self._n_spellings = [len(names) for _, names in spelled]
        self._watched = (_Watched * len(pairs))(
            *(_Watched(ranker, len(ranker), name, len(name)) for ranker, name in pairs)
        )
        self._labels = NumberedNames(_label)
        self._arrays = Arrays(
            (self._labels,),
            counts="n_rows n_values ids_size n_watched watched",
            rows=f"columns:{_N_COLUMNS}i8",
            items="places:i8 values:f8",
            text="ids",
        )

    def __call__(
        self, values: ByteStrings, offsets: IntArray
    ) -> tuple[WatchedQueries, WatermarkRows] | None:
        """The records, those of watermarks as rows too; None if one is for the reference path."""
        n, n_watched, found = len(values), len(self._watched), self._arrays
        if library.BUILT is None or n_watched > _MAX_WATCHED or not n:
            return None
        found.fill(
            *(library.BUILT.read_settled, MessageTexts(values), 0, n),
            n_watched=n_watched,
            watched=ctypes.addressof(self._watched),
        )
        if found["n_rows"] < n:
            return None
        ns, tasks, event_ms, settled_ms, watermarks_ms, *spans, crcs, labels, judged = (
            np.ascontiguousarray(found.part("columns", n).T)
        )
        ids = found.text("ids", found["ids_size"])
        given = np.full(n * n_watched, nan)
        given[found.part("places", found["n_values"])] = found.part("values", found["n_values"])
        rows = np.flatnonzero(watermarks_ms >= 0)
        queries = WatchedQueries(
            *(tasks, ns, np.minimum(settled_ms, MAX_TIMESTAMP_MS), event_ms, offsets),
            *(ByteStrings(ids, *spans[:2]), ByteStrings(ids, *spans[2:])),
            crcs % N_UNITS,
            self._labels.column(labels.astype(np.int32)),
            judged > 0,
            *merged(given.reshape(n, n_watched), self._n_spellings),
        )
        return queries, list(zip(rows.tolist(), watermarks_ms[rows].tolist(), strict=True))


def merged(values: FloatArray, n_spellings: Sequence[int]) -> tuple[IntArray, NDArray[np.bool_]]:
    """The units of each column, and whether there are any, from values by spelling, NaN for none.

    Of several spellings the last one that is given counts.
    """
    numbers = np.full((len(values), len(n_spellings)), nan)
    for place, (first, end) in enumerate(pairwise(accumulate(n_spellings, initial=0))):
        for of_spelling in values[:, first:end].T:
            numbers[:, place] = np.where(np.isnan(of_spelling), numbers[:, place], of_spelling)
    units: Any = np.rint(np.nan_to_num(numbers) * UNITS_PER_ONE).astype(np.int64)
    return units, ~np.isnan(numbers)
