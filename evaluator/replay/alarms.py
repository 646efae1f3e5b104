"""Alarms on the settled queries of a replay: the events that a leader publishes.

The queries of a task come in the order of event time, so the sums of its ticks are sorted instead
of its queries: the order within a tick changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import numpy as np

from evaluator.core.alarms.sums import UnitSums, integers
from evaluator.core.alarms.ticks import TICK_MS
from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.measures import MeasureSet
from evaluator.core.online.alarm_watch import AlarmWatch, WatchResult
from evaluator.core.online.watched import AlarmCommand, WatchRules
from evaluator.core.online.watched_queries import Labels, TickSums, WatchedQueries
from evaluator.replay.results import ResultDirectory, SortKey
from evaluator.wire.alarms.records import command_record, event_record
from evaluator.wire.outputs.settled import WatchedReader
from evaluator.wire.records import OutputRecord

ALARMS: Final = "alarms.ndjson"
ALARM_COMMANDS: Final = "alarm-commands.ndjson"

_decode = msgspec.json.Decoder(tuple[str, str, list[int], list[int], list[int]]).decode


def sort_ticks(
    results: ResultDirectory, sums: TickSums, queries: WatchedQueries | None = None
) -> None:
    """Adds the next queries of a task; stores the sums of ticks before the last for `tick_rows`.

    Without queries the task has ended.
    """
    until_ms = None
    if queries is not None:
        sums.add(queries)
        until_ms = int(queries.event_times_ms[-1])
    rows = list[tuple[SortKey, bytes]]()
    for tick_ms, first, (model, variant, place), units in sums.pop(until_ms):
        columns = (column.tolist() for column in units.total())
        rows.append(((tick_ms, *first, place), msgspec.json.encode([model, variant, *columns])))
    results.sort(ALARMS, rows)


def tick_rows(results: ResultDirectory) -> Iterator[tuple[int, Labels, UnitSums]]:
    """The sums of all tasks in order, once: start of the tick, labels, and sums by unit."""
    for key, value in results.sorted_rows(ALARMS):
        tick_ms, *_, place = cast("tuple[int, ...]", key)
        model, variant, *columns = _decode(value)
        sums = UnitSums()
        sums.add(*map(integers, columns))
        yield tick_ms, (model, variant, place), sums


class AlarmReplay:
    """Watches the settled queries of all tasks, and the commands that a leader has executed.

    Args:
        rules: the watched series.
        measures: of the settled queries.
        commands: each names the tick at which it is executed.
        settings: those that the events depend on, for the manifest.
    """

    def __init__(
        self,
        rules: WatchRules,
        measures: MeasureSet,
        commands: Sequence[AlarmCommand] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._rules = rules
        self._read = WatchedReader(rules.watched(measures), rules.columns())
        self._commands = commands
        self._sums = TickSums(rules)
        self._watermarks_ms: list[int] = []
        self._executed: list[AlarmCommand] = []
        self.settings = dict(settings or {})

    def collect(self, results: ResultDirectory, settled: Sequence[OutputRecord]) -> None:
        """Adds the next records of one task."""
        values = ByteStrings.of([record.value for record in settled])
        found, refused = self._read(values, np.arange(len(values)))
        for _, error in refused:
            raise error
        for queries in found:
            if isinstance(queries, WatchedQueries):
                self.add(results, queries)

    def add(self, results: ResultDirectory, queries: WatchedQueries) -> None:
        """Adds the next queries of one task."""
        sort_ticks(results, self._sums, queries)

    def end_task(self, results: ResultDirectory, watermark_ms: int | None) -> None:
        """Ends a task; queries that settle at *watermark_ms* or later may be incomplete."""
        sort_ticks(results, self._sums)
        self._watermarks_ms.append(-1 if watermark_ms is None else watermark_ms)

    def lines(self, results: ResultDirectory, *, ends: bool) -> Iterator[bytes]:
        """The events; with *ends*, the last tick is closed too.

        Otherwise only ticks are closed of which every task is beyond.
        """
        watch = AlarmWatch(self._rules, n_tasks=len(self._watermarks_ms))
        for command in self._commands:
            watch.command(command)
        until_ms = min(self._watermarks_ms, default=-1) - self._rules.maturity_ms
        for tick_ms, labels, units in tick_rows(results):
            if ends or tick_ms + TICK_MS <= until_ms:
                result = WatchResult()
                watch.add_tick(tick_ms, labels, units, result)
                yield from self._written(result)
        result = WatchResult()
        if ends:
            watch.end(result)
        else:
            watch.close_until(until_ms, result)
        yield from self._written(result)

    def _written(self, result: WatchResult) -> Iterator[bytes]:
        self._executed += result.commands
        for event in result.events:
            yield event_record(event).value

    def command_lines(self) -> Iterator[bytes]:
        """The commands that were executed, after `lines`."""
        for command in self._executed:
            yield command_record(command).value
