"""Rules of alarms: tolerance, false-alarm budget, and the constants of the method."""

from functools import cached_property
from statistics import NormalDist
from typing import Final, Literal

from msgspec import Struct

from evaluator.core.alarms.ticks import DAY_HOURS

Kind = Literal["own", "constant", "pair", "variants"]
"""The reference: the past of the series, a constant, the past of differences of two rankers, or the
same hours of another variant."""

WINDOWS: Final = (1, 6, 24, 168)
"""Lengths of the windows, in hours."""
CORRECTED: Final = (1, 6)
"""Windows from which the change of the day before is subtracted."""
MAX_STANDARD_ERROR: Final = 0.06
MAX_VARIANCE_OF_MEAN: Final = MAX_STANDARD_ERROR * MAX_STANDARD_ERROR
CLEAR: Final = 2.0
LEAST_UNITS: Final = 3
"""A drop of values in [0, 1] is as large as if so many statistical units of mean size had lost all
of the usual value: where nearly all values are 1, one or two low ones are chance."""
MOST_BETTER: Final = 2.0
"""A day that was better by more spreads of a day is an exception, whose end is no fall."""
CONSTANT: Final = 1.2
CAUTION: Final = NormalDist().inv_cdf(0.9)
MIN_VARIANCE: Final = 1e-4
MIN_CONSTANT_QUERIES: Final = 100
_LOOKS: Final = 3
_FLOOR_SHARE: Final = 0.3


class AlarmRules(Struct, frozen=True, dict=True):
    """The rules of all series.

    Args:
        tolerance: the smallest drop that is an alarm, in units of the measure; above 0.
        budget_days: at most one false alarm in this time, over all series together.
        max_series: the number of series that share the budget.
    """

    tolerance: float = 0.01
    budget_days: int = 30
    max_series: int = 20

    @property
    def least_spread(self) -> float:
        """The square of the natural spread that is assumed even if none was seen."""
        return (_FLOOR_SHARE * self.tolerance) * (_FLOOR_SHARE * self.tolerance)

    @cached_property
    def thresholds(self) -> dict[int, float]:
        """By window: standard errors below the reference that are an alarm, to 4 digits."""
        looks = 4 * self.max_series * _LOOKS * DAY_HOURS * self.budget_days
        return {hours: round(-NormalDist().inv_cdf(hours / looks), 4) for hours in WINDOWS}
