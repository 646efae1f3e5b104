"""The groups of a validation, and the values of weights and of the served order on groups."""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from evaluator.core.learning.transforms import NO_TRANSFORMS, Transforms, transformed
from evaluator.core.measures import MISSING, UNITS_PER_ONE
from evaluator.core.online.offline_ranking import OfflineRanking, Ranked, Tables
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.types.records import FloatArray, IntArray

VALIDATED: Final = "ndcg@10"
"""The measure of a validation."""
VALIDATED_FROM: Final = 200
"""From this number of groups on, a part is for validation by default."""
DEFAULT_SHARE: Final = 0.2
PATIENCE: Final = 5
"""Learning ends after this number of epochs without a better one."""


class Pairs(NamedTuple):
    """Values of the same queries in two orders; `[n_queries]` each."""

    traces: list[str]
    served: FloatArray
    weights: FloatArray


def validation_mask(queries: Sequence[SettledQuery], share: float, seed: int) -> list[bool]:
    """Whether each query is for validation: all queries of a trace, or none.

    Traces are taken in the order of their hashes, until they have *share* of the queries.
    """
    counts = Counter(query.trace_id for query in queries)
    left = round(share * len(queries))
    chosen: set[str] = set()
    for trace in sorted(counts, key=lambda trace: _hash(f"{seed} {trace}")):
        if left <= 0:
            break
        chosen.add(trace)
        left -= counts[trace]
    return [query.trace_id in chosen for query in queries]


def _hash(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass")).digest()


class Part(Struct, frozen=True):
    """Judged queries with features, after their transforms, prepared to be measured."""

    queries: list[SettledQuery]
    tables: Tables
    offline_ranking: OfflineRanking

    @classmethod
    def of(
        cls,
        queries: Sequence[SettledQuery],
        offline_ranking: OfflineRanking,
        transforms: Transforms = NO_TRANSFORMS,
    ) -> "Part":
        judged = [
            query._replace(features=transformed(query.features, query.feature_names, transforms))
            for query in queries
            if query.grades and query.feature_names is not None
        ]
        tables = Tables.of(judged)
        return cls(judged, tables._replace(parts=list(tables.parts)), offline_ranking)

    def units(self, weights: Sequence[float]) -> IntArray:
        """The values of the order by these weights, `[n_queries]`; MISSING for none."""
        features = [query.features for query in self.queries]
        ranked = Ranked(range(len(features)), features, weights)
        return self.offline_ranking.units_in(self.tables, [ranked])[0, :, 0]

    def mean(self, weights: Sequence[float]) -> float | None:
        """The mean of the values of the order by these weights."""
        units = self.units(weights)
        some = units[units != MISSING].tolist()
        return sum(some) / (len(some) * UNITS_PER_ONE) if some else None

    def pairs(self, weights: Sequence[float]) -> Pairs:
        """The values of all queries that have one in both orders."""
        found = self.units(weights)
        served = np.array(
            [query.served_units.get(VALIDATED, MISSING) for query in self.queries], np.int64
        )
        both = np.flatnonzero((found != MISSING) & (served != MISSING)).tolist()
        return Pairs(
            [self.queries[i].trace_id for i in both],
            served[both] / UNITS_PER_ONE,
            found[both] / UNITS_PER_ONE,
        )
