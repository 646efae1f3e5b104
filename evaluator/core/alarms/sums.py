"""Sums of a series by hour, as integers, so that order and merging change nothing."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from evaluator.core.alarms.ticks import DAY_HOURS, WEEK_HOURS

KEPT_HOURS: Final = 8 * WEEK_HOURS + DAY_HOURS
N_UNITS: Final = 1 << 16
"""Groups of traces by hash; those of one group within one tick are one statistical unit."""
UNITS_PER_ONE: Final = 1 << 40
_SHIFT: Final = 20


class Sums(NamedTuple):
    """Sums over the judged queries of an hour.

    `values` are in units of 2^-40. With v, the sum of a statistical unit in units of 2^-20, and n,
    its number of queries: `squares` is the sum of v^2, `products` of v n, `sizes` of n^2.
    """

    queries: int = 0
    values: int = 0
    squares: int = 0
    products: int = 0
    sizes: int = 0

    def plus(self, other: "Sums") -> "Sums":
        """The sums over both."""
        return Sums(*map(int.__add__, self, other))

    def shifted(self, steps: int) -> "Sums":
        """The sums if each value were higher by *steps* x 2^-20."""
        n, values, squares, products, sizes = self
        return Sums(
            n,
            values + n * (steps << _SHIFT),
            squares + 2 * steps * products + steps * steps * sizes,
            products + steps * sizes,
            sizes,
        )

    @property
    def value(self) -> float:
        """The sum of values."""
        return self.values / UNITS_PER_ONE


EMPTY: Final = Sums()


def unit_of(trace_id: str) -> int:
    """The statistical unit of a trace: the CRC-32 of its id, modulo 2^16."""
    return crc32(trace_id.encode()) % N_UNITS


def total_of(sums: Iterable[Sums]) -> Sums:
    """The sums over all of these."""
    found = [each for each in sums if each.queries]
    return Sums(*map(sum, zip(*found, strict=True))) if found else EMPTY


class HourlySums:
    """The sums of the last 1,368 hours, and the statistical units of the open tick."""

    def __init__(self) -> None:
        self._hours: dict[int, Sums] = {}
        self._open: dict[int, tuple[int, int]] = {}  # queries and value units, by unit
        self.changed_days: set[int] = set()
        """Days whose sums changed since the owner last cleared this; days count from 1970."""

    def add(self, unit: int, value_units: int, queries: int = 1) -> None:
        """Adds queries of the open tick: their value in units of 2^-40, all of one unit."""
        n, values = self._open.get(unit, (0, 0))
        self._open[unit] = n + queries, values + value_units

    def add_closed(self, hour: int, sums: Sums) -> None:
        """Adds the sums of a closed tick, which is in *hour*."""
        self._hours[hour] = self.of(hour).plus(sums)
        self.changed_days.add(hour // DAY_HOURS)

    def close(self, hour: int) -> None:
        """Closes the open tick, which is in *hour*, and deletes hours that are too old."""
        if self._open:
            units = [(n, v, v >> _SHIFT) for n, v in self._open.values()]
            closed = Sums(
                sum(n for n, _, _ in units),
                sum(values for _, values, _ in units),
                sum(v * v for _, _, v in units),
                sum(v * n for n, _, v in units),
                sum(n * n for n, _, _ in units),
            )
            self.add_closed(hour, closed)
            self._open = {}
        for old in [each for each in self._hours if each <= hour - KEPT_HOURS]:
            del self._hours[old]
            self.changed_days.add(old // DAY_HOURS)

    def of(self, hour: int) -> Sums:
        """The sums of an hour, without the open tick."""
        return self._hours.get(hour, EMPTY)

    @property
    def is_empty(self) -> bool:
        """Whether no hour that is kept has queries."""
        return not self._hours and not self._open

    def shift_before(self, hour: int, steps: int) -> None:
        """Raises the values of all hours before *hour* by *steps* x 2^-20."""
        for each, sums in self._hours.items():
            if each < hour:
                self._hours[each] = sums.shifted(steps)
                self.changed_days.add(each // DAY_HOURS)

    def day(self, number: int) -> dict[str, list[int]]:
        """The hours of a day that have queries, as JSON stores them; days count from 1970."""
        first = number * DAY_HOURS
        hours = range(first, first + DAY_HOURS)
        return {str(hour - first): list(self.of(hour)) for hour in hours if hour in self._hours}

    def days(self) -> list[int]:
        """The days that have queries, in order."""
        return sorted({hour // DAY_HOURS for hour in self._hours})

    def load(self, days: Mapping[int, Mapping[str, Sequence[int]]]) -> None:
        """Loads what `day` returned, by day; the open tick is empty."""
        self._hours = {
            day * DAY_HOURS + int(hour): Sums(*sums)
            for day, hours in days.items()
            for hour, sums in hours.items()
        }
        self._open = {}
        self.changed_days.clear()
