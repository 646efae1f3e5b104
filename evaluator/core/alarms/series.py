"""One watched series: its sums, its reference, and the latched alarm."""

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct, convert
from msgspec.structs import astuple, replace

from evaluator.core.alarms.alarm import Alarm
from evaluator.core.alarms.exclusions import MAX_RANGES, Exclusion, Exclusions
from evaluator.core.alarms.look import Hour, Look, hours_before, look_at
from evaluator.core.alarms.reference import (
    Reference,
    constant_reference,
    fit,
    variance_of,
    weeks_of_reference,
)
from evaluator.core.alarms.rules import (
    CLEAR,
    CONSTANT,
    MIN_CONSTANT_QUERIES,
    MIN_VARIANCE,
    AlarmRules,
    Kind,
)
from evaluator.core.alarms.sums import EMPTY, HourlySums, Sums, total_of
from evaluator.core.alarms.ticks import (
    DAY_HOURS,
    HOUR_MS,
    WEEK_HOURS,
    first_hour_of,
    hour_before,
    week_of,
)

EventName = Literal["on", "off", "acknowledge", "accept", "exclude"]
_MIN_DAYS: Final = 5
_WEEKS_BACK: Final = 8
_LONGEST_HOURS: Final = WEEK_HOURS + DAY_HOURS
_STEPS: Final = 1 << 20


class AlarmEvent(NamedTuple):
    """A change of a series at the end of a tick; without an alarm, *alarm* is None."""

    name: EventName
    time_ms: int
    alarm: Alarm | None


class NothingToDoError(ValueError):
    """An operator command does not fit the state of its series; the message has the reason."""


class _Moved(Struct):
    """An accepted level: the hour from which it holds, and the variance of its estimate."""

    hour: int
    variance: float


