"""Fires timers: queries settle and expire, and their keys are released."""

from collections.abc import Sequence

import numpy as np

from evaluator.core.event_time.durations import Durations
from evaluator.core.event_time.timers import Run, Timer, in_parts
from evaluator.core.join.join import Join
from evaluator.core.join.open_queries import OpenQueries
from evaluator.core.settle.evaluate import Evaluator
from evaluator.core.settle.settling import Settler
from evaluator.core.store.change_buffer import ChangeBuffer
from evaluator.core.store.tiering import Tiering
from evaluator.core.types.records import IntArray, Outputs, WatermarkRecord

_CHUNK = 1 << 14  # queries that settle together; also keeps partial sums within int64
WATERMARK_RECORD_EVERY_MS = 1_000  # event time without a settled query, before a watermark record


class Expiry:
    """Fires event-time timers as the watermark passes."""

    def __init__(
        self,
        open_queries: OpenQueries,
        join: Join,
        evaluator: Evaluator,
        settler: Settler,
        tiering: Tiering,
        change_buffer: ChangeBuffer | None,
        durations: Durations,
        *,
        expires: bool,
        emits_finished: bool,
    ) -> None:
        self._queries = open_queries
        self._join = join
        self._evaluator = evaluator
        self.settler = settler
        self._tiering = tiering
        self._timers = tiering.timers
        self._change_buffer = change_buffer
        self._durations = durations
        self._expires = expires
        self._emits_finished = emits_finished
        self.n_expired = 0
        self._said_ms = -1  # of the last watermark record or settled query

    def restore(self, runs: Sequence[Run], next_run: int, watermark_ms: int | None) -> None:
        """Takes up where another task was that had come to this watermark."""
        limits: dict[Timer, int] = {}
        if watermark_ms is not None:
            limits = {
                "settle": watermark_ms - self._durations.maturity_ms,
                "expire": watermark_ms - self._durations.retention_ms,
                "release": watermark_ms - self._durations.key_reserved_ms,
            }
            self._tiering.settled_before_ms = max(limits["settle"], -1)
            self._tiering.expired_before_ms = max(limits["expire"], -1)
        self._timers.restore(runs, limits, next_run)

    def settle(self, watermark_ms: int, outputs: Outputs) -> None:
        """Settles the queries that have reached maturity, by (event time, key)."""
        limit_ms = watermark_ms - self._durations.maturity_ms
        due = self._timers.pop_before("settle", limit_ms)
        for part in in_parts(due, _CHUNK):
            times = np.concatenate([due_range.times_ms for due_range in part])
            slots = np.concatenate([self._tiering.load_due(each) for each in part])
            order = np.argsort(times, kind="stable")
            slots = self._in_key_order(times[order], slots[order])
            for first in range(0, len(slots), _CHUNK):
                outputs.settled += self.settler.settle(slots[first : first + _CHUNK])
            self._tiering.evict_loaded()
        self._tiering.settled_before_ms = max(limit_ms, -1)
        if self._queries.offered is not None:
            self._emit_watermark(watermark_ms, outputs)

    def _emit_watermark(self, watermark_ms: int, outputs: Outputs) -> None:
        """Emits a watermark record, unless the last settled query shows as much.

        Its content is a function of the watermark; whether there is one depends on the batches.
        """
        last_ms = max((max(part.event_times_ms) for part in outputs.settled), default=None)
        if last_ms is not None:
            self._said_ms = max(self._said_ms, last_ms + self._durations.maturity_ms)
        if watermark_ms >= self._said_ms + WATERMARK_RECORD_EVERY_MS:
            outputs.watermark_record = WatermarkRecord(watermark_ms, self.settler.n_settled)
            self._said_ms = watermark_ms

    def expire(self, watermark_ms: int, outputs: Outputs) -> None:
        """Expires the queries past `retention_ms`."""
        limit_ms = watermark_ms - self._durations.retention_ms
        self._tiering.expired_before_ms = max(limit_ms, -1)
        for due_range in self._timers.pop_before("expire", limit_ms):
            self.n_expired += due_range.last - due_range.first
            slots = self._tiering.slots_of(due_range)
            slots = slots[slots >= 0]
            self._queries.slots["open"][slots] = False
            if self._emits_finished:
                outputs.finished += self._evaluator.evaluations(slots)
            if self._expires:
                self._join.expire(slots)

    def release(self, watermark_ms: int) -> None:
        """Releases reserved keys."""
        if not self._expires:
            return
        limit_ms = watermark_ms - self._durations.key_reserved_ms
        for due_range in self._timers.pop_before("release", limit_ms):
            run = self._tiering.release(due_range, limit_ms)
            if run is not None and self._change_buffer is not None:
                self._change_buffer.named(run)
        self._queries.tidy()

    def _in_key_order(self, times_ms: IntArray, slots: IntArray) -> IntArray:
        """Slots sorted by time, those of equal time by key."""
        changes = np.flatnonzero(np.diff(times_ms, prepend=-1))
        runs = np.diff(changes, append=len(times_ms))
        for first, n in zip(changes[runs > 1].tolist(), runs[runs > 1].tolist(), strict=True):
            run = slots[first : first + n]
            keys = self._queries.slots["key"][run].tolist()
            slots[first : first + n] = run[sorted(range(n), key=keys.__getitem__)]
        return slots
