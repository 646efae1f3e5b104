"""The queries of each key, as of the last commit: an index in memory over the rows of a store."""

from collections.abc import Sequence
from itertools import islice, repeat
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.key_hashes import Key, halves, keys_from
from evaluator.core.event_time.timers import Run
from evaluator.core.join.changes import KEY_VERSION, NO_VERSIONS, Changes, Versions, VersionsOfKeys
from evaluator.core.store.key_index import KeyIndex
from evaluator.core.types.records import IntArray, RankingColumns
from evaluator.ports import StateBatch, StateStore
from evaluator.wire.state import task_rows as wire
from evaluator.wire.state.ranking_rows import RankingRows, ranking_rows
from evaluator.wire.state.task_rows import StateDamaged, number_of, row_key

_IN_TABLE: Final = -1
"""The place of a key with a row in the table `names`; others are the offset of a ranking plus 1."""
_ROWS_AT_ONCE: Final = 4096


class KeyVersions:
    """The queries of each key, as of the last commit.

    Nearly every key has one query and one version. The index has the offset of its ranking, and
    the ranking row has the rest. Other keys have rows in the table `names`. Equal hashes of 128
    bits are of equal keys.

    Args:
        features: whether rankings are decoded with their features.
    """

    def __init__(self, store: StateStore, *, features: bool) -> None:
        self._store = store
        self._features = features
        self._index = KeyIndex()
        self._starts = np.empty(0, np.int64)  # first offsets of the rows of rankings
        self._read: RankingRows | None = None  # those of the last lookup

    @property
    def n_bytes(self) -> int:
        """Approximate memory of the index."""
        return self._index.n_bytes + self._starts.nbytes

    # Lookups

    def versions(self, keys: Sequence[Key]) -> VersionsOfKeys:
        """The queries of each key."""
        places, self._read = self._index.find(halves(keys_from(keys))), None
        in_table, by_offset = np.flatnonzero(places == _IN_TABLE), np.flatnonzero(places > 0)
        from_table = wire.versions_from(
            self._store.get("names", [keys[at] for at in in_table.tolist()])
            if len(in_table)
            else []
        )
        by_offset = by_offset[np.argsort(places[by_offset], kind="stable")]
        owners = np.concatenate([by_offset, np.repeat(in_table, from_table.counts)])
        queries = np.concatenate([self._queries_at(places[by_offset] - 1), from_table.queries])
        counts = np.bincount(owners, minlength=len(keys)).astype(np.int64)
        return VersionsOfKeys(counts, queries[np.argsort(owners, kind="stable")])

    def _queries_at(self, offsets: IntArray) -> Versions:
        """The queries of keys with one ranking, by its offset, ascending."""
        if not len(offsets):
            return NO_VERSIONS
        self._read = rows = self._rows_of(offsets)
        queries = np.empty(len(offsets), KEY_VERSION)
        queries["offset"] = offsets
        queries["event_ms"], queries["hash"] = rows.heads(offsets)
        queries["named_ms"] = queries["event_ms"]
        return queries

    def rankings(self, offsets: IntArray) -> RankingColumns:
        """The rankings at these offsets, ascending; reuses rows that `versions` has just read."""
        rows, self._read = self._read, None
        if rows is None or not rows.has(offsets):
            rows = self._rows_of(offsets)
        return rows.rankings(offsets, features=self._features)

    def _rows_of(self, offsets: IntArray) -> RankingRows:
        """The rows of rankings at ascending offsets."""
        at = np.searchsorted(self._starts, offsets, side="right") - 1
        if len(at) and at[0] < 0:
            raise StateDamaged(f"the ranking at offset {offsets[0]} is missing")
        keys = list(map(row_key, self._starts[np.unique(at)].tolist()))
        return RankingRows(self._store.get("queries", keys))

    def first_row(self, offset: int) -> int:
        """The first offset of the row that has the ranking at *offset*."""
        at = int(np.searchsorted(self._starts, offset, side="right")) - 1
        return int(self._starts[at]) if at >= 0 else offset

    # Commits

    def write(self, batch: StateBatch, changes: Changes) -> None:
        """Puts new rankings and changed rows of `names` into *batch*; updates the index."""
        self._read = None
        starts, rows_of_rankings = ranking_rows(changes.started)
        keys_of_rankings = list(map(row_key, starts.tolist()))
        batch.put("queries", zip(keys_of_rankings, rows_of_rankings, strict=True))
        batch.put("starts", zip(keys_of_rankings, repeat(b"")))
        left = self._starts[self._starts >= self.first_row(changes.released_before)]
        self._starts = np.concatenate([left, starts])
        self._write_keys(batch, changes)

    def _write_keys(self, batch: StateBatch, changes: Changes) -> None:
        single, one_version = changes.single_versions, _has_one_version(changes)
        versions = dict(changes.versions)
        if versions:
            for key in set(versions).intersection(changes.single_keys.tolist()):
                del versions[key]  # it has started again
        for at in np.flatnonzero(~one_version).tolist():
            versions[changes.single_keys[at].tobytes()] = single[at : at + 1]
        keys = np.concatenate([changes.single_keys[one_version], keys_from(list(versions))])
        lengths = np.fromiter(map(len, versions.values()), np.int64, len(versions))
        kept = np.where(lengths > 0, _IN_TABLE, 0)
        places = np.concatenate([single["offset"][one_version] + 1, kept])
        before = self._index.put(halves(keys), places)
        left = np.flatnonzero((before == _IN_TABLE) & (places != _IN_TABLE)).tolist()
        rows: dict[bytes, bytes | None] = {keys[at].tobytes(): None for at in left}
        rows |= {key: chain.tobytes() for key, chain in versions.items() if len(chain)}
        batch.put("names", rows.items())

    # Loading

    def load(self, runs: Sequence[Run]) -> None:
        """Builds the index from the entries of these runs that are not released."""
        self._index = KeyIndex()
        starts = (number_of(key) for key, _ in self._store.rows("starts"))
        self._starts = np.fromiter(starts, np.int64)
        for run in runs:  # in the order of their offsets
            if not run.release_only:
                self._load_run(run)
        rows = self._store.rows("names")
        while names := [name for name, _ in islice(rows, _ROWS_AT_ONCE)]:
            places = np.full(len(names), _IN_TABLE)
            self._index.put(halves(keys_from(names)), places)

    def _load_run(self, run: Run) -> None:
        (row,) = self._store.get("entries", [row_key(run.number)])
        if row is None:
            raise StateDamaged(f"run {run.number} is missing")
        entries, keys = wire.entries_from(row, run.n_queries)
        left = slice(run.passed["release"], None)
        self._index.put(halves(keys[left]), entries.offsets[left] + 1)


def _has_one_version(changes: Changes) -> NDArray[np.bool_]:
    """Which single versions started since the last commit, with one ranking of their key."""
    queries = changes.single_versions
    offsets = np.concatenate([np.empty(0, np.int64), *(each.offsets for each in changes.started)])
    if not len(offsets):
        return np.zeros(len(queries), bool)
    hashes = np.concatenate([each.hashes for each in changes.started])
    at = np.searchsorted(offsets, queries["offset"]).clip(max=len(offsets) - 1)
    same: NDArray[np.bool_] = offsets[at] == queries["offset"]
    same &= hashes[at] == queries["hash"]
    same &= queries["event_ms"] == queries["named_ms"]
    return same
