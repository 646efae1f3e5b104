"""Two variants of a model: the first is expected to have the means of the second, hour by hour."""

from typing import Final

from msgspec.structs import replace

from evaluator.core.alarms.look import Hour, Look, hours_beside, look_at
from evaluator.core.alarms.reference import Reference, constant_reference
from evaluator.core.alarms.rules import AlarmRules
from evaluator.core.alarms.series import AlarmEvent, AlarmSeries
from evaluator.core.alarms.sums import HourlySums
from evaluator.core.alarms.ticks import DAY_HOURS, WEEK_HOURS, hour_before

OTHER: Final = "other"
"""The name of the sums of the second variant."""


class VariantsSeries(AlarmSeries):
    """Watches the difference of two variants, from their first hour on.

    Each hour of the first variant is compared with the mean of the second in the same hour, so a
    changing share of the queries, or a level that changes by hour, is not a difference. `hourly`
    has the sums of the first variant. The alarm also ends when one of them has had no query for a
    day.
    """

    def __init__(self, rules: AlarmRules, *, bounded: bool = True) -> None:
        super().__init__("variants", rules, bounded=bounded)
        self.other = HourlySums()
        self._ratio = 1.0  # variance of the second variant by that of the first, at the last look
        self.sums[OTHER] = self.other

    def _empty(self) -> "VariantsSeries":
        return VariantsSeries(self._rules, bounded=self._bounded)

    def tick(self, end_ms: int) -> AlarmEvent | None:
        """As in `AlarmSeries`, for both variants."""
        self.other.close(hour_before(end_ms))
        return super().tick(end_ms)

    def _is_gone(self, hour: int) -> bool:
        """Whether one of both had no query for a day."""
        day = range(hour, hour - DAY_HOURS, -1)
        both = self.hourly, self.other
        return any(not any(of.of(each).queries for each in day) for of in both)

    def _reference_at(self, hour: int) -> Reference | None:
        """The variance is that of a query of the first variant, the mean that of the second."""
        variance, of_other = (self._variance(name, hour) for name in ("", OTHER))
        if variance is None or of_other is None:
            return None
        self._ratio = of_other / variance
        usual = self._week_total(OTHER, hour)
        reference = constant_reference(0.0, variance, self._rules)
        return replace(reference, mean=usual.value / usual.queries)

    def _looks(self, hour: int) -> list[Look]:
        """The observed figure is the difference, and 0 is expected.

        Windows begin with the first variant at the earliest, or with the last week.
        """
        reference = self._reference_at(hour)
        if reference is None:
            return []
        hours = self._last_hours(hour, reference)[:WEEK_HOURS]
        while hours and not hours[-1].queries:
            del hours[-1]
        looks = look_at(hours, reference, self._rules, ratio=self._ratio, bounded=self._bounded)
        return [look._replace(observed=look.change) for look in looks]

    def hours_before(self, hour: int, n: int, reference: Reference | None = None) -> list[Hour]:
        """As in `AlarmSeries`; the expectation of an hour is the mean of the second variant."""
        if reference is None and self._reference_at(hour) is None:
            return []
        return hours_beside(self.hourly, self.other, self.exclusions, hour, n)
