"""Rows of the table `queries`: up to `ROW_QUERIES` rankings each, in columns.

A row has the data of each ranking that the engine reads: ranks instead of scores, and features only
if they were decoded.
"""

from collections.abc import Sequence, Sized
from itertools import accumulate, chain, pairwise
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.columns.key_hashes import hashes_of
from evaluator.core.columns.table import span_indices
from evaluator.core.columns.texts import WORD, TextRows, n_words
from evaluator.core.join.changes import StartedRows
from evaluator.core.measures.align import TOP
from evaluator.core.types.records import (
    FloatArray,
    IntArray,
    Levels,
    RankingColumns,
    Ranks,
    Stratum,
)
from evaluator.wire.reading import refused_as
from evaluator.wire.state.rare_members import (
    RareMembers,
    feature_columns,
    rare_of,
    served_lists,
)
from evaluator.wire.state.task_rows import StateDamaged

ROW_QUERIES: Final = 32
"""A put of a row costs as much as one of a single query; so does a read from disk."""
_MEMBERS: Final = np.dtype([
    ("offset", "<i8"),
    ("event_ms", "<i8"),
    ("stratum", "<u2"),
    ("n_candidates", "<u2"),
    ("n_ranked", "<u2"),  # candidates, repeated ones counted once
    ("id_bytes", "<u4"),  # of the candidates
    ("text_sizes", "<u4", 3),  # see `TextRows`
])  # fmt: skip

T = TypeVar("T")


class _Row(msgspec.Struct, array_like=True):
    members: bytes
    hashes: bytes
    texts: bytes
    strata: list[Stratum]
    candidate_ids: bytes  # encoded ids, one after the other
    ranks: bytes  # with ties also the first and the last rank of each
    top_scores: bytes
    rare: dict[int, RareMembers]  # by position in the row
    levels: list[Levels]  # without segments none
    level_numbers: bytes  # a byte per ranking


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Row).decode
_decode_ids: Final = msgspec.msgpack.Decoder(list[str]).decode


# Writing


class _Columns(NamedTuple):
    """Queries of one commit."""

    members: NDArray[np.void]  # `_MEMBERS`; strata are numbers of the commit
    hashes: NDArray[np.void]
    words: NDArray[np.uint64]  # of texts
    ids: list[bytes]
    n_lists: IntArray
    ranks: NDArray[np.uint16]  # [n_ranks, 1], or 3 with ties
    top_scores: FloatArray  # [n_lists, TOP]
    levels: list[Levels]  # without segments none
    rare: dict[int, RareMembers]


def ranking_rows(started: Sequence[StartedRows]) -> tuple[IntArray, list[bytes]]:
    """The first offsets of rows, and the rows."""
    parts = [_columns_of(rows) for rows in started if len(rows.offsets)]
    if not parts:
        return np.empty(0, np.int64), []
    columns = parts[0] if len(parts) == 1 else _joined(parts)
    members, rare, labels = columns.members, columns.rare, _labels_of(started)
    cuts = [*range(0, len(members), ROW_QUERIES), len(members)]
    n_candidates = members["n_candidates"].astype(np.int64)
    of_ids, of_ranks, of_lists, of_words = (
        np.append(0, np.cumsum(lengths))[cuts].tolist()
        for lengths in (
            *(n_candidates, n_candidates * columns.n_lists, columns.n_lists),
            n_words(members["text_sizes"]),
        )
    )
    all_strata = np.concatenate([rows.strata for rows in started]).tolist()
    strata = [_numbered(all_strata[first:end]) for first, end in pairwise(cuts)]
    members["stratum"] = list(chain.from_iterable(numbers for _, numbers in strata))
    texts = zip(
        *(_cut(members, cuts), _cut(columns.hashes, cuts), _cut(columns.words, of_words)),
        *(_cut(columns.ranks, of_ranks), _cut(columns.top_scores, of_lists)),
        strict=True,
    )
    rows = []
    for at, (of_members, hashes, words, ranks, top_scores) in enumerate(texts):
        first, end = cuts[at : at + 2]
        row = (
            *(of_members, hashes, words, list(map(labels.__getitem__, strata[at][0]))),
            *(b"".join(columns.ids[of_ids[at] : of_ids[at + 1]]), ranks, top_scores),
            {row - first: rare[row] for row in range(first, end) if row in rare} if rare else {},
            *_numbered(columns.levels[first:end]),
        )
        rows.append(_encode(row))
    return members["offset"][::ROW_QUERIES].astype(np.int64), rows


def _cut(column: NDArray[Any], ends: Sequence[int]) -> list[bytes]:
    """The bytes of a column from each of these entries to the next."""
    text, size = column.tobytes(), column.nbytes // max(len(column), 1)
    return [text[first * size : end * size] for first, end in pairwise(ends)]


