"""Training data of open queries, until they settle."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evaluator.core.columns.interning import Interner
from evaluator.core.columns.table import RaggedColumns, RowTable, span_indices
from evaluator.core.types.candidates import Described
from evaluator.core.types.records import IntArray, OfferedColumns, RankingColumns

OFFERED_COLUMNS: Final[Mapping[str, DTypeLike]] = {
    "features_start": np.int32,
    "schema": np.int32,  # 0: without features
}


class Offered:
    """Features or descriptions of candidates, propensities, and sources of judgments, by row.

    The schema of a row is the number of its feature names, 0 without features.
    """

    _SCHEMAS_BEFORE_CLEANING = 1 << 10

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._features = RaggedColumns({"value": np.float64})
        self._propensities: dict[int, Sequence[float]] = {}
        self._described: dict[int, Described] = {}
        self._described_bytes = 0
        self._sources: dict[int, dict[str, int]] = {}
        self._number_schemas([])
        self._clean_schemas_at = self._SCHEMAS_BEFORE_CLEANING

    def add(self, rows: IntArray, rankings: RankingColumns, records: IntArray) -> None:
        """Adds the training data of *records* to the queries in *rows*."""
        features = rankings.features
        if features is None:
            raise ValueError("these rankings were decoded without their features")
        schemas = self._schemas.of(features.names, len(features.names))
        sizes = rankings.candidate_counts * self._widths_of(schemas)
        starts = np.cumsum(sizes) - sizes
        values = features.values[span_indices(starts[records], sizes[records])]
        self._table["schema"][rows] = schemas[records]
        self._table["features_start"][rows] = self._features.append(sizes[records], value=values)
        if features.propensities or features.described:
            for row, record in zip(rows.tolist(), records.tolist(), strict=True):
                if record in features.propensities:
                    self._propensities[row] = features.propensities[record]
                if record in features.described:
                    self._described[row] = features.described[record]
                    self._described_bytes += features.described[record].n_bytes

    def note_sources(self, rows: IntArray, sources: Iterable[str]) -> None:
        """Counts one more judgment of each query by source."""
        known = self._sources
        for row, source in zip(rows.tolist(), sources, strict=True):
            counts = known.get(row)
            if counts is None:
                known[row] = {source: 1}
            else:
                counts[source] = counts.get(source, 0) + 1

    def columns(self, rows: IntArray, codes: NDArray[np.int32], ids: list[str]) -> OfferedColumns:
        """Training data of queries; *codes* are all candidates, *ids* their ids by code."""
        table = self._table
        schemas, sizes = table["schema"][rows], self._sizes(rows)
        ends = np.cumsum(sizes)
        flat = self._features["value"][span_indices(table["features_start"][rows], sizes)]
        names = [self._schemas.values_by_number[schema] for schema in schemas.tolist()]
        counts = np.where(schemas > 0, table["n_candidates"][rows], 0)
        of_candidate = codes[span_indices(table["candidate_start"][rows], counts)].tolist()
        candidates, features, first = [], [], 0
        named = list(map(ids.__getitem__, of_candidate))
        for end, n, n_values in zip(ends.tolist(), counts.tolist(), sizes.tolist(), strict=True):
            candidates.append(named[first : first + n])
            features.append(flat[end - n_values : end].reshape(n, n_values // n if n else 0))
            first += n
        listed = rows.tolist()
        return OfferedColumns(
            names=names,
            candidate_ids=candidates,
            features=features,
            propensities=[self._propensities.get(row) for row in listed],
            described=[self._described.get(row) for row in listed],
            sources=[_sorted(self._sources.get(row, {})) for row in listed],
        )

    def drop(self, rows: IntArray) -> None:
        """Discards the training data of queries."""
        self._features.discard(int(self._sizes(rows).sum()))
        self._table["schema"][rows] = 0
        if self._described:
            found = [self._described.get(row) for row in rows.tolist()]
            self._described_bytes -= sum(one.n_bytes for one in found if one is not None)
        for kept in (self._propensities, self._described, self._sources):
            if kept:
                for row in rows.tolist():
                    kept.pop(row, None)

    @property
    def n_bytes(self) -> int:
        """Approximate memory in bytes."""
        return self._features.n_bytes + self._described_bytes + 400 * len(self._sources)

    def tidy(self) -> None:
        """Compacts the pool if it wastes memory, and drops names without a query."""
        crowded = len(self._schemas.values_by_number) > self._clean_schemas_at
        if not (self._features.wasteful or crowded):
            return
        table = self._table
        open_rows = np.flatnonzero(table["open"] & (table["schema"] > 0))
        starts, sizes = table["features_start"][open_rows], self._sizes(open_rows)
        table["features_start"][open_rows] = self._features.compact(starts, sizes)
        if crowded:
            old = self._schemas.values_by_number
            schemas = [old[schema] for schema in table["schema"][open_rows].tolist()]
            table["schema"][open_rows] = self._number_schemas(schemas)
            n_schemas = len(self._schemas.values_by_number)
            self._clean_schemas_at = max(self._SCHEMAS_BEFORE_CLEANING, 2 * n_schemas)

    def _number_schemas(self, schemas: Sequence[tuple[str, ...]]) -> NDArray[np.int32]:
        self._schemas = Interner()
        self._widths = np.zeros(0, np.int64)
        self._schemas.of([None], 1)  # number 0
        return self._schemas.of(schemas, len(schemas))

    def _widths_of(self, schemas: NDArray[np.int32]) -> IntArray:
        new = self._schemas.values_by_number[len(self._widths) :]
        if new:
            widths = [0 if names is None else len(names) for names in new]
            self._widths = np.append(self._widths, np.array(widths, np.int64))
        of_each: IntArray = self._widths[schemas]
        return of_each

    def _sizes(self, rows: IntArray) -> IntArray:
        widths = self._widths_of(self._table["schema"][rows])
        sizes: IntArray = self._table["n_candidates"][rows] * widths
        return sizes


def _sorted(counts: Mapping[str, int]) -> Mapping[str, int]:
    return counts if len(counts) < 2 else dict(sorted(counts.items()))
