"""Fires timers: queries settle and expire, and their keys are released."""

import numpy as np
from numpy.typing import NDArray

from evaluator.core.event_time.timers import in_parts
from evaluator.core.join.changes import Ledger
from evaluator.core.join.join import Join
from evaluator.core.join.open_queries import OpenQueries
from evaluator.core.join.rules import JoinRules
from evaluator.core.settle.settling import Settler
from evaluator.core.store.tiering import Tiering
from evaluator.core.types.records import IntArray, Outputs, WatermarkRecord

_COMPARED_WORDS = 4  # the length of a trace id of OpenTelemetry
_CHUNK = 1 << 14  # queries that settle together; also keeps partial sums within int64
WATERMARK_RECORD_EVERY_MS = 1_000  # event time without a settled query, before a watermark record


class Expiry:
    """Fires event-time timers as the watermark passes."""

    def __init__(
        self,
        rules: JoinRules,
        ledger: Ledger,
        open_queries: OpenQueries,
        join: Join,
        settler: Settler,
        tiering: Tiering,
        *,
        expires: bool,
        emits_finished: bool,
    ) -> None:
        self._rules = rules
        self._counts = ledger.counts
        self._queries = open_queries
        self._join = join
        self._settler = settler
        self._tiering = tiering
        self._expires = expires
        self._emits_finished = emits_finished
        self._emitted_ms = -1  # watermark that outputs imply: of a record, or a settled query

    def settle(self, watermark_ms: int, outputs: Outputs) -> None:
        """Settles the queries that have reached maturity, by (event time, key)."""
        limit_ms = self._rules.timer_limits(watermark_ms)["settle"]
        due = self._tiering.timers.pop_before("settle", limit_ms)
        for part in in_parts(due, _CHUNK):
            times = np.concatenate([due_range.times_ms for due_range in part])
            rows = np.concatenate([self._tiering.load_due(each) for each in part])
            order = np.argsort(times, kind="stable")
            rows = self._in_key_order(times[order], rows[order])
            for first in range(0, len(rows), _CHUNK):
                outputs.settled += self._settler.settle(rows[first : first + _CHUNK])
            self._tiering.evict_loaded()
        self._tiering.settled_before_ms = max(limit_ms, -1)
        self._emit_watermark(watermark_ms, outputs)

    def _emit_watermark(self, watermark_ms: int, outputs: Outputs) -> None:
        """Emits a watermark record, unless the last settled query implies the watermark.

        Its content is a function of the watermark; its presence depends on the batches.
        """
        last_ms = max((int(part.event_times_ms.max()) for part in outputs.settled), default=None)
        if last_ms is not None:
            self._emitted_ms = max(self._emitted_ms, last_ms + self._rules.maturity_ms)
        if watermark_ms >= self._emitted_ms + WATERMARK_RECORD_EVERY_MS:
            outputs.watermark_record = WatermarkRecord(watermark_ms, self._counts["settled"])
            self._emitted_ms = watermark_ms

    def expire(self, watermark_ms: int, outputs: Outputs) -> None:
        """Expires the queries past `retention_ms`."""
        limit_ms = self._rules.timer_limits(watermark_ms)["expire"]
        self._tiering.expired_before_ms = max(limit_ms, -1)
        for due_range in self._tiering.timers.pop_before("expire", limit_ms):
            self._counts["expired"] += len(due_range.times_ms)
            rows = self._tiering.rows_of(due_range)
            rows = rows[rows >= 0]
            self._queries.table["open"][rows] = False
            if self._emits_finished:
                outputs.finished += self._settler.evaluator.evaluations(rows)
            if self._expires:
                self._join.expire(rows)

    def release(self, watermark_ms: int) -> None:
        """Releases keys that are no longer reserved."""
        if not self._expires:
            return
        limit_ms = self._rules.timer_limits(watermark_ms)["release"]
        for due_range in self._tiering.timers.pop_before("release", limit_ms):
            self._tiering.release(due_range, limit_ms)
        self._queries.tidy()

    def _in_key_order(self, times_ms: IntArray, rows: IntArray) -> IntArray:
        """Rows that are in order by time, sorted by time and key.

        The first words of trace ids are compared as numbers, and the keys that are left as texts.
        """
        same = times_ms[1:] == times_ms[:-1]  # each row and the next one, in what was compared
        for at in range(_COMPARED_WORDS):
            if not same.any():
                return rows
            places, groups = _alike(same)
            words = self._queries.texts.of(rows[places]).first_text_word(at)
            order = np.lexsort((words, groups))
            rows[places], words = rows[places][order], words[order]
            same[places[:-1]] &= words[1:] == words[:-1]
        places, groups = _alike(same)
        texts = self._queries.texts.of(rows[places])
        keys = list(zip(groups.tolist(), texts.column(0), texts.column(1), strict=True))
        rows[places] = rows[places][sorted(range(len(places)), key=keys.__getitem__)]
        return rows


def _alike(same: NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
    """The places of rows that are the same as a neighbour, and the number of the group of each."""
    places = np.flatnonzero(np.append(same, False) | np.append(False, same))
    return places, np.append(0, np.cumsum(~same))[places]
