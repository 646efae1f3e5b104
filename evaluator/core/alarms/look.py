"""Looks: the windows that end with a tick, compared with the reference."""

from collections.abc import Container, Sequence
from math import fsum, sqrt
from operator import mul
from typing import Final, NamedTuple

from evaluator.core.alarms.reference import Reference
from evaluator.core.alarms.rules import (
    LEAST_UNITS,
    MAX_VARIANCE_OF_MEAN,
    MOST_BETTER,
    WINDOWS,
    AlarmRules,
)
from evaluator.core.alarms.sums import HourlySums
from evaluator.core.alarms.ticks import DAY_HOURS, hour_of_week

SPREAD_PARTS: Final = 6
"""A window needs its queries spread over a sixth of its hours or more."""


class Look(NamedTuple):
    """One window: its length, its change against the reference, and the part of chance."""

    hours: int
    change: float
    error: float  # standard error of the change
    threshold: float
    observed: float
    queries: int

    def is_alarm(self, tolerance: float) -> bool:
        """Whether the window is lower than chance and the tolerance explain.

        The change is divided by its error; a product may differ in the last bit.
        """
        return self.change / self.error < -self.threshold and self.change <= -tolerance

    def evidence(self, tolerance: float) -> float:
        """Evidence relative to the limit of an alarm, which is 1."""
        return min(-self.change / self.error / self.threshold, -self.change / tolerance)


class Hour(NamedTuple):
    """An hour as windows see it: without queries if it is excluded.

    `sizes` are those of `Sums`. If its expectation is the mean of other queries, *share* is its
    queries divided by those.
    """

    queries: int
    values: int  # in units of 2^-40
    residual: float
    excluded: bool
    sizes: int = 0
    share: float = 0.0


def hours_before(
    hourly: HourlySums, reference: Reference, left_out: Container[int], last: int, n: int
) -> list[Hour]:
    """The *n* hours that end with the hour *last*, newest first; those of *left_out* are empty."""
    found = []
    for hour in range(last, last - n, -1):
        sums = hourly.of(hour)
        if hour in left_out or not sums.queries:
            found.append(Hour(0, 0, 0.0, hour in left_out))
            continue
        expected = sums.queries * reference.profile[hour_of_week(hour)]
        residual = sums.value - expected
        found.append(Hour(sums.queries, sums.values, residual, False, sums.sizes))
    return found


def hours_beside(
    first: HourlySums, second: HourlySums, left_out: Container[int], last: int, n: int
) -> list[Hour]:
    """The hours of *first* as `hours_before`; the mean of *second* in the same hour is expected.

    Hours that only one of both has are empty.
    """
    found = []
    for hour in range(last, last - n, -1):
        one, other = first.of(hour), second.of(hour)
        if hour in left_out or not one.queries or not other.queries:
            found.append(Hour(0, 0, 0.0, hour in left_out))
            continue
        share = one.queries / other.queries
        residual = one.value - share * other.value
        found.append(Hour(one.queries, one.values, residual, False, one.sizes, share))
    return found


def _is_sparse(queries: Sequence[int], excluded: Sequence[bool]) -> bool:
    """Whether too many hours are excluded, or too few have most of the queries."""
    n, squares = sum(queries), sum(map(mul, queries, queries))
    is_excluded = 2 * excluded.count(True) > len(queries)
    return is_excluded or SPREAD_PARTS * n * n < squares * len(queries)


def look_at(
    hours: Sequence[Hour],
    reference: Reference,
    rules: AlarmRules,
    *,
    moved: float = 0.0,
    ratio: float = 0.0,
    bounded: bool = True,
    paired: bool = False,
) -> list[Look]:
    """The windows that can be used.

    The observed mean is the exact sum divided once, not a sum of rounded hours.

    Args:
        hours: the last 192 hours or more, newest first.
        reference: the values expected in them.
        rules: the thresholds.
        moved: variance of an accepted level.
        ratio: variance of one of the other queries whose mean is expected, by that of one query.
        bounded: the values are in [0, 1], so that the skewness of their mean is known.
        paired: they are differences of such values, so that one query can lose 1.
    """
    if not hours:
        return []
    looks = []
    queries, values, residuals, excluded, sizes, shares = zip(*hours, strict=True)
    for place, length in enumerate(WINDOWS):
        n = sum(queries[:length])
        if not n or _is_sparse(queries[:length], excluded[:length]):
            continue
        chance = reference.variance / n
        if ratio and not reference.weeks:  # the expectation of past weeks does not vary
            pairs = zip(shares[:length], queries, strict=False)
            chance *= 1 + fsum([ratio * share * of for share, of in pairs]) / n
        if chance > MAX_VARIANCE_OF_MEAN:
            continue
        change = fsum(residuals[:length]) / n
        if reference.betas[place]:
            day = slice(length, length + DAY_HOURS)
            before = _mean(queries[day], residuals[day], excluded[day])
            before = min(before, MOST_BETTER * sqrt(reference.day_spread))
            change -= reference.betas[place] * before
        error = sqrt(chance + reference.spreads[place] + moved)
        threshold = rules.thresholds[length]
        if bounded:
            threshold += 0.0 if paired else _skew(threshold, reference, n, error)
            usual = 1.0 if paired else reference.mean
            lost = LEAST_UNITS * usual * sum(sizes[:length]) / (n * n)
            threshold = max(threshold, lost / error)
        observed = sum(values[:length]) / (n << 40)
        looks.append(Look(length, change, error, threshold, observed, n))
    return looks


def _mean(queries: Sequence[int], residuals: Sequence[float], excluded: Sequence[bool]) -> float:
    n = sum(queries)
    return 0.0 if not n or _is_sparse(queries, excluded) else fsum(residuals) / n


def _skew(z: float, reference: Reference, n: int, error: float) -> float:
    """Additional standard errors: means of values close to 1 have a longer lower tail."""
    mean, chance = reference.mean, reference.variance / n
    variance = max(mean * (1 - mean), 1e-3)
    share = sqrt(chance) / error
    skewness = max(0.0, 2 * mean - 1) / sqrt(variance) * sqrt(chance / variance) * share**3
    return (z * z - 1) * skewness / 6
