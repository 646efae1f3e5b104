"""Values as whole numbers, so that they add up without error."""

from typing import Final

import numpy as np

from evaluator.core.types.records import FloatArray, IntArray

UNITS_PER_ONE: Final = 1 << 40
"""A value in [0, 1] is summed as an integer of this resolution."""

MISSING: Final = -1
"""Stands among units for a value that a query lacks."""


def to_units(values: FloatArray) -> IntArray:
    """Values in [0, 1] as integers in units of 2^-40, halves to even, elementwise.

    >>> to_units(np.array([0.5]))
    array([549755813888])
    """
    units: IntArray = np.rint(values * UNITS_PER_ONE).astype(np.int64)
    return units


def to_units_or_missing(values: FloatArray) -> IntArray:
    """The same, with MISSING for NaN.

    >>> to_units_or_missing(np.array([1.0, np.nan]))
    array([1099511627776,            -1])
    """
    return to_units(np.where(np.isnan(values), MISSING / UNITS_PER_ONE, values))
