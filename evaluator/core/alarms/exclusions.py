"""Hours that neither windows nor references use."""

from collections.abc import Iterable
from typing import NamedTuple

from evaluator.core.alarms.sums import KEPT_HOURS


class Exclusion(NamedTuple):
    """Hours from *first* to before *end*. Within those of an operator no alarm begins."""

    first: int
    end: int
    by_operator: bool


class Exclusions:
    """All excluded hours; a container of hours."""

    def __init__(self, ranges: Iterable[Exclusion] = ()) -> None:
        self.ranges = list(ranges)

    def __contains__(self, hour: object) -> bool:
        return isinstance(hour, int) and any(of.first <= hour < of.end for of in self.ranges)

    def add(self, first: int, end: int, *, by_operator: bool = False) -> None:
        """Excludes the hours from *first* to before *end*."""
        self.ranges.append(Exclusion(first, end, by_operator))

    def forbids(self, hour: int) -> bool:
        """Whether no alarm begins in an hour."""
        return any(of.by_operator and of.first <= hour < of.end for of in self.ranges)

    def expire(self, hour: int) -> None:
        """Deletes ranges that end before all hours that are kept."""
        if self.ranges:
            self.ranges = [of for of in self.ranges if of.end > hour - KEPT_HOURS]
