"""Rows of the table `queries`: up to `ROW_QUERIES` rankings each, in columns.

A row has the data of each ranking that the engine reads: ranks instead of scores, and features only
if they were decoded.
"""

from collections.abc import Iterable, Sequence, Sized
from contextlib import AbstractContextManager
from itertools import accumulate, chain, pairwise
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.columns.key_hashes import NO_KEYS
from evaluator.core.columns.table import spans_of
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
    members: memoryview
    hashes: memoryview
    texts: memoryview
    strata: list[Stratum]
    candidate_ids: memoryview  # encoded ids, one after the other
    ranks: memoryview  # with ties also the first and the last rank of each
    top_scores: memoryview
    rare: dict[int, RareMembers]  # by position in the row
    levels: list[Levels]  # without segments none
    level_numbers: memoryview  # a byte per ranking

    @property
    def columns(self) -> tuple[memoryview, ...]:
        """The columns with bytes of every ranking, in the order of `RankingRows`."""
        return self.hashes, self.top_scores, self.ranks, self.candidate_ids, self.texts


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
    numbers = ids.numbers[spans_of(records, counts)]
    ends = np.append(0, np.cumsum(sizes[numbers]))
    last = np.cumsum(counts[records])
    texts = rankings.texts.picked(records)
    members = np.zeros(len(records), _MEMBERS)
    members["offset"], members["event_ms"] = rows.offsets, rows.event_times_ms
    members["n_candidates"], members["n_ranked"] = counts[records], ranked.n_ranked[records]
    members["text_sizes"] = texts.sizes
    members["id_bytes"] = ends[last] - ends[last - counts[records]]
    ranks, of_rank = (ranked.ranks, *(ranked.ties or ())), spans_of(records, counts * n_lists)
    return _Columns(
        members,
        rows.hashes,
        texts.flat(),
        encoded[numbers].tolist(),
        n_lists[records],
        np.stack([each[of_rank] for each in ranks], axis=1).astype("<u2", copy=False),
        ranked.top_scores[spans_of(records, n_lists)].astype("<f8", copy=False),
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


# Reading


class RankingRows:
    """Some rows of ascending offsets, None for a missing one. Raises StateDamaged.

    Few of their rankings are read, so the bytes of these are cut out before they are joined.
    """

    def __init__(self, rows: Sequence[bytes | None]) -> None:
        with _readable():
            self._rows = [_decode(row) for row in rows if row is not None]
            members = b"".join([row.members for row in self._rows])
            self._members = np.frombuffer(members, _MEMBERS)
            self._measure()

    def _measure(self) -> None:
        """Finds the bytes of each ranking in the columns of its row."""
        rows, members = self._rows, self._members
        n = _lengths(row.members for row in rows) // _MEMBERS.itemsize
        self._first_of = np.cumsum(n) - n
        self._row_of = np.repeat(np.arange(len(rows)), n)
        n_strata = _lengths(row.strata for row in rows)
        self._strata = [stratum for row in rows for stratum in row.strata]
        numbers = members["stratum"].astype(np.int64)
        if (n < 1).any() or (numbers >= n_strata[self._row_of]).any():
            raise StateDamaged("a row of rankings has members that are not possible")
        self._stratum_of = numbers + (np.cumsum(n_strata) - n_strata)[self._row_of]
        n_lists = _lengths(stratum.rankers for stratum in self._strata)[self._stratum_of]
        n_ranks = members["n_candidates"] * n_lists
        n_ties = int(_lengths(row.ranks for row in rows).sum()) // max(2, 2 * int(n_ranks.sum()))
        self._n_bounds = 3 if n_ties == 3 else 1
        self._sizes = np.array([
            *(np.full(len(members), 16), 8 * TOP * n_lists, 2 * self._n_bounds * n_ranks),
            *(members["id_bytes"], WORD * n_words(members["text_sizes"])),
        ])  # fmt: skip
        ends = np.cumsum(self._sizes, axis=1)
        self._ends = ends - (ends - self._sizes)[:, self._first_of[self._row_of]]
        n_levels = [n_rows * bool(row.levels) for n_rows, row in zip(n.tolist(), rows, strict=True)]
        wanted = np.vstack((self._ends[:, np.cumsum(n) - 1], n_levels)).T
        found = [(*map(len, row.columns), len(row.level_numbers)) for row in rows]
        if rows and not np.array_equal(wanted, found):
            raise StateDamaged("a row of rankings has columns of other lengths")

    def has(self, offsets: IntArray) -> bool:
        """Whether the rankings at these offsets are all in the rows."""
        return bool((self._found(offsets) >= 0).all())

    def heads(self, offsets: IntArray) -> tuple[IntArray, NDArray[np.void]]:
        """Event times of the rankings at these offsets, and hashes of their messages."""
        at = self._places(offsets)
        hashes = np.frombuffer(b"".join([row.hashes for row in self._rows]), "V16")
        return self._members["event_ms"][at].astype(np.int64), hashes[at]

    def rankings(self, offsets: IntArray, *, features: bool = False) -> RankingColumns:
        """The rankings at these offsets, ascending, with ranks; with *features* also these."""
        with _readable():
            return self._rankings(offsets, self._places(offsets), features=features)

    def _rankings(self, offsets: IntArray, at: IntArray, *, features: bool) -> RankingColumns:
        members, row_of = self._members[at], self._row_of[at]
        rows = [self._rows[row] for row in row_of.tolist()]
        places = (at - self._first_of[row_of]).tolist()
        hashes, top_scores, ranks, ids, texts = self._cut_out(rows, at)
        counts, times, n_ranked = (
            members[name].astype(np.int64) for name in ("n_candidates", "event_ms", "n_ranked")
        )
        rare = {
            number: each
            for number, (row, place) in enumerate(zip(rows, places, strict=True))
            if (each := row.rare.get(place))
        }
        bounds = np.frombuffer(ranks, "<u2").reshape(-1, self._n_bounds)
        if len(bounds) and not bounds.min():
            raise StateDamaged("a ranking has a rank 0")
        no_times, nothing = np.empty(0, np.int64), ByteStrings.of([None] * len(at))
        return RankingColumns(
            offsets=offsets,
            timestamps_ms=times,
            texts=TextRows.stored(texts, members["text_sizes"].astype(np.int64)),
            key_hashes=NO_KEYS,
            hashes=np.frombuffer(hashes, "V16"),
            keys=nothing,
            values=nothing,
            heartbeat_offsets=no_times,
            heartbeat_timestamps_ms=no_times,
            malformed=[],
            next_offset=int(offsets[-1]) + 1,
            strata=DictionaryColumn(self._strata, self._stratum_of[at].astype(np.int32)),
            candidate_counts=counts,
            candidate_ids=DictionaryColumn.of(_decode_ids(_list_head(int(counts.sum())) + ids)),
            scores=np.empty(0),
            explicit_ranks={},
            subtopics={row: each.subtopics for row, each in rare.items() if each.subtopics},
            published_ms={
                row: each.published_ms
                for row, each in rare.items()
                if each.published_ms is not None
            },
            features=feature_columns(counts.tolist(), rare) if features else None,
            levels=_levels_at(rows, places),
            ranks=Ranks(
                bounds[:, 0],
                np.frombuffer(top_scores, "<f8").reshape(-1, TOP),
                n_ranked,
                (bounds[:, 1], bounds[:, 2]) if self._n_bounds == 3 else None,
                served_lists(counts, rare),
            ),
        )

    def _found(self, offsets: IntArray) -> IntArray:
        """Where the rankings at these offsets are, -1 for a missing one."""
        stored = self._members["offset"]
        at = np.searchsorted(stored, offsets)
        found = at < len(stored)
        found[found] = stored[at[found]] == offsets[found]
        return np.where(found, at, -1)

    def _places(self, offsets: IntArray) -> IntArray:
        at = self._found(offsets)
        if (at < 0).any():
            raise StateDamaged(f"the ranking at offset {offsets[at < 0][0]} is missing")
        return at

    def _cut_out(self, rows: Sequence[_Row], at: IntArray) -> list[bytes]:
        """The bytes of some rankings, by column; *rows* are the row of each."""
        ends = self._ends[:, at]
        spans = zip((ends - self._sizes[:, at]).tolist(), ends.tolist(), strict=True)
        columns = zip(*(row.columns for row in rows), strict=True)
        return [
            b"".join([each[first:end] for each, first, end in zip(column, *of_column, strict=True)])
            for column, of_column in zip(columns, spans, strict=True)
        ]


def _readable() -> AbstractContextManager[None]:
    return refused_as(StateDamaged, "a ranking cannot be read")


def _lengths(columns: Iterable[Sized]) -> IntArray:
    return np.array(list(map(len, columns)), np.int64)


def _levels_at(rows: Sequence[_Row], places: Sequence[int]) -> DictionaryColumn | None:
    """Levels of the rankings at places of rows; None without segments."""
    if not any(row.levels for row in rows):
        return None
    of_rankings = zip(rows, places, strict=True)
    return DictionaryColumn.of([row.levels[row.level_numbers[place]] for row, place in of_rankings])


def _list_head(n: int) -> bytes:
    """The bytes before the items of an encoded list: each nil is a byte."""
    return _encode([None] * n)[: -n or None]