def _numbered(values: list[T]) -> tuple[list[T], bytes]:
    """Different values of a row, and the number of each of *values*."""
    numbers = dict(zip(dict.fromkeys(values), range(ROW_QUERIES), strict=False))
    return list(numbers), bytes(map(numbers.__getitem__, values))


def _columns_of(rows: StartedRows) -> _Columns:
    rankings, ranked, records = rows.rankings, rows.ranked, rows.records
    counts, n_lists = rankings.candidate_counts, ranked.n_rankers
    ids = rankings.candidate_ids.compact()
    encoded = np.fromiter(map(_encode, ids.names), object, len(ids.names))
    sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
    numbers = ids.numbers[_spans(counts, records)]
    ends = np.append(0, np.cumsum(sizes[numbers]))
    last = np.cumsum(counts[records])
    texts = rankings.texts.picked(records)
    members = np.zeros(len(records), _MEMBERS)
    members["offset"], members["event_ms"] = rows.offsets, rows.event_times_ms
    members["n_candidates"], members["n_ranked"] = counts[records], ranked.n_ranked[records]
    members["text_sizes"] = texts.sizes
    members["id_bytes"] = ends[last] - ends[last - counts[records]]
    ranks, of_rank = (ranked.ranks, *(ranked.ties or ())), _spans(counts * n_lists, records)
    return _Columns(
        members,
        rows.hashes,
        texts.flat(),
        encoded[numbers].tolist(),
        n_lists[records],
        np.stack([each[of_rank] for each in ranks], axis=1).astype("<u2", copy=False),
        ranked.top_scores[_spans(n_lists, records)].astype("<f8", copy=False),
        [] if rankings.levels is None else rankings.levels[records].values(),
        rare_of(rankings, ranked.served, records),
    )


def _labels_of(started: Sequence[StartedRows]) -> dict[int, Stratum]:
    """The labels of each stratum, by number."""
    labels: dict[int, Stratum] = {}
    for rows in started:
        strata, at = np.unique(rows.strata, return_index=True)
        of = rows.rankings.strata
        for stratum, number in zip(strata.tolist(), of.numbers[rows.records[at]], strict=True):
            labels[stratum] = of.names[number]
    return labels


def _joined(parts: Sequence[_Columns]) -> _Columns:
    firsts = accumulate((len(part.members) for part in parts), initial=0)
    rare = {
        first + row: each
        for part, first in zip(parts, firsts, strict=False)
        for row, each in part.rare.items()
    }
    *columns, _ = zip(*parts, strict=True)
    joined = [
        np.concatenate(each) if isinstance(each[0], np.ndarray) else list(chain.from_iterable(each))
        for each in columns
    ]
    return _Columns._make([*joined, rare])


def _spans(lengths: IntArray, records: IntArray) -> IntArray | slice:
    """The entries of some rows of flat columns."""
    if len(records) == len(lengths):
        return slice(None)
    return span_indices((np.cumsum(lengths) - lengths)[records], lengths[records])


# Reading


def rankings_from(
    rows: Sequence[bytes | None], places: IntArray, offsets: IntArray, *, features: bool = False
) -> tuple[IntArray, RankingColumns]:
    """Event times of the rankings at ascending offsets, and the rankings, with ranks.

    With *features*, they include their features. `places[i]` is the row that has `offsets[i]`; both
    ascend. Raises StateDamaged.
    """
    if None in rows:
        missing = offsets[np.searchsorted(places, rows.index(None))]
        raise StateDamaged(f"the ranking at offset {missing} is missing")
    with refused_as(StateDamaged, "a ranking cannot be read"):
        return _Rows([_decode(row or b"") for row in rows]).at(offsets, features=features)


