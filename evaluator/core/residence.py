"""Which queries are in memory. Where they are changes no answer, only what it costs."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np

from evaluator.core.calendar import Calendar, Entries, Passage, Run
from evaluator.core.held import HeldQueries
from evaluator.core.join import Join
from evaluator.core.stored import NO_CHAIN, Chain, Chains, QueriesAside
from evaluator.core.types import IntArray, Key

_PART = 512
"""Keys of which the queries are brought back together, while those of as many more are read."""


class Residence:
    """Puts queries aside, by runs, and brings them back when they are named or come of age.

    Args:
        aside: where the others are; None if all are in memory.
        max_bytes: about how much memory the queries may take after `put_aside`.
    """

    def __init__(
        self,
        aside: QueriesAside | None,
        held: HeldQueries,
        join: Join,
        *,
        max_bytes: int,
    ) -> None:
        self._aside = aside
        self._held = held
        self._join = join
        self._keys = join.keys
        self._max_bytes = max_bytes
        self._strays: dict[int, int] = {}  # slots by offset, of queries whose run does not know
        self.calendar = Calendar(None if aside is None else aside.entries)
        self.n_keys_aside = 0
        self.settled_before_ms = -1  # queries with an earlier event time are settled ...
        self.forgotten_before_ms = -1  # ... and of those with one before this only names are left
        self.chains_changed: dict[Key, Chain] = {}  # of keys aside, since somebody looked
        self._guests: list[IntArray] = []

    def restored(self, runs: Sequence[Run]) -> None:
        """A task was loaded whose queries are all aside, in these runs."""
        if self._aside is not None:
            self._aside.stands(runs, self.calendar.passed_before("release"))

    # Back into memory

    def bring_back(self, keys: Iterable[Key]) -> None:
        """Brings all queries of these keys into memory."""
        if self._aside is None or not self.n_keys_aside:
            return
        unknown = self._keys.unknown(keys)
        parts = [unknown[first : first + _PART] for first in range(0, len(unknown), _PART)]
        for part, following in zip_longest(parts, parts[1:]):
            chains = self._chains(self._aside, part)
            if following:
                self._aside.expect(following)
            if len(chains.queries):
                self._bring_back(self._aside, part, chains)

    def _bring_back(self, aside: QueriesAside, unknown: Sequence[Key], chains: Chains) -> None:
        owners = np.repeat(np.arange(len(unknown)), chains.counts)
        changed = self.chains_changed
        if changed:
            found = (unknown[owner] for owner in np.unique(owners).tolist())
            self._keys.touch(key for key in found if changed.pop(key, None) is not None)
        order = np.argsort(chains.queries["offset"])
        named, owners = chains.queries[order], owners[order]
        keys = [unknown[owner] for owner in owners.tolist()]
        needed = named["event_ms"] >= self.forgotten_before_ms
        slots = np.empty(len(named), np.int64)
        whole, names_only = np.flatnonzero(needed), np.flatnonzero(~needed)
        if len(names_only):
            slots[names_only] = self._held.hold_names(
                [keys[index] for index in names_only.tolist()], named[names_only]
            )
        stored = aside.queries(named["offset"][whole]) if len(whole) else None
        if stored is not None:
            arrivals = self._held.arrive(
                stored.rankings,
                [keys[index] for index in whole.tolist()],
                np.ascontiguousarray(named["event_ms"][whole]),
            )
            slots[whole] = self._held.hold(arrivals, np.arange(len(whole)))
            self._held.slots["settled"][slots[whole]] = (
                named["event_ms"][whole] < self.settled_before_ms
            )
            if self._held.offered is not None:
                self._held.offered.drop_settled(slots[whole])
            self._held.slots["named_ms"][slots[whole]] = named["named_ms"][whole]
            self._held.slots["hash"][slots[whole]] = named["hash"][whole]
        self._keys.restore(keys, slots)
        self._strays.update(zip(named["offset"].tolist(), slots.tolist(), strict=True))
        self.n_keys_aside -= int(np.count_nonzero(chains.counts))
        if stored is not None:
            self._join.restore(stored.judgments, stored.judgment_event_times_ms)
            self._restore_results(slots[whole], stored.results, stored.result_lengths)

    def _restore_results(self, slots: IntArray, results: IntArray, lengths: IntArray) -> None:
        table = self._held.slots
        table["graded"][slots] = table["n_judged"][slots] > 0
        self._held.set_results(slots[lengths > 0], results)

    # Where a passage's queries are

    def slots_of(self, passage: Passage) -> IntArray:
        """Slots of the queries of a passage, -1 for those that are not in memory."""
        slots = passage.slots
        if self._strays:
            missing = np.flatnonzero(slots < 0)
            if len(missing):
                find = self._strays.get
                slots = slots.copy()
                slots[missing] = [find(at, -1) for at in passage.offsets[missing].tolist()]
        return slots

    def invite(self, passage: Passage) -> IntArray:
        """Slots of the queries of a passage; those that were aside are guests in memory."""
        slots = self.slots_of(passage)
        away = np.flatnonzero(slots < 0)
        if not len(away):
            return slots
        self.bring_back(self._keys_of(passage, away))
        slots = self.slots_of(passage)
        self._guests.append(slots[away])
        return slots

    def let_guests_go(self) -> None:
        """Takes queries out of memory again that were brought back for a moment, unchanged.

        Those of a key that has changed stay until it is written down.
        """
        if self._guests and self._held.n_bytes > self._max_bytes:
            self._put_aside(self._keys.unchanged(np.concatenate(self._guests)))
            self._held.tidy()
        self._guests = []

    def _keys_of(self, passage: Passage, indices: IntArray) -> list[Key]:
        """Keys of some queries of a passage that are not in memory."""
        if self._aside is None:
            raise LookupError("nothing was put aside")
        keys = passage.run.keys or self._aside.keys(passage.run.number)
        return [keys[passage.first + index] for index in indices.tolist()]

    def _chains(self, aside: QueriesAside, keys: Sequence[Key]) -> Chains:
        """The queries that are aside of these keys, which name none in memory.

        A key that came free in memory still names its queries there until the next commit.
        """
        chains, changed, freed = aside.chains(keys), self.chains_changed, self._keys.touched or {}
        if changed.keys().isdisjoint(keys) and freed.keys().isdisjoint(keys):
            return chains
        each = zip(keys, chains.each(), strict=True)
        return Chains.joined(
            [changed.get(key, NO_CHAIN if key in freed else chain) for key, chain in each]
        )

    # Keys that are free

    def release(self, passage: Passage, limit_ms: int) -> Run | None:
        """Frees the keys of a passage that were not named at *limit_ms* or later.

        The others are awaited anew in a run of their own, which is returned.
        """
        slots, table = self.slots_of(passage), self._held.slots
        here, away = slots[slots >= 0], np.flatnonzero(slots < 0)
        offsets = table["offset"][here]
        named = self._keys.release(here, limit_ms)
        self._forget_strays(offsets[~named].tolist())
        stay = here[named]
        keys: list[Key] = table["key"][stay].tolist()
        times = table["named_ms"][stay]
        offsets = offsets[named]
        if len(away):
            far_keys, far = self._release_aside(passage, away, limit_ms)
            keys += far_keys
            times, offsets = np.append(times, far["named_ms"]), np.append(offsets, far["offset"])
            stay = np.append(stay, np.full(len(far), -1))
        if self._strays:
            stay = stay.copy()
            stay[[offset in self._strays for offset in offsets.tolist()]] = -1
        run = self.calendar.push_named(times, offsets, stay, keys)
        if passage.run.passed["release"] == passage.run.n_queries:
            self.calendar.drop(passage.run)
        return run

    def _release_aside(
        self, passage: Passage, indices: IntArray, limit_ms: int
    ) -> tuple[list[Key], Chain]:
        """The same for queries that are aside: keys and queries that are awaited anew."""
        if self._aside is None:
            raise LookupError("nothing was put aside")
        offsets = passage.offsets[indices]
        keys = self._keys_of(passage, indices)
        if not passage.run.named:
            ends = passage.run.first_offset, passage.run.last_offset
            simple = ~np.isin(offsets, self._aside.renamed(*ends))
            self._release_simple([keys[at] for at in np.flatnonzero(simple).tolist()])
            offsets = offsets[~simple]
            keys = [keys[at] for at in np.flatnonzero(~simple).tolist()]
        chains = self._chains(self._aside, keys)
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
        self.n_keys_aside -= sum(not len(self.chains_changed[key]) for key in gone)
        return [keys[at] for at in owners[named].tolist()], chains.queries[named]

    def _release_simple(self, keys: Sequence[Key]) -> None:
        """The same for keys that only ever named this query, once: nothing has to be read."""
        self.chains_changed.update(dict.fromkeys(keys, NO_CHAIN))
        self.n_keys_aside -= len(keys)

    # Out of memory

    def put_aside(self) -> None:
        """Takes queries out of memory until the rest fits: all that is here is aside as well.

        More than has to go, of those that are settled: the others will all be asked for again.
        """
        if self._aside is None:
            return
        if self._held.n_bytes > self._max_bytes:
            self._put_aside(np.fromiter(self._strays.values(), np.int64, len(self._strays)))
            for run in list(self.calendar.runs.values()):
                settled = run.passed["settle"] == run.n_queries
                if self._held.n_bytes <= (self._max_bytes * 3 // 4 if settled else self._max_bytes):
                    break
                if not run.aside:
                    self._put_run_aside(run)
            self._held.tidy()
        for run in self.calendar.runs.values():
            if run.aside:
                run.entries = run.keys = None

    def _forget_strays(self, offsets: Iterable[int]) -> None:
        """Notes that these queries have no slots any more."""
        for offset in offsets:
            self._strays.pop(offset, None)

    def _put_run_aside(self, run: Run) -> None:
        entries: Entries = self.calendar.entries(run)
        waiting = slice(run.passed["release"], None)
        slots, offsets = entries.slots[waiting], entries.offsets[waiting]
        here = slots >= 0
        self._strays.update(zip(offsets[here].tolist(), slots[here].tolist(), strict=True))
        run.aside = True
        self._put_aside(slots[here])

    def _put_aside(self, slots: IntArray) -> None:
        """Puts those aside whose keys name nothing else."""
        slots = self._keys.alone(slots)
        table = self._held.slots
        held = slots[table["held"][slots]]
        self._join.forget(held)
        table["held"][held] = False
        self._forget_strays(table["offset"][slots].tolist())
        self._keys.put_aside(slots)
        self.n_keys_aside += len(slots)
