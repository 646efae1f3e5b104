"""Memory tier and disk tier of open queries. The tier of a query changes no result."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from evaluator.core.columns.key_hashes import Key, KeyHashes, keys_from
from evaluator.core.event_time.timers import DueRange, Run, Timer, Timers
from evaluator.core.join.changes import NO_VERSIONS, DiskTier, Head, Versions, VersionsOfKeys
from evaluator.core.join.join import Join
from evaluator.core.join.open_queries import OpenQueries
from evaluator.core.join.tiers import Event, Tier, after
from evaluator.core.types.records import IntArray

_PART = 1_024
"""Number of keys that are loaded together: as many rows of the disk tier may be in memory."""


class Tiering:
    """Evicts queries to disk, run by run, and loads them for records of their keys and due timers.

    Args:
        disk_tier: has the queries that are not in memory; None keeps all in memory.
        max_bytes: approximate limit of the memory of queries after `evict`.
    """

    def __init__(
        self,
        disk_tier: DiskTier | None,
        open_queries: OpenQueries,
        join: Join,
        *,
        max_bytes: int,
    ) -> None:
        self._disk_tier = disk_tier
        self._queries = open_queries
        self._join = join
        self._keys = join.keys
        self._max_bytes = max_bytes
        self._row_by_offset: dict[int, int] = {}  # of queries whose run has no row for them
        self.timers = Timers(None if disk_tier is None else disk_tier.entries)
        self.n_keys_on_disk = 0
        self.settled_before_ms = -1  # queries with an earlier event time are settled,
        self.expired_before_ms = -1  # and those with an event time before this are expired
        self.versions_changed: dict[Key, Versions] = {}  # of keys on disk, since the commit
        self._loaded: list[IntArray] = []  # rows of tier LOADED

    @property
    def n_bytes(self) -> int:
        """Approximate memory of the queries in bytes."""
        return self._queries.n_bytes + self._join.n_bytes

    def state(self) -> dict[str, Any]:
        """The members of `Head`."""
        n_keys = len(self._keys) + self.n_keys_on_disk
        return {"n_keys": n_keys, "next_run": self.timers.open_run.number + 1}

    def load(self, head: Head, runs: Sequence[Run], limits_ms: Mapping[Timer, int]) -> None:
        """Restores a task with all queries on disk, in these runs."""
        self.n_keys_on_disk = head.n_keys
        self.settled_before_ms = max(limits_ms.get("settle", -1), -1)
        self.expired_before_ms = max(limits_ms.get("expire", -1), -1)
        self.timers.restore(runs, limits_ms, head.next_run)
        if self._disk_tier is not None:
            self._disk_tier.load_index(runs, self.timers.passed_before("release"))

    # Load

    def load_keys(self, keys: KeyHashes, event: Event = "load") -> None:
        """Loads all queries of these keys."""
        if self._disk_tier is None or not self.n_keys_on_disk:
            return
        unknown = self._keys.unknown(keys)
        for first in range(0, len(unknown), _PART):
            part = unknown[first : first + _PART]
            versions = self._versions(self._disk_tier, part)
            if len(versions.queries):
                self._load_versions(self._disk_tier, part, versions, event)

    def _load_versions(
        self, disk_tier: DiskTier, unknown: Sequence[Key], versions: VersionsOfKeys, event: Event
    ) -> None:
        owners = np.repeat(np.arange(len(unknown)), versions.counts)
        changed = self.versions_changed
        if changed:
            found = (unknown[owner] for owner in np.unique(owners).tolist())
            self._keys.touch(key for key in found if changed.pop(key, None) is not None)
        order = np.argsort(versions.queries["offset"])
        named, keys = versions.queries[order], keys_from(unknown)[owners[order]]
        expired = named["event_ms"] < self.expired_before_ms
        rows, table = np.empty(len(named), np.int64), self._queries.table
        whole, only_keys = np.flatnonzero(~expired), np.flatnonzero(expired)
        if len(only_keys):
            rows[only_keys] = self._queries.load_expired(keys[only_keys], named[only_keys], event)
        stored = disk_tier.queries(named["offset"][whole]) if len(whole) else None
        if stored is not None:
            times = np.ascontiguousarray(named["event_ms"][whole])
            arrivals = self._queries.arrive(stored.rankings, keys[whole], times)
            rows[whole] = self._queries.start(arrivals, np.arange(len(whole)), event)
            table["settled"][rows[whole]] = times < self.settled_before_ms
            self._queries.drop_settled(rows[whole][times < self.settled_before_ms])
            table["named_ms"][rows[whole]] = named["named_ms"][whole]
            table["hash"][rows[whole]] = named["hash"][whole]
        self._keys.restore(keys, rows)
        self._row_by_offset.update(zip(named["offset"].tolist(), rows.tolist(), strict=True))
        self.n_keys_on_disk -= int(np.count_nonzero(versions.counts))
        if event == "load_for_batch":
            self._loaded.append(rows)
        if stored is not None:
            self._join.restore(stored.judgments, stored.judgment_event_times_ms)
            table["graded"][rows[whole]] = table["n_judged"][rows[whole]] > 0
            self._queries.set_results(rows[whole][stored.result_lengths > 0], stored.results)

    def rows_of(self, due_range: DueRange) -> IntArray:
        """Rows of the queries of a due range, -1 for those that are not in memory."""
        rows = due_range.rows
        if self._row_by_offset:
            missing = np.flatnonzero(rows < 0)
            if len(missing):
                find = self._row_by_offset.get
                rows = rows.copy()
                rows[missing] = [find(at, -1) for at in due_range.offsets[missing].tolist()]
        return rows

    def load_due(self, due_range: DueRange) -> IntArray:
        """Rows of the queries of a due range; queries on disk are loaded for one batch."""
        rows = self.rows_of(due_range)
        on_disk = np.flatnonzero(rows < 0)
        if len(on_disk):
            self.load_keys(keys_from(self._keys_of(due_range, on_disk)), "load_for_batch")
            rows = self.rows_of(due_range)
        return rows

    def evict_loaded(self) -> None:
        """Evicts queries that were loaded for one batch and have not changed.

        Queries of a key that has changed stay in memory until the commit.
        """
        if not self._loaded:
            return
        rows, table = np.concatenate(self._loaded), self._queries.table
        if self.n_bytes > self._max_bytes:
            self._evict(self._keys.unchanged(rows))
            rows = rows[table["tier"][rows] == Tier.LOADED]
            self._queries.tidy()
        table["tier"][rows] = after("keep", table["tier"][rows])
        self._loaded = []

    def _keys_of(self, due_range: DueRange, indices: IntArray) -> list[Key]:
        """Keys of some queries of a due range that are not in memory."""
        if self._disk_tier is None:
            raise LookupError("nothing was evicted")
        keys = due_range.run.keys or self._disk_tier.keys(due_range.run.number)
        return [keys[due_range.first + index] for index in indices.tolist()]

    def _versions(self, disk_tier: DiskTier, keys: Sequence[Key]) -> VersionsOfKeys:
        """The queries on disk of keys that have none in memory, and no change since the commit."""
        versions, changed = disk_tier.versions(keys), self.versions_changed
        if changed.keys().isdisjoint(keys):
            return versions
        each = zip(keys, versions.each(), strict=True)
        return VersionsOfKeys.joined([changed.get(key, of_key) for key, of_key in each])

    # Release

    def release(self, due_range: DueRange, limit_ms: int) -> None:
        """Releases the keys of a due range without a ranking at *limit_ms* or later.

        The release of the others is scheduled again, in a separate run.
        """
        rows, table = self.rows_of(due_range), self._queries.table
        here, on_disk = rows[rows >= 0], np.flatnonzero(rows < 0)
        offsets = table["offset"][here]
        reserved = self._keys.release(here, limit_ms)
        self._drop_rows(offsets[~reserved].tolist())
        stay, offsets = here[reserved], offsets[reserved]
        keys: list[Key] = self._queries.index.keys_of(stay)
        times = table["named_ms"][stay]
        if len(on_disk):
            kept_keys, kept = self._release_on_disk(due_range, on_disk, limit_ms)
            keys += kept_keys
            times = np.append(times, kept["named_ms"])
            offsets = np.append(offsets, kept["offset"])
            stay = np.append(stay, np.full(len(kept), -1))
        if self._row_by_offset:
            stay = stay.copy()
            stay[[offset in self._row_by_offset for offset in offsets.tolist()]] = -1
        self.timers.push_for_release(times, offsets, stay, keys)
        if due_range.run.passed["release"] == due_range.run.n_queries:
            self.timers.drop(due_range.run)

    def _release_on_disk(
        self, due_range: DueRange, indices: IntArray, limit_ms: int
    ) -> tuple[list[Key], Versions]:
        """As `release`, on disk; returns the keys and queries to schedule again."""
        if self._disk_tier is None:
            raise LookupError("nothing was evicted")
        offsets, keys = due_range.offsets[indices], self._keys_of(due_range, indices)
        if not due_range.run.release_only:
            ends = due_range.run.first_offset, due_range.run.last_offset
            simple = ~np.isin(offsets, self._disk_tier.renamed(*ends))
            only = [key for key, alone in zip(keys, simple.tolist(), strict=True) if alone]
            self.versions_changed.update(dict.fromkeys(only, NO_VERSIONS))  # without a read
            self.n_keys_on_disk -= len(only)
            offsets = offsets[~simple]
            keys = [key for key, alone in zip(keys, simple.tolist(), strict=True) if not alone]
        versions = self._versions(self._disk_tier, keys)
        owners = np.repeat(np.arange(len(keys)), versions.counts)
        mine = versions.queries["offset"] == offsets[owners]
        reserved = mine & (versions.queries["named_ms"] >= limit_ms)
        free = owners[mine & ~reserved]
        alone = versions.counts[free] == 1
        self.versions_changed.update(
            dict.fromkeys([keys[at] for at in free[alone].tolist()], NO_VERSIONS)
        )
        for owner in free[~alone].tolist():  # several queries of a key may be free at once
            key = keys[owner]
            of_key = self.versions_changed.get(key)
            if of_key is None:
                of_key = versions.queries[owners == owner]
            self.versions_changed[key] = of_key[of_key["offset"] != offsets[owner]]
        gone = {keys[at] for at in free.tolist()}
        self.n_keys_on_disk -= sum(not len(self.versions_changed[key]) for key in gone)
        return [keys[at] for at in owners[reserved].tolist()], versions.queries[reserved]

    # Evict

    def evict(self) -> None:
        """Evicts queries until the others fit in memory; the disk tier must have all of them.

        Settled queries are evicted down to three quarters of the memory, because unsettled ones are
        always loaded again.
        """
        if self._disk_tier is None:
            return
        if self.n_bytes > self._max_bytes:
            self._evict(np.fromiter(self._row_by_offset.values(), np.int64))
            for run in list(self.timers.runs.values()):
                settled = run.passed["settle"] == run.n_queries
                most = self._max_bytes * 3 // 4 if settled else self._max_bytes
                if self.n_bytes <= most:
                    break
                if not run.on_disk:
                    self._evict_run(run)
            self._queries.tidy()
        for run in self.timers.runs.values():
            if run.on_disk:
                run.entries = run.keys = None

    def _drop_rows(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._row_by_offset.pop(offset, None)

    def _evict_run(self, run: Run) -> None:
        entries, first = self.timers.entries(run), run.passed["release"]
        rows, offsets = entries.rows[first:], entries.offsets[first:]
        here = rows >= 0
        self._row_by_offset.update(zip(offsets[here].tolist(), rows[here].tolist(), strict=True))
        run.on_disk = True
        self._evict(rows[here])

    def _evict(self, rows: IntArray) -> None:
        """Evicts the queries that are the only one of their key."""
        rows = rows[self._keys.alone(rows)]
        table = self._queries.table
        open_rows = rows[table["open"][rows]]
        self._join.expire(open_rows)
        table["open"][open_rows] = False
        self._drop_rows(table["offset"][rows].tolist())
        self._keys.evict(rows)
        self.n_keys_on_disk += len(rows)
