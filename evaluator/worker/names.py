"""Which queries each key names, of those that are stored."""

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.core.event_time.timers import Run
from evaluator.core.join.changes import NAMED_QUERY, NO_CHAIN, Chain, Chains, Changes
from evaluator.core.store.key_index import KeyIndex, new_key_index
from evaluator.core.types.records import IntArray, Key, RankingColumns
from evaluator.ports import StateBatch, StateStore
from evaluator.wire.state import task_rows as wire
from evaluator.wire.state.query_rows import query_key, rankings_from
from evaluator.wire.state.task_rows import StateDamaged

_APART: Final = 1 << 35
"""Numbers of the index from here on say how many keys of a hash have a row in `names`; smaller
ones where the ranking is that the only key of a hash names."""
_AT_ONCE: Final = 4096


class RankingsAt(NamedTuple):
    """Rankings of stored queries, by offset: arrays are `[n_rankings]`."""

    offsets: IntArray
    event_times_ms: IntArray
    rankings: RankingColumns


class _Asked(NamedTuple):
    """Keys by their state in the key index."""

    keys: Sequence[Key]
    apart: list[bytes]
    apart_at: IntArray
    """Names of those that stand apart, and which of the keys they are."""
    offsets: IntArray
    alone_at: IntArray
    """Offsets of the rankings that others name, ascending, and which of the keys they are."""


