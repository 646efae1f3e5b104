"""Rows of the tables `judgments` and `judged`: judgments in order of arrival.

A row of `judgments` has up to `ROW_JUDGMENTS` of them: their number, `_MEMBERS` of each, results,
and messages, each followed by a NUL byte. It is found by the row with the latest judgment of a
query, in memory; each judgment has the number of the row with the previous one.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple

import numpy as np

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.columns.table import span_indices
from evaluator.core.join.changes import AppliedRows, Changes, StoredQueries
from evaluator.core.types.records import IntArray, RankingColumns
from evaluator.wire.reading import refused_as
from evaluator.wire.state.task_rows import StateDamaged, decoded_judgments

ROW_JUDGMENTS: Final = 32
NO_ROW: Final = -1
_MEMBERS: Final = 7
"""Offset of the query, row with its previous judgment, offset, event time, timestamp, and where the
results and the message end."""
_at: Final = struct.Struct(">q")


class StoredJudgment(NamedTuple):
    """A judgment as stored; the latest one of a query has the results of the query."""

    offset: int
    event_ms: int
    timestamp_ms: int
    value: bytes
    results: bytes


def rows_of(first: int, n: int) -> IntArray:
    """The rows of *n* judgments that begin with row *first*: `[n]`."""
    return first + np.arange(n) // ROW_JUDGMENTS


# Writing


def applied_in(changes: Changes) -> AppliedRows | None:
    """The applied judgments; those of a query are in their order."""
    parts = list(changes.applied)
    for query, ordinal, one in changes.applied_singly:
        at = np.array([query]), np.array([ordinal]), np.array([one.offset])
        times = np.array([one.event_ms]), np.array([one.timestamp_ms])
        parts.append(AppliedRows(*at, *times, ByteStrings.of([one.value])))
    if not parts:
        return None
    values = ByteStrings.joined([part.values for part in parts])
    columns = [np.concatenate([part[at] for part in parts]) for at in range(5)]
    ordinals = columns[1]
    if not ordinals.any():
        return AppliedRows._make([*columns, values])
    order = np.argsort(ordinals, kind="stable")
    return AppliedRows._make([*(column[order] for column in columns), values[order]])


def judgment_rows(
    changes: Changes, applied: AppliedRows, earlier: IntArray, latest: IntArray
) -> Iterator[bytes]:
    """Rows of judgments, of which each is made when it is taken.

    *earlier* are the rows with the previous judgments, `[n_judgments]`; *latest* are the positions
    of the latest judgments of the queries, ascending.
    """
    n = len(applied.offsets)
    lengths, results = _results_of(changes, applied.query_offsets[latest])
    sizes = np.zeros(n, np.int64)
    sizes[latest] = 8 * lengths
    cuts = [*range(0, n, ROW_JUDGMENTS), n]
    ends = np.cumsum(sizes), np.cumsum(applied.values.sizes + 1)  # with a NUL byte after each
    bounds = [np.append(0, each)[cuts] for each in ends]
    row_of = np.arange(n) // ROW_JUDGMENTS
    columns = np.array([
        *(applied.query_offsets, earlier, applied.offsets),
        *(applied.event_times_ms, applied.timestamps_ms),
        *(each - starts[row_of] for each, starts in zip(ends, bounds, strict=True)),
    ]).astype("<i8")  # fmt: skip
    values = applied.values.compact().buffer
    spans = zip(pairwise(cuts), *(pairwise(starts.tolist()) for starts in bounds), strict=True)
    for (first, end), of_results, of_values in spans:
        yield b"".join((
            _at.pack(end - first),
            columns[:, first:end].tobytes(),
            results[slice(*of_results)],
            values[slice(*of_values)],
        ))  # fmt: skip


def _results_of(changes: Changes, queries: IntArray) -> tuple[IntArray, bytes]:
    """The last results of each of these queries: their lengths, and the results, flat."""
    offsets, lengths, results = (
        np.concatenate([part[at] for part in changes.results]) for at in range(3)
    )
    known, at = np.unique(offsets[::-1], return_index=True)
    at = len(offsets) - 1 - at[np.searchsorted(known, queries)]
    starts = np.cumsum(lengths) - lengths
    flat = results[span_indices(starts[at], lengths[at])]
    return lengths[at], flat.astype("<i8").tobytes()


# Reading


class JudgmentRow:
    """One row of judgments. Raises StateDamaged."""

    def __init__(self, row: bytes | None) -> None:
        with refused_as(StateDamaged, "judgments cannot be read"):
            (n,) = _at.unpack_from(row or b"")
            self._columns = np.frombuffer(row or b"", "<i8", _MEMBERS * n, 8).reshape(_MEMBERS, n)
            self._bytes = row or b""
            begin = 8 + self._columns.nbytes
            end = begin + int(self._columns[-2, -1])
            if end + int(self._columns[-1, -1]) != len(self._bytes):
                raise ValueError("a row of judgments has another length")
        self._begins = begin, end

    def of(self, query: int) -> tuple[list[StoredJudgment], int]:
        """The judgments of a query, and the row with the previous one."""
        found = []
        (places,) = np.nonzero(self._columns[0] == query)
        for at in places.tolist():
            ends = self._columns[-2:, at - 1].tolist() if at else (0, 0)
            _, _, *members, result_end, value_end = self._columns[:, at].tolist()
            spans = zip(self._begins, ends, (result_end, value_end), strict=True)
            results, value = (self._bytes[begin + a : begin + b] for begin, a, b in spans)
            found.append(StoredJudgment._make([*members, value[:-1], results]))
        if not found:
            raise StateDamaged(f"a judgment of the ranking at offset {query} is missing")
        return found, int(self._columns[1, places[0]])


def queries_from(
    rankings: RankingColumns, judgments: Sequence[Sequence[StoredJudgment]], *, task: int
) -> StoredQueries:
    """Queries from their rankings, and the judgments of each in their order.

    Raises StateDamaged.
    """
    applied = sorted(chain.from_iterable(judgments))
    offsets, times, timestamps, values, _ = list(zip(*applied, strict=True)) or [()] * 5
    judged = decoded_judgments(task, offsets, [None] * len(applied), values, timestamps)
    results = [each[-1].results if each else b"" for each in judgments]
    with refused_as(StateDamaged, "results cannot be read"):
        summed = np.frombuffer(b"".join(results), "<i8").astype(np.int64)
    return StoredQueries(
        rankings=rankings,
        judgments=judged,
        judgment_event_times_ms=np.array(times, np.int64),
        results=summed,
        result_lengths=np.array([len(result) // 8 for result in results], np.int64),
    )
