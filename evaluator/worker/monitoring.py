"""Measurements of the worker: value histograms, restore rate, stage times, heap."""

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from evaluator.core.measures import MISSING
from evaluator.core.measures.exact_sums import value_buckets
from evaluator.core.types.records import VALUE_BOUNDS, Columns, SettledColumns
from evaluator.core.types.tally import Group, GroupedTally, Path, Tally
from evaluator.exposition.snapshot import Exemplar
from evaluator.worker.worst_queries import WorstQueries

RESTORE_LOG_SECONDS: Final = 10.0
"""Interval of the log lines about a task that restores."""
MIN_TRIM_BYTES: Final = 64 << 20
"""Smallest peak for which the heap is trimmed."""
MIN_TRIM_SECONDS: Final = 60.0
"""Shortest interval between two trims."""
COUNTED_POSITIONS: Final = 10
_EXEMPLAR_BOUND: Final = 0.5
"""Buckets up to this bound keep the trace of a query as an exemplar."""
_SECONDS_RANGE: Final = (10**9, 10**10)
"""Milliseconds of the first months of 1970, or seconds of 2001 to 2286."""

log = structlog.get_logger(__name__)


class ValueHistograms:
    """Histograms of the settled values of one task, for as long as the process owns it.

    Also counts exposures and clicks by position, and timestamps that are probably seconds.

    Args:
        measures: the canonical names of all value columns, in order.
        counted: the measures that have a histogram.
        warned: logs that were warned about seconds; shared by all tasks.
        positions: whether exposures and clicks are counted.
        worst: takes the lowest values; shared by all tasks.
    """

    def __init__(
        self,
        measures: Collection[str],
        *,
        counted: Collection[str],
        warned: set[str],
        positions: bool = False,
        worst: WorstQueries | None = None,
    ) -> None:
        self._worst = worst or WorstQueries(measures)
        self._positions = positions
        self._warned = warned
        self._n_measures = len(measures)
        self._columns = [(n, name) for n, name in enumerate(measures) if name in counted]
        self._counts: Tally = {}
        self._buckets: dict[Group, Tally] = {}  # of a pair: replaced, not changed
        self._exemplars: dict[Path, Exemplar] = {}

    def add(self, settled: Sequence[SettledColumns], **read: Columns | None) -> None:
        """Counts the values of *settled* queries and the timestamps of *read* records."""
        self._worst.add(settled)
        for part in settled:
            if part.units is not None and self._columns:
                self._add(part, part.units.reshape(len(part), -1, self._n_measures))
            if part.logged is not None and part.units is not None and self._positions:
                self._count_positions(part)
        for name, columns in read.items():
            if columns is not None:
                self._count_seconds(name, columns)

    def _count_positions(self, part: SettledColumns) -> None:
        """Counts the exposed candidates of each rank, and those graded above 0."""
        found = Counter[tuple[tuple[str, str], str, int]]()
        strata = part.strata.values()
        for stratum, logged, grades in zip(strata, part.logged or (), part.grades, strict=True):
            if logged is None or logged.exposed is None:
                continue
            seen = {
                rank for rank in range(1, COUNTED_POSITIONS + 1) if logged.exposed >> rank - 1 & 1
            }
            clicked = {
                rank for name, (rank, _) in logged.candidates.items() if (grades.get(name) or 0) > 0
            }
            found.update((stratum[:2], "exposures", rank) for rank in seen)
            found.update((stratum[:2], "clicks", rank) for rank in seen & clicked)
        for pair in dict.fromkeys(pair for pair, _, _ in found):
            group = "bucket", *pair
            counts = self._buckets[group] = dict(self._buckets.get(group, {}))
            for name in ("exposures", "clicks"):
                for rank in range(1, COUNTED_POSITIONS + 1):  # those of 0 too
                    key = ("position", *pair, name, str(rank))
                    counts[key] = counts.get(key, 0) + found[pair, name, rank]

    def _count_seconds(self, name: str, columns: Columns) -> None:
        first, end = _SECONDS_RANGE
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

    def _add(self, part: SettledColumns, units: NDArray[np.int64]) -> None:
        strata, n_buckets = part.strata, len(VALUE_BOUNDS)
        pairs = [strata.names[number][:2] for number in strata.distinct().tolist()]
        found = {pair: dict(self._buckets.get(("bucket", *pair), {})) for pair in pairs}
        for row, ranker in enumerate(part.rankers):
            for column, measure in self._columns:
                queries = np.flatnonzero(units[:, row, column] != MISSING)
                values = units[queries, row, column]
                cells = strata.numbers[queries] * n_buckets + value_buckets(values)
                of_cells = np.unique(cells[::-1], return_index=True, return_counts=True)
                for cell, last, n in zip(*(each.tolist() for each in of_cells), strict=True):
                    number, bucket = divmod(cell, n_buckets)
                    pair = strata.names[number][:2]
                    key = ("bucket", *pair, ranker, measure, str(bucket))
                    found[pair][key] = found[pair].get(key, 0) + n
                    if VALUE_BOUNDS[bucket] <= _EXEMPLAR_BOUND:
                        at = len(queries) - 1 - last
                        trace_id = part.texts[int(queries[at])][0]
                        self._exemplars[key] = Exemplar(trace_id, int(values[at]))
        self._buckets |= {("bucket", *pair): counts for pair, counts in found.items()}

    def added_to(self, tally: GroupedTally) -> GroupedTally:
        """*tally* with the counts.

        Under ("bucket", model, variant, ranker, measure, n), ("position", model, variant,
        "exposures" or "clicks", rank) and ("timestamps_in_seconds", log).
        """
        others = {**tally.groups.get((), {}), **self._counts}
        return GroupedTally({**tally.groups, (): others, **self._buckets})

    def take_exemplars(self) -> dict[Path, Exemplar]:
        """The last query of each bucket with one since the last call."""
        taken, self._exemplars = self._exemplars, {}
        return taken


