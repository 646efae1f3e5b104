"""Memory tier and disk tier of open queries. The tier of a query changes no result."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np

from evaluator.core.event_time.timers import DueRange, Entries, Run, Timers
from evaluator.core.join.changes import NO_CHAIN, Chain, Chains, DiskTier
from evaluator.core.join.join import Join
from evaluator.core.join.open_queries import OpenQueries
from evaluator.core.types.records import IntArray, Key

_PART = 512
"""Keys whose queries are loaded together, while those of as many more are read."""


class Tiering:
    """Evicts queries to disk, by runs, and loads them when they are named or a timer is due.

    Args:
        disk_tier: where the others are; None if all are in memory.
        max_bytes: about how much memory the queries may take after `evict`.
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
        self._loaded_slots: dict[
            int, int
        ] = {}  # slots by offset, of queries whose run does not know
        self.timers = Timers(None if disk_tier is None else disk_tier.entries)
        self.n_keys_on_disk = 0
        self.settled_before_ms = -1  # queries with an earlier event time are settled ...
        self.expired_before_ms = -1  # ... and of those with one before this only names are left
        self.chains_changed: dict[Key, Chain] = {}  # of keys on disk, since somebody looked
        self._loaded: list[IntArray] = []

    def restored(self, runs: Sequence[Run]) -> None:
        """A task was loaded whose queries are all on disk, in these runs."""
        if self._disk_tier is not None:
            self._disk_tier.stands(runs, self.timers.passed_before("release"))

    # Back into memory

    def load_keys(self, keys: Iterable[Key]) -> None:
        """Brings all queries of these keys into memory."""
        if self._disk_tier is None or not self.n_keys_on_disk:
            return
        unknown = self._keys.unknown(keys)
        parts = [unknown[first : first + _PART] for first in range(0, len(unknown), _PART)]
        for part, following in zip_longest(parts, parts[1:]):
            chains = self._chains(self._disk_tier, part)
            if following:
                self._disk_tier.expect(following)
            if len(chains.queries):
                self._load_chains(self._disk_tier, part, chains)

    def _load_chains(self, disk_tier: DiskTier, unknown: Sequence[Key], chains: Chains) -> None:
        owners = np.repeat(np.arange(len(unknown)), chains.counts)
        changed = self.chains_changed
        if changed:
            found = (unknown[owner] for owner in np.unique(owners).tolist())
            self._keys.touch(key for key in found if changed.pop(key, None) is not None)
        order = np.argsort(chains.queries["offset"])
        named, owners = chains.queries[order], owners[order]
        keys = [unknown[owner] for owner in owners.tolist()]
        needed = named["event_ms"] >= self.expired_before_ms
        slots = np.empty(len(named), np.int64)
        whole, names_only = np.flatnonzero(needed), np.flatnonzero(~needed)
        if len(names_only):
            slots[names_only] = self._queries.hold_names(
                [keys[index] for index in names_only.tolist()], named[names_only]
            )
        stored = disk_tier.queries(named["offset"][whole]) if len(whole) else None
        if stored is not None:
            arrivals = self._queries.arrive(
                stored.rankings,
                [keys[index] for index in whole.tolist()],
                np.ascontiguousarray(named["event_ms"][whole]),
            )
            slots[whole] = self._queries.hold(arrivals, np.arange(len(whole)))
            self._queries.slots["settled"][slots[whole]] = (
                named["event_ms"][whole] < self.settled_before_ms
            )
            if self._queries.offered is not None:
                self._queries.offered.drop_settled(slots[whole])
            self._queries.slots["named_ms"][slots[whole]] = named["named_ms"][whole]
            self._queries.slots["hash"][slots[whole]] = named["hash"][whole]
        self._keys.restore(keys, slots)
        self._loaded_slots.update(zip(named["offset"].tolist(), slots.tolist(), strict=True))
        self.n_keys_on_disk -= int(np.count_nonzero(chains.counts))
        if stored is not None:
            self._join.restore(stored.judgments, stored.judgment_event_times_ms)
            self._restore_results(slots[whole], stored.results, stored.result_lengths)

    def _restore_results(self, slots: IntArray, results: IntArray, lengths: IntArray) -> None:
        table = self._queries.slots
        table["graded"][slots] = table["n_judged"][slots] > 0
        self._queries.set_results(slots[lengths > 0], results)

    # Queries of due ranges

    def slots_of(self, due_range: DueRange) -> IntArray:
        """Slots of the queries of a due range, -1 for those that are not in memory."""
        slots = due_range.slots
        if self._loaded_slots:
            missing = np.flatnonzero(slots < 0)
            if len(missing):
                find = self._loaded_slots.get
                slots = slots.copy()
                slots[missing] = [find(at, -1) for at in due_range.offsets[missing].tolist()]
        return slots

    def load_due(self, due_range: DueRange) -> IntArray:
        """Slots of the queries of a due range; queries on disk are loaded for one batch."""
        slots = self.slots_of(due_range)
        away = np.flatnonzero(slots < 0)
        if not len(away):
            return slots
        self.load_keys(self._keys_of(due_range, away))
        slots = self.slots_of(due_range)
        self._loaded.append(slots[away])
        return slots

    def evict_loaded(self) -> None:
        """Evicts queries that were loaded for one batch and have not changed.

        Those of a key that has changed stay until it is written down.
        """
        if self._loaded and self._queries.n_bytes > self._max_bytes:
            self._evict(self._keys.unchanged(np.concatenate(self._loaded)))
            self._queries.tidy()
        self._loaded = []

    def _keys_of(self, due_range: DueRange, indices: IntArray) -> list[Key]:
        """Keys of some queries of a due range that are not in memory."""
        if self._disk_tier is None:
            raise LookupError("nothing was evicted")
        keys = due_range.run.keys or self._disk_tier.keys(due_range.run.number)
        return [keys[due_range.first + index] for index in indices.tolist()]

    def _chains(self, disk_tier: DiskTier, keys: Sequence[Key]) -> Chains:
        """The queries that are on disk of these keys, which name none in memory.

        A key that came free in memory still names its queries there until the next commit.
        """
        chains, changed, freed = (
            disk_tier.chains(keys),
            self.chains_changed,
            self._keys.touched or {},
        )
        if changed.keys().isdisjoint(keys) and freed.keys().isdisjoint(keys):
            return chains
        each = zip(keys, chains.each(), strict=True)
        return Chains.joined(
            [changed.get(key, NO_CHAIN if key in freed else chain) for key, chain in each]
        )

    # Release of keys

    def release(self, due_range: DueRange, limit_ms: int) -> Run | None:
        """Frees the keys of a due range that were not named at *limit_ms* or later.

        The others are scheduled again in a run of their own, which is returned.
        """
        slots, table = self.slots_of(due_range), self._queries.slots
        here, away = slots[slots >= 0], np.flatnonzero(slots < 0)
        offsets = table["offset"][here]
        named = self._keys.release(here, limit_ms)
        self._drop_loaded_slots(offsets[~named].tolist())
        stay = here[named]
        keys: list[Key] = table["key"][stay].tolist()
        times = table["named_ms"][stay]
        offsets = offsets[named]
        if len(away):
            far_keys, far = self._release_on_disk(due_range, away, limit_ms)
            keys += far_keys
            times, offsets = np.append(times, far["named_ms"]), np.append(offsets, far["offset"])
            stay = np.append(stay, np.full(len(far), -1))
        if self._loaded_slots:
            stay = stay.copy()
            stay[[offset in self._loaded_slots for offset in offsets.tolist()]] = -1
        run = self.timers.push_named(times, offsets, stay, keys)
        if due_range.run.passed["release"] == due_range.run.n_queries:
            self.timers.drop(due_range.run)
        return run

    def _release_on_disk(
        self, due_range: DueRange, indices: IntArray, limit_ms: int
    ) -> tuple[list[Key], Chain]:
        """The same for queries of the disk tier: keys and queries that are scheduled again."""
        if self._disk_tier is None:
            raise LookupError("nothing was evicted")
        offsets = due_range.offsets[indices]
        keys = self._keys_of(due_range, indices)
        if not due_range.run.named:
            ends = due_range.run.first_offset, due_range.run.last_offset
            simple = ~np.isin(offsets, self._disk_tier.renamed(*ends))
            self._release_simple([keys[at] for at in np.flatnonzero(simple).tolist()])
            offsets = offsets[~simple]
            keys = [keys[at] for at in np.flatnonzero(~simple).tolist()]
        chains = self._chains(self._disk_tier, keys)
        owners = np.repeat(np.arange(len(keys)), chains.counts)
        mine = chains.queries["offset"] == offsets[owners]
        named = mine & (chains.queries["named_ms"] >= limit_ms)
        free = owners[mine & ~named]
        alone = chains.counts[free] == 1
        self.chains_changed.update(
            dict.fromkeys([keys[at] for at in free[alone].tolist()], NO_CHAIN)
        )
        for owner in free[~alone].tolist():  # several queries of a key may be free at once
            key, offset = keys[owner], offsets[owner]
            chain = self.chains_changed.get(key)
            if chain is None:
                chain = chains.queries[owners == owner]
            self.chains_changed[key] = chain[chain["offset"] != offset]
        gone = {keys[at] for at in free.tolist()}
        self.n_keys_on_disk -= sum(not len(self.chains_changed[key]) for key in gone)
        return [keys[at] for at in owners[named].tolist()], chains.queries[named]

    def _release_simple(self, keys: Sequence[Key]) -> None:
        """The same for keys that only ever named this query, once: nothing has to be read."""
        self.chains_changed.update(dict.fromkeys(keys, NO_CHAIN))
        self.n_keys_on_disk -= len(keys)

    # Out of memory

    def evict(self) -> None:
        """Takes queries out of memory until the rest fits: all that is here is on disk as well.

        More than has to go, of those that are settled: the others will all be asked for again.
        """
        if self._disk_tier is None:
            return
        if self._queries.n_bytes > self._max_bytes:
            self._evict(np.fromiter(self._loaded_slots.values(), np.int64, len(self._loaded_slots)))
            for run in list(self.timers.runs.values()):
                settled = run.passed["settle"] == run.n_queries
                if self._queries.n_bytes <= (
                    self._max_bytes * 3 // 4 if settled else self._max_bytes
                ):
                    break
                if not run.on_disk:
                    self._evict_run(run)
            self._queries.tidy()
        for run in self.timers.runs.values():
            if run.on_disk:
                run.entries = run.keys = None

    def _drop_loaded_slots(self, offsets: Iterable[int]) -> None:
        """Notes that these queries have no slots any more."""
        for offset in offsets:
            self._loaded_slots.pop(offset, None)

    def _evict_run(self, run: Run) -> None:
        entries: Entries = self.timers.entries(run)
        waiting = slice(run.passed["release"], None)
        slots, offsets = entries.slots[waiting], entries.offsets[waiting]
        here = slots >= 0
        self._loaded_slots.update(zip(offsets[here].tolist(), slots[here].tolist(), strict=True))
        run.on_disk = True
        self._evict(slots[here])

    def _evict(self, slots: IntArray) -> None:
        """Evicts the queries whose keys belong to no other query."""
        slots = self._keys.alone(slots)
        table = self._queries.slots
        open_slots = slots[table["open"][slots]]
        self._join.expire(open_slots)
        table["open"][open_slots] = False
        self._drop_loaded_slots(table["offset"][slots].tolist())
        self._keys.evict(slots)
        self.n_keys_on_disk += len(slots)
