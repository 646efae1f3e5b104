"""The row of one message, by the models: the reference path of the decoder.

Loaded with the first message that needs it: the models are slow to import.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.columns.key_hashes import hashes_of
from evaluator.core.columns.texts import TextRows
from evaluator.core.features import filled
from evaluator.core.types.records import (
    SERVED,
    FeatureColumns,
    IntArray,
    Stratum,
    plain_feature_names,
)
from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.messages.models import Judgment, Ranking
from evaluator.wire.messages.parts import NO_TIMESTAMP, JudgmentPart, RankingPart
from evaluator.wire.messages.strict import read_message


def read_ranking(
    value: bytes, *, features: bool, segments: Sequence[str]
) -> RankingPart | Malformed:
    """One row; with *features*, also its features, and the levels of *segments*."""
    message = read_message(value, Ranking)
    if isinstance(message, Malformed):
        return message
    ids, scores, scorers = message.all_ids(), message.all_scores(), message.named_scorers()
    names = sorted(scorers)
    flat = [np.nan] * len(ids) if scores is None else list(scores)
    flat += chain.from_iterable(scorers[name] for name in names)
    published_ms, exposed = message.all_published_ms(), message.exposure()
    return RankingPart(
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


def read_judgment(value: bytes) -> JudgmentPart | Malformed:
    """One row."""
    message = read_message(value, Judgment)
    if isinstance(message, Malformed):
        return message
    grades = {
        candidate_id: None if grade is None or grade < 0 else grade + 0.0
        for candidate_id, grade in message.grades.items()
    }
    return JudgmentPart(
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