class RestoreRate:
    """Offsets per second at which one task restores."""

    def __init__(self) -> None:
        self.seconds_left: int | None = None
        self._last: tuple[float, int] | None = None  # monotonic time, offsets left

    def update(self, task: int, left: int, *, now: float) -> None:
        """Measures and logs the rate once per interval; *left* is 0 when the task is restored."""
        if not left:
            self.seconds_left = self._last = None
            return
        then, before = self._last = self._last or (now, left)
        if now - then < RESTORE_LOG_SECONDS:
            return
        per_second = max(before - left, 0) / (now - then)
        self.seconds_left = round(left / per_second) if per_second else None
        self._last = now, left
        log.info(
            "task_restoring",
            task=task,
            left=left,
            per_second=round(per_second),
            seconds_left=self.seconds_left,
        )


class Stages:
    """Seconds spent in each stage of the loop."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = perf_counter()

    def begin(self) -> None:
        """Starts the stopwatch."""
        self._since = perf_counter()

    def end(self, stage: str) -> None:
        """Adds the time since the last `begin` or `end` to a stage."""
        now = perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
        self._since = now


def trim_heap() -> bool:
    """Returns free pages of the C heap to the system; False without glibc."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except AttributeError:
        return False


class HeapTrimmer:
    """Trims the heap when the memory tier has fallen to half of its peak since the last trim.

    The allocator keeps free pages between used ones, so the resident memory of the process would
    stay at its peak.
    """

    def __init__(
        self,
        trim: Callable[[], bool] = trim_heap,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trim = trim
        self._monotonic = monotonic
        self._peak_bytes = 0
        self._not_before = 0.0

    def update(self, memory_tier_bytes: int) -> None:
        """Records the size of the memory tier after a commit, and trims if due."""
        self._peak_bytes = max(self._peak_bytes, memory_tier_bytes)
        if self._peak_bytes < MIN_TRIM_BYTES or 2 * memory_tier_bytes > self._peak_bytes:
            return
        now = self._monotonic()
        if now < self._not_before:
            return
        released = self._trim()
        took = self._monotonic() - now
        log.info("heap_trimmed", from_bytes=self._peak_bytes, to_bytes=memory_tier_bytes,
                 released=released, seconds=round(took, 3))  # fmt: skip
        self._peak_bytes, self._not_before = memory_tier_bytes, now + MIN_TRIM_SECONDS
