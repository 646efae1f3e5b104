"""The reference of a series: the profile of past weeks, and how much windows varied around it.

A week is 168 sums, by hour of the week. All sums of floats are `math.fsum`, and every formula has a
fixed order of operations, so that any implementation has the same bits.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import fsum, sqrt
from typing import Final, NamedTuple

from msgspec import Struct

from evaluator.core.alarms.rules import (
    CAUTION,
    CORRECTED,
    MAX_VARIANCE_OF_MEAN,
    MIN_VARIANCE,
    WINDOWS,
    AlarmRules,
)
from evaluator.core.alarms.sums import Sums, total_of
from evaluator.core.alarms.ticks import DAY_HOURS, WEEK_HOURS

Week = Sequence[Sums]
WEEK_DAYS: Final = 7
_MOST_CORRELATION: Final = 0.95
_UNITS: Final = 1 << 20


class Reference(Struct, frozen=True, array_like=True):
    """The expected values of a series.

    Args:
        profile: expected value by hour of the week, `[168]`.
        mean: of the reference.
        variance: of one query, correlation within traces included.
        betas, spreads: by window: the share of the change of the day before that is subtracted,
            and the variance of the window's mean without chance.
        weeks: numbers of its weeks.
    """

    profile: tuple[float, ...]
    mean: float
    variance: float
    betas: tuple[float, ...]
    spreads: tuple[float, ...]
    weeks: tuple[int, ...]

    @property
    def day_spread(self) -> float:
        """The spread of windows of one day."""
        return self.spreads[WINDOWS.index(DAY_HOURS)]


def constant_reference(constant: float, variance: float, rules: AlarmRules) -> Reference:
    """The reference of an objective."""
    spreads = (rules.least_spread,) * len(WINDOWS)
    return Reference((constant,) * WEEK_HOURS, constant, variance, (0.0,) * 4, spreads, ())


def weeks_of_reference(good: Sequence[int]) -> Sequence[int]:
    """The usable weeks that are taken, oldest first; [] if there are fewer than two."""
    if len(good) < 2:
        return []
    n_used = min(4, max(2, len(good) - 1))
    lag = min(3, len(good) - n_used)
    return good[len(good) - lag - n_used : len(good) - lag]


def variance_of(total: Sums, mean: float) -> float:
    """The variance of one query around *mean*, correlation within traces included.

    Its three terms are added from left to right: `math.fsum` is for sums over hours and windows.
    """
    squares, products = total.squares / (_UNITS * _UNITS), total.products / _UNITS
    return (squares - 2 * mean * products + mean * mean * total.sizes) / total.queries


def fit(weeks: Mapping[int, Week], rules: AlarmRules) -> Reference:
    """The reference from two or more weeks with queries, by number, oldest first."""
    listed = list(weeks.values())
    columns = [columns_of(week) for week in listed]
    profile, mean = profile_of(columns)
    total = total_of(sums for week in listed for sums in week)
    variance = max(MIN_VARIANCE, variance_of(total, mean))
    residuals: list[float] = []
    for place, (counts, values) in enumerate(columns):
        others, _ = profile_of([*columns[:place], *columns[place + 1 :]])
        triples = zip(values, counts, others, strict=True)
        residuals += [value - n * m for value, n, m in triples]
    counts = [n for week in columns for n in week.counts]
    betas, spreads = _spreads(residuals, counts, variance, rules)
    return Reference(tuple(profile), mean, variance, betas, spreads, tuple(weeks))


class WeekColumns(NamedTuple):
    """Queries, and the sum of their values, by hour of a week."""

    counts: list[int]
    values: list[float]


def columns_of(week: Week) -> WeekColumns:
    """The columns of a week."""
    return WeekColumns([sums.queries for sums in week], [sums.value for sums in week])


def profile_of(weeks: Sequence[WeekColumns]) -> tuple[list[float], float]:
    """The expected value by hour of the week, and the mean, of one or more weeks.

    The sum of mean, day of the week and hour of the day, and of the rest as much as even and odd
    weeks agree on.
    """
    parts = _parts_of(weeks, None)
    if len(weeks) == 1:
        return parts.additive, parts.mean
    even, odd = (_parts_of(weeks[first::2], parts.mean).rest for first in (0, 1))
    covariance = fsum(e * o for e, o in zip(even, odd, strict=True))
    power = fsum((e * e + o * o) / 2 for e, o in zip(even, odd, strict=True))
    b = min(1.0, max(0.0, covariance / max(power, 1e-12)))
    share = 2 * b / (1 + b)
    pairs = zip(parts.additive, parts.rest, strict=True)
    return [a + share * rest for a, rest in pairs], parts.mean


class _Parts(NamedTuple):
    mean: float
    additive: list[float]  # mean, day and hour, by hour of the week
    rest: list[float]


def _parts_of(weeks: Sequence[WeekColumns], mean: float | None) -> _Parts:
    """Mean (or *mean*), effects of days and hours, and the rest of each cell."""
    counts = [sum(cell) for cell in zip(*(week.counts for week in weeks), strict=True)]
    values = [fsum(cell) for cell in zip(*(week.values for week in weeks), strict=True)]
    mu = fsum(values) / sum(counts) if mean is None else mean
    residuals = [value - n * mu for value, n in zip(values, counts, strict=True)]
    hours = range(WEEK_HOURS)
    by_day = [
        _mean(residuals, counts, slice(DAY_HOURS * day, DAY_HOURS * (day + 1)))
        for day in range(WEEK_DAYS)
    ]
    residuals = [residuals[i] - counts[i] * by_day[i // DAY_HOURS] for i in hours]
    by_hour = [
        _mean(residuals, counts, slice(hour, WEEK_HOURS, DAY_HOURS)) for hour in range(DAY_HOURS)
    ]
    additive = [mu + by_day[i // DAY_HOURS] + by_hour[i % DAY_HOURS] for i in hours]
    rest = [values[i] / counts[i] - additive[i] if counts[i] else 0.0 for i in hours]
    return _Parts(mu, additive, rest)


def _mean(residuals: Sequence[float], counts: Sequence[int], cells: slice) -> float:
    n = sum(counts[cells])
    return fsum(residuals[cells]) / n if n else 0.0


class _Spread(NamedTuple):
    beta: float
    excess: float
    error: float
    changes: list[float]


def _spreads(
    residuals: Sequence[float], counts: Sequence[int], variance: float, rules: AlarmRules
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Betas and spreads by window, of residuals by hour, weeks laid end to end."""
    shorter = [_spread(hours, residuals, counts, variance, rules) for hours in WINDOWS[:-1]]
    days = len(counts) // DAY_HOURS
    ninth = 2 / (9 * days)
    factor = (1 - ninth - CAUTION * sqrt(ninth)) ** -3
    spreads = [
        max(max(of.excess, 0.0) * factor + CAUTION * of.error, rules.least_spread) for of in shorter
    ]
    day = shorter[-1]
    neighbours = [one * next_one for one, next_one in pairwise(day.changes)]
    level = max(day.excess, day.error, 1e-12)
    correlation = fsum(neighbours) / len(neighbours) / level
    rho = min(0.95, max(0.0, correlation)) + CAUTION / sqrt(days)
    rho = min(_MOST_CORRELATION, rho)
    week = spreads[-1] * _of_mean(rho, WEEK_DAYS) + spreads[-1] * _of_mean(rho, days)
    spreads.append(week + variance / sum(counts))
    return (*(of.beta for of in shorter), 0.0), tuple(spreads)


