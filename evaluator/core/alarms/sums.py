"""Sums of a series by hour, as integers, so that order and merging change nothing."""

from collections.abc import Iterable, Mapping, Sequence
from operator import mul
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluator.core.alarms.ticks import DAY_HOURS, WEEK_HOURS
from evaluator.core.measures import UNITS_PER_ONE

KEPT_HOURS: Final = 8 * WEEK_HOURS + DAY_HOURS
N_UNITS: Final = 1 << 16
"""Groups of traces by hash; those of one group within one tick are one statistical unit."""
_SHIFT: Final = 20
_TOO_LARGE: Final = 1 << 63
_FEW: Final = 64
"""Up to this number, integers are added faster one by one."""
_MAX_PART_UNITS: Final = 2 * N_UNITS
"""From this number on, units that occur more than once are summed."""


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
_NONE: Final = (0, 0)


def units_of(trace_ids: Iterable[str]) -> NDArray[np.int64]:
    """The statistical unit of each trace: the CRC-32 of its id, modulo 2^16."""
    return np.array([crc32(trace_id.encode()) for trace_id in trace_ids], np.int64) % N_UNITS


def total_of(sums: Iterable[Sums]) -> Sums:
    """The sums over all of these."""
    found = [each for each in sums if each.queries]
    return Sums(*map(sum, zip(*found, strict=True))) if found else EMPTY


def exact(values: NDArray[Any]) -> NDArray[Any]:
    """The same integers, as objects without a bound if sums of them may exceed 64 bits."""
    return values if _largest(values) * len(values) < _TOO_LARGE else values.astype(object)


def integers(values: Sequence[int]) -> NDArray[Any]:
    """Integers of 64 bits, or objects if one of them has more."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array(values, object)


def _largest(values: NDArray[Any]) -> int:
    """The largest absolute value; objects may have any."""
    return _TOO_LARGE if values.dtype == object else int(np.abs(values).max(initial=0))


class UnitSums:
    """Queries and their values in units of 2^-40, by statistical unit."""

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, units: ArrayLike, queries: ArrayLike, values: ArrayLike) -> None:
        """Adds queries and the sums of their values, of some units: each once, in order."""
        part = np.asarray(units), np.asarray(queries), np.asarray(values)
        self._parts.append(part)
        self._size += len(part[0])
        if self._size > _MAX_PART_UNITS:
            self._parts = [self.total()]
            self._size = len(self._parts[0][0])

    def add_all(self, other: "UnitSums") -> None:
        """Adds the sums of another object."""
        for part in other._parts:
            self.add(*part)

    def total(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Units in order, each once; their queries, and the sums of their values."""
        if len(self._parts) == 1:
            return self._parts[0]
        units, queries, values = map(np.concatenate, zip(*self._parts, strict=True))
        order = np.argsort(units, kind="stable")
        units = units[order]
        first = np.flatnonzero(np.append(True, units[1:] != units[:-1]))
        n, sums = (np.add.reduceat(of[order], first) for of in (queries, exact(values)))
        return units[first], n, sums

    def squared(self) -> "Sums":
        """The sums over all queries."""
        if self._size > _FEW:
            _, n, values = self.total()
            v = values >> _SHIFT
            products = _product(v, v), _product(v, n), _product(n, n)
            return Sums(sum(n.tolist()), sum(values.tolist()), *products)
        found: dict[int, tuple[int, int]] = {}
        for part in self._parts:
            for unit, n, value in zip(*(of.tolist() for of in part), strict=True):
                n_before, before = found.get(unit, _NONE)
                found[unit] = n_before + n, before + value
        pairs = [(n, value, value >> _SHIFT) for n, value in found.values()]
        return Sums(
            sum([n for n, _, _ in pairs]),
            sum([value for _, value, _ in pairs]),
            sum([v * v for _, _, v in pairs]),
            sum([v * n for n, _, v in pairs]),
            sum([n * n for n, _, _ in pairs]),
        )


def _product(first: NDArray[Any], second: NDArray[Any]) -> int:
    """The exact sum of the products of integers."""
    if len(first) > _FEW and _largest(first) * _largest(second) * len(first) < _TOO_LARGE:
        return int(first @ second)
    return sum(map(mul, first.tolist(), second.tolist()))


class HourlySums:
    """The sums of the last 1,368 hours, and the statistical units of the open tick."""

    def __init__(self) -> None:
        self._hours: dict[int, Sums] = {}
        self._first: int | None = None  # the first of them
        self.open = UnitSums()
        """The queries of the open tick."""
        self.changed_days: set[int] = set()
        """Days whose sums changed since the owner last cleared this; days count from 1970."""

    def add_closed(self, hour: int, sums: Sums) -> None:
        """Adds the sums of a closed tick, which is in *hour*."""
        self._hours[hour] = self.of(hour).plus(sums)
        if self._first is None or hour < self._first:
            self._first = hour
        self.changed_days.add(hour // DAY_HOURS)

    def close(self, hour: int) -> None:
        """Closes the open tick, which is in *hour*, and deletes hours that are too old."""
        if self.open:
            self.add_closed(hour, self.open.squared())
            self.open = UnitSums()
        if self._first is not None and self._first <= hour - KEPT_HOURS:
            for old in [each for each in self._hours if each <= hour - KEPT_HOURS]:
                del self._hours[old]
                self.changed_days.add(old // DAY_HOURS)
            self._first = min(self._hours, default=None)

    def of(self, hour: int) -> Sums:
        """The sums of an hour, without the open tick."""
        return self._hours.get(hour, EMPTY)

    @property
    def is_empty(self) -> bool:
        """Whether no hour that is kept has queries."""
        return not self._hours and not self.open

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
        """Loads results of `day`, by day; the open tick is empty."""
        self._hours = {
            day * DAY_HOURS + int(hour): Sums(*sums)
            for day, hours in days.items()
            for hour, sums in hours.items()
        }
        self._first = min(self._hours, default=None)
        self.open = UnitSums()
        self.changed_days.clear()