class _Rows:
    """Some rows of ascending offsets, in columns. Raises StateDamaged."""

    def __init__(self, rows: list[_Row]) -> None:
        self._rows = rows
        self._members = np.frombuffer(b"".join(row.members for row in rows), _MEMBERS)
        n = np.array([len(row.members) // _MEMBERS.itemsize for row in rows], np.int64)
        self._first_of = np.cumsum(n) - n
        self._row_of = np.repeat(np.arange(len(rows)), n)
        n_strata = np.array([len(row.strata) for row in rows], np.int64)
        self._strata = [stratum for row in rows for stratum in row.strata]
        numbers = self._members["stratum"].astype(np.int64)
        if (n < 1).any() or (numbers >= n_strata[self._row_of]).any():
            raise StateDamaged("a row of rankings has members that are not possible")
        self._stratum_of = numbers + (np.cumsum(n_strata) - n_strata)[self._row_of]
        n_rankers = np.array([len(stratum.rankers) for stratum in self._strata], np.int64)
        self._n_lists = n_rankers[self._stratum_of]
        self._n_ranks = self._members["n_candidates"] * self._n_lists
        self._id_bytes = self._members["id_bytes"].astype(np.int64)
        n_ties = sum(len(row.ranks) for row in rows) // max(2, 2 * int(self._n_ranks.sum()))
        self._n_bounds = 3 if n_ties == 3 else 1
        self._check(n)

    def _check(self, n: IntArray) -> None:
        """Compares the lengths of all columns of each row."""
        words = n_words(self._members["text_sizes"])
        of_members = np.column_stack((self._n_lists, self._n_ranks, self._id_bytes, words))
        sums = np.add.reduceat(of_members, self._first_of)
        n_levels = n * np.array([bool(row.levels) for row in self._rows])
        wanted = [n_levels, 16 * n, *(sums * [8 * TOP, 2 * self._n_bounds, 1, WORD]).T]
        columns: list[tuple[Sized, ...]] = [
            (
                *(row.level_numbers, row.hashes),
                *(row.top_scores, row.ranks, row.candidate_ids, row.texts),
            )
            for row in self._rows
        ]
        if not np.array_equal(np.transpose(wanted), [list(map(len, each)) for each in columns]):
            raise StateDamaged("a row of rankings has columns of other lengths")

    def at(self, offsets: IntArray, *, features: bool) -> tuple[IntArray, RankingColumns]:
        """Event times and rankings at these offsets."""
        members, stored = self._members, self._members["offset"]
        at = np.searchsorted(stored, offsets)
        missing = at == len(members)
        missing[~missing] = stored[at[~missing]] != offsets[~missing]
        if missing.any():
            raise StateDamaged(f"the ranking at offset {offsets[missing][0]} is missing")
        places = (self._row_of[at], at - self._first_of[self._row_of[at]])
        chosen = [
            (self._rows[row], place)
            for row, place in zip(*(each.tolist() for each in places), strict=True)
        ]
        counts, times = (
            members[name][at].astype(np.int64) for name in ("n_candidates", "event_ms")
        )
        rare = {row: each for row, (of, place) in enumerate(chosen) if (each := of.rare.get(place))}
        no_times, nothing = np.empty(0, np.int64), ByteStrings.of([None] * len(at))
        stored_texts = b"".join([row.texts for row in self._rows])
        texts = TextRows.stored(stored_texts, members["text_sizes"].astype(np.int64)).picked(at)
        return times, RankingColumns(
            offsets=offsets,
            timestamps_ms=times,
            texts=texts,
            key_hashes=hashes_of(texts.column(0), texts.column(1)),
            hashes=np.frombuffer(b"".join(row.hashes for row in self._rows), "V16")[at],
            keys=nothing,
            values=nothing,
            heartbeat_offsets=no_times,
            heartbeat_timestamps_ms=no_times,
            malformed=[],
            next_offset=int(offsets[-1]) + 1 if len(at) else 0,
            strata=DictionaryColumn(self._strata, self._stratum_of[at].astype(np.int32)),
            candidate_counts=counts,
            candidate_ids=self._ids(at, int(counts.sum())),
            scores=np.empty(0),
            explicit_ranks={},
            subtopics={row: each.subtopics for row, each in rare.items() if each.subtopics},
            published_ms={
                row: each.published_ms
                for row, each in rare.items()
                if each.published_ms is not None
            },
            features=feature_columns(counts.tolist(), rare) if features else None,
            levels=_levels_at(chosen),
            ranks=self._ranks(at)._replace(served=served_lists(counts, rare)),
        )

    def _ids(self, at: IntArray, n: int) -> DictionaryColumn:
        text = b"".join(row.candidate_ids for row in self._rows)
        ends = np.cumsum(self._id_bytes)
        spans = np.stack(((ends - self._id_bytes)[at], ends[at]), axis=1).tolist()
        ids = _decode_ids(_list_head(n) + b"".join([text[first:end] for first, end in spans]))
        return DictionaryColumn.of(ids)

    def _ranks(self, at: IntArray) -> Ranks:
        ranks = np.frombuffer(b"".join(row.ranks for row in self._rows), "<u2")
        ranks = ranks.reshape(-1, self._n_bounds)[_spans(self._n_ranks, at)]
        if len(ranks) and not ranks.min():
            raise StateDamaged("a ranking has a rank 0")
        scores = np.frombuffer(b"".join(row.top_scores for row in self._rows), "<f8")
        return Ranks(
            *(ranks[:, 0], scores.reshape(-1, TOP)[_spans(self._n_lists, at)]),
            self._members["n_ranked"][at].astype(np.int64),
            (ranks[:, 1], ranks[:, 2]) if self._n_bounds == 3 else None,
        )


def _levels_at(chosen: Sequence[tuple[_Row, int]]) -> DictionaryColumn | None:
    """Levels of the rankings at places of rows; None without segments."""
    if not any(row.levels for row, _ in chosen):
        return None
    return DictionaryColumn.of([row.levels[row.level_numbers[place]] for row, place in chosen])


def _list_head(n: int) -> bytes:
    """The bytes before the items of an encoded list: each nil is a byte."""
    return _encode([None] * n)[: -n or None]
