"""The changes of a task since the last commit."""

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Final

import numpy as np
from msgspec.structs import replace

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.columns.key_hashes import KeyHashes, keys_from
from evaluator.core.event_time.timers import Run
from evaluator.core.join.changes import NO_VERSIONS, Changes, StartedRows
from evaluator.core.join.join import Join
from evaluator.core.join.open_queries import Arrivals, OpenQueries
from evaluator.core.measures.exact_sums import Totals, Windows
from evaluator.core.store.tiering import Tiering
from evaluator.core.types.records import IntArray

_NOTHING: Final = ByteStrings.of([])
_NO_SCORES: Final = np.empty(0)


class ChangeBuffer:
    """Collects changes while they happen; `take` returns them."""

    def __init__(
        self,
        open_queries: OpenQueries,
        join: Join,
        tiering: Tiering,
        totals: Sequence[Totals],
        windows: Windows,
    ) -> None:
        self._queries = open_queries
        self._join = join
        self._timers = tiering.timers
        self._versions_on_disk = tiering.versions_changed
        self._totals = totals
        self._windows = windows
        self._begin()

    def _begin(self) -> None:
        self._changes = self._join.changes = Changes()
        self._touched = self._join.keys.touched = {}
        self._join.early.touched = self._changes.early
        self._timers.closed = []
        self._timers.ended = []

    def started(self, arrivals: Arrivals, rows: IntArray) -> None:
        """Adds queries that have started and have timers."""
        table = self._queries.table
        rankings = replace(arrivals.rankings, keys=_NOTHING, values=_NOTHING, scores=_NO_SCORES)
        offsets = table["offset"][rows]
        records = np.searchsorted(rankings.offsets, offsets)
        self._changes.started.append(
            StartedRows(
                offsets,
                table["event_ms"][rows],
                rankings.hashes[records],
                rankings,
                records,
                table["stratum"][rows],
                arrivals.ranked,
            )
        )
        self._add_closed()

    def measured(self, rows: IntArray) -> None:
        """Adds queries with changed results."""
        lengths = self._queries.result_lengths(rows)
        valued = self._queries.table["result_start"][rows] >= 0
        lengths[~valued] = 0
        results = self._queries.results(rows[valued])
        self._changes.results.append((self._queries.table["offset"][rows], lengths, results))

    def take(self) -> Changes:
        """All changes since the last call."""
        changes = self._changes
        self._add_closed()
        open_run = self._timers.open_run
        if open_run.n_queries:
            changes.runs[open_run.number] = (open_run, self._keys_of(open_run))
        changes.runs |= dict.fromkeys(self._timers.ended or ())
        changes.expired_before = self._timers.passed_before("expire")
        changes.released_before = self._timers.passed_before("release")
        self._add_keys(changes)
        for totals in self._totals:
            changes.totals |= totals.touched()
        changes.windows = self._windows.touched()
        self._begin()
        return changes

    def _add_closed(self) -> None:
        for run in self._timers.closed or ():
            self._changes.runs[run.number] = (run, self._keys_of(run))
        self._timers.closed = []

    def _keys_of(self, run: Run) -> KeyHashes:
        """Keys of the entries of a run that is in memory; zeros for released ones."""
        if run.release_only:
            return keys_from(run.keys or [])
        free = run.passed["release"]
        rows = self._timers.entries(run).rows[free:]
        return np.concatenate([np.zeros(free, "V16"), self._queries.table["key"][rows]])

    def _add_keys(self, changes: Changes) -> None:
        keys, touched = self._join.keys, list(self._touched)
        newest = keys.newest_of(keys_from(touched))
        changes.versions |= self._versions_on_disk
        self._versions_on_disk.clear()
        changes.versions |= dict.fromkeys(compress(touched, newest < 0), NO_VERSIONS)
        rows = np.union1d(keys.take_started(), newest[newest >= 0])
        alone = keys.alone(rows)
        for key in self._queries.index.keys_of(rows[~alone]):
            changes.versions[key] = keys.versions(key)
        changes.single_keys = self._queries.table["key"][rows[alone]]
        changes.single_versions = keys.versions_at(rows[alone])
        changes.renamed = [
            offset for offset in self._renamed(changes) if offset >= changes.released_before
        ]

    @staticmethod
    def _renamed(changes: Changes) -> Iterator[int]:
        for of_key in changes.versions.values():
            if len(of_key) > 1 or (len(of_key) and of_key["named_ms"][0] != of_key["event_ms"][0]):
                yield from of_key["offset"].tolist()
        again = changes.single_versions["named_ms"] != changes.single_versions["event_ms"]
        yield from changes.single_versions["offset"][again].tolist()
