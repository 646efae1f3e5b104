"""Rows of a batch: several from the compiled decoder, or one from the reference path."""

from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.columns.key_hashes import hashes_of
from evaluator.core.columns.texts import TextRows
from evaluator.core.features import filled
from evaluator.core.types.records import (
    SERVED,
    FeatureColumns,
    FloatArray,
    IntArray,
    Stratum,
    SubtopicsById,
    plain_feature_names,
)
from evaluator.wire.messages.models import Judgment, Ranking

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

    @classmethod
    def of(
        cls, message: Ranking, *, features: bool = False, segments: Sequence[str] = ()
    ) -> "RankingPart":
        """One row; with *features*, also its features, and the levels of *segments*."""
        ids, scores, scorers = message.all_ids(), message.all_scores(), message.named_scorers()
        names = sorted(scorers)
        flat = [np.nan] * len(ids) if scores is None else list(scores)
        flat += chain.from_iterable(scorers[name] for name in names)
        published_ms, exposed = message.all_published_ms(), message.exposure()
        return cls(
            timestamps_ms=_timestamp(message.timestamp_ms),
            texts=TextRows.of([(message.trace_id, message.node_id, message.query or "")]),
            key_hashes=hashes_of([message.trace_id], [message.node_id]),
            strata=DictionaryColumn.of(
                [Stratum(message.model or "", message.variant or "", (SERVED, *names))]
            ),
            candidate_counts=np.array([len(ids)]),
            candidate_ids=DictionaryColumn.of(ids),
            scores=np.array(flat, np.float64) + 0.0,  # -0.0 + 0.0 is 0.0
            explicit_ranks={} if message.ranks is None else {0: message.ranks},
            subtopics={0: message.subtopics} if message.subtopics else {},
            published_ms={} if published_ms is None else {0: published_ms},
            features=_features(message) if features else None,
            levels=DictionaryColumn.of([message.levels_of(segments)]) if segments else None,
            exposed={} if exposed is None else {0: exposed},
            propensities={} if message.propensities is None else {0: message.propensities},
        )


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

    @classmethod
    def of(cls, message: Judgment) -> "JudgmentPart":
        """One row."""
        grades = {
            candidate_id: None if grade is None or grade < 0 else grade + 0.0
            for candidate_id, grade in message.grades.items()
        }
        return cls(
            timestamps_ms=_timestamp(message.timestamp_ms),
            strings=[
                *(message.trace_id, message.node_id),
                *(message.source or "", message.judgment_id or ""),
            ],
            key_hashes=hashes_of([message.trace_id], [message.node_id]),
            judgment_ids=[message.judgment_id],
            grades=GradeColumns.of([grades]),
            subtopics={0: message.subtopics} if message.subtopics else {},
        )


def _features(message: Ranking) -> FeatureColumns:
    described = message.described()
    propensities: dict[int, Sequence[float]] = {}
    if message.propensities is not None:
        propensities[0] = message.propensities
    if described is not None:
        return FeatureColumns([None], np.zeros(0), propensities, {0: described})
    rows = message.all_features()
    names = None if message.feature_names is None else tuple(message.feature_names)
    if rows and names is None:
        names = plain_feature_names(len(rows[0]))
    if rows is None or not names:
        return FeatureColumns([None], np.zeros(0))
    features = filled(np.array(rows, np.float64).reshape(-1, len(names)))
    return FeatureColumns([names], features.reshape(-1) + 0.0, propensities)


def _timestamp(timestamp_ms: int | None) -> IntArray:
    return np.array([NO_TIMESTAMP if timestamp_ms is None else timestamp_ms])
