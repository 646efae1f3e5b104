"""Functions that give the same bits on every machine: exp, log, scores, and sums in a fixed order.

The last bit of NumPy's `exp` and `log` depends on the processor, and with it all later weights.
These use only operations that IEEE 754 rounds correctly (+ - * / and shifts of the exponent), by
NumPy, or for a few numbers by Python.
"""

from collections.abc import Sequence
from math import frexp
from typing import Final

import numpy as np

from evaluator.core.measures.lists import FEW_CELLS, ZERO
from evaluator.core.types.records import FloatArray

_LN2_HIGH: Final = float.fromhex("0x1.62e42fee00000p-1")
"""The first 33 bits of ln 2, so that its product with a small integer is exact."""
_LN2_LOW: Final = float.fromhex("0x1.a39ef35793c76p-33")
_PER_LN2: Final = float.fromhex("0x1.71547652b82fep+0")
_FACTORIALS: Final = (1, 1, 2, 6, 24, 120, 720, 5040, 40320, 362880, 3628800, 39916800, 479001600)
_SERIES: Final = tuple(np.array(1 / factorial) for factorial in _FACTORIALS)
"""Arrays: making an array of a number takes half of the time of a call on a few numbers."""
_MOST: Final = 709.782712893384
"""The exponential of a larger number overflows."""
_LEAST: Final = -745.2
"""The exponential of a smaller number is 0."""
_BOUNDS: Final = (np.array(_LEAST), np.array(_MOST + 1.0))
_ROOT_HALF: Final = 0.7071067811865476
_FEW_LOGARITHMS: Final = 8
_ODD: Final = tuple(2 / n for n in range(1, 36, 2))
_ODD_ARRAYS: Final = tuple(map(np.array, _ODD))
_LOG_TERMS: Final = 12


def exp(x: FloatArray) -> FloatArray:
    """e^x, elementwise, within three units in the last place; infinite where it overflows.

    Source: Cody and Waite 1980: x = k ln 2 + r with |r| <= ln 2 / 2, then the series of e^r.

    >>> exp(np.array([0.0, 1.0, -1000.0, 1000.0]))
    array([1.        , 2.71828183, 0.        ,        inf])
    """
    least, most = _BOUNDS
    bounded = np.maximum(x, least)
    np.minimum(bounded, most, out=bounded)
    k = bounded * _PER_LN2
    np.rint(k, out=k)
    r = bounded - k * _LN2_HIGH
    r -= k * _LN2_LOW
    total = r * _SERIES[-1]
    for coefficient in _SERIES[-2:0:-1]:
        total += coefficient
        total *= r
    total += _SERIES[0]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        powers: FloatArray = np.ldexp(total, k.astype(np.int64))
    return powers


def log(x: FloatArray) -> FloatArray:
    """The natural logarithm of normal positive numbers, elementwise.

    >>> log(np.array([1.0, 8.0]))
    array([0.        , 2.07944154])
    """
    if x.size <= _FEW_LOGARITHMS:
        return np.array([_log_of_one(each) for each in x.reshape(-1).tolist()]).reshape(x.shape)
    fraction, exponent = np.frexp(x)
    low = fraction < _ROOT_HALF
    fraction = np.where(low, fraction * 2.0, fraction)
    k = exponent - low
    z = (fraction - 1.0) / (fraction + 1.0)
    whole: FloatArray = k * _LN2_LOW + _twice_artanh(z, _LOG_TERMS)
    return whole + k * _LN2_HIGH


def _log_of_one(x: float) -> float:
    """The logarithm of one number, with the bits of `log`."""
    fraction, k = frexp(x)
    if fraction < _ROOT_HALF:
        fraction, k = fraction * 2.0, k - 1
    z = (fraction - 1.0) / (fraction + 1.0)
    square, total = z * z, _ODD[_LOG_TERMS - 1]
    for coefficient in _ODD[_LOG_TERMS - 2 :: -1]:
        total = total * square + coefficient
    return k * _LN2_LOW + total * z + k * _LN2_HIGH


def softplus(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln(1 + e^x) and its slope 1/(1 + e^-x), elementwise.

    Neither overflows, and small values are not rounded to 0.

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
    for coefficient in reversed(_ODD_ARRAYS[: n_terms - 1]):
        total *= square
        total += coefficient
    total *= z
    return total


def linear_scores(features: FloatArray, weights: Sequence[float] | FloatArray) -> FloatArray:
    """The sum over features of feature x weight, from the first feature on.

    Args:
        features: `[n_features, ...]`.
        weights: `[n_features]`.
    Returns:
        `[...]`. It is not a dot product, because the rounding of one would depend on other scores.

    >>> linear_scores(np.array([[1.0, 2.0], [10.0, 20.0]]), [1.0, 0.5])
    array([ 6., 12.])
    """
    if len(weights) != len(features):
        raise ValueError(f"{len(weights)} weights are not those of {len(features)} features")
    if 0 < features.size <= FEW_CELLS:  # fewer calls are quicker for few numbers
        each = np.asarray(weights, np.float64).reshape(-1, *(1,) * (features.ndim - 1))
        running: FloatArray = np.add.accumulate(features * each, axis=0)[-1]
        running += ZERO  # as if it had begun at 0.0: no score is -0.0
        return running
    scores = np.zeros(features.shape[1:])
    for feature, weight in zip(features, weights, strict=True):
        scores += feature * weight
    return scores


def summed(start: Sequence[float], terms: FloatArray) -> FloatArray:
    """*start* plus the terms of each group, added in order.

    Args:
        start: `[n_features]`.
        terms: `[n_features, n_groups]`.
    Returns:
        `[n_features]`: the same in one batch or in many.
    """
    first = np.asarray(start, np.float64)
    if terms.shape[1] == 1:
        return first + terms[:, 0]
    return np.add.accumulate(np.hstack((first[:, None], terms)), axis=1)[:, -1]
