"""Rows of the table `queries`: up to `ROW_QUERIES` rankings each.

A row has the number of its queries, their offsets, where each ends, and the queries. A query has
what the engine reads of a ranking; features only if they were decoded.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, repeat
from typing import Final

import msgspec
import numpy as np

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.join.changes import StartedRows
from evaluator.core.types.candidates import Described
from evaluator.core.types.records import FeatureColumns, IntArray, RankingColumns, SubtopicsById
from evaluator.wire.reading import Count, Int64, refused_as
from evaluator.wire.state.task_rows import StateDamaged

ROW_QUERIES: Final = 32
"""One put of a row costs what one of a single query does; so does a read from disk."""
_HASH_BYTES: Final = 16
_at: Final = struct.Struct(">q")


class _Features(msgspec.Struct, array_like=True):
    names: tuple[str, ...] | None
    values: bytes
    propensities: Sequence[float] | None
    described: Described | None


class _Query(msgspec.Struct, array_like=True):
    event_ms: Int64
    hash: bytes
    trace_id: str
    node_id: str
    model: str
    variant: str
    query: str
    rankers: tuple[str, ...]
    candidate_ids: list[str]
    scores: bytes
    explicit_ranks: list[int] | None = None
    subtopics: SubtopicsById | None = None
    published_ms: Sequence[Count | None] | None = None
    features: _Features | None = None


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Query).decode


def query_key(offset: int) -> bytes:
    """The key of a row: its first offset."""
    return _at.pack(offset)


# Writing


def ranking_rows(started: Sequence[StartedRows]) -> tuple[IntArray, list[bytes]]:
    """The first offsets of rows, and the rows."""
    offsets = np.concatenate([np.empty(0, np.int64), *(rows.offsets for rows in started)])
    queries = list(chain.from_iterable(map(_queries_of, started)))
    firsts = range(0, len(queries), ROW_QUERIES)
    rows = [
        _row(offsets[first : first + ROW_QUERIES], queries[first : first + ROW_QUERIES])
        for first in firsts
    ]
    return offsets[::ROW_QUERIES], rows


def _row(offsets: IntArray, queries: list[bytes]) -> bytes:
    ends = np.cumsum([len(query) for query in queries])
    head = np.concatenate([[len(queries)], offsets, ends]).astype("<i8").tobytes()
    return head + b"".join(queries)


def _queries_of(rows: StartedRows) -> Iterator[bytes]:
    """Each query as an array: the members of `_Query`."""
    rankings, records = rows.rankings, rows.records.tolist()
    counts = rankings.candidate_counts
    n_bytes = 8 * counts * np.fromiter(map(len, rankings.rankers), np.int64, len(counts))
    ids, scores = rankings.candidate_ids.strings(), rankings.scores.astype("<f8").tobytes()
    plain: tuple[Sequence[object], ...] = (
        *(rankings.hashes, rankings.trace_ids, rankings.node_ids),
        *(rankings.models, rankings.variants, rankings.queries, rankings.rankers),
    )
    rare = rankings.explicit_ranks, rankings.subtopics, rankings.published_ms
    features = _features_of(rankings)
    columns = (
        rows.event_times_ms.tolist(),
        *([column[record] for record in records] for column in plain),
        [ids[first:end] for first, end in _spans(counts, rows.records)],
        [scores[first:end] for first, end in _spans(n_bytes, rows.records)],
        *(map(members.get, records) if members else repeat(None) for members in rare),
        [features[record] for record in records] if features else repeat(None),
    )
    return map(_encode, zip(*columns, strict=False))


def _spans(lengths: IntArray, records: IntArray) -> Iterator[tuple[int, int]]:
    ends = np.cumsum(lengths)
    return zip((ends - lengths)[records].tolist(), ends[records].tolist(), strict=True)


def _features_of(rankings: RankingColumns) -> list[_Features]:
    """The features of each ranking; empty if they were not decoded."""
    features = rankings.features
    if features is None:
        return []
    given = features.of_rows(rankings.candidate_counts)
    values = [b"" if each is None else each.astype("<f8").tobytes() for each in given]
    return [
        _Features(names, flat, features.propensities.get(record), features.described.get(record))
        for record, (names, flat) in enumerate(zip(features.names, values, strict=True))
    ]


# Reading


def rankings_from(
    rows: Sequence[bytes | None], places: IntArray, offsets: IntArray, *, features: bool = False
) -> tuple[IntArray, RankingColumns]:
    """Event times of the rankings at ascending offsets, and the rankings.

    With their *features* if asked. `places[i]` is the row that has `offsets[i]`; both ascend.
    Raises StateDamaged.
    """
    with refused_as(StateDamaged, "a ranking cannot be read"):
        firsts = np.searchsorted(places, np.arange(len(rows) + 1)).tolist()
        queries: list[_Query] = []
        for row, (first, end) in zip(rows, pairwise(firsts), strict=True):
            queries += _queries_in(row, offsets[first:end])
        times = np.array([query.event_ms for query in queries], np.int64)
        return times, _columns_of(queries, offsets, features=features)


def _queries_in(row: bytes | None, offsets: IntArray) -> Iterator[_Query]:
    """The queries of a row at these offsets."""
    row = row or bytes(8)
    (n,) = np.frombuffer(row, "<i8", 1).tolist()
    stored, ends = np.frombuffer(row, "<i8", 2 * n, 8).reshape(2, -1)
    at = np.searchsorted(stored, offsets)
    missing = at == n
    missing[~missing] = stored[at[~missing]] != offsets[~missing]
    if missing.any():
        raise StateDamaged(f"the ranking at offset {offsets[missing][0]} is missing")
    begin, bounds = 8 + 16 * n, [0, *ends.tolist()]
    for each in at.tolist():
        yield _decode(row[begin + bounds[each] : begin + bounds[each + 1]])


def _columns_of(queries: list[_Query], offsets: IntArray, *, features: bool) -> RankingColumns:
    counts = np.array([len(query.candidate_ids) for query in queries], np.int64)
    for query, count in zip(queries, counts.tolist(), strict=True):
        if len(query.hash) != _HASH_BYTES or len(query.scores) != 8 * count * len(query.rankers):
            raise StateDamaged("a ranking has columns of other lengths")
    n, no_times, nothing = (
        len(queries),
        np.empty(0, np.int64),
        ByteStrings.of([None] * len(queries)),
    )
    return RankingColumns(
        offsets=offsets,
        timestamps_ms=np.array([query.event_ms for query in queries], np.int64),
        trace_ids=[query.trace_id for query in queries],
        node_ids=[query.node_id for query in queries],
        hashes=[query.hash for query in queries],
        keys=nothing,
        values=nothing,
        heartbeat_offsets=no_times,
        heartbeat_timestamps_ms=no_times,
        malformed=[],
        next_offset=int(offsets[-1]) + 1 if n else 0,
        models=[query.model for query in queries],
        variants=[query.variant for query in queries],
        queries=[query.query for query in queries],
        rankers=[query.rankers for query in queries],
        candidate_counts=counts,
        candidate_ids=DictionaryColumn.of(
            list(chain.from_iterable(query.candidate_ids for query in queries))
        ),
        scores=_floats([query.scores for query in queries]),
        explicit_ranks={
            row: query.explicit_ranks
            for row, query in enumerate(queries)
            if query.explicit_ranks is not None
        },
        subtopics={row: query.subtopics for row, query in enumerate(queries) if query.subtopics},
        published_ms={
            row: query.published_ms
            for row, query in enumerate(queries)
            if query.published_ms is not None
        },
        features=_feature_columns(queries) if features else None,
    )


def _floats(parts: list[bytes]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.frombuffer(b"".join(parts), "<f8").astype(np.float64)


def _feature_columns(queries: list[_Query]) -> FeatureColumns:
    found = [query.features or _Features(None, b"", None, None) for query in queries]
    for query, each in zip(queries, found, strict=True):
        n = len(query.candidate_ids)
        if len(each.values) != 8 * n * len(each.names or ()):
            raise StateDamaged("a ranking has features of other lengths")
    return FeatureColumns(
        [each.names for each in found],
        _floats([each.values for each in found]),
        {row: e.propensities for row, e in enumerate(found) if e.propensities is not None},
        {row: each.described for row, each in enumerate(found) if each.described is not None},
    )