class Names:
    """The queries of each key, as of the last commit.

    Nearly every key names one query and was never named again. Of those an index in memory has the
    offset of the ranking, and all else stands with that. The others stand apart, in rows of the
    table `names`; so do keys whose hashes are equal, and none is taken for another.

    Args:
        features: whether rankings are read with them.
    """

    def __init__(self, store: StateStore, *, task: int, features: bool) -> None:
        self._store = store
        self._task = task
        self._features = features
        self._index = new_key_index()
        self._zero: int | None = None  # the offset before the one with the number 1
        self._found: RankingsAt | None = None
        self._expected: _Asked | None = None

    @property
    def n_bytes(self) -> int:
        """About how much memory the index takes."""
        return self._index.n_bytes

    # Asking

    def chains(self, keys: Sequence[Key]) -> Chains:
        """The queries of each key."""
        asked, self._expected = self._expected, None
        if asked is None or asked.keys is not keys:
            asked = self._ask(keys)
        of_apart = wire.chains_from(self._store.get("names", asked.apart) if asked.apart else [])
        alone_at, of_alone = self._named_alone(asked)
        owners = np.concatenate([alone_at, np.repeat(asked.apart_at, of_apart.counts)])
        queries = np.concatenate([of_alone, of_apart.queries])
        counts = np.bincount(owners, minlength=len(keys)).astype(np.int64)
        return Chains(counts, queries[np.argsort(owners, kind="stable")])

    def expect(self, keys: Sequence[Key]) -> None:
        """`chains` is asked for the same *keys* next: what it needs is read meanwhile."""
        self._expected = asked = self._ask(keys)
        if len(asked.offsets):
            self._store.expect("queries", list(map(query_key, asked.offsets.tolist())))

    def _ask(self, keys: Sequence[Key]) -> _Asked:
        names = list(map(wire.name_of, keys))
        numbers = self._index.find(wire.hashes_of(names))
        apart = np.flatnonzero(numbers >= _APART)
        alone = np.flatnonzero((numbers > 0) & (numbers < _APART))
        alone = alone[np.argsort(numbers[alone], kind="stable")]
        offsets = self.offsets_of(numbers[alone])
        return _Asked(keys, [names[at] for at in apart.tolist()], apart, offsets, alone)

    def _named_alone(self, asked: _Asked) -> tuple[IntArray, Chain]:
        """Those of the keys that the rankings are of, and the queries that they name."""
        owners = asked.alone_at
        if not len(owners):
            return owners, NO_CHAIN
        self._found = found = self._read(asked.offsets)
        read = zip(found.rankings.trace_ids, found.rankings.node_ids, strict=True)
        same = [asked.keys[at] == key for at, key in zip(owners.tolist(), read, strict=True)]
        named = np.empty(len(owners), NAMED_QUERY)
        named["offset"] = found.offsets
        named["event_ms"] = named["named_ms"] = found.event_times_ms
        named["hash"] = np.frombuffer(b"".join(found.rankings.hashes), "V16")
        return owners[same], named[same]

    def rankings(self, offsets: IntArray) -> RankingColumns:
        """The rankings at these offsets, which ascend: at hand if `chains` just gave them all."""
        found, self._found = self._found, None
        if found is None or not np.array_equal(found.offsets, offsets):
            found = self._read(offsets)
        return found.rankings

    def _read(self, offsets: IntArray) -> RankingsAt:
        wanted = offsets.tolist()
        rows = self._store.get("queries", list(map(query_key, wanted)))
        times, rankings = rankings_from(rows, wanted, task=self._task, features=self._features)
        return RankingsAt(offsets, times, rankings)

    # Writing

    def write(self, batch: StateBatch, changes: Changes) -> None:
        """Notes what keys name now; in *batch* what has to be written down of that."""
        self._found = self._expected = None
        revision = _Revision(self, changes)
        free = [key for key, chain in changes.chains.items() if not len(chain)]
        revision.free(free)
        for key, chain in changes.chains.items():
            if len(chain):
                revision.put_apart(key, chain)
        revision.put(changes.named_keys, changes.names)
        batch.put("names", revision.rows.items())

    @property
    def index(self) -> KeyIndex:
        """Numbers by hash, for `_Revision`."""
        return self._index

    def numbers_of(self, offsets: IntArray) -> IntArray:
        """The numbers of rankings; those that none can be given are not below `_APART`."""
        if self._zero is None and len(offsets):
            self._zero = int(offsets.min()) - 1
        numbers = offsets - (self._zero or 0)
        return np.where((numbers > 0) & (numbers < _APART), numbers, _APART)

    def offsets_of(self, numbers: IntArray) -> IntArray:
        """What `numbers_of` made numbers of."""
        return numbers + (self._zero or 0)

    def has_row(self, name: bytes) -> bool:
        """Whether a key stood apart at the last commit."""
        return self._store.get("names", [name])[0] is not None

    def query_at(self, offset: int) -> tuple[Key, Chain]:
        """The key of a stored ranking, which it named alone, and the query."""
        found = self._read(np.array([offset]))
        (trace_id,), (node_id,) = found.rankings.trace_ids, found.rankings.node_ids
        event_ms = int(found.event_times_ms[0])
        query = (offset, event_ms, event_ms, found.rankings.hashes[0])
        return (trace_id, node_id), np.array([query], NAMED_QUERY)

    # The beginning

    def stands(self, runs: Sequence[Run]) -> None:
        """What of these runs is not released is all that keys name."""
        self._index, self._zero, self._expected = new_key_index(), None, None
        for run in runs:  # in the order of their offsets
            if not run.named:
                self._take_in(run)
        rows = self._store.rows("names")
        while part := [name for name, _ in islice(rows, _AT_ONCE)]:
            self._stand_apart(part)

    def _take_in(self, run: Run) -> None:
        (row,) = self._store.get("index", [wire.run_key(run.number)])
        if row is None:
            raise StateDamaged(f"the index of run {run.number} is not there")
        offsets, hashes = wire.index_from(row, run.n_queries)
        taken = slice(run.passed["release"], None)
        numbers = self.numbers_of(offsets[taken])
        few = numbers < _APART
        self._index.put(hashes[taken][few], numbers[few])

    def _stand_apart(self, names: Sequence[bytes]) -> None:
        hashes, counts = np.unique(wire.hashes_of(names), return_counts=True)
        before = self._index.find(hashes)
        self._index.put(hashes, np.where(before > _APART, before, _APART) + counts)


