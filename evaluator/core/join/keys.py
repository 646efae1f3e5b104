"""Keys (trace_id, node_id): the queries of each one, from its first ranking until its release."""

from collections.abc import Iterable
from itertools import filterfalse

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evaluator.core.columns.key_hashes import Key, KeyHashes, halves, keys_from
from evaluator.core.join.changes import KEY_VERSION, Ledger, Versions
from evaluator.core.join.open_queries import Arrivals, OpenQueries
from evaluator.core.join.rules import JoinRules, ranking_outcome
from evaluator.core.types.records import DeadLetter, IntArray, RankingColumns


class _Latest(Struct):
    """The latest ranking of a key, and the record of this batch that starts its query."""

    event_ms: int
    hash: bytes
    record: int | None = None


class Keys:
    """Starts a query for each ranking of a free key, and finds the queries of reserved keys.

    Rankings may be read far ahead, so a key can have several unreleased queries: `newest` is the
    latest of them, `older` the one before.
    """

    def __init__(self, open_queries: OpenQueries, rules: JoinRules, ledger: Ledger) -> None:
        self._queries = open_queries
        self._rules = rules
        self._ledger = ledger
        self._index = open_queries.index
        self.older: dict[int, int] = {}  # by row, that of the previous query of the same key
        self._newer: dict[int, int] = {}
        self.touched: dict[Key, None] | None = None  # since the commit, except below
        self._started: list[IntArray] = []  # `uncommitted` rows, or freed since

    def newest_of(self, keys: KeyHashes) -> IntArray:
        """Rows of the latest queries of keys, -1 for none: `[n_keys]`."""
        return self._index.find(keys)

    def start_queries(
        self, rankings: RankingColumns, event_times_ms: IntArray
    ) -> tuple[Arrivals, IntArray, list[DeadLetter]]:
        """Starts a query for each ranking of a free key: their rows, `[n_started]`."""
        keys = rankings.key_hashes
        arrivals = self._queries.arrive(rankings, keys, event_times_ms)
        newest = self.newest_of(keys)
        if _repeat(keys) or (newest >= 0).any():
            return arrivals, *self._start_slow(arrivals, newest)
        rows = self._start(arrivals, np.arange(len(keys)))
        self._index.add(rows)
        if self.touched is not None:
            self._queries.table["uncommitted"][rows] = True
            self._started.append(rows)
        return arrivals, rows, []

    def _start_slow(
        self, arrivals: Arrivals, newest: IntArray
    ) -> tuple[IntArray, list[DeadLetter]]:
        """One ranking at a time, for a batch with a key that has a query already."""
        rankings, table = arrivals.rankings, self._queries.table
        letters: list[DeadLetter] = []
        started: list[IntArray] = []
        latest: dict[Key, _Latest] = {}
        times = arrivals.event_times_ms.tolist()
        keys: list[Key] = arrivals.keys.tolist()
        row_of = dict(zip(keys, newest.tolist(), strict=True))
        for record, (key, event_ms) in enumerate(zip(keys, times, strict=True)):
            value_hash, known = rankings.hashes[record].tobytes(), latest.get(key)
            if known is None and (row := row_of[key]) >= 0:
                named_ms, named_hash = int(table["named_ms"][row]), table["hash"][row].tobytes()
                known = latest[key] = _Latest(named_ms, named_hash)
            if known is not None and self._rules.reserved(event_ms - known.event_ms):
                outcome = ranking_outcome(equal=known.hash == value_hash)
                self._ledger.again[outcome] += 1
                if outcome == "conflicting":
                    letters.append(_conflict(rankings, record))
                known.event_ms, known.hash = max(known.event_ms, event_ms), value_hash
                continue
            if known is not None:
                started.append(self._start_latest(arrivals, latest, row_of))
            latest[key] = _Latest(event_ms, value_hash, record)
        started.append(self._start_latest(arrivals, latest, row_of))
        self.touch(keys)
        return np.concatenate(started), letters

    def _start_latest(
        self, arrivals: Arrivals, latest: dict[Key, _Latest], row_of: dict[Key, int]
    ) -> IntArray:
        """Starts queries; stores the latest ranking of each key, and its row in *row_of*."""
        new = {key: each.record for key, each in latest.items() if each.record is not None}
        rows = np.empty(0, np.int64)
        if new:
            rows = self._start(arrivals, np.array(list(new.values()), np.int64))
            self.restore(keys_from(list(new)), rows)
            row_of.update(zip(new, rows.tolist(), strict=True))
        table = self._queries.table
        for key, each in latest.items():
            table["named_ms"][row_of[key]] = each.event_ms
            table["hash"][row_of[key]] = np.void(each.hash)
        latest.clear()
        return rows

    def _start(self, arrivals: Arrivals, records: IntArray) -> IntArray:
        rows = self._queries.start(arrivals, records)
        self._ledger.counts["started"] += len(rows)
        return rows

    def restore(self, keys: KeyHashes, rows: IntArray) -> None:
        """Adds queries to their keys; those of a key must be in ascending order."""
        if _repeat(keys):
            for at in range(len(keys)):
                self.restore(keys[at : at + 1], rows[at : at + 1])
            return
        older = self.newest_of(keys)
        known = older >= 0
        self._index.add(rows[~known])
        self._index.replace(older[known], rows[known])
        for row, before in zip(rows[known].tolist(), older[known].tolist(), strict=True):
            self.older[row], self._newer[before] = before, row

    def touch(self, keys: Iterable[Key]) -> None:
        """Marks keys with changed queries."""
        if self.touched is not None:
            self.touched.update(dict.fromkeys(keys))

    def take_started(self) -> IntArray:
        """Rows of queries started for free keys since the last call, except freed rows."""
        rows = np.concatenate([np.empty(0, np.int64), *self._started])
        uncommitted = self._queries.table["uncommitted"]
        self._started = []
        started: IntArray = rows[uncommitted[rows]]
        uncommitted[started] = False
        return started

    # Load and evict

    def __len__(self) -> int:
        return len(self._index)

    def unknown(self, keys: KeyHashes) -> list[Key]:
        """The distinct keys without a query in memory that have not changed since the commit."""
        missing = dict.fromkeys(keys[self.newest_of(keys) < 0].tolist())
        return list(filterfalse((self.touched or {}).__contains__, missing))

    def unchanged(self, rows: IntArray) -> IntArray:
        """The rows of keys that have not changed since the commit."""
        rows, touched = rows[~self._queries.table["uncommitted"][rows]], self.touched
        if touched:
            same = [key not in touched for key in self._index.keys_of(rows)]
            rows = rows[np.flatnonzero(same)]
        return rows

    def versions(self, key: Key) -> Versions:
        """The queries of a key that are in memory."""
        rows = self.newest_of(keys_from([key])).tolist()
        while (row := self.older.get(rows[-1])) is not None:
            rows.append(row)
        return self.versions_at(np.array(rows, np.int64))

    def versions_at(self, rows: IntArray) -> Versions:
        """The columns of `KEY_VERSION` of these rows."""
        of_key = np.empty(len(rows), KEY_VERSION)
        for column in KEY_VERSION.names or ():
            of_key[column] = self._queries.table[column][rows]
        return of_key

    def alone(self, rows: IntArray) -> NDArray[np.bool_]:
        """Which rows have the only query of their key."""
        if not self.older:
            return np.ones(len(rows), bool)
        linked = np.array([*self.older, *self._newer], np.int64)
        return np.isin(rows, linked, invert=True)

    def evict(self, rows: IntArray) -> None:
        """Frees the rows of queries of the disk tier, each the only one of its key."""
        self._index.remove(rows)
        self._queries.free(rows, "evict")

    def release(self, rows: IntArray, limit_ms: int) -> NDArray[np.bool_]:
        """Releases keys without a ranking at *limit_ms* or later; returns the mask of kept keys."""
        table = self._queries.table
        reserved: NDArray[np.bool_] = table["named_ms"][rows] >= limit_ms
        free = rows[~reserved]
        if self.touched is not None:
            self.touch(self._index.keys_of(free))
        newest = np.ones(len(free), bool)
        if self._newer:
            for at, row in enumerate(free.tolist()):
                newer = self._newer.pop(row, None)
                if newer is not None:
                    del self.older[newer]
                    newest[at] = False
        self._index.remove(free[newest])
        self._queries.free(free, "release")
        return reserved


def _repeat(keys: KeyHashes) -> bool:
    """Whether keys may repeat."""
    first = np.sort(halves(keys)[:, 0])
    return bool((first[1:] == first[:-1]).any())


def _conflict(rankings: RankingColumns, record: int) -> DeadLetter:
    return DeadLetter(
        "rankings",
        int(rankings.offsets[record]),
        "conflicting",
        "an earlier ranking has this trace_id and node_id and is kept; "
        "give each query its own node_id",
        rankings.keys[record],
        rankings.values[record] or b"",
    )
