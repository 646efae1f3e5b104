"""One task: reads two logs and returns all outputs that follow from them.

The state after reading `rankings` to offset a and `judgments` to offset b is a function of those
two prefixes and the settings. The engine does no I/O and reads no clock.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from evaluator.core.engine.expiry import Expiry
from evaluator.core.engine.inputs import Inputs
from evaluator.core.event_time.activity import Activity
from evaluator.core.event_time.clock import AT_THE_END, MAX_TIMESTAMP_MS
from evaluator.core.join.changes import (
    Changes,
    Checkpoint,
    Digest,
    DiskTier,
    Head,
    Ledger,
    Origin,
    StoredTask,
)
from evaluator.core.join.join import Join
from evaluator.core.join.open_queries import Arrivals, OpenQueries
from evaluator.core.join.rules import JoinRules
from evaluator.core.measures import MeasureSet
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.settle.evaluate import DEFAULT_VALUES, Evaluator, ValueRules
from evaluator.core.settle.running import Running
from evaluator.core.settle.settling import Settler
from evaluator.core.settle.silence import Silence
from evaluator.core.store.change_buffer import ChangeBuffer
from evaluator.core.store.tiering import Tiering
from evaluator.core.types.records import (
    EvaluationColumns,
    IntArray,
    JudgmentColumns,
    Log,
    Outputs,
    RankingColumns,
)
from evaluator.core.types.segments import NO_SEGMENTS, SegmentRules
from evaluator.core.types.skips import OffsetRange, n_offsets
from evaluator.core.types.tally import GroupedTally, Tally

SEMANTICS = 3
"""Version of the semantics: incremented if equal records give other results than before."""
_FEW = 1 << 13  # queries written at once at the end of a replay


class Emits(Struct, frozen=True):
    """Which optional members of `Outputs` are filled.

    With `offers`, settled queries contain training data. With `segments`, rankings have levels,
    evaluations and settled queries contain them, and values are summed by level.
    """

    evaluations: bool = True
    finished: bool = False
    offers: bool = False
    segments: SegmentRules = NO_SEGMENTS


_EVALUATIONS = Emits()


class Engine:
    """Joins, measures, sums, settles and expires the queries of one task.

    Args:
        task: number of the task: the partition of both logs.
        rules: rules of the join.
        measures: measures of every query.
        values: rules of values.
        emits: which outputs are filled.
        disk_tier: has the queries that are not in memory; None keeps all of them in memory.
        max_bytes: approximate limit of the memory of queries after `evict`.
        expire: False keeps everything in memory; no output depends on it.
    Raises:
        UnsupportedTiesError: if ties are averaged and a measure does not support that.
    """

    def __init__(
        self,
        task: int,
        rules: JoinRules,
        measures: MeasureSet,
        *,
        values: ValueRules = DEFAULT_VALUES,
        emits: Emits = _EVALUATIONS,
        disk_tier: DiskTier | None = None,
        max_bytes: int = 1 << 62,
        expire: bool = True,
    ) -> None:
        self.task = task
        self._emits = emits
        self._rules = rules = rules.clamped()
        self._ledger = ledger = Ledger()
        activity = Activity(rules.maturity_ms) if values.silence == "zero" else None
        self._inputs = Inputs(rules, ledger, activity)
        if values.ties == "average":
            measures.require_averages()
        self._queries = OpenQueries(
            n_measures=len(measures.canonical),
            ties=values.ties == "average",
            published=values.freshness_half_life_ms > 0,
            subtopics=measures.needs_subtopics,
            offers=emits.offers,
            segments=bool(emits.segments.names),
        )
        self._evaluator = Evaluator(self._queries, measures, values)
        self._join = Join(self._queries, rules, ledger)
        self._running = running = Running(
            *(self._queries, self._join, self._evaluator, measures, rules, ledger), emits.segments
        )
        self._tiering = Tiering(disk_tier, self._queries, self._join, max_bytes=max_bytes)
        silence = None if activity is None else Silence(self._queries, activity, rules.maturity_ms)
        settler = Settler(*(self._queries, self._join, self._evaluator, running, ledger, silence))
        self._expiry = Expiry(
            *(rules, ledger, self._queries, self._join, settler, self._tiering),
            expires=expire,
            emits_finished=emits.finished,
        )
        self._end_ms: int | None = None  # a watermark beyond the clocks
        self._change_buffer: ChangeBuffer | None = None
        if disk_tier is not None:
            sums = (running.totals, running.levels.totals)
            self._change_buffer = ChangeBuffer(
                self._queries, self._join, self._tiering, sums, running.windows
            )

    # State

    @property
    def positions(self) -> dict[Log, int]:
        """The next offset to read of each log."""
        return self._inputs.positions

    @property
    def origin(self) -> Origin:
        """The logs that the task reads; the caller sets and compares it."""
        return self._inputs.origin

    @property
    def skips(self) -> dict[Log, Sequence[OffsetRange]]:
        return self._inputs.skips

    @property
    def clocks_ms(self) -> dict[Log, int | None]:
        """Clock of each log; None before its first record."""
        return self._inputs.clocks_ms

    @property
    def watermark_ms(self) -> int | None:
        """Lower bound of the event times of later records; None before both logs have a record."""
        return self._inputs.watermark_ms if self._end_ms is None else self._end_ms

    @property
    def n_open(self) -> int:
        return self._ledger.counts["started"] - self._ledger.counts["expired"]

    @property
    def memory_tier_bytes(self) -> int:
        """Approximate memory of the queries."""
        return self._tiering.n_bytes

    @property
    def n_early(self) -> int:
        """Early judgments: their ranking has not been read."""
        return len(self._join.early)

    def tally(self) -> GroupedTally:
        """Every count and sum of this task; shares the groups that have not changed."""
        ledger, counts = self._ledger, self._ledger.counts
        kept = {"open": self.n_open, "expired": counts["expired"]}
        groups, settled = self._running.totals.groups()
        by_kind = {
            "rankings": {**ledger.read["rankings"], **ledger.again, **kept},
            "judgments": {**ledger.read["judgments"], **ledger.outcomes, "early": self.n_early},
            "dead_letters": ledger.dead_letters,
        }
        tally: Tally = {
            (kind, name): n for kind, named in by_kind.items() for name, n in named.items()
        }
        self._running.delays.add_to(tally)
        queries = {name: counts[name] for name in ("started", "with_value", "settled")}
        queries |= {"settled_judged": settled["yes"], "settled_silent": settled["silent"]}
        queries["settled_unjudged"] = counts["settled"] - settled["yes"] - settled["silent"]
        extra = {name: counts[name] for name in ("out_of_order", "nothing_relevant")}
        rare = {
            "lost": counts["lost"],
            "skipped": sum(map(n_offsets, self._inputs.skipped.values())),
        }
        extra |= {name: n for name, n in rare.items() if n}
        add_tally(tally, {("queries", name): n for name, n in queries.items()})
        add_tally(tally, {("extra", name): n for name, n in extra.items()})
        of_levels, _ = self._running.levels.totals.groups()
        return GroupedTally({(): tally, **groups, **of_levels})

    # Records

    def receive(
        self, rankings: RankingColumns | None, judgments: JudgmentColumns | None
    ) -> Outputs:
        """Reads the next records of one or both logs."""
        outputs = Outputs()
        started = judgment_times = np.empty(0, np.int64)
        for columns in (rankings, judgments):
            if columns is not None:
                self._tiering.load_keys(columns.key_hashes)
        if rankings is not None:
            times = self._inputs.read("rankings", rankings)
            arrivals, started, letters = self._join.keys.start_queries(rankings, times)
            outputs.dead_letters += [*rankings.malformed, *letters]
            self._start(arrivals, started)
        if judgments is not None:
            judgment_times = self._inputs.read("judgments", judgments)
            outputs.dead_letters += judgments.malformed
        judged = self._join.apply_judgments(judgments, judgment_times, started)
        outputs.dead_letters += judged.dead_letters
        self._running.measure(judged)
        if self._change_buffer is not None:
            self._change_buffer.measured(judged.rows)
        if self._emits.evaluations:
            outputs.evaluations = self._evaluator.evaluations(judged.rows)
        self._fire_timers(outputs)
        reasons = self._ledger.dead_letters
        for letter in outputs.dead_letters:
            reasons[letter.reason] = reasons.get(letter.reason, 0) + 1
        return outputs

    def _start(self, arrivals: Arrivals, started: IntArray) -> None:
        for stratum in arrivals.rankings.strata.compact().names:
            self._running.totals.of(stratum)
        self._running.levels.start(started)
        table = self._queries.table
        self._tiering.timers.push(table["event_ms"][started], table["offset"][started], started)
        if self._change_buffer is not None:
            self._change_buffer.started(arrivals, started)

    def _fire_timers(self, outputs: Outputs) -> None:
        watermark = self.watermark_ms
        if watermark is None:
            return
        self._expiry.settle(watermark, outputs)
        if self._inputs.activity is not None:
            self._inputs.activity.forget(watermark)
        outputs.dead_letters += self._join.orphans(watermark)
        self._expiry.expire(watermark, outputs)
        outputs.windows += self._running.windows.pop_final(watermark)
        self._expiry.release(watermark)

    # End of the logs

    def finish(self) -> Iterator[Outputs]:
        """Ends both logs, some queries at a time: all settle and expire, windows are final."""
        for watermark in [*self._deadlines_apart(), AT_THE_END]:
            self._end_ms = watermark
            yield self.receive(None, None)

    def _deadlines_apart(self) -> list[int]:
        """Watermarks that pass the deadlines of the open queries, `_FEW` at a time."""
        times = self._queries.table["event_ms"][self._queries.table["open"]]
        longest = int(MAX_TIMESTAMP_MS - times.max(initial=0))
        ages_ms = (self._rules.maturity_ms, self._rules.retention_ms)
        deadlines = np.sort(np.concatenate([times + min(ms, longest) for ms in ages_ms]))
        now = self.watermark_ms
        return [ms for ms in deadlines[_FEW::_FEW].tolist() if now is None or ms > now]

    def remaining(self) -> Iterator[EvaluationColumns]:
        """Last revisions of the open queries."""
        open_rows = np.flatnonzero(self._queries.table["open"])
        for first in range(0, len(open_rows), _FEW):
            yield from self._evaluator.evaluations(open_rows[first : first + _FEW])

    # Storage

    def take_changes(self) -> Changes:
        """All changes since the last call; only with a disk tier."""
        if self._change_buffer is None:
            raise LookupError("this engine keeps everything in memory")
        return self._change_buffer.take()

    def evict(self) -> None:
        """Evicts queries if memory exceeds its limit; the disk tier must have all taken changes."""
        self._tiering.evict()

    @property
    def head(self) -> Head:
        """The current counts, clocks and positions."""
        parts = (self._inputs, self._ledger, self._running, self._tiering)
        return Head(**{name: value for part in parts for name, value in part.state().items()})

    def load(self, stored: StoredTask) -> None:
        """Continues a stored task; all of its queries are on disk."""
        self._inputs.load(stored.head)
        self._load_sums(stored)
        self._running.windows.restore(stored.windows)
        for judgment in stored.early:
            self._join.early.add(judgment)
        watermark = self._inputs.watermark_ms
        limits = {} if watermark is None else self._rules.timer_limits(watermark)
        self._tiering.load(stored.head, stored.runs, limits)
        if self._change_buffer is not None:
            self._change_buffer.take()

    def _load_sums(self, stored: StoredTask | Checkpoint) -> None:
        self._inputs.load_skipped(stored.head)
        self._ledger.load(stored.head)
        self._running.load(stored.head, stored.totals)

    def checkpoint(self) -> Checkpoint:
        """The data from which another engine rebuilds this state, from the restore offsets on."""
        return Checkpoint(
            head=self.head,
            restore_offsets=self._inputs.restore_offsets(),
            watermark_ms=self._inputs.watermark_ms,
            totals=self._running.everything(),
            digest=self._digest(),
        )

    def _digest(self) -> Digest:
        return Digest(self.n_open, self.n_early, *self._running.windows.sums_of_open())

    def tally_of(self, checkpoint: Checkpoint) -> Tally:
        """Every count and sum of *checkpoint*; this engine must be a new one."""
        self._load_sums(checkpoint)
        return {**self.tally(), ("judgments", "early"): checkpoint.digest.n_early}

    def take_over(self, checkpoint: Checkpoint) -> int | None:
        """Continues the task of *checkpoint*, read from its restore offsets to its positions.

        Returns how many of its open queries are missing because their input has expired; None if
        the state is equal. It is 0 if there are more open queries than before, as expired rankings
        no longer reserve keys. To keep the ledger complete, missing queries count as expired, and
        missing early judgments as orphans.
        """
        before, now = checkpoint.digest, self._digest()
        self._load_sums(checkpoint)
        if now == before:
            return None
        counts, missing = self._ledger.counts, before.n_open - now.n_open
        counts["expired"] += missing
        self._ledger.outcomes["orphan"] += before.n_early - now.n_early
        counts["lost"] += max(0, missing)
        return max(0, missing)
