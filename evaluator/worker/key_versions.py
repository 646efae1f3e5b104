"""The queries of each key, as of the last commit: an index in memory over the rows of a store."""

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.core.event_time.timers import Run
from evaluator.core.join.changes import KEY_VERSION, NO_VERSIONS, Changes, Versions, VersionsOfKeys
from evaluator.core.store.key_index import new_key_index
from evaluator.core.types.records import IntArray, Key, RankingColumns
from evaluator.ports import StateBatch, StateStore
from evaluator.wire.state import task_rows as wire
from evaluator.wire.state.query_rows import query_key, rankings_from
from evaluator.wire.state.task_rows import StateDamaged

_IN_TABLE: Final = 1 << 35
"""Index entries above this count the keys of a hash that have a row in the table `names`; smaller
entries locate the ranking of the only key of a hash."""
_ROWS_AT_ONCE: Final = 4096


class _Lookup(NamedTuple):
    """Keys by their index entry: in the table, or by the offset of a ranking."""

    keys: Sequence[Key]
    names: list[bytes]
    """Names of the keys in the table; `in_table` are their positions in `keys`."""
    in_table: IntArray
    offsets: IntArray
    """Offsets of rankings, ascending; `by_offset` are the positions of their keys."""
    by_offset: IntArray


class KeyVersions:
    """The queries of each key, as of the last commit.

    Nearly every key has one query and one version. The index has the offset of its ranking, and
    the ranking row has the rest. Other keys, and keys with equal hashes, have rows in the table
    `names`.

    Args:
        features: whether rankings are decoded with their features.
    """

    def __init__(self, store: StateStore, *, task: int, features: bool) -> None:
        self._store = store
        self._task = task
        self._features = features
        self.index = new_key_index()
        self._base: int | None = None  # offset of index entry 0
        self._read: tuple[IntArray, RankingColumns] | None = None
        self._expected: _Lookup | None = None

    @property
    def n_bytes(self) -> int:
        """About how much memory the index takes."""
        return self.index.n_bytes

    # Lookups

    def versions(self, keys: Sequence[Key]) -> VersionsOfKeys:
        """The queries of each key."""
        lookup, self._expected = self._expected, None
        if lookup is None or lookup.keys is not keys:
            lookup = self._look_up(keys)
        from_table = wire.versions_from(
            self._store.get("names", lookup.names) if lookup.names else []
        )
        owners, queries = self._queries_by_offset(lookup)
        owners = np.concatenate([owners, np.repeat(lookup.in_table, from_table.counts)])
        queries = np.concatenate([queries, from_table.queries])
        counts = np.bincount(owners, minlength=len(keys)).astype(np.int64)
        return VersionsOfKeys(counts, queries[np.argsort(owners, kind="stable")])

    def expect(self, keys: Sequence[Key]) -> None:
        """Reads the rows ahead that `versions` of the same *keys* needs."""
        self._expected = lookup = self._look_up(keys)
        if len(lookup.offsets):
            self._store.expect("queries", list(map(query_key, lookup.offsets.tolist())))

    def _look_up(self, keys: Sequence[Key]) -> _Lookup:
        names = list(map(wire.name_of, keys))
        entries = self.index.find(wire.hashes_of(names))
        in_table = np.flatnonzero(entries >= _IN_TABLE)
        by_offset = np.flatnonzero((entries > 0) & (entries < _IN_TABLE))
        by_offset = by_offset[np.argsort(entries[by_offset], kind="stable")]
        offsets = entries[by_offset] + (self._base or 0)
        return _Lookup(keys, [names[at] for at in in_table.tolist()], in_table, offsets, by_offset)

    def _queries_by_offset(self, lookup: _Lookup) -> tuple[IntArray, Versions]:
        """The keys with their ranking at the indexed offset, and their queries."""
        owners = lookup.by_offset
        if not len(owners):
            return owners, NO_VERSIONS
        event_times_ms, rankings = self._rankings_at(lookup.offsets)
        self._read = lookup.offsets, rankings
        read = zip(rankings.trace_ids, rankings.node_ids, strict=True)
        same = [lookup.keys[at] == key for at, key in zip(owners.tolist(), read, strict=True)]
        queries = np.empty(len(owners), KEY_VERSION)
        queries["offset"] = lookup.offsets
        queries["event_ms"] = queries["named_ms"] = event_times_ms
        queries["hash"] = np.frombuffer(b"".join(rankings.hashes), "V16")
        return owners[same], queries[same]

    def rankings(self, offsets: IntArray) -> RankingColumns:
        """The rankings at these offsets, ascending; reuses those that `versions` has just read."""
        read, self._read = self._read, None
        if read is not None and np.array_equal(read[0], offsets):
            return read[1]
        return self._rankings_at(offsets)[1]

    def _rankings_at(self, offsets: IntArray) -> tuple[IntArray, RankingColumns]:
        """Event times and rankings of stored queries."""
        wanted = offsets.tolist()
        rows = self._store.get("queries", list(map(query_key, wanted)))
        return rankings_from(rows, wanted, task=self._task, features=self._features)

    # Commits

    def write(self, batch: StateBatch, changes: Changes) -> None:
        """Updates the index, and puts the changed rows of the table into *batch*."""
        self._read = self._expected = None
        update = _Update(self, changes)
        update.release([key for key, versions in changes.versions.items() if not len(versions)])
        for key, versions in changes.versions.items():
            if len(versions):
                name = wire.name_of(key)
                update.put_row(key, name, wire.hashes_of([name]), versions)
        update.put(changes.single_keys, changes.single_versions)
        batch.put("names", update.rows.items())

    def entries_of(self, offsets: IntArray) -> IntArray:
        """Index entries of rankings; `_IN_TABLE` for offsets that do not fit."""
        if self._base is None and len(offsets):
            self._base = int(offsets.min()) - 1
        entries = offsets - (self._base or 0)
        return np.where((entries > 0) & (entries < _IN_TABLE), entries, _IN_TABLE)

    def offset_of(self, entry: int) -> int:
        """The offset of an index entry below `_IN_TABLE`."""
        return entry + (self._base or 0)

    def has_row(self, name: bytes) -> bool:
        """Whether a key had a row in the table at the last commit."""
        return self._store.get("names", [name])[0] is not None

    def query_at(self, offset: int) -> tuple[Key, Versions]:
        """The key of a stored ranking that is its only version, and the query."""
        (event_ms,), rankings = self._rankings_at(np.array([offset]))
        query = (offset, event_ms, event_ms, rankings.hashes[0])
        key = rankings.trace_ids[0], rankings.node_ids[0]
        return key, np.array([query], KEY_VERSION)

    # Loading

    def load(self, runs: Sequence[Run]) -> None:
        """Builds the index from the entries of these runs that are not released."""
        self.index, self._base, self._expected = new_key_index(), None, None
        for run in runs:  # in the order of their offsets
            if not run.release_only:
                self._load_run(run)
        rows = self._store.rows("names")
        while names := [name for name, _ in islice(rows, _ROWS_AT_ONCE)]:
            hashes, counts = np.unique(wire.hashes_of(names), return_counts=True)
            before = self.index.find(hashes)
            self.index.put(hashes, np.where(before > _IN_TABLE, before, _IN_TABLE) + counts)

    def _load_run(self, run: Run) -> None:
        (row,) = self._store.get("index", [wire.run_key(run.number)])
        if row is None:
            raise StateDamaged(f"the index of run {run.number} is missing")
        offsets, hashes = wire.index_from(row, run.n_queries)
        left = slice(run.passed["release"], None)
        entries = self.entries_of(offsets[left])
        fits = entries < _IN_TABLE
        self.index.put(hashes[left][fits], entries[fits])


