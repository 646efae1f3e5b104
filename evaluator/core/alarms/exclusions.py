"""Hours that neither windows nor references use."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from evaluator.core.alarms.sums import KEPT_HOURS

MAX_RANGES: Final = 1_000
"""Ranges of hours of an operator that are kept at once."""


class Exclusion(NamedTuple):
    """Hours from *first* to before *end*. Within those of an operator no alarm begins.

    Those of an ended alarm are excluded too, and a new alarm may begin in the last of them.
    """

    first: int
    end: int
    by_operator: bool


class Exclusions:
    """All excluded hours; a container of hours."""

    def __init__(self, ranges: Iterable[Exclusion] = ()) -> None:
        self.ranges = list(ranges)

    def __contains__(self, hour: object) -> bool:
        return isinstance(hour, int) and any(of.first <= hour < of.end for of in self.ranges)

    def among(self, hours: range) -> set[int]:
        """Those of consecutive hours that are excluded; there is one hour or more."""
        first, end = hours[0], hours[-1] + 1
        found = (range(max(first, of.first), min(end, of.end)) for of in self.ranges)
        return {hour for of in found for hour in of}

    def add(self, first: int, end: int, *, by_operator: bool = False) -> None:
        """Excludes the hours from *first* to before *end*."""
        self.ranges.append(Exclusion(first, end, by_operator))

    @property
    def is_full(self) -> bool:
        """Whether an operator has excluded as many ranges as are kept at once."""
        return sum(of.by_operator for of in self.ranges) >= MAX_RANGES

    def forbids(self, hour: int) -> bool:
        """Whether no alarm may begin in an hour, of whichever window."""
        return any(of.by_operator and of.first <= hour < of.end for of in self.ranges)

    def expire(self, hour: int) -> None:
        """Deletes ranges that end before all hours that are kept."""
        if self.ranges:
            self.ranges = [of for of in self.ranges if of.end > hour - KEPT_HOURS]
