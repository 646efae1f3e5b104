"""What `evaluate` gives back."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from evaluator.core.measures import MISSING, UNITS_PER_ONE, MeasureSet
from evaluator.core.types.records import FloatArray, IntArray

QueryId = str | int
"""As it was given; of arrays the number of the row, from 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Values of queries, one per measure.

    `query_ids` are the queries that have a value, in the order of the qrels. `units` is
    `[n_queries, n_columns]`: values in units of 2^-40, MISSING where a query lacks one.
    """

    query_ids: Sequence[QueryId]
    units: IntArray
    measure_set: MeasureSet

    def __len__(self) -> int:
        return len(self.query_ids)

    @property
    def measures(self) -> tuple[str, ...]:
        """The names asked for, and those of companions."""
        return self.measure_set.spellings

    def values(self, measure: str) -> FloatArray:
        """The values of one measure, parallel to `query_ids`; NaN where a query lacks it.

        Raises:
            KeyError: if it was not asked for.
        """
        units = self._units(measure)
        values: FloatArray = np.where(units == MISSING, np.nan, units / UNITS_PER_ONE)
        return values

    @property
    def mean(self) -> dict[str, float | None]:
        """The mean of each measure over the queries that have it; None if none has.

        The double nearest to the exact mean, the same as in the totals of a worker.
        """
        return {name: _mean(self._units(name)) for name in self.measures}

    @property
    def per_query(self) -> dict[QueryId, dict[str, float]]:
        """Values by query and measure; a value that a query lacks is absent."""
        columns = [self.measure_set.column_of(name) for name in self.measures]
        lacking = bool((self.units < 0).any())
        rows = (self.units / UNITS_PER_ONE).take(columns, axis=1).tolist()
        if not lacking:
            named = map(dict, map(zip, repeat(self.measures), rows))
            return dict(zip(self.query_ids, named, strict=True))
        return {
            query_id: {
                name: value for name, value in zip(self.measures, row, strict=True) if value >= 0
            }
            for query_id, row in zip(self.query_ids, rows, strict=True)
        }

    def __repr__(self) -> str:
        means = ", ".join(
            f"{name} {'-' if mean is None else format(mean, '.6f')}"
            for name, mean in self.mean.items()
        )
        return f"Measured({len(self)} queries: {means})"

    def _units(self, measure: str) -> IntArray:
        units: IntArray = self.units[:, self.measure_set.column_of(measure)]
        return units


def _mean(units: IntArray) -> float | None:
    present = units[units != MISSING].tolist()
    return sum(present) / (len(present) * UNITS_PER_ONE) if present else None
