"""Alarms on the settled queries of a replay: the events that a leader publishes.

The queries of a task come in the order of event time, so the sums of its ticks are sorted instead
of its queries: the order within a tick changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from evaluator.core.alarms.sums import unit_of
from evaluator.core.alarms.ticks import TICK_MS
from evaluator.core.measures import MeasureSet
from evaluator.core.online.alarm_watch import AlarmWatch, WatchResult
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.online.watched import AlarmCommand, WatchRules
from evaluator.replay.results import ResultDirectory, SortKey
from evaluator.wire.alarms.records import command_record, event_record
from evaluator.wire.outputs.settled import WatchedReader
from evaluator.wire.records import OutputRecord

ALARMS: Final = "alarms.ndjson"
ALARM_COMMANDS: Final = "alarm-commands.ndjson"

_Sums = tuple[SortKey, dict[int, list[int]]]
"""Place of the first query, and (queries, value units) by unit."""
_decode = msgspec.json.Decoder(tuple[str, str, list[tuple[int, int, int]]]).decode


class TickSums:
    """Sums of the open tick of one task, by model, variant and template."""

    def __init__(self, rules: WatchRules) -> None:
        self._templates = rules.templates()
        self._tick_ms = -1
        self._sums: dict[tuple[str, str, int], _Sums] = {}

    def add(self, query: SettledQuery) -> Iterator[tuple[SortKey, bytes]]:
        """Adds the next query of the task; returns the rows of the tick that it ends."""
        tick_ms = query.event_time_ms - query.event_time_ms % TICK_MS
        if tick_ms > self._tick_ms:
            yield from self.end()
            self._tick_ms = tick_ms
        unit = unit_of(query.trace_id)
        for place, template in enumerate(self._templates):
            if (units := template.units(query)) is None:
                continue
            labels = query.model, query.variant, place
            found = self._sums.get(labels)
            if found is None:
                found = self._sums[labels] = query.place, {}
            of_unit = found[1].setdefault(unit, [0, 0])
            of_unit[0] += 1
            of_unit[1] += units

    def end(self) -> Iterator[tuple[SortKey, bytes]]:
        """The rows of the open tick, which ends."""
        for (model, variant, place), (first, units) in self._sums.items():
            listed = [[unit, *of] for unit, of in units.items()]
            yield (self._tick_ms, *first, place), msgspec.json.encode([model, variant, listed])
        self._sums = {}


def sort_tick_rows(results: ResultDirectory, rows: Iterable[tuple[SortKey, bytes]]) -> None:
    """Stores rows of `TickSums` for `tick_rows`."""
    results.sort(ALARMS, list(rows))


def tick_rows(
    results: ResultDirectory,
) -> Iterator[tuple[int, tuple[str, str, int], list[tuple[int, int, int]]]]:
    """The sums of all tasks in order, once: start of the tick, labels, and sums by unit."""
    for key, value in results.sorted_rows(ALARMS):
        tick_ms, place = key[0], key[-1]
        if not isinstance(tick_ms, int) or not isinstance(place, int):
            raise TypeError(f"{key} is no place of a tick")
        model, variant, units = _decode(value)
        yield tick_ms, (model, variant, place), units


class AlarmReplay:
    """Watches the settled queries of all tasks, and the commands that a leader has executed.

    Args:
        rules: what is watched.
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
        self._read = WatchedReader(rules.watched(measures))
        self._commands = commands
        self._tick = TickSums(rules)
        self._watermarks_ms: list[int] = []
        self._executed: list[AlarmCommand] = []
        self.settings = dict(settings or {})

    def collect(self, results: ResultDirectory, settled: Sequence[OutputRecord]) -> None:
        """Adds the next records of one task."""
        for record in settled:
            query = self._read(record.value)
            if isinstance(query, SettledQuery):
                self.add(results, query)

    def add(self, results: ResultDirectory, query: SettledQuery) -> None:
        """Adds the next query of one task."""
        sort_tick_rows(results, self._tick.add(query))

    def end_task(self, results: ResultDirectory, watermark_ms: int | None) -> None:
        """Ends a task; queries that settle at *watermark_ms* or later may be incomplete."""
        sort_tick_rows(results, self._tick.end())
        self._tick = TickSums(self._rules)
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
