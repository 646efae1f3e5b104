"""Rows of a batch: several from the compiled decoder, or one from the reference path."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.columns.texts import TextRows
from evaluator.core.types.records import (
    FeatureColumns,
    FloatArray,
    IntArray,
    SubtopicsById,
)

NO_TIMESTAMP: Final = -1


class RankingPart(Struct):
    """Rows of rankings; members as in `RankingColumns`."""

    timestamps_ms: IntArray  # NO_TIMESTAMP where the message has none
    texts: TextRows
    key_hashes: NDArray[np.void]
    strata: DictionaryColumn
    candidate_counts: IntArray
    candidate_ids: DictionaryColumn
    scores: FloatArray
    explicit_ranks: dict[int, list[int]]
    subtopics: dict[int, SubtopicsById] = field(default_factory=dict)
    published_ms: dict[int, Sequence[int | None]] = field(default_factory=dict)
    features: FeatureColumns | None = None
    levels: DictionaryColumn | None = None
    exposed: dict[int, bytes | int] = field(default_factory=dict)
    propensities: dict[int, Sequence[float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.timestamps_ms)


class JudgmentPart(Struct):
    """Rows of judgments; members as in `JudgmentColumns`.

    `strings` has four per row: trace_id, node_id, source, judgment_id ("" also for None).
    """

    timestamps_ms: IntArray  # NO_TIMESTAMP where the message has none
    strings: list[str]
    key_hashes: NDArray[np.void]
    judgment_ids: list[str | None]
    grades: GradeColumns
    subtopics: dict[int, SubtopicsById] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.timestamps_ms)
