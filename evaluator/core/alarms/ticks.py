"""Ticks, hours and weeks of event time, in UTC; weeks begin on Monday, 00:00."""

from typing import Final

TICK_MS: Final = 900_000
HOUR_MS: Final = 3_600_000
DAY_HOURS: Final = 24
WEEK_HOURS: Final = 168
_FIRST_MONDAY: Final = 96
"""The hour with which the first Monday of 1970 began."""


def tick_end_of(time_ms: int) -> int:
    """The end of the tick that contains a time, in milliseconds."""
    return time_ms - time_ms % TICK_MS + TICK_MS


def hour_before(end_ms: int) -> int:
    """The hour that contains the last millisecond before *end_ms*."""
    return (end_ms - 1) // HOUR_MS


def week_of(hour: int) -> int:
    """The number of the week that contains an hour."""
    return (hour - _FIRST_MONDAY) // WEEK_HOURS


def hour_of_week(hour: int) -> int:
    """0 for the first hour of a Monday to 167 for the last one of a Sunday."""
    return (hour - _FIRST_MONDAY) % WEEK_HOURS


def first_hour_of(week: int) -> int:
    """The first hour of a week."""
    return week * WEEK_HOURS + _FIRST_MONDAY