class _Update:
    """The changes of one commit: `rows` are the changed rows of the table `names`."""

    def __init__(self, versions: KeyVersions, changes: Changes) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self._versions = versions
        self._index = versions.index
        self._started = changes.started
        nothing = np.empty(0, np.int64)
        self._offsets = np.concatenate([nothing, *(each.offsets for each in self._started)])
        self._hashes: NDArray[np.void] = np.concatenate(
            [np.empty(0, "V16"), *(each.hashes for each in self._started)]
        )
        self._keys = [key for each in self._started for key in each.keys]

    def release(self, keys: Sequence[Key]) -> None:
        """Removes keys without a query, also those that started since the last commit."""
        names = list(map(wire.name_of, keys))
        hashes = wire.hashes_of(names)
        entries = self._index.find(hashes)
        slow = entries >= _IN_TABLE
        started = set(self._keys).intersection(keys)
        if started:
            slow |= np.fromiter((key in started for key in keys), bool, len(keys))
        slow &= entries > 0
        self._index.remove(hashes[~slow & (entries > 0)])
        for at in np.flatnonzero(slow).tolist():
            self._release_slow(keys[at], names[at], hashes[at : at + 1])

    def _release_slow(self, key: Key, name: bytes, own: NDArray[np.uint64]) -> None:
        """Removes one key with a hash that may be shared."""
        entry = int(self._index.find(own)[0])
        if entry >= _IN_TABLE:
            if self._has_row(name):
                self.rows[name] = None
                self._count_rows(own, entry - _IN_TABLE - 1)
        elif entry and self._query_of(entry)[0] == key:
            self._index.remove(own)

    def put(self, keys: Sequence[Key], queries: Versions) -> None:
        """Sets keys that have one query each."""
        names = list(map(wire.name_of, keys))
        hashes = wire.hashes_of(names)
        entries = self._versions.entries_of(queries["offset"])
        _, place, count = np.unique(hashes, return_inverse=True, return_counts=True)
        indexed = self._has_one_version(queries) & (entries < _IN_TABLE)
        indexed &= (self._index.find(hashes) == 0) & (count[place] == 1)
        self._index.put(hashes[indexed], entries[indexed])
        for at in np.flatnonzero(~indexed).tolist():
            self.put_row(keys[at], names[at], hashes[at : at + 1], queries[at : at + 1])

    def _has_one_version(self, queries: Versions) -> NDArray[np.bool_]:
        """Mask of the queries since the last commit that are the only version of their key."""
        if not len(self._offsets):
            return np.zeros(len(queries), bool)
        at = np.searchsorted(self._offsets, queries["offset"]).clip(max=len(self._offsets) - 1)
        same: NDArray[np.bool_] = self._offsets[at] == queries["offset"]
        same &= self._hashes[at] == queries["hash"]
        same &= queries["event_ms"] == queries["named_ms"]
        return same

    def put_row(self, key: Key, name: bytes, own: NDArray[np.uint64], versions: Versions) -> None:
        """Sets the row of a key in the table; *own* is its hash."""
        entry = int(self._index.find(own)[0])
        n_others = max(entry - _IN_TABLE, 0)
        if entry >= _IN_TABLE:
            n_others -= self._has_row(name)
        elif entry:
            other, query = self._query_of(entry)
            if other != key:
                self.rows[wire.name_of(other)] = query.tobytes()
                n_others = 1
        self.rows[name] = versions.tobytes()
        self._count_rows(own, n_others + 1)

    def _count_rows(self, own: NDArray[np.uint64], n_keys: int) -> None:
        if n_keys:
            self._index.put(own, np.array([_IN_TABLE + n_keys]))
        else:
            self._index.remove(own)

    def _has_row(self, name: bytes) -> bool:
        if name in self.rows:
            return self.rows[name] is not None
        return self._versions.has_row(name)

    def _query_of(self, entry: int) -> tuple[Key, Versions]:
        """The only key of a hash, and its query."""
        offset = self._versions.offset_of(entry)
        at = int(np.searchsorted(self._offsets, offset))
        if at == len(self._offsets) or self._offsets[at] != offset:
            return self._versions.query_at(offset)
        event_ms = np.concatenate([each.event_times_ms for each in self._started])[at]
        query = np.array([(offset, event_ms, event_ms, self._hashes[at].tobytes())], KEY_VERSION)
        return self._keys[at], query
