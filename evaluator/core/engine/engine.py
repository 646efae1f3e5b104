"""One task: two logs in, everything that follows from them out.

Its state after reading `rankings` to offset a and `judgments` to offset b is a function of those
two prefixes and the settings. Nothing here awaits, reads a clock or draws a random number.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from evaluator.core.engine.checkpointing import Counts, Storage
from evaluator.core.engine.expiry import Expiry
from evaluator.core.event_time.clock import AT_THE_END, MAX_TIMESTAMP_MS, LogClock, watermark_ms
from evaluator.core.event_time.durations import Durations
from evaluator.core.join.applied import LIMITS, QueryLimits
from evaluator.core.join.changes import Changes, Checkpoint, DiskTier, Head, Origin, StoredTask
from evaluator.core.join.join import Join
from evaluator.core.measures import MeasureSet
from evaluator.core.measures.exact_sums import DelayHistogram, Totals, Windows, add_tally
from evaluator.core.settle.evaluate import new_evaluator, window_sums
from evaluator.core.settle.settling import Settler
from evaluator.core.store.change_buffer import ChangeBuffer
from evaluator.core.store.tiering import Tiering
from evaluator.core.types.records import (
    LOGS,
    Columns,
    EvaluationColumns,
    FinalWindow,
    IntArray,
    JudgmentColumns,
    Log,
    Outputs,
    RankingColumns,
    Stratum,
    Tally,
)
from evaluator.core.types.skips import OffsetRange, n_offsets

SEMANTICS = 2
"""Grows when the same records would give other results than before."""
_FEW = 1 << 13  # queries written at once at the end of a replay
_INDEX_ENTRIES = 64  # of a clock while a key is taken


class Engine:
    """Joins, measures, sums, settles and expires the queries of one task.

    Args:
        task: number of the task: the partition of both logs.
        measures: what to measure.
        retention_ms, maturity_ms, early_ms, remember_ms, out_of_orderness_ms, window_ms: as in
            docs/settings.md.
        empty: what a judged query with nothing relevant counts as: "zero", or "skip" for no value.
        ties: how equal scores are ordered: "id", or "average" for the mean over all orders.
        judged_only: candidates that nobody judged are taken out before lists are measured.
        freshness_half_life_ms: age at which a candidate's gain is halved; 0 for no decay.
        evaluations: whether `Outputs.evaluations` is filled.
        finished: whether `Outputs.finished` is filled.
        offers: whether `Outputs.settled` says what can be learned from, and `mark` is filled.
        expire: False keeps everything in memory; no output depends on it.
        disk_tier: where queries are that are not in memory; None keeps all of them in memory.
        max_bytes: about how much memory the queries may take after `evict`.
        limits: what one query takes of judgments.
    """

    def __init__(
        self,
        *,
        task: int,
        measures: MeasureSet,
        retention_ms: int,
        maturity_ms: int,
        early_ms: int,
        remember_ms: int,
        out_of_orderness_ms: int,
        window_ms: int,
        empty: str = "zero",
        ties: str = "id",
        judged_only: bool = False,
        freshness_half_life_ms: int = 0,
        evaluations: bool = True,
        finished: bool = False,
        offers: bool = False,
        expire: bool = True,
        disk_tier: DiskTier | None = None,
        max_bytes: int = 1 << 62,
        limits: QueryLimits = LIMITS,
    ) -> None:
        self.task = task
        self._durations = durations = Durations(
            retention_ms, maturity_ms, early_ms, remember_ms, out_of_orderness_ms, window_ms
        ).clamped()
        self._emits_evaluations = evaluations
        self._clocks = {
            log: LogClock(
                out_of_orderness_ms=out_of_orderness_ms,
                index_every_ms=durations.key_reserved_ms // _INDEX_ENTRIES,
            )
            for log in LOGS
        }
        self._queries, self._evaluator = new_evaluator(
            measures, empty, ties, judged_only, freshness_half_life_ms, offers=offers
        )
        self._join = Join(self._queries, durations, limits)
        self._tiering = Tiering(disk_tier, self._queries, self._join, max_bytes=max_bytes)
        self._timers = self._tiering.timers
        self._may_lack = measures.may_lack
        self._totals = Totals(measures.canonical)
        self._windows = Windows(measures.canonical, window_ms, durations.retention_ms)
        self._delays = DelayHistogram()
        self._counts = Counts()
        self._end_ms: int | None = None  # a watermark beyond what the clocks say
        self._change_buffer: ChangeBuffer | None = None
        if disk_tier is not None:
            self._change_buffer = ChangeBuffer(
                self._queries, self._join, self._tiering, self._totals, self._windows
            )
        self._expiry = self._new_expiry(expire, finished)
        self._storage = Storage(
            *(self._clocks, self._counts, self._join, self._totals, self._windows),
            *(self._delays, self._tiering, self._expiry, self._durations),
        )

    def _new_expiry(self, expires: bool, emits_finished: bool) -> Expiry:
        settler = Settler(self._queries, self._join, self._evaluator, self._totals, self._may_lack)
        return Expiry(
            self._queries,
            self._join,
            self._evaluator,
            settler,
            self._tiering,
            self._change_buffer,
            self._durations,
            expires=expires,
            emits_finished=emits_finished,
        )

    # What can be seen

    @property
    def positions(self) -> dict[Log, int]:
        """The next offset to read of each log."""
        return self._counts.positions

    @property
    def origin(self) -> Origin:
        """The logs that the task reads; set by the caller, and only passed on."""
        return self._counts.origin

    @property
    def skips(self) -> dict[Log, Sequence[OffsetRange]]:
        """Skipped offsets of each log."""
        return self._counts.skips

    @property
    def clocks_ms(self) -> dict[Log, int | None]:
        """Clock of each log; None before its first record."""
        return {log: clock.time_ms for log, clock in self._clocks.items()}

    @property
    def watermark_ms(self) -> int | None:
        """The event time that no later record can precede; None before both logs have a record."""
        if self._end_ms is not None:
            return self._end_ms
        clocks = [clock.time_ms for clock in self._clocks.values()]
        return watermark_ms(clocks, out_of_orderness_ms=self._durations.out_of_orderness_ms)

    @property
    def n_open(self) -> int:
        """Open queries."""
        return self._join.keys.n_started - self._expiry.n_expired

    @property
    def memory_tier_bytes(self) -> int:
        """About how much memory the queries take."""
        return self._queries.n_bytes

    @property
    def n_early(self) -> int:
        """Early judgments: their ranking has not been read."""
        return len(self._join.early)

    def tally(self) -> Tally:
        """Every count and sum of this task."""
        tally: Tally = {}
        kept = {"open": self.n_open, "expired": self._expiry.n_expired}
        rankings = {**self._counts.read["rankings"], **self._join.keys.again, **kept}
        read = self._counts.read["judgments"]
        judgments = {**read, **self._join.judgments, "early": self.n_early}
        add_tally(tally, {("rankings", outcome): n for outcome, n in rankings.items()})
        add_tally(tally, {("judgments", outcome): n for outcome, n in judgments.items()})
        add_tally(
            tally, {("dead_letters", reason): n for reason, n in self._counts.dead_letters.items()}
        )
        self._totals.add_to(tally)
        self._delays.add_to(tally)
        judged = self._totals.n_settled(judged=True)
        add_tally(
            tally,
            {
                ("queries", "started"): self._join.keys.n_started,
                ("queries", "with_value"): self._counts.with_value,
                ("queries", "settled"): self._expiry.settler.n_settled,
                ("queries", "settled_judged"): judged,
                ("queries", "settled_unjudged"): self._expiry.settler.n_settled - judged,
                ("extra", "out_of_order"): self._counts.out_of_order,
                ("extra", "nothing_relevant"): self._expiry.settler.n_nothing_relevant,
            },
        )
        n_skipped = sum(map(n_offsets, self._counts.skipped.values()))
        found = {("extra", "lost"): self._counts.lost, ("extra", "skipped"): n_skipped}
        add_tally(tally, {path: n for path, n in found.items() if n})
        return tally

    # What can happen

    def receive(
        self, rankings: RankingColumns | None, judgments: JudgmentColumns | None
    ) -> Outputs:
        """Takes the next records of one or both logs."""
        outputs = Outputs()
        started = np.empty(0, np.int64)
        judgment_times = np.empty(0, np.int64)
        for columns in (rankings, judgments):
            if columns is not None:
                keys = zip(columns.trace_ids, columns.node_ids, strict=True)
                self._tiering.load_keys(keys)
        if rankings is not None:
            times = self._take_in("rankings", rankings, outputs)
            started, letters = self._join.keys.start_queries(rankings, times)
            outputs.dead_letters += letters
            self._start(started, rankings)
        if judgments is not None:
            judgment_times = self._take_in("judgments", judgments, outputs)
        judged = self._join.apply_judgments(judgments, judgment_times, started)
        outputs.dead_letters += judged.dead_letters
        self._delays.add(judged.delays_ms)
        self._measure_again(judged.slots)
        if self._emits_evaluations:
            outputs.evaluations = self._evaluator.evaluations(judged.slots)
        self._fire_timers(outputs)
        for letter in outputs.dead_letters:
            self._counts.dead_letters[letter.reason] = (
                self._counts.dead_letters.get(letter.reason, 0) + 1
            )
        return outputs

    def finish(self) -> Iterator[Outputs]:
        """Ends both logs, some queries at a time: all settle and are expired, windows final."""
        for watermark in [*self._deadlines_apart(), AT_THE_END]:
            self._end_ms = watermark
            yield self.receive(None, None)

    def remaining(self) -> Iterator[EvaluationColumns]:
        """Last revisions of the queries still open."""
        open_slots = np.flatnonzero(self._queries.slots["open"])
        for first in range(0, len(open_slots), _FEW):
            yield from self._evaluator.evaluations(open_slots[first : first + _FEW])

    def open_windows(self) -> list[FinalWindow]:
        """Windows that can still change, as they stand."""
        return self._windows.still_open()

    # What is stored

    def take_changes(self) -> Changes:
        """What has changed since this was asked last; only where queries can be evicted."""
        if self._change_buffer is None:
            raise LookupError("this engine keeps everything in memory")
        return self._change_buffer.take()

    def evict(self) -> None:
        """Takes queries out of memory if they are too many; all drained changes are stored."""
        self._tiering.evict()

    @property
    def head(self) -> Head:
        """The counts, clocks and positions as they stand."""
        return self._storage.head()

    def load(self, stored: StoredTask) -> None:
        """Goes on where another engine was, whose queries are all on disk."""
        self._storage.load(stored)
        if self._change_buffer is not None:
            self._change_buffer.take()

    def checkpoint(self) -> Checkpoint:
        """What another engine needs to come here from the restore offsets."""
        return self._storage.checkpoint()

    def tally_of(self, checkpoint: Checkpoint) -> Tally:
        """Every count and sum that *checkpoint* speaks of; this engine must be a new one."""
        self._storage.show(checkpoint)
        return {**self.tally(), ("judgments", "early"): checkpoint.digest.n_early}

    def take_over(self, checkpoint: Checkpoint) -> int | None:
        """Goes on as the task of *checkpoint*, read from its restore offsets to its positions.

        Returns how many of its queries are not here, for their input has expired; None where
        everything is as it was.
        """
        return self._storage.take_over(checkpoint)

    # How

    def _take_in(self, log: Log, columns: Columns, outputs: Outputs) -> IntArray:
        """Counts a batch and moves the clock of its log: event times of the rows."""
        counts = self._counts.read[log]
        counts["read"] += columns.n_read
        counts["malformed"] += len(columns.malformed)
        counts["heartbeat"] += len(columns.heartbeat_offsets)
        self._counts.read_to(log, columns.next_offset)
        outputs.dead_letters += columns.malformed
        times = columns.timestamps_ms
        if len(columns.heartbeat_offsets):
            all_offsets = np.concatenate((columns.offsets, columns.heartbeat_offsets))
            order = np.argsort(all_offsets)
            all_times = np.concatenate((times, columns.heartbeat_timestamps_ms))
            event_times = np.empty_like(all_times)
            event_times[order] = self._clocks[log].advance(all_times[order], all_offsets[order])
            event_times = event_times[: len(times)]
        else:
            event_times = self._clocks[log].advance(times, columns.offsets)
        self._counts.out_of_order += int(np.count_nonzero(event_times != times))
        return event_times

    def _deadlines_apart(self) -> list[int]:
        """Watermarks that go past the deadlines of the open queries a few at a time."""
        times = self._queries.slots["event_ms"][self._queries.slots["open"]]
        longest = int(MAX_TIMESTAMP_MS - times.max(initial=0))
        deadlines = np.concatenate(
            [
                times + min(ms, longest)
                for ms in (self._durations.maturity_ms, self._durations.retention_ms)
            ]
        )
        deadlines.sort()
        now = self.watermark_ms
        return [ms for ms in deadlines[_FEW::_FEW].tolist() if now is None or ms > now]

    def _start(self, started: IntArray, rankings: RankingColumns) -> None:
        strata = zip(rankings.models, rankings.variants, rankings.rankers, strict=True)
        for stratum in dict.fromkeys(strata):
            self._totals.of(Stratum(*stratum))
        table = self._queries.slots
        times, offsets = table["event_ms"][started], table["offset"][started]
        self._timers.push(times, offsets, started)
        if self._change_buffer is not None:
            self._change_buffer.started(rankings, started)

    def _measure_again(self, slots: IntArray) -> None:
        """Replaces the results of queries whose running grades changed."""
        queries, table = self._queries, self._queries.slots
        graded = table["n_judged"][slots] > 0
        self._counts.with_value += int(graded.sum()) - int(table["graded"][slots].sum())
        table["graded"][slots] = graded
        old = slots[table["result_start"][slots] >= 0]
        old_results = queries.results(old)
        queries.drop_results(old)
        new = slots[self._evaluator.have_value(queries.spans(slots), queries.judged_grades)]
        results = self._evaluator.measure(
            queries.spans(new),
            queries.judged_codes,
            queries.judged_grades,
            self._join.subtopics(new),
        )
        queries.set_results(new, results)
        self._replace_running(old, old_results, new, results)
        if self._change_buffer is not None:
            self._change_buffer.measured(slots)

    def _replace_running(
        self, old: IntArray, old_results: IntArray, new: IntArray, new_results: IntArray
    ) -> None:
        """Takes what stood of some queries out of the sums, and adds what stands."""
        for stratum, slots, moved in self._evaluator.moved(old, old_results, new, new_results):
            running, times = (
                self._totals.of(stratum).running,
                self._queries.slots["event_ms"][slots],
            )
            width = (moved.shape[1] - 1) // (2 if self._may_lack else 1)
            for start_ms, sums in window_sums(times, moved, window_ms=self._windows.window_ms):
                n = sums.pop()
                lacking = sums[width:]
                running.add(n, sums[:width], lacking)
                self._windows.add(start_ms, stratum, n, sums[:width], lacking)

    def _fire_timers(self, outputs: Outputs) -> None:
        watermark = self.watermark_ms
        if watermark is None:
            return
        self._expiry.settle(watermark, outputs)
        outputs.dead_letters += self._join.orphans(watermark)
        self._expiry.expire(watermark, outputs)
        outputs.windows += self._windows.pop_final(watermark)
        self._expiry.release(watermark)
