"""How the settled values of some measures spread, and where the low ones come from.

Beside them, timestamps that are most likely seconds.
"""

from collections.abc import Collection, Iterable
from typing import Final

import numpy as np
import structlog

from evaluator.core.measures import MISSING
from evaluator.core.measures.exact_sums import value_buckets
from evaluator.core.types.records import VALUE_BOUNDS, Columns, Exemplar, SettledColumns, Tally

_LOW: Final = 0.5
"""Buckets up to this bound name a trace, so that one can look at what went wrong."""
_SECONDS: Final = (10**9, 10**10)
"""Timestamps of this range are of the first months of 1970, or seconds of 2001 to 2286."""

log = structlog.get_logger(__name__)


class ValueHistograms:
    """Settled values of one task, counted by bucket; lives as long as the process has the task.

    Args:
        measures: the canonical names of all columns of values, in order.
        counted: those of them that are counted here.
        warned: the logs whose timestamps were warned of, of all tasks.
    """

    def __init__(
        self, measures: Collection[str], *, counted: Collection[str], warned: set[str]
    ) -> None:
        self._warned = warned
        self._n_measures = len(measures)
        self._columns = [(n, name) for n, name in enumerate(measures) if name in counted]
        self._counts: Tally = {}
        self.exemplars: dict[tuple[str, ...], Exemplar] = {}

    def add(self, settled: Iterable[SettledColumns], **read: Columns | None) -> None:
        """Counts the values of queries that settled now, and what was *read*."""
        for part in settled:
            if part.units is not None and self._columns:
                self._add(part, np.array(part.units).reshape(len(part), -1, self._n_measures))
        for name, columns in read.items():
            if columns is not None:
                self._look_at_units(name, columns)

    def _look_at_units(self, name: str, columns: Columns) -> None:
        first, end = _SECONDS
        found = np.flatnonzero((columns.timestamps_ms >= first) & (columns.timestamps_ms < end))
        if len(found) and name not in self._warned:
            self._warned.add(name)
            at = int(found[0])
            log.warning(
                "timestamps_in_seconds",
                log=name,
                offset=int(columns.offsets[at]),
                timestamp_ms=int(columns.timestamps_ms[at]),
                hint="milliseconds expected",
            )
        path = ("timestamps_in_seconds", name)
        self._counts[path] = self._counts.get(path, 0) + len(found)

    def _add(
        self, part: SettledColumns, units: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"
    ) -> None:
        for row, ranker in enumerate(part.stratum.rankers):
            for column, measure in self._columns:
                path = ("bucket", part.stratum.model, part.stratum.variant, ranker, measure)
                queries = np.flatnonzero(units[:, row, column] != MISSING)
                values = units[queries, row, column]
                buckets = value_buckets(values)
                numbers, lasts = np.unique(buckets[::-1], return_index=True)
                counts = np.bincount(buckets)
                for bucket, last in zip(numbers.tolist(), lasts.tolist(), strict=True):
                    key = (*path, str(bucket))
                    self._counts[key] = self._counts.get(key, 0) + int(counts[bucket])
                    if VALUE_BOUNDS[bucket] <= _LOW:
                        at = len(queries) - 1 - last
                        trace_id = part.trace_ids[queries[at]]
                        self.exemplars[key] = Exemplar(trace_id, int(values[at]))

    def add_to(self, tally: Tally) -> Tally:
        """Puts the counts into *tally*.

        Under ("bucket", model, variant, ranker, measure, n) and ("timestamps_in_seconds", log).
        """
        tally.update(self._counts)
        return tally
