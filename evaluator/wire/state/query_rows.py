"""Rows of the table `judgments`, written and read; see `task_rows.py`."""

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Final

import numpy as np

from evaluator.core.join.changes import AppliedRows, Changes, StoredQueries
from evaluator.core.types.records import IntArray, RankingColumns
from evaluator.wire.messages.codec import decode_judgments
from evaluator.wire.reading import refused_as
from evaluator.wire.state.task_rows import ANY_SKEW, Row, StateDamaged, all_well_formed, records_of

_at: Final = struct.Struct(">q")
_two: Final = struct.Struct(">qq")
_judgment: Final = struct.Struct("<qqqi")  # offset, event time, timestamp, bytes of results


def offset_of(key: bytes) -> int:
    """The offset in a key of `starts` or `renamed`."""
    return int(_at.unpack(key)[0])


def judgment_key(offset: int, ordinal: int) -> bytes:
    """The key of a judgment; *ordinal* counts the earlier ones of its query."""
    return _two.pack(offset, ordinal)


# Writing


def judgment_rows(changes: Changes) -> Iterator[Row]:
    """Rows of `judgments`."""
    rows = list(changes.applied)
    for query, ordinal, one in changes.applied_singly:
        at = np.array([query]), np.array([ordinal]), np.array([one.offset])
        times = np.array([one.event_ms]), np.array([one.timestamp_ms])
        rows.append(AppliedRows(*at, *times, [one.value]))
    if not rows:
        return
    queries, ordinals, offsets, event_times, timestamps = (
        np.concatenate([columns[place] for columns in rows]) for place in range(5)
    )
    keys = map(_two.pack, queries.tolist(), ordinals.tolist())
    values = list(chain.from_iterable(columns.values for columns in rows))
    results = _results_of(changes, queries, ordinals)
    numbers = offsets.tolist(), event_times.tolist(), timestamps.tolist()
    heads = map(_judgment.pack, *numbers, map(len, results))
    yield from zip(keys, map(b"".join, zip(heads, results, values, strict=True)), strict=True)


def _results_of(changes: Changes, queries: IntArray, ordinals: IntArray) -> list[bytes]:
    """The results in the row of each judgment: those of its query in the last one."""
    by_query: dict[int, bytes] = {}
    for offsets, lengths, results in changes.results:
        data = results.astype("<i8", copy=False).tobytes()
        ends = pairwise(accumulate((8 * lengths).tolist(), initial=0))
        by_query.update(
            (query, data[first:end])
            for query, (first, end) in zip(offsets.tolist(), ends, strict=True)
        )
    order = np.lexsort((ordinals, queries))
    last = np.ones(len(order), bool)
    last[order[:-1]] = np.diff(queries[order]) != 0
    return [
        by_query[query] if is_last else b""
        for query, is_last in zip(queries.tolist(), last.tolist(), strict=True)
    ]


# Reading


def queries_from(
    rankings: RankingColumns, judgments: Sequence[Sequence[bytes]], *, task: int
) -> StoredQueries:
    """Queries from their rankings, and the rows of the judgments of each, by ordinal.

    Raises StateDamaged.
    """
    results: list[bytes] = []
    applied: list[tuple[int, int, int, bytes]] = []
    with refused_as(StateDamaged, "a judgment cannot be read"):
        for rows in judgments:
            result = b""
            for value in rows:
                offset, event_ms, timestamp_ms, length = _judgment.unpack_from(value)
                end = _judgment.size + length
                result = value[_judgment.size : end]
                applied.append((offset, event_ms, timestamp_ms, value[end:]))
            results.append(result)
        summed = np.frombuffer(b"".join(results), "<i8").astype(np.int64)
    applied.sort()
    columns = [list(column) for column in zip(*applied, strict=True)] or [[], [], [], []]
    judged = decode_judgments(
        records_of("judgments", task, columns[0], None, columns[3], columns[2]),
        max_future_skew_ms=ANY_SKEW,
    )
    all_well_formed(len(applied), len(judged))
    return StoredQueries(
        rankings=rankings,
        judgments=judged,
        judgment_event_times_ms=np.array(columns[1], np.int64),
        results=summed,
        result_lengths=np.array([len(result) // 8 for result in results], np.int64),
    )
