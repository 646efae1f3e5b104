"""Small series: the same queries in each hour, in one tick, each with a trace of its own."""

from copy import deepcopy
from functools import cache

from evaluator.core.alarms.rules import AlarmRules
from evaluator.core.alarms.series import AlarmSeries
from evaluator.core.alarms.ticks import HOUR_MS, first_hour_of, week_of

ONE = 1 << 40
HALF_STEP = ONE >> 21
FIRST_WEEK = week_of(489_792)
FIRST = first_hour_of(FIRST_WEEK)


def add(sums, value, n):
    """Adds *n* queries to the open tick; half of them are 0.1 higher."""
    values = [round((value + (0.05 if number % 2 else -0.05)) * ONE) for number in range(n)]
    sums.open.add(range(n), [1] * n, values)


def feed(series, hours, value_of, n=100):
    """Adds *n* queries of a value to each hour; returns the events. Half of them are 0.1 higher."""
    events = []
    for hour in hours:
        value = value_of(hour) if callable(value_of) else value_of
        if value is not None:
            add(series.hourly, value, n)
        event = series.tick((hour + 1) * HOUR_MS)
        if event is not None:
            events.append(event)
    return events


def watched(weeks=3, value=0.5, kind="own", rules=None, **more):
    """A series after this many equal weeks, and the first hour after them."""
    end = FIRST + 168 * weeks
    if not callable(value) and rules is None and not more:
        return deepcopy(_after_equal_weeks(end, value, kind)), end
    series = AlarmSeries(kind, rules or AlarmRules(max_series=1), **more)
    assert not feed(series, range(FIRST, end), value)
    return series, end


@cache
def _after_equal_weeks(end, value, kind):
    series = AlarmSeries(kind, AlarmRules(max_series=1))
    assert not feed(series, range(FIRST, end), value)
    return series
