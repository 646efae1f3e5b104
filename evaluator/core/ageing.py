"""What happens to queries as time goes on: they settle, are forgotten, and their keys free."""

from collections.abc import Sequence

import numpy as np

from evaluator.core.calendar import Age, Run, in_parts
from evaluator.core.durations import Durations
from evaluator.core.held import HeldQueries
from evaluator.core.join import Join
from evaluator.core.journal import Journal
from evaluator.core.residence import Residence
from evaluator.core.scoring import Scoring
from evaluator.core.settling import Settler
from evaluator.core.types import IntArray, Mark, Outputs

_CHUNK = 1 << 14  # queries that settle together; also keeps partial sums within int64
MARK_EVERY_MS = 1_000  # event time that settles nothing, before that is said


class Ageing:
    """Lets queries come of age as the watermark passes."""

    def __init__(
        self,
        held: HeldQueries,
        join: Join,
        scoring: Scoring,
        settler: Settler,
        residence: Residence,
        journal: Journal | None,
        durations: Durations,
        *,
        forgets: bool,
        emits_finished: bool,
    ) -> None:
        self._held = held
        self._join = join
        self._scoring = scoring
        self.settler = settler
        self._residence = residence
        self._calendar = residence.calendar
        self._journal = journal
        self._durations = durations
        self._forgets = forgets
        self._emits_finished = emits_finished
        self.n_forgotten = 0
        self._said_ms = -1  # nothing can settle before this, as was said already

    def restore(self, runs: Sequence[Run], next_run: int, watermark_ms: int | None) -> None:
        """Takes up where another task was that had come to this watermark."""
        limits: dict[Age, int] = {}
        if watermark_ms is not None:
            limits = {
                "settle": watermark_ms - self._durations.maturity_ms,
                "forget": watermark_ms - self._durations.retention_ms,
                "release": watermark_ms - self._durations.key_taken_ms,
            }
            self._residence.settled_before_ms = max(limits["settle"], -1)
            self._residence.forgotten_before_ms = max(limits["forget"], -1)
        self._calendar.restore(runs, limits, next_run)

    def settle(self, watermark_ms: int, outputs: Outputs) -> None:
        """Scores the queries for good that are of age, by (event time, key)."""
        limit_ms = watermark_ms - self._durations.maturity_ms
        passages = self._calendar.pop_before("settle", limit_ms)
        for part in in_parts(passages, _CHUNK):
            times = np.concatenate([passage.times_ms for passage in part])
            slots = np.concatenate([self._residence.invite(each) for each in part])
            order = np.argsort(times, kind="stable")
            slots = self._in_key_order(times[order], slots[order])
            for first in range(0, len(slots), _CHUNK):
                outputs.settled += self.settler.settle(slots[first : first + _CHUNK])
            self._residence.let_guests_go()
        self._residence.settled_before_ms = max(limit_ms, -1)
        if self._held.offered is not None:
            self._mark(watermark_ms, outputs)

    def _mark(self, watermark_ms: int, outputs: Outputs) -> None:
        """Says how far it is certain that nothing more settles, if the last one settled does not.

        What it says is a function of the watermark; whether it is said depends on the batches.
        """
        last_ms = max((max(part.event_times_ms) for part in outputs.settled), default=None)
        if last_ms is not None:
            self._said_ms = max(self._said_ms, last_ms + self._durations.maturity_ms)
        if watermark_ms >= self._said_ms + MARK_EVERY_MS:
            outputs.mark = Mark(watermark_ms, self.settler.n_settled)
            self._said_ms = watermark_ms

    def forget(self, watermark_ms: int, outputs: Outputs) -> None:
        """Lets the queries go that no judgment can belong to any more."""
        limit_ms = watermark_ms - self._durations.retention_ms
        self._residence.forgotten_before_ms = max(limit_ms, -1)
        for passage in self._calendar.pop_before("forget", limit_ms):
            self.n_forgotten += passage.last - passage.first
            slots = self._residence.slots_of(passage)
            slots = slots[slots >= 0]
            self._held.slots["held"][slots] = False
            if self._emits_finished:
                outputs.finished += self._scoring.evaluations(slots)
            if self._forgets:
                self._join.forget(slots)

    def release(self, watermark_ms: int) -> None:
        """Frees the keys that are not taken any more."""
        if not self._forgets:
            return
        limit_ms = watermark_ms - self._durations.key_taken_ms
        for passage in self._calendar.pop_before("release", limit_ms):
            run = self._residence.release(passage, limit_ms)
            if run is not None and self._journal is not None:
                self._journal.named(run)
        self._held.tidy()

    def _in_key_order(self, times_ms: IntArray, slots: IntArray) -> IntArray:
        """Slots sorted by time, those of equal time by key."""
        changes = np.flatnonzero(np.diff(times_ms, prepend=-1))
        runs = np.diff(changes, append=len(times_ms))
        for first, n in zip(changes[runs > 1].tolist(), runs[runs > 1].tolist(), strict=True):
            run = slots[first : first + n]
            keys = self._held.slots["key"][run].tolist()
            slots[first : first + n] = run[sorted(range(n), key=keys.__getitem__)]
        return slots
