"""Alarms on the settled queries of all tasks, in one order: a function of the logs only.

Queries are summed by task and tick, for the series that are declared for them. A tick is added
and closed once no query of it can follow.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import sqrt
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from evaluator.core.alarms.alarm import Alarm
from evaluator.core.alarms.look import Look
from evaluator.core.alarms.series import AlarmSeries, EventName, NothingToDoError
from evaluator.core.alarms.sums import KEPT_HOURS, HourlySums, UnitSums
from evaluator.core.alarms.ticks import DAY_HOURS, HOUR_MS, TICK_MS
from evaluator.core.alarms.variants import OTHER, VariantsSeries
from evaluator.core.online.carriers import carried_by, context_of
from evaluator.core.online.ordered_merge import TaskProgress
from evaluator.core.online.tick_merge import TickMerge
from evaluator.core.online.views import MAX_NAMED, AlarmsView, AlarmView
from evaluator.core.online.watched import COVERAGE, AlarmCommand, SeriesName, WatchRules
from evaluator.core.online.watched_queries import Labels, WatchedQueries
from evaluator.core.types.records import WatermarkRecord

MAX_LEFT_OUT: Final = 1_000
"""Series beyond the limit that are counted."""
MAX_COMMANDS: Final = 1_000
FORMAT: Final = 1


class SeriesEvent(NamedTuple):
    """A change of a series. *unverifiable*: the reason why its values may not be comparable."""

    name: EventName
    series: SeriesName
    time_ms: int
    alarm: Alarm | None
    unverifiable: str = ""


class WatchResult(Struct):
    """Changes of closed ticks: events in the order (time, series), and executed commands."""

    events: list[SeriesEvent] = field(default_factory=list)
    commands: list[AlarmCommand] = field(default_factory=list)
    n_ticks: int = 0


class AlarmWatch:
    """Watches the declared series of all models and variants.

    Args:
        rules: the watched series.
        n_tasks: how many partitions `settled` has.
    """

    def __init__(self, rules: WatchRules, *, n_tasks: int) -> None:
        self._rules = rules
        self._templates = rules.templates()
        self._n_tasks = n_tasks
        self.series: dict[SeriesName, AlarmSeries] = {}
        self._of_query: dict[tuple[str, str, int], HourlySums] = {}
        self._begun: dict[SeriesName, AlarmSeries] = {}  # of variants, with the next tick
        self._left_out: dict[SeriesName, None] = {}
        self.tick_end_ms: int | None = None
        """End of the last closed tick, where the open one starts; None before the first query."""
        self._from_ms = 0  # queries before it are not counted
        self.at_tick: tuple[dict[int, TaskProgress], dict[int, int]] = ({}, {})
        """Progress and positions of all tasks when the last tick was closed."""
        self.merge = TickMerge(n_tasks, {}, rules)
        self._commands: dict[str, AlarmCommand] = {}
        self._executed: dict[str, None] = {}
        self._excluded: list[AlarmCommand] = []  # series that are created later have them too

    @property
    def n_left_out(self) -> int:
        """Series beyond `alarm_max_series`, at most MAX_LEFT_OUT."""
        return len(self._left_out)

    # Queries and ticks

    def receive(
        self, task: int, records: Iterable[WatchedQueries | WatermarkRecord], result: WatchResult
    ) -> None:
        """Adds the next records of a task; *result* gets the changes of closed ticks.

        If records are missing, or it counts from 0 again, its queries count from the next whole
        hour.
        """
        for record in records:
            if isinstance(record, WatermarkRecord):
                self.merge.watermark(task, record)
                continue
            left: WatchedQueries | None = record
            while left is not None and (left := self.merge.add(task, left)) is not None:
                self.begin_again(task)
        for tick_ms, labels, sums in self.merge.take():
            if tick_ms >= max(self.tick_end_ms or 0, self._from_ms):
                self.add_tick(tick_ms, labels, sums, result)
        self.close_until(self.merge.certain_ms - self._rules.maturity_ms, result)

    def close_until(self, time_ms: int, result: WatchResult) -> None:
        """Closes the ticks that end at *time_ms* or before."""
        while self.close_next(time_ms, result):
            pass

    def close_next(self, time_ms: int, result: WatchResult) -> bool:
        """Closes the open tick, if it ends at *time_ms* or before; returns whether it has."""
        if self.tick_end_ms is None or self.tick_end_ms + TICK_MS > time_ms:
            return False
        end_ms = self.tick_end_ms + TICK_MS
        last_ms = time_ms - time_ms % TICK_MS
        if last_ms - end_ms > (KEPT_HOURS + 2) * HOUR_MS and self._is_idle:
            end_ms = last_ms - KEPT_HOURS * HOUR_MS  # nothing can change in between
        self._tick(end_ms, result)
        self.tick_end_ms = end_ms
        self.merge.close(end_ms)
        self.at_tick = dict(self.merge.taken), dict(self.merge.positions)
        return True

    def new_series(self, name: SeriesName) -> AlarmSeries:
        """A series without queries."""
        bounded = name.measure not in self._rules.unbounded
        if name.kind == "variants":
            return VariantsSeries(self._rules.alarms, bounded=bounded)
        constant = dict(self._rules.objectives).get(name.measure, 0.0)
        return AlarmSeries(name.kind, self._rules.alarms, constant=constant, bounded=bounded)

    @property
    def _is_idle(self) -> bool:
        """Whether ticks without queries change nothing: alarms have ended long before."""
        sums = (each for of in self.series.values() for each in of.sums.values())
        return not self._commands and all(each.is_empty for each in sums)

    def begin_again(self, task: int) -> None:
        """Begins a task with its next record; all queries count from the next whole hour."""
        open_ms = self.merge.first_tick_ms if self.tick_end_ms is None else self.tick_end_ms
        self.merge.begin_again(task)
        if open_ms is not None:
            self._from_ms = -(-open_ms // HOUR_MS) * HOUR_MS + HOUR_MS

    def begin_all_again(self) -> None:
        """Begins all tasks with their next record."""
        for task in range(self._n_tasks):
            self.begin_again(task)
        self.merge = TickMerge(self._n_tasks, {}, self._rules)
        self.at_tick = {}, {}

    def end(self, result: WatchResult) -> None:
        """Closes the open tick: the input has ended."""
        if self.tick_end_ms is not None:
            self.close_until(self.tick_end_ms + TICK_MS, result)

    def add_tick(self, time_ms: int, labels: Labels, sums: UnitSums, result: WatchResult) -> None:
        """Adds sums of a later tick, or of the open one. Closes the ticks before."""
        self.close_until(time_ms, result)
        if self.tick_end_ms is None:
            self.tick_end_ms = time_ms - time_ms % TICK_MS
        if (found := self._sums_of(*labels)) is not None:
            found.open.add_all(sums)

    def _sums_of(self, model: str, variant: str, place: int) -> HourlySums | None:
        """The sums of queries for a template, by its place; makes its series if there is room.

        A series of two variants begins with the tick after the first query of its first variant, so
        that the order of queries within a tick changes nothing.
        """
        if (known := self._of_query.get((model, variant, place))) is not None:
            return known
        template = self._templates[place]
        name, is_second = template.name(model, variant), variant in template.variants[1:]
        series = self.series.get(name)
        if series is None and name not in self._begun and not is_second:
            series = self._created(name)
            if series is not None and template.variants:
                self._begun[name] = series
            elif series is not None:
                self._insert({name: series})
        if series is None or name in self._begun:
            return None
        sums = self._of_query[model, variant, place] = series.sums[OTHER if is_second else ""]
        return sums

    def _created(self, name: SeriesName) -> AlarmSeries | None:
        """A new series, if there is room."""
        if len(self.series) + len(self._begun) >= self._rules.alarms.max_series:
            if len(self._left_out) < MAX_LEFT_OUT:
                self._left_out[name] = None
            return None
        made = self.new_series(name)
        for of in self._excluded:
            if of.is_for(name):
                made.exclude(of.applied_ms, of.from_ms, of.to_ms)
        return made

    def _insert(self, series: Mapping[SeriesName, AlarmSeries]) -> None:
        self.series = dict(sorted([*self.series.items(), *series.items()], key=itemgetter(0)))

    def _tick(self, end_ms: int, result: WatchResult) -> None:
        result.n_ticks += 1
        events = list[SeriesEvent]()
        changed = [(name, series.tick(end_ms)) for name, series in self.series.items()]
        for name, event in changed:  # once all series have closed the tick
            if event is not None:
                alarm = event.alarm
                if event.name == "on" and alarm is not None:
                    carried = carried_by(name, alarm, self.series, self._rules)
                    context = context_of(name, alarm, self.series, self._rules)
                    alarm = alarm._replace(carried_by=carried, context=context)
                    self.series[name].alarm = alarm
                unverifiable = self._unverifiable(name)
                events.append(SeriesEvent(event.name, name, end_ms, alarm, unverifiable))
        if self._begun:  # commands of this tick are for them too
            self._insert(self._begun)
            self._begun = {}
        due = [of for of in self._commands.values() if of.applied_ms <= end_ms]
        for command in due:
            del self._commands[command.id]
            self._executed[command.id] = None
            events += self._execute(command, end_ms)
            result.commands.append(command._replace(applied_ms=end_ms))
            if command.action == "exclude" and command.to_ms > end_ms - KEPT_HOURS * HOUR_MS:
                self._excluded = [*self._excluded, result.commands[-1]][-MAX_COMMANDS:]
        result.events += sorted(events, key=attrgetter("series"))  # of one series in their order
        for old in list(self._executed)[:-MAX_COMMANDS]:
            del self._executed[old]

    # Operator commands

    def command(self, command: AlarmCommand) -> None:
        """Executes a command at the end of the open tick, or at its own tick if that is later.

        A command that was executed before, or that exceeds the limit, is ignored.
        """
        if command.id not in self._executed and len(self._commands) < MAX_COMMANDS:
            self._commands[command.id] = command

    def _execute(self, command: AlarmCommand, end_ms: int) -> Iterator[SeriesEvent]:
        for name, series in self.series.items():
            if not command.is_for(name):
                continue
            try:
                if command.action == "exclude":
                    event = series.exclude(end_ms, command.from_ms, command.to_ms)
                else:
                    event = getattr(series, command.action)(end_ms)
            except NothingToDoError:
                continue
            yield SeriesEvent(event.name, name, end_ms, event.alarm)

    # Explanations

    def _unverifiable(self, name: SeriesName) -> str:
        """The reason why values may not be comparable: the coverage has an alarm."""
        both = {"-".join(variants): variants for variants in self._rules.variants}
        variants = both.get(name.variant, ()) if name.kind == "variants" else (name.variant,)
        shares = [SeriesName(name.model, of, "", COVERAGE, "", "", "own") for of in variants]
        found = [self.series.get(share) for share in shares if share != name]
        return COVERAGE if any(of is not None and of.alarm is not None for of in found) else ""

    def view(self) -> AlarmsView:
        """All series as of the last closed tick."""
        views = tuple(
            AlarmView(
                name,
                of.evidence,
                of.alarm,
                () if of.reference is None else of.reference.weeks,
                self._unverifiable(name),
                len(of.looks),
                of.reference_from_ms,
                () if of.reference is None else tuple(map(sqrt, of.reference.spreads)),
                _day_of(of.looks),
            )
            for name, of in self.series.items()
        )
        left_out = tuple(islice(self._left_out, MAX_NAMED))
        return AlarmsView(views, self.n_left_out, self.tick_end_ms, left_out)

    # State

    def state(self) -> dict[str, Any]:
        """Everything as of the last closed tick but the series, as JSON stores it."""
        taken, positions = self.at_tick
        return {
            "format": FORMAT,
            "tick_end_ms": self.tick_end_ms,
            "from_ms": self._from_ms,
            "taken": {str(task): list(of) for task, of in sorted(taken.items())},
            "positions": {str(task): at for task, at in sorted(positions.items())},
            "executed": list(self._executed),
            "excluded": [list(of) for of in self._excluded],
            "left_out": [list(name) for name in self._left_out],
        }

    def load(self, state: Mapping[str, Any], series: Mapping[SeriesName, AlarmSeries]) -> None:
        """Continues from `state` and the loaded series."""
        self.tick_end_ms, self._from_ms = state["tick_end_ms"], state["from_ms"]
        taken = {int(task): TaskProgress(*of) for task, of in state["taken"].items()}
        self._executed = dict.fromkeys(state["executed"])
        self._excluded = [AlarmCommand(*of) for of in state["excluded"]]
        self._left_out = {SeriesName(*name): None for name in state["left_out"]}
        self.merge = TickMerge(self._n_tasks, taken, self._rules)
        self.merge.positions = {int(task): at for task, at in state["positions"].items()}
        self.at_tick = dict(taken), dict(self.merge.positions)
        self.series = dict(sorted(series.items(), key=itemgetter(0)))
        self._of_query = {}


def _day_of(looks: Sequence[Look]) -> tuple[float, float, float] | None:
    of_day = [look for look in looks if look.hours == DAY_HOURS]
    return next(((of.observed, of.observed - of.change, of.error) for of in of_day), None)
