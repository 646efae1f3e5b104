"""Discounts, gains, powers and decay: the doubles nearest to the true numbers.

A table is indexed by rank; its entry for rank 0 is 0, for candidates that do not count.
"""

from collections.abc import Callable
from decimal import Context, Decimal
from functools import lru_cache
from typing import Final

import numpy as np

from evaluator.core.types.records import FloatArray, IntArray

MAX_GRADE: Final = 31

Table = Callable[[int], FloatArray]
"""From a size to the table of ranks 0 to size - 1."""

_PRECISE = Context(prec=60)
_LN2 = _PRECISE.ln(Decimal(2))
_DECAY = Context(prec=40)  # twice the digits of a double, and more
_SMALLEST: Final = 1024


def entries(table: Table, ranks: IntArray) -> FloatArray:
    """The table's entry for each rank, elementwise, in the memory order of the ranks."""
    found = table(size_for(ranks))
    return found.take(ranks) if ranks.flags.c_contiguous else found.take(ranks.T).T


def size_for(ranks: IntArray) -> int:
    """The size of a table that contains all these ranks, rounded up to one of few sizes."""
    largest = int(ranks.max(initial=0))
    return max(_SMALLEST, 1 << largest.bit_length())


def entry(table: Table, rank: int) -> float:
    """The table's entry for one rank."""
    return float(table(max(_SMALLEST, 1 << rank.bit_length()))[rank])


@lru_cache(maxsize=16)
def discounts(size: int) -> FloatArray:
    """`table[rank]`: the double nearest to 1/log2(rank + 1)."""
    logarithms = [Decimal(0)] * (size + 1)  # of a product the sum: a fifth of the time
    for prime in range(2, size + 1):
        if logarithms[prime]:
            continue
        of_prime, power = _PRECISE.ln(Decimal(prime)), prime
        while power <= size:
            for multiple in range(power, size + 1, power):
                logarithms[multiple] = _PRECISE.add(logarithms[multiple], of_prime)
            power *= prime
    return np.array([0.0, *(float(_PRECISE.divide(_LN2, each)) for each in logarithms[2:])])


def discount(ranks: IntArray) -> FloatArray:
    """1/log2(rank + 1), elementwise, correctly rounded; 0 for rank 0.

    >>> discount(np.array([0, 1, 3]))
    array([0. , 1. , 0.5])
    """
    return entries(discounts, ranks)


@lru_cache(maxsize=16)
def ones(size: int) -> FloatArray:
    """`table[rank]`: 1, to count candidates."""
    table = np.ones(size)
    table[0] = 0.0
    return table


@lru_cache(maxsize=64)
def powers(base: Decimal) -> Table:
    """`table[rank]`: the double nearest to base^(rank - 1)."""

    @lru_cache(maxsize=16)
    def table(size: int) -> FloatArray:
        exact, power = [], Decimal(1)
        for _ in range(1, size):
            exact.append(float(power))
            power = _PRECISE.multiply(power, base)
        return np.array([0.0, *exact])

    return table


_ONE: Final = np.uint32(1)  # to be shifted by at most MAX_GRADE


@lru_cache(maxsize=65_536)
def _fractional_gain(grade: float) -> float:
    """2^grade - 1 = x + x^2/2! + ... with x = grade ln 2: nothing cancels for a small grade."""
    x = _PRECISE.multiply(Decimal(grade), _LN2)
    term, total, n = x, x, 1
    while term > total.scaleb(-50):
        n += 1
        term = _PRECISE.divide(_PRECISE.multiply(term, x), Decimal(n))
        total = _PRECISE.add(total, term)
    return float(total)


def gain(grades: FloatArray) -> FloatArray:
    """2^grade - 1, elementwise, correctly rounded, for grades in 0..MAX_GRADE.

    >>> gain(np.array([0.0, 1.0, 2.0]))
    array([0., 1., 3.])
    """
    whole = grades.astype(np.uint32)
    gains = np.left_shift(_ONE, whole).astype(np.float64)
    gains -= 1.0
    fractional = np.trunc(grades) != grades
    if fractional.any():
        gains[fractional] = [_fractional_gain(grade) for grade in grades[fractional].tolist()]
    return gains


@lru_cache(maxsize=65_536)
def _decay(age_ms: int, half_life_ms: int) -> float:
    whole, rest = divmod(age_ms, half_life_ms)
    if whole > 1_100:  # below the smallest double
        return 0.0
    part = _DECAY.divide(Decimal(-rest), Decimal(half_life_ms))
    factor = _DECAY.exp(_DECAY.multiply(part, _LN2))
    return float(_DECAY.divide(factor, Decimal(1 << whole)))


def decay(ages_ms: IntArray, half_life_ms: int) -> FloatArray:
    """2^-(age / half-life), elementwise, correctly rounded; 1 for an age below 0.

    >>> decay(np.array([-5, 0, 10, 20]), 10)
    array([1.  , 1.  , 0.5 , 0.25])
    """
    distinct, places = np.unique(np.maximum(ages_ms, 0), return_inverse=True)
    factors = np.array([_decay(age, half_life_ms) for age in distinct.tolist()])
    return factors[places].reshape(ages_ms.shape)
