"""Settled queries in columns, as far as alarms need them, and their sums by tick."""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.core.alarms.sums import N_UNITS, UnitSums, exact, integers, units_of
from evaluator.core.alarms.ticks import TICK_MS
from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.columns.table import Groups
from evaluator.core.event_time.clock import MAX_TIMESTAMP_MS
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.online.watched import Template, WatchRules
from evaluator.core.types.records import IntArray

_NOTHING: Final[Mapping[str, int]] = {}
_MEMBERS: Final = attrgetter(
    *("task", "n", "settled_time_ms", "event_time_ms", "trace_id", "node_id", "model", "variant"),
    *("segments", "grades", "silent"),
)


class Label(NamedTuple):
    """The labels that determine the series of a query."""

    model: str
    variant: str
    segments: Mapping[str, str]


class WatchedQueries(NamedTuple):
    """Consecutive settled queries; the columns are parallel.

    A query is judged if it has grades other than silence. `trace_units` are the statistical units
    of the traces. `units` are values in units of 2^-40, `[n, n_columns]` of `WatchRules.columns`,
    and `has_value` marks those that exist.
    """

    tasks: IntArray
    ns: IntArray
    settled_times_ms: IntArray
    event_times_ms: IntArray
    offsets: IntArray
    trace_ids: ByteStrings
    """In UTF-8, as `node_ids`."""
    node_ids: ByteStrings
    trace_units: IntArray
    labels: DictionaryColumn
    """Each a `Label`."""
    is_judged: NDArray[np.bool_]
    units: IntArray
    has_value: NDArray[np.bool_]

    @classmethod
    def of(
        cls, rows: Sequence[Any], offsets: IntArray, units: IntArray, has_value: NDArray[np.bool_]
    ) -> "WatchedQueries":
        """Objects with the members of `SettledQuery`, at least one, and their values."""
        columns = list(zip(*map(_MEMBERS, rows), strict=True))
        tasks, ns, event_ms = (np.array(columns[at], np.int64) for at in (0, 1, 3))
        settled_ms = np.minimum(integers(columns[2]), MAX_TIMESTAMP_MS).astype(np.int64)
        traces, nodes, *labels, grades, silent = columns[4:]
        judged = [bool(of) and not quiet for of, quiet in zip(grades, silent, strict=True)]
        trace_ids, node_ids = (
            ByteStrings.of([each.encode() for each in of]) for of in (traces, nodes)
        )
        named = DictionaryColumn.of(list(map(Label._make, zip(*labels, strict=True))))
        return cls(
            *(tasks, ns, settled_ms, event_ms, offsets, trace_ids, node_ids),
            *(units_of(traces), named, np.array(judged), units, has_value),
        )

    @classmethod
    def of_settled(
        cls, queries: Sequence[SettledQuery], columns: Sequence[tuple[str, str]]
    ) -> "WatchedQueries":
        """The same of settled queries, with the values of rankers and measures."""
        found = [
            [query.units.get(ranker, _NOTHING).get(measure) for ranker, measure in columns]
            for query in queries
        ]
        shape = len(queries), len(columns)
        units = np.array([[value or 0 for value in of] for of in found], np.int64).reshape(shape)
        has_value = np.array([[value is not None for value in of] for of in found], bool)
        offsets = np.array([query.offset for query in queries], np.int64)
        return cls.of(queries, offsets, units, has_value.reshape(shape))

    def rows(self, chosen: slice) -> "WatchedQueries":
        """Some of these queries."""
        return WatchedQueries._make(column[chosen] for column in self)

    @property
    def ticks_ms(self) -> IntArray:
        """The start of the tick of each query."""
        return self.event_times_ms - self.event_times_ms % TICK_MS


Labels = tuple[str, str, int]
"""Model, variant, and place of a template."""
Place = tuple[int, str, str]


class _TickOf(NamedTuple):
    """The sums of a tick for some labels, and the place of the first query in the order."""

    first: Place
    sums: UnitSums


