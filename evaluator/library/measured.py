"""The values of queries that `evaluate` returns."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from msgspec import Struct

from evaluator.core.measures import MISSING, UNITS_PER_ONE, InvalidInputError, MeasureSet
from evaluator.core.types.records import FloatArray, IntArray
from evaluator.library.forms import is_missing

QueryId = str | int
"""The id of a query, or the number of a row of arrays, from 0."""

Groups = Mapping[Any, Any] | Sequence[Any]
"""The group of each query: by its id, or of arrays by its row."""


class Measured(Struct, frozen=True, eq=False):
    """The values of queries.

    `query_ids` are the queries with a value, in the order of the qrels. `units` has values in units
    of 2^-40, `[n_queries, n_columns]`, MISSING where a query lacks one. `missing` queries of the
    qrels are not in the run, `unjudged` queries of the run not in the qrels. `groups` are the
    groups that were given.
    """

    query_ids: Sequence[QueryId]
    units: IntArray
    measure_set: MeasureSet
    missing: int = 0
    unjudged: int = 0
    groups: Groups | None = None

    def __len__(self) -> int:
        return len(self.query_ids)

    @property
    def measures(self) -> tuple[str, ...]:
        """The requested names, and the names of companions."""
        return self.measure_set.spellings

    def values(self, measure: str) -> FloatArray:
        """The values of one measure, parallel to `query_ids`; NaN where a query lacks it.

        Raises:
            KeyError: if it was not requested.
        """
        units = self._units(measure)
        return np.where(units == MISSING, np.nan, units / UNITS_PER_ONE)

    @property
    def mean(self) -> dict[str, float | None]:
        """The mean of each measure over the queries with a value, None without any.

        It is the double nearest to the exact mean, as in the totals of a worker.
        """
        return {name: _mean(self._units(name)) for name in self.measures}

    @property
    def by_group(self) -> dict[str, "Measured"]:
        """The values of the queries of each group, the largest group first.

        Queries without a group are in none.
        """
        found: dict[str, list[int]] = {}
        for place, query_id in enumerate(self.query_ids):
            if group := group_of(self.groups, query_id):
                found.setdefault(group, []).append(place)
        return {
            group: self.of(found[group])
            for group in sorted(found, key=lambda group: (-len(found[group]), group))
        }

    def of(self, places: Sequence[int]) -> "Measured":
        """The values of some of the queries, by their places in `query_ids`."""
        return Measured(
            [self.query_ids[place] for place in places],
            self.units[np.array(places, np.int64)],
            self.measure_set,
        )

    @property
    def per_query(self) -> dict[QueryId, dict[str, float]]:
        """Values by query and measure; missing values are absent."""
        columns = [self.measure_set.columns[name] for name in self.measures]
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

    def to_frame(self) -> Any:
        """A row per query with its values, as a frame of pandas, or of polars without pandas.

        Raises:
            InvalidInputError: without both.
        """
        values = zip(*(self.values(name).tolist() for name in self.measures), strict=True)
        return frame_of(
            {"query_id": query_id, **dict(zip(self.measures, row, strict=True))}
            for query_id, row in zip(self.query_ids, values, strict=True)
        )

    def __repr__(self) -> str:
        means = ", ".join(
            f"{name} {'-' if mean is None else format(mean, '.6f')}"
            for name, mean in self.mean.items()
        )
        return f"Measured({len(self)} queries: {means})"

    def _units(self, measure: str) -> IntArray:
        return self.units[:, self.measure_set.columns[measure]]


def group_of(groups: Groups | None, query_id: QueryId) -> str | None:
    """The group of a query as text; None without one."""
    if isinstance(groups, Mapping):
        group = groups.get(query_id)
    else:
        group = None if groups is None else groups[int(query_id)]
    return None if is_missing(group) or group == "" else str(group)


def _mean(units: IntArray) -> float | None:
    present = units[units != MISSING].tolist()
    return sum(present) / (len(present) * UNITS_PER_ONE) if present else None


def frame_of(rows: Iterable[Mapping[str, Any]]) -> Any:
    """A frame of rows. Raises InvalidInputError without pandas and polars."""
    for library in ("pandas", "polars"):
        try:
            module = __import__(library)
        except ImportError:
            continue
        return module.DataFrame(list(rows))
    raise InvalidInputError("a frame needs pandas or polars. Install one, or use the rows.")
