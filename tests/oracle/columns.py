"""Records of a world as columns for the engine, without the real decoder."""

from collections.abc import Sequence
from hashlib import blake2b
from math import nan

import numpy as np

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.columns.key_hashes import hashes_of
from evaluator.core.columns.texts import TextRows
from evaluator.core.types.records import (
    DeadLetter,
    JudgmentColumns,
    Log,
    RankingColumns,
    Stratum,
)
from evaluator.wire.records import Records
from tests.oracle.measures import scores_of
from tests.oracle.messages import (
    Heartbeat,
    Judgment,
    JudgmentsRecord,
    Malformed,
    Ranking,
    RankingsRecord,
    Raw,
)

INT = np.int64


def hash_of(value: bytes) -> bytes:
    """16 bytes, which are equal for equal values."""
    return blake2b(value, digest_size=16).digest()


def ranking_columns(
    records: Sequence[RankingsRecord], raws: Sequence[Raw], next_offset: int
) -> RankingColumns:
    """One batch of `rankings`; *raws* are the same records as bytes."""
    rows = [record for record in records if isinstance(record, Ranking)]
    keys = {raw.offset: raw.key for raw in raws}
    scores = [nan if s is None else s for r in rows for k in r.rankers for s in scores_of(r, k)]
    beats = [record for record in records if isinstance(record, Heartbeat)]
    return RankingColumns(
        offsets=np.array([r.offset for r in rows], INT),
        timestamps_ms=np.array([r.timestamp_ms for r in rows], INT),
        texts=TextRows.of([(r.trace_id, r.node_id, r.query) for r in rows]),
        key_hashes=hashes_of([r.trace_id for r in rows], [r.node_id for r in rows]),
        hashes=np.frombuffer(b"".join(hash_of(r.value) for r in rows), "V16"),
        keys=[keys[r.offset] for r in rows],
        values=[r.value for r in rows],
        heartbeat_offsets=np.array([b.offset for b in beats], INT),
        heartbeat_timestamps_ms=np.array([b.timestamp_ms for b in beats], INT),
        malformed=dead_letters("rankings", records, keys),
        next_offset=next_offset,
        strata=DictionaryColumn.of([Stratum(r.model, r.variant, r.rankers) for r in rows]),
        candidate_counts=np.array([len(r.candidate_ids) for r in rows], INT),
        candidate_ids=DictionaryColumn.of([name for r in rows for name in r.candidate_ids]),
        scores=np.array(scores, np.float64),
        explicit_ranks={b: list(r.ranks) for b, r in enumerate(rows) if r.ranks is not None},
        subtopics={b: dict(r.subtopics) for b, r in enumerate(rows) if r.subtopics},
        published_ms={b: r.published_ms for b, r in enumerate(rows) if r.published_ms is not None},
    )


def judgment_columns(
    records: Sequence[JudgmentsRecord], raws: Sequence[Raw], next_offset: int
) -> JudgmentColumns:
    """One batch of `judgments`; *raws* are the same records as bytes."""
    rows = [record for record in records if isinstance(record, Judgment)]
    keys = {raw.offset: raw.key for raw in raws}
    beats = [record for record in records if isinstance(record, Heartbeat)]
    return JudgmentColumns(
        offsets=np.array([r.offset for r in rows], INT),
        timestamps_ms=np.array([r.timestamp_ms for r in rows], INT),
        trace_ids=[r.trace_id for r in rows],
        node_ids=[r.node_id for r in rows],
        key_hashes=hashes_of([r.trace_id for r in rows], [r.node_id for r in rows]),
        hashes=np.frombuffer(b"".join(hash_of(r.value) for r in rows), "V16"),
        keys=[keys[r.offset] for r in rows],
        values=[r.value for r in rows],
        heartbeat_offsets=np.array([b.offset for b in beats], INT),
        heartbeat_timestamps_ms=np.array([b.timestamp_ms for b in beats], INT),
        malformed=dead_letters("judgments", records, keys),
        next_offset=next_offset,
        sources=[r.source for r in rows],
        judgment_ids=[r.judgment_id for r in rows],
        grades=GradeColumns.of([dict(r.grades) for r in rows]),
        subtopics={b: dict(r.subtopics) for b, r in enumerate(rows) if r.subtopics},
    )


def dead_letters(
    log: Log, records: Sequence[RankingsRecord | JudgmentsRecord], keys: dict[int, bytes | None]
) -> list[DeadLetter]:
    """The columns of the malformed records."""
    return [
        DeadLetter(log, r.offset, r.reason, "", keys[r.offset], r.value)
        for r in records
        if isinstance(r, Malformed)
    ]


def raw_records(log: Log, raws: Sequence[Raw], next_offset: int) -> Records:
    """The same records for the real decoder."""
    return Records.of(
        log=log,
        partition=0,
        offsets=[raw.offset for raw in raws],
        keys=[raw.key for raw in raws],
        values=[raw.value for raw in raws],
        timestamps_ms=[-1 if raw.timestamp_ms is None else raw.timestamp_ms for raw in raws],
        next_offset=next_offset,
    )
