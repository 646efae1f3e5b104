"""An e-process on the sign of a mean: wealth that grows only if the mean is above 0.

A bettor starts with wealth W = 1 and bets a fixed fraction of it on every difference D in [-1, 1]:
W <- W (1 + fraction x D). If the expectation of D, given the past, is never above 0, the
expectation of W never rises, and the probability that W ever reaches 1/alpha is at most alpha
(Ville 1939), under continuous monitoring. The mean over several fractions has the same property.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from evaluator.core.measures.lists import column_sum
from evaluator.core.types.records import FloatArray, IntArray

FRACTIONS: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
_FRACTIONS: Final = np.array(FRACTIONS)
_MAX_EXPONENT: Final = 1_000
"""Evidence is capped at 2^1000; the wealth itself has no bound."""


class Wealth(Struct, frozen=True, eq=False):
    """Wealth of every fraction, `mantissas x 2^exponents`, both `[..., n_fractions]`.

    Mantissas lie in [0.5, 1) and exponents are int64, so no number of bets leaves the range. All
    operations are exact powers of two, sums and products, so equal steps give equal bits on every
    machine.
    """

    mantissas: FloatArray
    exponents: IntArray

    @classmethod
    def of_one(cls, *shape: int) -> "Wealth":
        """Wealth 1 for every fraction, of one run or of *shape* runs.

        >>> Wealth.of_one().evidence()
        array(1.)
        """
        whole = (*shape, len(FRACTIONS))
        return cls(np.full(whole, 0.5), np.ones(whole, np.int64))

    def after(self, differences: FloatArray) -> "Wealth":
        """Wealth after one more difference of each run, `[...]`, in [-1, 1].

        >>> float(Wealth.of_one().after(np.array(0.5)).evidence())  # 1 + the mean fraction x 0.5
        1.1308333333333334
        """
        factors = 1.0 + _FRACTIONS * differences[..., None]
        mantissas, shifts = np.frexp(self.mantissas * factors)
        return Wealth(mantissas, self.exponents + shifts)

    def evidence(self) -> FloatArray:
        """The value of the e-process: the mean over the fractions, `[...]`; at most 2^1000."""
        exponents = np.minimum(self.exponents, _MAX_EXPONENT).clip(-2_000).astype(np.int32)
        amounts = np.ldexp(self.mantissas, exponents)
        return np.asarray(column_sum(amounts) / len(FRACTIONS))

    def state(self) -> list[list[Any]]:
        """A mantissa and an exponent of one run per fraction, as JSON stores them exactly."""
        columns = self.mantissas.tolist(), self.exponents.tolist()
        return [list(pair) for pair in zip(*columns, strict=True)]

    @classmethod
    def load(cls, state: Sequence[Sequence[Any]]) -> "Wealth":
        """The same wealth. Raises ValueError if `state` has not written this."""
        mantissas, exponents = zip(*state, strict=True)
        wealth = cls(np.array(mantissas, np.float64), np.array(exponents, np.int64))
        in_range = (wealth.mantissas >= 0.5) & (wealth.mantissas < 1)
        if len(state) != len(FRACTIONS) or not in_range.all():
            raise ValueError(f"not a wealth of {len(FRACTIONS)} fractions: {state}")
        return wealth

    def __eq__(self, other: object) -> bool:
        """Whether all bits are equal."""
        return (
            isinstance(other, Wealth)
            and np.array_equal(self.mantissas, other.mantissas)
            and np.array_equal(self.exponents, other.exponents)
        )

    __hash__ = None  # type: ignore[assignment]  # arrays can change, so there is no hash