class TickSums:
    """Sums of the queries of one task, by tick and labels.

    The order of the queries within a tick changes nothing but the first place.
    """

    def __init__(self, rules: WatchRules) -> None:
        self._templates = rules.templates()
        self._columns = {column: place for place, column in enumerate(rules.columns())}
        self._segments = tuple(dict.fromkeys(of.segment for of in self._templates if of.segment))
        self._ticks: dict[int, dict[Labels, _TickOf]] = {}

    @property
    def first_ms(self) -> int | None:
        """The start of the first tick with sums."""
        return min(self._ticks, default=None)

    def add(self, queries: WatchedQueries) -> None:
        """Adds the next queries of the task."""
        names, groups = self._groups(queries)
        ticks_ms, ticks = np.unique(queries.ticks_ms, return_inverse=True)
        numbers = (ticks * len(names) + groups) * N_UNITS + queries.trace_units
        cells = Groups.of(numbers)  # the queries of each tick, group and unit
        places, units_of_cell = np.divmod(cells.each(numbers), N_UNITS)
        heads = Groups.of(places).firsts
        rows = np.arange(len(numbers))[cells.order]
        starts = cells.firsts[heads]
        head_ticks, head_groups = (of.tolist() for of in np.divmod(places[heads], len(names)))
        levels = [dict(zip(self._segments, name[2:], strict=True)) for name in names]
        for number, template in enumerate(self._templates):
            is_for = [template.is_for(n[1], of) for n, of in zip(names, levels, strict=True)]
            if not any(is_for):
                continue
            units, has_value = self._values(template, queries)
            is_of = has_value & np.array(is_for)[groups]
            n_of_cell = cells.sums(is_of.astype(np.int64))
            chosen = np.flatnonzero(n_of_cell)
            sums = cells.sums(exact(np.where(is_of, units, 0)))
            columns = [column[chosen] for column in (units_of_cell, n_of_cell, sums)]
            ends = [*np.searchsorted(chosen, heads).tolist(), len(chosen)]
            first_rows = np.minimum.reduceat(np.where(is_of[rows], rows, len(rows)), starts)
            for head in np.argsort(first_rows, kind="stable").tolist():  # first queries first
                tick, group = head_ticks[head], head_groups[head]
                part = slice(ends[head], ends[head + 1])
                if part.start == part.stop:
                    continue
                found = self._ticks.setdefault(int(ticks_ms[tick]), {})
                labels = *names[group][:2], number
                if labels not in found:
                    place = _place(queries, int(first_rows[head]))
                    found[labels] = _TickOf(place, UnitSums())
                found[labels].sums.add(*[column[part] for column in columns])

    def _groups(self, queries: WatchedQueries) -> tuple[list[tuple[Any, ...]], IntArray]:
        """Model, variant and levels that occur, and their number for each query."""
        labels = queries.labels.compact()
        keys = [
            (label.model, label.variant, *map(label.segments.get, self._segments))
            for label in labels.names
        ]
        known = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return list(known), np.array([known[key] for key in keys])[labels.numbers]

    def _values(
        self, template: Template, queries: WatchedQueries
    ) -> tuple[IntArray, NDArray[np.bool_]]:
        """The values for a template in units of 2^-40, and of which queries there are any."""
        if not template.rankers:
            return queries.is_judged * UNITS_PER_ONE, np.ones(len(queries.ns), bool)
        columns = [self._columns[ranker, template.measure] for ranker in template.rankers]
        units = queries.units[:, columns]
        is_of = np.logical_and.reduce(queries.has_value[:, columns], axis=1)
        if template.kind == "pair":
            return units[:, 0] - units[:, 1], is_of
        return units[:, 0], is_of

    def pop(self, until_ms: int | None = None) -> Iterator[tuple[int, Place, Labels, UnitSums]]:
        """Removes the ticks that end at *until_ms* or before; their starts and sums."""
        for tick_ms in sorted(self._ticks):
            if until_ms is None or tick_ms + TICK_MS <= until_ms:
                for labels, of in self._ticks.pop(tick_ms).items():
                    yield tick_ms, of.first, labels, of.sums


def _place(queries: WatchedQueries, row: int) -> Place:
    at = int(queries.settled_times_ms[row])
    trace_id, node_id = (
        (ids[row] or b"").decode() for ids in (queries.trace_ids, queries.node_ids)
    )
    return at, trace_id, node_id