def _spread(
    hours: int,
    residuals: Sequence[float],
    counts: Sequence[int],
    variance: float,
    rules: AlarmRules,
) -> _Spread:
    """Disjoint windows of *hours* hours from hour 24 on, each with the 24 hours before it.

    Weights are by `** -2`, not a quotient; if no window can be used, all are 0, and so is the
    excess.
    """
    changes, before, noise, weights = [], [], [], []
    for first in range(DAY_HOURS, len(counts) - hours + 1, hours):
        n = sum(counts[first : first + hours])
        changes.append(fsum(residuals[first : first + hours]) / n if n else 0.0)
        n_before = sum(counts[first - DAY_HOURS : first])
        day_before = fsum(residuals[first - DAY_HOURS : first])
        before.append(day_before / n_before if n_before else 0.0)
        noise.append(variance / max(n, 1))
        usable = n > 0 and noise[-1] <= MAX_VARIANCE_OF_MEAN
        weights.append((noise[-1] + rules.tolerance * rules.tolerance) ** -2 if usable else 0.0)
    total = fsum(weights)
    weights = [weight / total if total else 0.0 for weight in weights]
    beta = 0.0
    if hours in CORRECTED:
        both = fsum(p * d * b for p, d, b in zip(weights, changes, before, strict=True))
        power = fsum(p * b * b for p, b in zip(weights, before, strict=True))
        beta = min(1.0, max(0.0, both / power)) if power else 0.0
    left = [d - beta * b for d, b in zip(changes, before, strict=True)]
    columns = list(zip(weights, left, noise, strict=True))
    excess = fsum(p * (c * c - v) for p, c, v in columns)
    error = sqrt(2 / len(weights)) * fsum(p * v for p, _, v in columns)
    return _Spread(beta, excess, error, changes)


def _of_mean(rho: float, n: int) -> float:
    """The variance of the mean of *n* correlated days, of one day's variance."""
    return fsum([n, *(2 * (n - i) * rho**i for i in range(1, n))]) / (n * n)
