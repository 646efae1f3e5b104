"""Keys: which query a (trace_id, node_id) names, from its first ranking until it is free again."""

from collections.abc import Iterable, Sequence
from itertools import filterfalse, repeat

import numpy as np
from numpy.typing import NDArray

from evaluator.core.join.changes import NAMED_QUERY, Chain
from evaluator.core.join.open_queries import Arrivals, OpenQueries
from evaluator.core.types.records import DeadLetter, IntArray, Key, RankingColumns


class Keys:
    """Starts a query for each ranking of a free key; knows the queries of a taken one.

    A key is taken for *key_reserved_ms* after the latest event time at which its log named it.
    Rankings may be read far ahead, so a key can have several queries that still matter: the
    newest is found first, `older` leads on.
    """

    def __init__(self, open_queries: OpenQueries, *, key_reserved_ms: int) -> None:
        self._queries = open_queries
        self._key_reserved_ms = key_reserved_ms
        self._slot_of: dict[Key, int] = {}
        self._older: dict[int, int] = {}
        self._newer: dict[int, int] = {}
        self.n_started = 0
        self.again = {"duplicate": 0, "conflicting": 0}  # rankings of a taken key
        self.touched: dict[Key, None] | None = None  # keys that name something else than before

    def newest(self, key: Key) -> int | None:
        """Slot of the latest query of a key."""
        return self._slot_of.get(key)

    def older(self, slot: int) -> int | None:
        """Slot of the query that the same key had before."""
        return self._older.get(slot)

    def newest_of(self, keys: Sequence[Key]) -> IntArray:
        """Slots of the latest queries of keys, -1 for none: `[n_keys]`."""
        return np.fromiter(map(self._slot_of.get, keys, repeat(-1)), np.int64, len(keys))

    def start_queries(
        self, rankings: RankingColumns, event_times_ms: IntArray
    ) -> tuple[IntArray, list[DeadLetter]]:
        """Starts a query for each ranking of a free key: their slots, `[n_started]`."""
        keys = list(zip(rankings.trace_ids, rankings.node_ids, strict=True))
        if not keys:
            return np.empty(0, np.int64), []
        arrivals = self._queries.arrive(rankings, keys, event_times_ms)
        if len(set(keys)) == len(keys) and self._slot_of.keys().isdisjoint(keys):
            slots = self._hold(arrivals, np.arange(len(keys)))
            self._slot_of.update(zip(keys, slots.tolist(), strict=True))
            self.touch(keys)
            return slots, []
        return self._start_slow(arrivals)

    def _start_slow(self, arrivals: Arrivals) -> tuple[IntArray, list[DeadLetter]]:
        """Row by row, for a batch that names a key again."""
        rankings = arrivals.rankings
        letters: list[DeadLetter] = []
        started: list[IntArray] = []
        here: dict[Key, list[int]] = {}  # keys started here: row, and row that named it last
        named: dict[Key, int] = {}  # ... and the latest event time
        times = arrivals.event_times_ms.tolist()
        for row, (key, event_ms) in enumerate(zip(arrivals.keys, times, strict=True)):
            if key in here:
                taken = event_ms - named[key] <= self._key_reserved_ms
                if taken:
                    same = rankings.hashes[here[key][1]] == rankings.hashes[row]
                    self._count_again(rankings, row, same, letters)
                    here[key][1], named[key] = row, max(named[key], event_ms)
                    continue
                started.append(self._hold_named(arrivals, here, named))
            elif key in self._slot_of and self._name_again(
                rankings, row, self._slot_of[key], event_ms, letters
            ):
                continue
            here[key], named[key] = [row, row], event_ms
        started.append(self._hold_named(arrivals, here, named))
        self.touch(arrivals.keys)
        return np.concatenate(started), letters

    def _name_again(
        self,
        rankings: RankingColumns,
        row: int,
        slot: int,
        event_ms: int,
        letters: list[DeadLetter],
    ) -> bool:
        """Whether the key of *slot* is taken still; if so the row is counted and remembered."""
        table = self._queries.slots
        named_ms = int(table["named_ms"][slot])
        if event_ms - named_ms > self._key_reserved_ms:
            return False
        same = table["hash"][slot].tobytes() == rankings.hashes[row]
        self._count_again(rankings, row, same, letters)
        table["named_ms"][slot] = max(named_ms, event_ms)
        table["hash"][slot] = np.void(rankings.hashes[row])
        return True

    def _count_again(
        self, rankings: RankingColumns, row: int, same: bool, letters: list[DeadLetter]
    ) -> None:
        self.again["duplicate" if same else "conflicting"] += 1
        if not same:
            letters.append(
                DeadLetter(
                    "rankings",
                    int(rankings.offsets[row]),
                    "conflicting",
                    "another ranking of this trace_id and node_id came before; it stands",
                    rankings.keys[row],
                    rankings.values[row],
                )
            )

    def _hold_named(
        self, arrivals: Arrivals, here: dict[Key, list[int]], named: dict[Key, int]
    ) -> IntArray:
        """Holds the rows gathered so far, and what later rows said of their keys."""
        rows = np.array([row for row, _ in here.values()], np.int64)
        if not len(rows):
            return rows
        slots = self._hold(arrivals, rows)
        self._name(here, slots)
        table = self._queries.slots
        for slot, (key, (_, last)) in zip(slots.tolist(), here.items(), strict=True):
            table["named_ms"][slot] = named[key]
            table["hash"][slot] = np.void(arrivals.rankings.hashes[last])
        here.clear()
        named.clear()
        return slots

    def _hold(self, arrivals: Arrivals, rows: IntArray) -> IntArray:
        slots = self._queries.hold(arrivals, rows)
        self.n_started += len(slots)
        return slots

    def _name(self, keys: Iterable[Key], slots: IntArray) -> None:
        """Lets keys name new queries; the ones they named before become their older ones."""
        for key, slot in zip(keys, slots.tolist(), strict=True):
            older = self._slot_of.get(key)
            if older is not None:
                self._older[slot], self._newer[older] = older, slot
            self._slot_of[key] = slot

    def touch(self, keys: Iterable[Key]) -> None:
        """Notes that keys name something else than before."""
        if self.touched is not None:
            self.touched.update(dict.fromkeys(keys))

    # Out of memory, and back

    def __len__(self) -> int:
        return len(self._slot_of)

    def unknown(self, keys: Iterable[Key]) -> list[Key]:
        """Those of the keys of which memory does not know what they name, each once.

        Of a key that has changed it does: nothing, where it names nothing in memory.
        """
        unknown = dict.fromkeys(filterfalse(self._slot_of.__contains__, keys))
        return list(filterfalse((self.touched or {}).__contains__, unknown))

    def unchanged(self, slots: IntArray) -> IntArray:
        """Those of the slots whose keys name what they named when changes were last asked for."""
        touched = self.touched
        if not touched:
            return slots
        keys = self._queries.slots["key"][slots].tolist()
        same = np.fromiter((key not in touched for key in keys), bool, len(keys))
        return slots[np.flatnonzero(same)]

    def chain(self, key: Key) -> Chain:
        """The queries of a key that are in memory."""
        slots = []
        slot = self.newest(key)
        while slot is not None:
            slots.append(slot)
            slot = self.older(slot)
        chain = np.empty(len(slots), NAMED_QUERY)
        for column in NAMED_QUERY.names or ():
            chain[column] = self._queries.slots[column][slots]
        return chain

    def restore(self, keys: Iterable[Key], slots: IntArray) -> None:
        """Lets keys name queries that are back in memory, of each key the oldest first."""
        self._name(keys, slots)

    def alone(self, slots: IntArray) -> IntArray:
        """Those of the slots whose query is the only one of its key."""
        if not self._older:
            return slots
        linked = np.array([*self._older, *self._newer], np.int64)
        return slots[~np.isin(slots, linked)]

    def evict(self, slots: IntArray) -> None:
        """Frees the slots of queries, each the only one of its key, that can be brought back."""
        for key in self._queries.slots["key"][slots].tolist():
            del self._slot_of[key]
        self._queries.release(slots)

    def release(self, slots: IntArray, limit_ms: int) -> NDArray[np.bool_]:
        """Frees keys that were not named at *limit_ms* or later: which are not free, `[n]`."""
        table = self._queries.slots
        named: NDArray[np.bool_] = table["named_ms"][slots] >= limit_ms
        free = slots[~named]
        keys = table["key"][free].tolist()
        for slot, key in zip(free.tolist(), keys, strict=True):
            newer = self._newer.pop(slot, None)
            if newer is None:
                del self._slot_of[key]
            else:
                del self._older[newer]
        self.touch(keys)
        self._queries.release(free)
        return named