class _Revision:
    """What one commit changes of names: `rows` are those of the table."""

    def __init__(self, names: Names, changes: Changes) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self._names = names
        self._index = names.index
        self._started = changes.started
        nothing = np.empty(0, np.int64)
        self._offsets = np.concatenate([nothing, *(each.offsets for each in self._started)])
        self._hashes: NDArray[np.void] = np.concatenate(
            [np.empty(0, "V16"), *(each.hashes for each in self._started)]
        )
        self._keys = [key for each in self._started for key in each.keys]

    def free(self, keys: Sequence[Key]) -> None:
        """These keys name nothing any more; some may have come and gone since the last commit."""
        names = list(map(wire.name_of, keys))
        hashes = wire.hashes_of(names)
        numbers = self._index.find(hashes)
        careful = numbers >= _APART
        anew = set(self._keys).intersection(keys)
        if anew:
            careful |= np.fromiter((key in anew for key in keys), bool, len(keys))
        careful &= numbers > 0
        self._index.remove(hashes[~careful & (numbers > 0)])
        for at in np.flatnonzero(careful).tolist():
            self._release_slow(keys[at], names[at], hashes[at : at + 1])

    def _release_slow(self, key: Key, name: bytes, own: NDArray[np.uint64]) -> None:
        """The same where the hash may be that of another key."""
        number = int(self._index.find(own)[0])
        if number >= _APART:
            if self._has_row(name):
                self.rows[name] = None
                self._set_apart(own, number - _APART - 1)
        elif number and self._query_of(number)[0] == key:
            self._index.remove(own)

    def put(self, keys: Sequence[Key], queries: Chain) -> None:
        """These keys name one query each."""
        names = list(map(wire.name_of, keys))
        hashes = wire.hashes_of(names)
        numbers = self._names.numbers_of(queries["offset"])
        _, place, count = np.unique(hashes, return_inverse=True, return_counts=True)
        plain = self._never_named_again(queries) & (numbers < _APART)
        plain &= (self._index.find(hashes) == 0) & (count[place] == 1)
        self._index.put(hashes[plain], numbers[plain])
        for at in np.flatnonzero(~plain).tolist():
            self._put_apart(keys[at], names[at], hashes[at : at + 1], queries[at : at + 1])

    def _never_named_again(self, queries: Chain) -> NDArray[np.bool_]:
        """Whether queries have started since the last commit, and are as they started."""
        if not len(self._offsets):
            return np.zeros(len(queries), bool)
        at = np.searchsorted(self._offsets, queries["offset"]).clip(max=len(self._offsets) - 1)
        same: NDArray[np.bool_] = self._offsets[at] == queries["offset"]
        same &= self._hashes[at] == queries["hash"]
        same &= queries["event_ms"] == queries["named_ms"]
        return same

    def put_apart(self, key: Key, chain: Chain) -> None:
        """This key has a row of its own."""
        name = wire.name_of(key)
        self._put_apart(key, name, wire.hashes_of([name]), chain)

    def _put_apart(self, key: Key, name: bytes, own: NDArray[np.uint64], chain: Chain) -> None:
        number = int(self._index.find(own)[0])
        n_others = max(number - _APART, 0)
        if number >= _APART:
            n_others -= self._has_row(name)
        elif number:
            other, query = self._query_of(number)
            if other != key:
                self.rows[wire.name_of(other)] = query.tobytes()
                n_others = 1
        self.rows[name] = chain.tobytes()
        self._set_apart(own, n_others + 1)

    def _set_apart(self, own: NDArray[np.uint64], n_keys: int) -> None:
        if n_keys:
            self._index.put(own, np.array([_APART + n_keys]))
        else:
            self._index.remove(own)

    def _has_row(self, name: bytes) -> bool:
        if name in self.rows:
            return self.rows[name] is not None
        return self._names.has_row(name)

    def _query_of(self, number: int) -> tuple[Key, Chain]:
        """The key of a hash that no other key has, and the query that it names."""
        offset = int(self._names.offsets_of(np.array(number)))
        at = int(np.searchsorted(self._offsets, offset))
        if at == len(self._offsets) or self._offsets[at] != offset:
            return self._names.query_at(offset)
        event_ms = np.concatenate([each.event_times_ms for each in self._started])[at]
        query = np.array([(offset, event_ms, event_ms, self._hashes[at].tobytes())], NAMED_QUERY)
        return self._keys[at], query
