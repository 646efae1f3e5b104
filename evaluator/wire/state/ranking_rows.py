"""Rows of the table `queries`: up to `ROW_QUERIES` rankings each, in columns.

A row has the data of each ranking that the engine reads: ranks instead of scores, and features only
if they were decoded.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate, chain, pairwise
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.columns.interning import DictionaryColumn, Interner
from evaluator.core.columns.key_hashes import NO_KEYS
from evaluator.core.columns.table import spans_of
from evaluator.core.columns.texts import WORD, TextRows
from evaluator.core.join.changes import StartedRows
from evaluator.core.measures.align import TOP
from evaluator.core.types.records import (
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
    ("hash", "V16"),
    ("stratum", "<u2"),
    ("n_candidates", "<u2"),
    ("n_ranked", "<u2"),  # candidates, repeated ones counted once
    ("text_sizes", "<u4", 3),  # see `TextRows`
    ("sizes", "<u4", 4),  # of its bytes in the columns of the row
])  # fmt: skip

T = TypeVar("T")


class _Row(msgspec.Struct, array_like=True):
    members: memoryview
    strata: list[msgspec.Raw]
    top_scores: memoryview
    ranks: memoryview  # with ties also the first and the last rank of each
    candidate_ids: memoryview  # encoded ids, one after the other
    texts: memoryview
    rare: dict[int, RareMembers]  # by position in the row
    levels: list[Levels]  # without segments none
    level_numbers: memoryview  # a byte per ranking

    @property
    def columns(self) -> tuple[memoryview, ...]:
        """The columns of which `sizes` has the sizes."""
        return self.top_scores, self.ranks, self.candidate_ids, self.texts


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Row).decode
_decode_ids: Final = msgspec.msgpack.Decoder(list[str]).decode
_decode_stratum: Final = msgspec.msgpack.Decoder(Stratum).decode


# Writing


class _Columns(NamedTuple):
    """Queries of one commit."""

    members: NDArray[np.void]
    """`_MEMBERS`, without strata."""
    texts: tuple[bytes, ...]
    """The columns of a row that are bytes, of all queries."""
    levels: list[Levels]  # without segments none
    rare: dict[int, RareMembers]


def ranking_rows(started: Sequence[StartedRows]) -> tuple[IntArray, Iterator[bytes]]:
    """The first offsets of rows, and the rows, of which each is made when it is taken."""
    parts = [_columns_of(rows) for rows in started if len(rows.offsets)]
    if not parts:
        return np.empty(0, np.int64), iter(())
    columns = parts[0] if len(parts) == 1 else _joined(parts)
    strata = np.concatenate([rows.strata for rows in started]).tolist()
    starts = columns.members["offset"][::ROW_QUERIES].astype(np.int64)
    return starts, _encoded(columns, strata, _labels_of(started))


def _encoded(
    columns: _Columns, strata: list[int], labels: Mapping[int, Stratum]
) -> Iterator[bytes]:
    """The rows of queries; *strata* are those of the queries, with *labels* by number."""
    members, rare = columns.members, columns.rare
    texts = [memoryview(text) for text in columns.texts]
    cuts = [*range(0, len(members), ROW_QUERIES), len(members)]
    bounds = _ends(members)[cuts].tolist()
    for (first, end), starts, ends in zip(pairwise(cuts), bounds, bounds[1:], strict=False):
        of_row, (row_strata, numbers) = members[first:end], _numbered(strata[first:end])
        of_row["stratum"] = list(numbers)
        row = (
            of_row.tobytes(),
            list(map(labels.__getitem__, row_strata)),
            *(text[at:to] for text, at, to in zip(texts, starts, ends, strict=True)),
            {row - first: rare[row] for row in range(first, end) if row in rare} if rare else {},
            *_numbered(columns.levels[first:end]),
        )
        yield _encode(row)


def _ends(members: NDArray[np.void]) -> IntArray:
    """Where each ranking begins in columns of all of them, and where the last one ends."""
    sizes = members["sizes"]
    ends = np.zeros((len(members) + 1, sizes.shape[1]), np.int64)
    np.cumsum(sizes, axis=0, out=ends[1:])
    return ends


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
    of_rank, of_list = spans_of(records, counts * n_lists), spans_of(records, n_lists)
    ranks = np.stack([each[of_rank] for each in (ranked.ranks, *(ranked.ties or ()))], axis=1)
    members = np.zeros(len(records), _MEMBERS)
    members["offset"], members["event_ms"] = rows.offsets, rows.event_times_ms
    members["hash"], members["text_sizes"] = rows.hashes, texts.sizes
    members["n_candidates"], members["n_ranked"] = counts[records], ranked.n_ranked[records]
    members["sizes"] = np.stack(
        (
            8 * TOP * n_lists[records],
            2 * ranks.shape[1] * (counts * n_lists)[records],
            ends[last] - ends[last - counts[records]],
            WORD * texts.n_words,
        ),
        axis=1,
    )
    return _Columns(
        members,
        (
            ranked.top_scores[of_list].astype("<f8", copy=False).tobytes(),
            ranks.astype("<u2", copy=False).tobytes(),
            b"".join(encoded[numbers].tolist()),
            texts.flat().tobytes(),
        ),
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
    return _Columns(
        np.concatenate([part.members for part in parts]),
        tuple(map(b"".join, zip(*(part.texts for part in parts), strict=True))),
        list(chain.from_iterable(part.levels for part in parts)),
        rare,
    )


# Reading


class RankingRows:
    """Some rows of ascending offsets, None for a missing one. Raises StateDamaged.

    Few of their rankings are read, so the bytes of these are cut out before they are joined.
    """

    def __init__(self, rows: Iterable[bytes | None]) -> None:
        with _readable():
            self._rows = [_decode(row) for row in rows if row is not None]
            members = b"".join([row.members for row in self._rows])
            self._members = np.frombuffer(members, _MEMBERS)
            n = np.array([len(row.members) for row in self._rows], np.int64) // _MEMBERS.itemsize
            self._row_of, self._first_of = np.repeat(np.arange(len(n)), n), np.cumsum(n) - n
            self._ends = _ends(self._members)
            wanted = np.diff(self._ends[np.append(self._first_of, n.sum())], axis=0)
            found = np.array([list(map(len, row.columns)) for row in self._rows])
            found = found.reshape(wanted.shape)
            if len(self._row_of) != len(self._members) or (wanted != found).any():
                raise StateDamaged("a row of rankings has columns of other lengths")

    def has(self, offsets: IntArray) -> bool:
        """Whether the rankings at these offsets are all in the rows."""
        return bool((self._found(offsets) >= 0).all())

    def heads(self, offsets: IntArray) -> tuple[IntArray, NDArray[np.void]]:
        """Event times of the rankings at these offsets, and hashes of their messages."""
        members = self._members[self._places(offsets)]
        return members["event_ms"].astype(np.int64), members["hash"]

    def rankings(self, offsets: IntArray, *, features: bool = False) -> RankingColumns:
        """The rankings at these offsets, ascending, with ranks; with *features* also these."""
        with _readable():
            return self._rankings(offsets, self._places(offsets), features=features)

    def _rankings(self, offsets: IntArray, at: IntArray, *, features: bool) -> RankingColumns:
        members, row_of = self._members[at], self._row_of[at]
        rows, first_of = [self._rows[row] for row in row_of.tolist()], self._first_of[row_of]
        places = (at - first_of).tolist()
        starts, sizes = self._ends[at] - self._ends[first_of], members["sizes"]
        strata = _strata_at(rows, members["stratum"].tolist())
        n_lists = np.array([len(stratum.rankers) for stratum in strata.names])[strata.numbers]
        top_scores, ranks, ids, texts = _cut_out(rows, starts, starts + sizes)
        counts, times, n_ranked = (
            members[name].astype(np.int64) for name in ("n_candidates", "event_ms", "n_ranked")
        )
        rare = {
            number: each
            for number, (row, place) in enumerate(zip(rows, places, strict=True))
            if (each := row.rare.get(place))
        }
        n_bounds = 1 if (sizes[:, 1] == 2 * counts * n_lists).all() else 3
        wanted = np.stack((8 * TOP * n_lists, 2 * n_bounds * counts * n_lists), axis=1)
        bounds = np.frombuffer(ranks, "<u2").reshape(-1, n_bounds)
        if (sizes[:, :2] != wanted).any() or not bounds.all():
            raise StateDamaged("a ranking has other ranks than candidates")
        no_times, nothing = np.empty(0, np.int64), ByteStrings.of([None] * len(at))
        return RankingColumns(
            offsets=offsets,
            timestamps_ms=times,
            texts=TextRows.stored(texts, members["text_sizes"].astype(np.int64)),
            key_hashes=NO_KEYS,
            hashes=members["hash"],
            keys=nothing,
            values=nothing,
            heartbeat_offsets=no_times,
            heartbeat_timestamps_ms=no_times,
            malformed=[],
            next_offset=int(offsets[-1]) + 1,
            strata=strata,
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
                (bounds[:, 1], bounds[:, 2]) if n_bounds == 3 else None,
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


def _readable() -> AbstractContextManager[None]:
    return refused_as(StateDamaged, "a ranking cannot be read")


def _cut_out(rows: Sequence[_Row], starts: IntArray, ends: IntArray) -> list[bytes]:
    """The bytes of some rankings, by column; *rows* are the row of each."""
    columns = zip(*(row.columns for row in rows), strict=True)
    spans = zip(starts.T.tolist(), ends.T.tolist(), strict=True)
    return [
        b"".join([text[first:end] for text, first, end in zip(column, *of_column, strict=True)])
        for column, of_column in zip(columns, spans, strict=True)
    ]


def _strata_at(rows: Sequence[_Row], places: Sequence[int]) -> DictionaryColumn:
    """The strata at places of rows; each is decoded once."""
    encoded, of_rankings = Interner(), zip(rows, places, strict=True)
    numbers = encoded.of((bytes(row.strata[place]) for row, place in of_rankings), len(rows))
    return DictionaryColumn(list(map(_decode_stratum, encoded.values_by_number)), numbers)


def _levels_at(rows: Sequence[_Row], places: Sequence[int]) -> DictionaryColumn | None:
    """Levels of the rankings at places of rows; None without segments."""
    if not any(row.levels for row in rows):
        return None
    of_rankings = zip(rows, places, strict=True)
    return DictionaryColumn.of([row.levels[row.level_numbers[place]] for row, place in of_rankings])


def _list_head(n: int) -> bytes:
    """The bytes before the items of an encoded list: each nil is a byte."""
    return _encode([None] * n)[: -n or None]
