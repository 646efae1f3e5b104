"""Exponential and logarithm that give the same bits on every machine, and sums in a fixed order.

NumPy's own `exp` and `log` choose their instructions by the processor, so their last bit may differ
from machine to machine, and with it every weight learned after. These are made of operations that
IEEE 754 rounds correctly (+ - * / and shifts of the exponent), one after the other.
"""

from typing import Final

import numpy as np

from evaluator.core.types import FloatArray

_LN2_HIGH: Final = float.fromhex("0x1.62e42fee00000p-1")
"""The first 33 bits of ln 2, so that its product with a small integer is exact."""
_LN2_LOW: Final = float.fromhex("0x1.a39ef35793c76p-33")
_PER_LN2: Final = float.fromhex("0x1.71547652b82fep+0")
_FACTORIALS: Final = (1, 1, 2, 6, 24, 120, 720, 5040, 40320, 362880, 3628800, 39916800, 479001600)
_SERIES: Final = tuple(1 / factorial for factorial in _FACTORIALS)
_MOST: Final = 709.782712893384
"""Beyond, the exponential is no finite double."""
_LEAST: Final = -745.2
"""Below, it is nearer to 0 than to any other double."""
_FEW_CELLS: Final = 2_000
_ODD: Final = tuple(2 / n for n in range(1, 36, 2))


def exp(x: FloatArray) -> FloatArray:
    """e^x, elementwise, within three units in the last place; infinite where it overflows.

    Source: Cody and Waite 1980: x = k ln 2 + r with |r| <= ln 2 / 2, then the series of e^r.

    >>> exp(np.array([0.0, 1.0, -1000.0, 1000.0]))
    array([1.        , 2.71828183, 0.        ,        inf])
    """
    bounded = np.minimum(np.maximum(x, _LEAST), _MOST + 1.0)
    k = np.rint(bounded * _PER_LN2)
    r = bounded - k * _LN2_HIGH
    r -= k * _LN2_LOW
    total = np.full(x.shape, _SERIES[-1])
    for coefficient in reversed(_SERIES[:-1]):
        total *= r
        total += coefficient
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        powers: FloatArray = np.ldexp(total, k.astype(np.int64))
    return powers


def log(x: FloatArray) -> FloatArray:
    """The natural logarithm of normal positive numbers, elementwise.

    >>> log(np.array([1.0, 8.0]))
    array([0.        , 2.07944154])
    """
    fraction, exponent = np.frexp(x)
    low = fraction < 0.7071067811865476
    fraction = np.where(low, fraction * 2.0, fraction)
    k = exponent - low
    whole: FloatArray = k * _LN2_LOW + _twice_artanh((fraction - 1.0) / (fraction + 1.0), 12)
    return whole + k * _LN2_HIGH


def softplus(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln(1 + e^x) and its slope 1/(1 + e^-x), elementwise.

    Neither overflows nor rounds a small value to 0. Both need the same exponential.

    >>> softplus(np.array([0.0, -800.0, 800.0]))
    (array([6.93147181e-01, 0.00000000e+00, 8.00000000e+02]), array([0.5, 0. , 1. ]))
    """
    small = exp(-np.abs(x))
    slopes: FloatArray = np.where(x >= 0, 1.0, small) / (1.0 + small)
    values = _twice_artanh(small / (2.0 + small), len(_ODD))
    values += np.maximum(x, 0.0)
    return values, slopes


def _twice_artanh(z: FloatArray, n_terms: int) -> FloatArray:
    """2 artanh(z) = ln((1 + z)/(1 - z)) by the first terms of its series, for |z| <= 1/3."""
    square = z * z
    total = np.full(z.shape, _ODD[n_terms - 1])
    for coefficient in reversed(_ODD[: n_terms - 1]):
        total *= square
        total += coefficient
    total *= z
    return total


def column_sum(terms: FloatArray) -> FloatArray:
    """The sum along the last axis, from its first column on: no pairwise sum, no dot product.

    So a list's sum does not depend on the lists beside it, nor on columns of zeros behind it.
    """
    if terms.size <= _FEW_CELLS and terms.shape[-1]:  # one call is quicker than one per column
        running: FloatArray = np.add.accumulate(terms, axis=-1)[..., -1]
        return running + 0.0  # as if it had begun at 0.0: no sum is -0.0
    total: FloatArray = np.zeros(terms.shape[:-1])
    for column in range(terms.shape[-1]):
        total += terms[..., column]
    return total
