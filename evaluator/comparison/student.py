"""Student's t distribution, as far as a two-sided test needs it."""

import math
from typing import Final

_SERIES_FROM: Final = 50.0
"""From here on the series of the gamma ratio is good to the last bits; below it lgamma is."""
_MAX_TERMS: Final = 10_000
_TINY: Final = 1e-300
_CLOSE: Final = 1e-15


def two_sided_p(t: float, degrees_of_freedom: int) -> float:
    """How often a Student variable lies at least as far from 0 as *t*, in [0, 1].

    Args:
        t: any number.
        degrees_of_freedom: >= 1.
    Source: Abramowitz and Stegun 26.7.1 with 26.5.27: the regularised incomplete beta
    I_x(df/2, 1/2) at x = df / (df + t^2).

    >>> two_sided_p(1.0, 1)  # Cauchy: half of it lies beyond 1
    0.5
    """
    a, odds = degrees_of_freedom / 2, t * t / degrees_of_freedom
    x, rest = 1 / (1 + odds), odds / (1 + odds)
    # x^a (1 - x)^(1/2) / B(a, 1/2); the power from the odds, for x itself may round to 1
    scale = math.exp(-a * math.log1p(odds)) * math.sqrt(rest) * _gamma_ratio(a) / math.sqrt(math.pi)
    if x < (a + 1) / (a + 2.5):
        p = scale * _fraction(a, 0.5, x) / a
    else:
        p = 1 - scale * _fraction(0.5, a, rest) / 0.5
    return min(1.0, max(0.0, p))


def _gamma_ratio(a: float) -> float:
    """Gamma(a + 1/2) / Gamma(a), also where both overflow."""
    if a < _SERIES_FROM:
        return math.exp(math.lgamma(a + 0.5) - math.lgamma(a))
    u = 1 / a
    series = 1 + u * (
        -1 / 8 + u * (1 / 128 + u * (5 / 1024 + u * (-21 / 32768 - u * 399 / 262144)))
    )
    return math.sqrt(a) * series


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta, by Lentz's method as Thompson gave it.

    Source: Abramowitz and Stegun 26.5.8. It converges quickly for x < (a + 1) / (a + b + 2),
    within a number of terms of the order of the root of max(a, b).
    """
    above = 1.0
    below = 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = below
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            below = 1 / _away_from_zero(1 + coefficient * below)
            above = _away_from_zero(1 + coefficient / above)
            value *= above * below
        if abs(above * below - 1) < _CLOSE:
            break
    return value


def _away_from_zero(number: float) -> float:
    return number if abs(number) >= _TINY else _TINY
