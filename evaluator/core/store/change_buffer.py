"""The changes of a task since the last commit."""

from collections.abc import Iterator
from itertools import compress

import numpy as np

from evaluator.core.event_time.timers import Run
from evaluator.core.join.changes import NAMED_QUERY, NO_CHAIN, Changes, StartedRows
from evaluator.core.join.join import Join
from evaluator.core.join.open_queries import OpenQueries
from evaluator.core.measures.exact_sums import Totals, Windows
from evaluator.core.store.tiering import Tiering
from evaluator.core.types.records import IntArray, Key, RankingColumns


class ChangeBuffer:
    """Notes changes while they happen; `take` returns them."""

    def __init__(
        self,
        open_queries: OpenQueries,
        join: Join,
        tiering: Tiering,
        totals: Totals,
        windows: Windows,
    ) -> None:
        self._queries = open_queries
        self._join = join
        self._timers = tiering.timers
        self._chains_on_disk = tiering.chains_changed
        self._totals = totals
        self._windows = windows
        self._begin()

    def _begin(self) -> None:
        self._changes = self._join.changes = Changes()
        self._touched = self._join.keys.touched = {}
        self._join.early.touched = self._changes.early
        self._timers.closed = []
        self._timers.ended = []

    def started(self, rankings: RankingColumns, slots: IntArray) -> None:
        """Queries have started and stand in the timers."""
        table = self._queries.slots
        offsets = table["offset"][slots]
        rows = np.searchsorted(rankings.offsets, offsets)
        self._changes.started.append(
            StartedRows(
                offsets,
                table["event_ms"][slots],
                np.frombuffer(b"".join(rankings.hashes), "V16")[rows],
                table["key"][slots].tolist(),
                [rankings.values[row] for row in rows.tolist()],
            )
        )
        self._note_closed()

    def measured(self, slots: IntArray) -> None:
        """Queries have other results than before, or none."""
        lengths = self._queries.result_lengths(slots)
        valued = self._queries.slots["result_start"][slots] >= 0
        lengths[~valued] = 0
        results = self._queries.results(slots[valued])
        self._changes.results.append((self._queries.slots["offset"][slots], lengths, results))

    def named(self, run: Run) -> None:
        """A run was made of queries whose keys were named again."""
        self._changes.runs[run.number] = (run, run.keys or [])

    def take(self) -> Changes:
        """Everything that has changed since the last time."""
        changes = self._changes
        self._note_closed()
        open_run = self._timers.open_run
        if open_run.n_queries:
            changes.runs[open_run.number] = (open_run, self._keys_of(open_run))
        changes.runs |= dict.fromkeys(self._timers.ended or ())
        changes.expired_before = self._timers.passed_before("expire")
        changes.released_before = self._timers.passed_before("release")
        self._note_names(changes)
        changes.totals = self._totals.touched()
        changes.windows = self._windows.touched()
        self._begin()
        return changes

    def _note_closed(self) -> None:
        for run in self._timers.closed or ():
            self._changes.runs[run.number] = (run, self._keys_of(run))
        self._timers.closed = []

    def _keys_of(self, run: Run) -> list[Key]:
        """Keys of the entries of a run that is in memory; of those released, nothing."""
        free = run.passed["release"]
        keys: list[Key] = self._queries.slots["key"][
            self._timers.entries(run).slots[free:]
        ].tolist()
        return [("", "")] * free + keys

    def _note_names(self, changes: Changes) -> None:
        keys = self._join.keys
        names = list(self._touched)
        slots = keys.newest_of(names)
        changes.chains |= self._chains_on_disk
        self._chains_on_disk.clear()
        named = slots >= 0
        alone = named.copy()
        alone[named] = np.isin(slots[named], keys.alone(slots[named]))
        changes.chains |= dict.fromkeys(compress(names, ~named), NO_CHAIN)
        for name in compress(names, named & ~alone):
            changes.chains[name] = keys.chain(name)
        changes.named_keys = list(compress(names, alone))
        chosen = slots[alone]
        changes.names = np.empty(len(chosen), NAMED_QUERY)
        for column in NAMED_QUERY.names or ():
            changes.names[column] = self._queries.slots[column][chosen]
        changes.renamed = [
            offset for offset in self._renamed(changes) if offset >= changes.released_before
        ]

    @staticmethod
    def _renamed(changes: Changes) -> Iterator[int]:
        for chain in changes.chains.values():
            if len(chain) > 1 or (len(chain) and chain["named_ms"][0] != chain["event_ms"][0]):
                yield from chain["offset"].tolist()
        again = changes.names["named_ms"] != changes.names["event_ms"]
        yield from changes.names["offset"][again].tolist()