class AlarmSeries:
    """Watches one series of settled values.

    Queries of a tick are added in any order, then `tick` closes it; ticks are closed in order.

    Args:
        kind: the kind of reference.
        rules: tolerance and budget.
        constant: of the kind "constant", the lowest accepted mean.
        bounded: the values, or those of which they are differences, are in [0, 1].
    """

    def __init__(
        self, kind: Kind, rules: AlarmRules, *, constant: float = 0.0, bounded: bool = True
    ) -> None:
        self.kind: Kind = kind
        self.hourly = HourlySums()
        self.sums = {"": self.hourly}
        self.exclusions = Exclusions()
        self.reference: Reference | None = None
        self.alarm: Alarm | None = None
        self.looks: list[Look] = []
        self._rules = rules
        self._constant = constant
        self._bounded = bounded
        self._week: int | None = None
        self._moved = _Moved(0, 0.0)
        # Until more than the open tick changes: the hours of the last tick,
        self._past: tuple[int, list[Hour]] | None = None
        # and, by name of the sums, an hour and the total of the week up to it, without itself.
        self._weeks: dict[str, tuple[int, Sums]] = {}

    @property
    def has_past(self) -> bool:
        """Whether it is compared with its own past."""
        return self.kind in {"own", "pair"}

    @property
    def reference_from_ms(self) -> int | None:
        """The Monday from which it is expected to have a reference; None with one, or without need.

        The second Monday after five days or more of the first week with queries.
        """
        days = self.hourly.days() if self.has_past and self.reference is None else []
        if not days:
            return None
        week = week_of(days[0] * DAY_HOURS)
        days_left = first_hour_of(week + 1) // DAY_HOURS - days[0]
        first = week + (2 if days_left >= _MIN_DAYS else 3)
        return first_hour_of(max(first, week_of(days[-1] * DAY_HOURS) + 1)) * HOUR_MS

    @property
    def evidence(self) -> float:
        """Evidence relative to the limit, at the last tick; 0 without a usable window."""
        return max((look.evidence(self._rules.tolerance) for look in self.looks), default=0.0)

    def tick(self, end_ms: int) -> AlarmEvent | None:
        """Closes the tick that ends at *end_ms*; returns the alarm that began or ended."""
        hour = hour_before(end_ms)
        self.hourly.close(hour)
        self.exclusions.expire(hour)
        if self._week != (week := week_of(hour)):
            self._week = week
            if self.alarm is None and self.has_past:
                self._refit(week)
        self.looks = self._looks(hour)
        alarm = self.alarm
        if alarm is None:
            found = [look for look in self.looks if look.is_alarm(self._rules.tolerance)]
            if not found or self.exclusions.forbids(hour):
                return None
            self.alarm = self._latched(end_ms, min(found, key=lambda look: look.change))
            return AlarmEvent("on", end_ms, self.alarm)
        if not self._is_over(alarm, end_ms):
            return None
        self.exclusions.add(alarm.onset_ms // HOUR_MS, hour + 1)
        self.alarm = None
        self._forget()
        return AlarmEvent("off", end_ms, alarm)

    def _is_over(self, alarm: Alarm, end_ms: int) -> bool:
        gone = self._is_gone(hour_before(end_ms))
        return gone or any(_clears(look, alarm, end_ms) for look in self.looks)

    def _is_gone(self, hour: int) -> bool:
        """Whether there was no query for a week, as after a model was removed."""
        week = range(hour, hour - WEEK_HOURS, -1)
        return not any(self.hourly.of(each).queries for each in week)

    # The reference

    def _refit(self, week: int) -> None:
        """Creates a reference from the weeks before *week*, if two can be used.

        Called on the first tick of a week only: one that an alarm prevents is created a week later.
        """
        weeks = {number: self._sums_of(number) for number in range(week - _WEEKS_BACK, week)}
        good = [number for number, sums in weeks.items() if _is_usable(sums)]
        if used := weeks_of_reference(good):
            self.reference = fit({number: weeks[number] for number in used}, self._rules)
            self._forget()
            if first_hour_of(used[0]) >= self._moved.hour:
                self._moved = _Moved(0, 0.0)

    def _sums_of(self, week: int) -> list[Sums]:
        first = first_hour_of(week)
        hours = range(first, first + WEEK_HOURS)
        excluded = self.exclusions.among(hours)
        return [EMPTY if hour in excluded else self.hourly.of(hour) for hour in hours]

    def _reference_at(self, hour: int) -> Reference | None:
        """The reference of looks in *hour*.

        That of a constant has the variance of the 168 hours up to *hour* around their own mean, at
        least MIN_VARIANCE before it is multiplied.
        """
        if self.has_past:
            return self.reference
        variance = self._variance("", hour)
        if variance is None:
            return None
        return constant_reference(self._constant, variance, self._rules)

    def _variance(self, name: str, hour: int) -> float | None:
        """The variance of one query of the week up to *hour*; None if it has too few queries."""
        total = self._week_total(name, hour)
        if total.queries < MIN_CONSTANT_QUERIES:
            return None
        return CONSTANT * max(MIN_VARIANCE, variance_of(total, total.value / total.queries))

    def _week_total(self, name: str, hour: int) -> Sums:
        """The sums of the week up to *hour*."""
        if name not in self._weeks or self._weeks[name][0] != hour:
            before = self._total(name, range(hour - WEEK_HOURS + 1, hour))
            self._weeks[name] = hour, before
        return self._total(name, range(hour, hour + 1)).plus(self._weeks[name][1])

    def _total(self, name: str, hours: range) -> Sums:
        sums, excluded = self.sums[name], self.exclusions.among(hours)
        return total_of(sums.of(each) for each in hours if each not in excluded)

    # Looks and alarms

    def _looks(self, hour: int) -> list[Look]:
        reference = self._reference_at(hour)
        if reference is None:
            return []
        hours, moved = self._last_hours(hour, reference), self._moved.variance
        paired, bounded = self.kind == "pair", self._bounded
        return look_at(hours, reference, self._rules, moved=moved, bounded=bounded, paired=paired)

    def _last_hours(self, hour: int, reference: Reference) -> list[Hour]:
        since = None if self._past is None else hour - self._past[0]
        if self._past is not None and since in (0, 1):
            known = self._past[1][1 - since : _LONGEST_HOURS - since]
            hours = [*self.hours_before(hour, 1, reference), *known]
        else:
            hours = self.hours_before(hour, _LONGEST_HOURS, reference)
        self._past = hour, hours
        return hours

    def _forget(self) -> None:
        self._past = None
        self._weeks = {}

    def hours_before(self, hour: int, n: int, reference: Reference | None = None) -> list[Hour]:
        """The *n* hours that end with *hour*, newest first; [] without a reference."""
        reference = reference or self._reference_at(hour)
        if reference is None:
            return []
        return hours_before(self.hourly, reference, self.exclusions, hour, n)

    def _latched(self, end_ms: int, look: Look) -> Alarm:
        """The alarm of a look: expected is observed plus drop, and the evidence is the largest."""
        drop = -look.change
        onset = self._onset(hour_before(end_ms), look.hours, drop)
        expected = look.observed + drop
        figures = look.hours, drop, look.observed, expected, look.error
        return Alarm(end_ms, onset * HOUR_MS, *figures, self.evidence, look.queries)

    def _onset(self, hour: int, window: int, drop: float) -> int:
        """The hour since which the values are lower: the best of all sums from *hour* back.

        Of equals it is the earliest, so empty hours before the fall belong to it; of two variants
        they do not, as the first one may not have existed.
        """
        best, found, total = float("-inf"), hour, 0.0
        for back, of in enumerate(self.hours_before(hour, WEEK_HOURS + window)):
            if of.queries:
                total += -of.residual - of.queries * drop / 2
            elif self.kind == "variants":
                continue
            if total >= best:
                best, found = total, hour - back
        return found

    # Operator commands

    def acknowledge(self, time_ms: int) -> AlarmEvent:
        """Acknowledges the alarm: it stays on. Raises NothingToDoError."""
        alarm = self._alarm_for("acknowledge")
        self.alarm = alarm._replace(acknowledged=True)
        return AlarmEvent("acknowledge", time_ms, self.alarm)

    def accept(self, time_ms: int) -> AlarmEvent:
        """Ends the alarm: its level since the onset, or of the last week, is the new normal.

        The profile, its mean and all hours before the onset are shifted, in steps of 2^-20, so that
        sums stay exact. The variance is for the whole hours of the level, divided by 24, as days;
        those of several levels add up until the reference lies after the last onset.
        Raises NothingToDoError.
        """
        alarm, hour = self._alarm_for("accept"), hour_before(time_ms)
        if not self.has_past:
            raise NothingToDoError(
                "the series is not compared with its past, so there is no level to accept: change "
                "alarm_objectives, or acknowledge the alarm"
            )
        reference, onset = self.reference, alarm.onset_ms // HOUR_MS
        hours = self.hours_before(hour, min(WEEK_HOURS, hour - onset + 1))
        n = sum(of.queries for of in hours)
        if reference is None or not n:
            raise NothingToDoError("there is no query since the onset: there is no level to accept")
        steps = round(fsum(of.residual for of in hours) / n * _STEPS)
        shift = steps / _STEPS
        profile = tuple(m + shift for m in reference.profile)
        self.reference = replace(reference, profile=profile, mean=reference.mean + shift)
        self.hourly.shift_before(onset, steps)
        estimate = reference.day_spread / (len(hours) / DAY_HOURS) + reference.variance / n
        self._moved = _Moved(onset, self._moved.variance + estimate)
        self.alarm = None
        self._forget()
        return AlarmEvent("accept", time_ms, alarm)

    def exclude(self, time_ms: int, from_ms: int, to_ms: int) -> AlarmEvent:
        """Excludes the hours that contain any time from *from_ms* to before *to_ms*.

        Raises NothingToDoError if too many ranges are excluded.
        """
        if self.exclusions.is_full:
            raise NothingToDoError(
                f"{MAX_RANGES} ranges are excluded, the limit: exclude longer ranges, or wait"
            )
        self.exclusions.add(from_ms // HOUR_MS, -(-to_ms // HOUR_MS), by_operator=True)
        self._forget()
        return AlarmEvent("exclude", time_ms, self.alarm)

    def _alarm_for(self, command: str) -> Alarm:
        if self.alarm is None:
            raise NothingToDoError(f"no alarm is on: there is nothing to {command}")
        return self.alarm

    # State

    def copy(self) -> "AlarmSeries":
        """A series of its own with the same past, as of the last closed tick."""
        made = self._empty()
        made.load(self.state(), self.days())
        return made

    def _empty(self) -> "AlarmSeries":
        constant, bounded = self._constant, self._bounded
        return AlarmSeries(self.kind, self._rules, constant=constant, bounded=bounded)

    def days(self) -> dict[str, dict[str, list[int]]]:
        """The sums of all days, by the name that `changed_days` gives them."""
        return {
            _part(name, day): of.day(day) for name, of in self.sums.items() for day in of.days()
        }

    def changed_days(self) -> dict[str, dict[str, list[int]]]:
        """The sums of the days that changed since the last call; {} for a day without sums."""
        changed = dict[str, dict[str, list[int]]]()
        for name, of in self.sums.items():
            changed |= {_part(name, day): of.day(day) for day in sorted(of.changed_days)}
            of.changed_days.clear()
        return changed

    def state(self) -> dict[str, Any]:
        """Everything but the sums by day, as JSON stores it exactly, as of the last closed tick."""
        return {
            "week": self._week,
            "excluded": [list(of) for of in self.exclusions.ranges],
            "moved": list(astuple(self._moved)),
            "alarm": None if self.alarm is None else list(self.alarm),
            "reference": None if self.reference is None else list(astuple(self.reference)),
            "looks": [list(look) for look in self.looks],
        }

    def load(
        self, state: Mapping[str, Any], days: Mapping[str, Mapping[str, Sequence[int]]]
    ) -> None:
        """Continues from the results of `state` and `days`."""
        self._week = state["week"]
        for name, sums in self.sums.items():
            of_name = [(part.rpartition("-"), hours) for part, hours in days.items()]
            sums.load({int(day): hours for (of, _, day), hours in of_name if of == name})
        self.exclusions = Exclusions(convert(state["excluded"], list[Exclusion]))
        self._forget()
        self._moved = _Moved(*state["moved"])
        self.alarm = convert(state["alarm"], Alarm | None)
        self.reference = convert(state["reference"], Reference | None)
        self.looks = convert(state["looks"], list[Look])


def _part(name: str, day: int) -> str:
    return f"{name}-{day}" if name else str(day)


def _is_usable(sums: Sequence[Sums]) -> bool:
    """Whether five days have queries; the week of the first query may begin before it."""
    days = range(0, WEEK_HOURS, DAY_HOURS)
    used = [any(of.queries for of in sums[day : day + DAY_HOURS]) for day in days]
    return sum(used) >= _MIN_DAYS


def _clears(look: Look, alarm: Alarm, end_ms: int) -> bool:
    is_long = look.hours >= DAY_HOURS and end_ms >= alarm.since_ms + look.hours * HOUR_MS
    return is_long and look.change - CLEAR * look.error >= -alarm.drop / 2
