"""One task: two logs in, everything that follows from them out.

Its state after reading `rankings` to offset a and `judgments` to offset b is a function of those
two prefixes and the settings. Nothing here awaits, reads a clock or draws a random number.
"""

from collections.abc import Iterator

import numpy as np

from evaluator.core.accumulators import DelayHistogram, Totals, Windows, add_tally, squares_of
from evaluator.core.clock import (
    AT_THE_END,
    LONGEST_MS,
    MAX_TIMESTAMP_MS,
    LogClock,
    TimerQueue,
    watermark_ms,
)
from evaluator.core.join import Join
from evaluator.core.measures import MeasureSet
from evaluator.core.scoring import Settling, StratumSums, new_scoring, settle, window_sums
from evaluator.core.types import (
    LOGS,
    Columns,
    EvaluationColumns,
    FinalWindow,
    IntArray,
    JudgmentColumns,
    Log,
    Outputs,
    RankingColumns,
    SettledColumns,
    Stratum,
    Tally,
)

_FEW = 1 << 13  # queries told at once at the end of a replay
_CHUNK = 1 << 16  # queries whose timers fire together; also keeps partial sums within int64


SEMANTICS = 1
"""Grows when the same records would give other results than before."""


class Engine:
    """Holds, joins, measures, sums, settles and forgets the queries of one task.

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
        forget: False keeps everything in memory; no output depends on it.
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
        forget: bool = True,
    ) -> None:
        retention_ms, maturity_ms, early_ms, remember_ms = (
            min(ms, LONGEST_MS) for ms in (retention_ms, maturity_ms, early_ms, remember_ms)
        )
        self.task = task
        self._retention_ms = retention_ms
        self._maturity_ms = maturity_ms
        self._out_of_orderness_ms = out_of_orderness_ms
        self._emits_evaluations = evaluations
        self._emits_finished = finished
        self._forgets = forget
        self._clocks = {log: LogClock(out_of_orderness_ms=out_of_orderness_ms) for log in LOGS}
        self._held, self._scoring = new_scoring(
            measures, empty, ties, judged_only, freshness_half_life_ms
        )
        self._join = Join(
            self._held,
            retention_ms=retention_ms,
            maturity_ms=maturity_ms,
            early_ms=early_ms,
            remember_ms=remember_ms,
        )
        self._may_lack = measures.may_lack
        self._settle_timers = TimerQueue()
        self._forget_timers = TimerQueue()
        self._totals = Totals(measures.canonical)
        self._windows = Windows(measures.canonical, window_ms, retention_ms)
        self._delays = DelayHistogram()
        self._read: dict[Log, dict[str, int]] = {
            log: dict.fromkeys(("read", "malformed", "heartbeat"), 0) for log in LOGS
        }
        self._out_of_order = 0
        self._dead_letters: dict[str, int] = {}
        self._with_value = 0
        self._nothing_relevant = 0
        self._forgotten = 0
        self._n_settled = 0
        self._end_ms: int | None = None  # a watermark beyond what the clocks say
        self.positions: dict[Log, int] = dict.fromkeys(LOGS, 0)

    # What can be seen

    @property
    def clocks_ms(self) -> dict[Log, int | None]:
        """Clock of each log; None before it has spoken."""
        return {log: clock.time_ms for log, clock in self._clocks.items()}

    @property
    def watermark_ms(self) -> int | None:
        """How far event time has certainly come; None before both logs have spoken."""
        if self._end_ms is not None:
            return self._end_ms
        clocks = [clock.time_ms for clock in self._clocks.values()]
        return watermark_ms(clocks, out_of_orderness_ms=self._out_of_orderness_ms)

    @property
    def held(self) -> int:
        """Queries that a judgment can still belong to."""
        return self._join.keys.n_started - self._forgotten

    @property
    def waiting(self) -> int:
        """Judgments whose ranking has not come."""
        return len(self._join.waiting)

    def tally(self) -> Tally:
        """Every count and sum of this task."""
        tally: Tally = {}
        kept = {"held": self.held, "forgotten": self._forgotten}
        rankings = {**self._read["rankings"], **self._join.keys.again, **kept}
        judgments = {**self._read["judgments"], **self._join.judgments, "waiting": self.waiting}
        add_tally(tally, {("rankings", outcome): n for outcome, n in rankings.items()})
        add_tally(tally, {("judgments", outcome): n for outcome, n in judgments.items()})
        add_tally(tally, {("dead_letters", reason): n for reason, n in self._dead_letters.items()})
        self._totals.add_to(tally)
        self._delays.add_to(tally)
        judged = self._totals.n_settled(judged=True)
        add_tally(
            tally,
            {
                ("queries", "started"): self._join.keys.n_started,
                ("queries", "with_value"): self._with_value,
                ("queries", "settled"): self._n_settled,
                ("queries", "settled_judged"): judged,
                ("queries", "settled_unjudged"): self._n_settled - judged,
                ("extra", "out_of_order"): self._out_of_order,
                ("extra", "nothing_relevant"): self._nothing_relevant,
            },
        )
        return tally

    # What can happen

    def receive(
        self, rankings: RankingColumns | None, judgments: JudgmentColumns | None
    ) -> Outputs:
        """Takes the next records of one or both logs."""
        outputs = Outputs()
        started = np.empty(0, np.int64)
        judgment_times = np.empty(0, np.int64)
        if rankings is not None:
            times = self._take_in("rankings", rankings, outputs)
            started, letters = self._join.keys.start_queries(rankings, times)
            outputs.dead_letters += letters
            self._start(started, rankings)
        if judgments is not None:
            judgment_times = self._take_in("judgments", judgments, outputs)
        changes = self._join.apply_judgments(judgments, judgment_times, started)
        outputs.dead_letters += changes.dead_letters
        self._delays.add(changes.delays_ms)
        self._measure_again(changes.judged)
        if self._emits_evaluations:
            outputs.evaluations = self._scoring.evaluations(changes.judged)
        self._fire_timers(outputs)
        for letter in outputs.dead_letters:
            self._dead_letters[letter.reason] = self._dead_letters.get(letter.reason, 0) + 1
        return outputs

    def finish(self) -> Iterator[Outputs]:
        """Ends both logs, some queries at a time: all settle and are forgotten, windows final."""
        for watermark in [*self._deadlines_apart(), AT_THE_END]:
            self._end_ms = watermark
            yield self.receive(None, None)

    def remaining(self) -> Iterator[EvaluationColumns]:
        """Last revisions of the queries still held."""
        held = np.flatnonzero(self._held.slots["held"])
        for first in range(0, len(held), _FEW):
            yield from self._scoring.evaluations(held[first : first + _FEW])

    def open_windows(self) -> list[FinalWindow]:
        """Windows that can still change, as they stand."""
        return self._windows.still_open()

    # How

    def _take_in(self, log: Log, columns: Columns, outputs: Outputs) -> IntArray:
        """Counts a batch and moves the clock of its log: event times of the rows."""
        counts = self._read[log]
        counts["read"] += columns.n_read
        counts["malformed"] += len(columns.malformed)
        counts["heartbeat"] += len(columns.heartbeat_offsets)
        self.positions[log] = columns.next_offset
        outputs.dead_letters += columns.malformed
        times = columns.timestamps_ms
        if len(columns.heartbeat_offsets):
            order = np.argsort(np.concatenate((columns.offsets, columns.heartbeat_offsets)))
            all_times = np.concatenate((times, columns.heartbeat_timestamps_ms))
            event_times = np.empty_like(all_times)
            event_times[order] = self._clocks[log].advance(all_times[order])
            event_times = event_times[: len(times)]
        else:
            event_times = self._clocks[log].advance(times)
        self._out_of_order += int(np.count_nonzero(event_times != times))
        return event_times

    def _deadlines_apart(self) -> list[int]:
        """Watermarks that go past the deadlines of the held queries a few at a time."""
        times = self._held.slots["event_ms"][self._held.slots["held"]]
        longest = int(MAX_TIMESTAMP_MS - times.max(initial=0))
        deadlines = np.concatenate(
            [times + min(ms, longest) for ms in (self._maturity_ms, self._retention_ms)]
        )
        deadlines.sort()
        now = self.watermark_ms
        return [ms for ms in deadlines[_FEW::_FEW].tolist() if now is None or ms > now]

    def _start(self, started: IntArray, rankings: RankingColumns) -> None:
        strata = zip(rankings.models, rankings.variants, rankings.rankers, strict=True)
        for stratum in dict.fromkeys(strata):
            self._totals.of(Stratum(*stratum))
        times = self._held.slots["event_ms"][started]
        self._settle_timers.push(times, started)
        self._forget_timers.push(times, started)

    def _measure_again(self, slots: IntArray) -> None:
        """Replaces the results of queries whose running grades changed."""
        held, table = self._held, self._held.slots
        graded = table["n_judged"][slots] > 0
        self._with_value += int(graded.sum()) - int(table["graded"][slots].sum())
        table["graded"][slots] = graded
        old = slots[table["result_start"][slots] >= 0]
        old_results = held.results(old)
        held.drop_results(old)
        new = slots[self._scoring.have_value(held.spans(slots), held.judged_grades)]
        results = self._scoring.measure(
            held.spans(new), held.judged_codes, held.judged_grades, self._join.subtopics(new)
        )
        held.set_results(new, results)
        self._replace_running(old, old_results, new, results)

    def _replace_running(
        self, old: IntArray, old_results: IntArray, new: IntArray, new_results: IntArray
    ) -> None:
        """Takes what stood of some queries out of the sums, and adds what stands."""
        slots = np.concatenate((old, new))
        results = np.concatenate((old_results, new_results))
        for part in self._scoring.by_stratum(slots, results):
            running = self._totals.of(part.stratum).running
            times = self._held.slots["event_ms"][slots[part.members]]
            signs = np.where(part.members < len(old), -1, 1)[:, None]
            width = part.units.shape[1]
            units = part.summable() if self._may_lack else (part.units,)
            signed = signs * np.hstack((*units, np.ones_like(signs)))
            for start_ms, sums in window_sums(times, signed, window_ms=self._windows.window_ms):
                n = sums.pop()
                lacking = sums[width:]
                running.add(n, sums[:width], lacking)
                self._windows.add(start_ms, part.stratum, n, sums[:width], lacking)

    def _fire_timers(self, outputs: Outputs) -> None:
        watermark = self.watermark_ms
        if watermark is None:
            return
        times, slots = self._settle_timers.pop_before(watermark - self._maturity_ms)
        slots = self._in_key_order(times, slots)
        for first in range(0, len(slots), _CHUNK):
            outputs.settled += self._settle(slots[first : first + _CHUNK])
        outputs.dead_letters += self._join.orphans(watermark)
        _, slots = self._forget_timers.pop_before(watermark - self._retention_ms)
        if len(slots):
            self._forgotten += len(slots)
            self._held.slots["held"][slots] = False
            if self._emits_finished:
                outputs.finished = self._scoring.evaluations(slots)
            if self._forgets:
                self._join.forget(slots)
        outputs.windows += self._windows.pop_final(watermark)
        if self._forgets:
            self._join.keys.release(watermark)
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

    def _settle(self, slots: IntArray) -> list[SettledColumns]:
        """Scores queries for good, in this order."""
        settling = settle(
            self._scoring,
            self._held,
            slots,
            first_in_time=self._join.first_in_time(slots),
            differing=self._join.grades_in_time(slots.tolist()),
            subtopics_in_time=lambda new: self._join.subtopics(new, in_time=True),
        )
        self._nothing_relevant += settling.n_nothing_relevant
        numbers = self._held.slots["stratum"][slots]
        judged = settling.grades.counts > 0
        parts = []
        for number in np.unique(numbers).tolist():
            totals = self._totals.of(self._held.strata[number])
            n_judged = int(np.count_nonzero(judged[numbers == number]))
            totals.settled_judged += n_judged
            totals.settled_unjudged += int(np.count_nonzero(numbers == number)) - n_judged
        for part in self._scoring.by_stratum(slots[settling.valued], settling.results):
            self._add_settled(part)
            indices = settling.valued[part.members]
            parts.append(self._settled(part.stratum, slots, indices, settling, part.units))
        without = np.setdiff1d(np.arange(len(slots)), settling.valued)
        for number in np.unique(numbers[without]).tolist():
            indices = without[numbers[without] == number]
            stratum = self._held.strata[number]
            parts.append(self._settled(stratum, slots, indices, settling, None))
        self._n_settled += len(slots)
        return parts

    def _add_settled(self, part: StratumSums) -> None:
        totals, n = self._totals.of(part.stratum), len(part.members)
        units, lacking = part.units, []
        if self._may_lack:
            units, missing = part.summable()
            lacking = missing.sum(axis=0).tolist()
        totals.settled.add(n, units.sum(axis=0).tolist(), lacking)
        totals.settled_squares.add(n, squares_of(units).sum(axis=0).tolist())

    def _settled(
        self,
        stratum: Stratum,
        slots: IntArray,
        indices: IntArray,
        settling: Settling,
        units: IntArray | None,
    ) -> SettledColumns:
        table = self._held.slots
        chosen = slots[indices]
        trace_ids, node_ids = zip(*table["key"][chosen].tolist(), strict=True)
        return SettledColumns(
            stratum=stratum,
            ns=(indices + self._n_settled).tolist(),
            trace_ids=list(trace_ids),
            node_ids=list(node_ids),
            event_times_ms=table["event_ms"][chosen].tolist(),
            offsets=table["offset"][chosen].tolist(),
            grades=settling.grades.picked(indices),
            units=None if units is None else units.reshape(-1).tolist(),
        )
