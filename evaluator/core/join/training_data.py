"""What a query offers to learn from, and who judged it: kept until it settles."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evaluator.core.columns.interner import Interner
from evaluator.core.columns.table import SlotTable, SpanPool, span_indices
from evaluator.core.types.candidates import Described
from evaluator.core.types.records import IntArray, OfferedColumns, RankingColumns

OFFERED_COLUMNS: Final[Mapping[str, DTypeLike]] = {
    "features_start": np.int64,
    "schema": np.int32,  # 0: without features
}


_NOBODY: Final[Mapping[str, int]] = {}


class Offered:
    """Features, or what they can be made of, propensities, and sources of judgments, by slot.

    The schema of a slot is 0 unless a query that offers features is there.
    """

    _SCHEMAS_BEFORE_CLEANING = 1 << 10

    def __init__(self, slots: SlotTable) -> None:
        self._slots = slots
        self._features = SpanPool({"value": np.float64})
        self._propensities: dict[int, Sequence[float]] = {}
        self._described: dict[int, Described] = {}
        self._described_bytes = 0
        self._sources: dict[int, dict[str, int]] = {}
        self._number_schemas([])
        self._clean_schemas_at = self._SCHEMAS_BEFORE_CLEANING

    def hold(self, slots: IntArray, rankings: RankingColumns, rows: IntArray) -> None:
        """Keeps what *rows* offer, as what the queries in *slots* do."""
        features = rankings.features
        if features is None:
            raise ValueError("these rankings were decoded without their features")
        schemas = self._schemas.of(features.names, len(features.names))
        sizes = rankings.candidate_counts * self._widths_of(schemas)
        starts = np.cumsum(sizes) - sizes
        values = features.values[span_indices(starts[rows], sizes[rows])]
        self._slots["schema"][slots] = schemas[rows]
        self._slots["features_start"][slots] = self._features.append(sizes[rows], value=values)
        if features.propensities or features.described:
            for slot, row in zip(slots.tolist(), rows.tolist(), strict=True):
                if row in features.propensities:
                    self._propensities[slot] = features.propensities[row]
                if row in features.described:
                    self._described[slot] = features.described[row]
                    self._described_bytes += features.described[row].n_bytes

    def note_sources(self, slots: IntArray, sources: Iterable[str]) -> None:
        """One more judgment of each query was applied in time, from this source."""
        known = self._sources
        for slot, source in zip(slots.tolist(), sources, strict=True):
            counts = known.get(slot)
            if counts is None:
                known[slot] = {source: 1}
            else:
                counts[source] = counts.get(source, 0) + 1

    def columns(self, slots: IntArray, codes: NDArray[np.int32], ids: list[str]) -> OfferedColumns:
        """What these queries offer; *codes* has the spans of their candidates, *ids* their ids."""
        table = self._slots
        schemas, sizes = table["schema"][slots], self._sizes(slots)
        ends = np.cumsum(sizes)
        flat = self._features["value"][span_indices(table["features_start"][slots], sizes)]
        names = [self._schemas.values_by_number[schema] for schema in schemas.tolist()]
        counts = np.where(schemas > 0, table["n_candidates"][slots], 0)
        of_candidate = codes[span_indices(table["candidate_start"][slots], counts)].tolist()
        candidates, features, first = [], [], 0
        named = list(map(ids.__getitem__, of_candidate))
        for end, n, n_values in zip(ends.tolist(), counts.tolist(), sizes.tolist(), strict=True):
            candidates.append(named[first : first + n])
            features.append(flat[end - n_values : end].reshape(n, n_values // n if n else 0))
            first += n
        listed = slots.tolist()
        return OfferedColumns(
            names=names,
            candidate_ids=candidates,
            features=features,
            propensities=[self._propensities.get(slot) for slot in listed],
            described=[self._described.get(slot) for slot in listed],
            sources=[_sorted(self._sources.get(slot, _NOBODY)) for slot in listed],
        )

    def drop(self, slots: IntArray) -> None:
        """Nobody asks what these queries offer any more."""
        self._features.discard(int(self._sizes(slots).sum()))
        self._slots["schema"][slots] = 0
        if self._described:
            found = [self._described.get(slot) for slot in slots.tolist()]
            self._described_bytes -= sum(one.n_bytes for one in found if one is not None)
        for kept in (self._propensities, self._described, self._sources):
            if kept:
                for slot in slots.tolist():
                    kept.pop(slot, None)

    def drop_settled(self, slots: IntArray) -> None:
        """The same of those of these queries that have settled."""
        self.drop(slots[self._slots["settled"][slots]])

    @property
    def n_bytes(self) -> int:
        """About how much memory all of it takes."""
        return self._features.n_bytes + self._described_bytes + 400 * len(self._sources)

    def tidy(self) -> None:
        """Moves together what is needed where the pool has become wasteful."""
        crowded = len(self._schemas.values_by_number) > self._clean_schemas_at
        if not (self._features.wasteful or crowded):
            return
        table = self._slots
        open_slots = np.flatnonzero(table["open"] & (table["schema"] > 0))
        starts, sizes = table["features_start"][open_slots], self._sizes(open_slots)
        table["features_start"][open_slots] = self._features.compact(starts, sizes)
        if crowded:
            old = self._schemas.values_by_number
            schemas = [old[schema] for schema in table["schema"][open_slots].tolist()]
            table["schema"][open_slots] = self._number_schemas(schemas)
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

    def _sizes(self, slots: IntArray) -> IntArray:
        sizes: IntArray = self._slots["n_candidates"][slots] * self._widths_of(
            self._slots["schema"][slots]
        )
        return sizes


def _sorted(counts: Mapping[str, int]) -> Mapping[str, int]:
    return counts if len(counts) < 2 else dict(sorted(counts.items()))
