"""Joins judgments to queries and counts their outcomes.

Outcomes depend on event times, not on the tier of a query.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.key_hashes import Key, keys_from
from evaluator.core.join.changes import AppliedRows, Changes, Ledger
from evaluator.core.join.early_buffer import EarlyBuffer
from evaluator.core.join.judgments import (
    AppliedJudgments,
    JudgmentHeads,
    PendingJudgment,
    hash_of_id,
    without_withdrawn,
)
from evaluator.core.join.keys import Keys
from evaluator.core.join.open_queries import OpenQueries
from evaluator.core.join.rules import JoinRules
from evaluator.core.join.subtopics import Subtopics
from evaluator.core.types.records import DeadLetter, IntArray, JudgmentColumns


class _Batch(Struct):
    """Effects of the judgments of one batch that the slow path applied."""

    changed: dict[int, None] = field(default_factory=dict)  # rows of queries, in order
    first: dict[int, PendingJudgment] = field(default_factory=dict)  # not in the columns yet
    delays_ms: list[int] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)


class JudgedBatch(Struct):
    """Effects of a batch: `rows` of the queries with changed running grades."""

    rows: IntArray
    delays_ms: IntArray
    dead_letters: list[DeadLetter]


class Join:
    """Applies judgments to open queries. The outcomes are described in docs/messages.md."""

    _MIN_TURN = 16  # the slow path applies fewer as fast
    _MOST_IN_COLUMNS = 64  # judgments of a query: each one copies those before it

    def __init__(self, open_queries: OpenQueries, rules: JoinRules, ledger: Ledger) -> None:
        self._queries = open_queries
        self._rules = rules
        self._outcomes = ledger.outcomes
        self.keys = Keys(open_queries, rules, ledger)
        self.early = EarlyBuffer()
        self.changes: Changes | None = None  # receives applied judgments
        self._applied: dict[int, AppliedJudgments] = {}
        self.n_bytes = 0  # approximate memory of these
        self._sources: dict[int, str] = {}  # of the one judgment in columns, if grades merge by it
        self._batch = _Batch()

    def apply_judgments(
        self, judgments: JudgmentColumns | None, event_times_ms: IntArray, started: IntArray
    ) -> JudgedBatch:
        """Applies early judgments of the *started* queries, then new judgments."""
        self._batch = batch = _Batch()
        if len(self.early):
            keys = self.early.among(self._queries.index.keys_of(started))
            row_of = dict(zip(keys, self.keys.newest_of(keys_from(keys)).tolist(), strict=True))
            for key in keys:
                self.early.keep(key, lambda judgment: not self._placed(judgment, row_of))
        records = rows = np.empty(0, np.int64)
        if judgments is not None and len(judgments):
            of_key = self.keys.newest_of(judgments.key_hashes)
            records, rows = self._apply_in_columns(judgments, event_times_ms, of_key)
            left = np.ones(len(judgments), bool)
            left[records] = False
            for record in np.flatnonzero(left).tolist():
                event_ms, needed = int(event_times_ms[record]), self._queries.has_subtopics
                judgment = PendingJudgment.of(judgments, record, event_ms, subtopics=needed)
                if not self._placed(judgment, {judgment.key: int(of_key[record])}):
                    self.early.add(judgment)
        self._write_grades()
        delays = event_times_ms[records] - self._queries.table["event_ms"][rows]
        changed = np.sort(np.concatenate((rows, np.array(list(batch.changed), np.int64))))
        first = np.ones(len(changed), bool)
        np.not_equal(changed[1:], changed[:-1], out=first[1:])
        return JudgedBatch(
            changed[first],  # np.unique takes ten times as long
            np.concatenate((delays, np.array(batch.delays_ms, np.int64))),
            batch.dead_letters,
        )

    def restore(self, judgments: JudgmentColumns, event_times_ms: IntArray) -> None:
        """Applies the judgments of loaded queries again, without counting them."""
        counts, changes = dict(self._outcomes), self.changes
        self.changes = None
        self.apply_judgments(judgments, event_times_ms, np.empty(0, np.int64))
        self._outcomes.update(counts)
        self.changes = changes

    # Fast path: columns

    def _apply_in_columns(
        self, judgments: JudgmentColumns, event_times_ms: IntArray, rows: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Applies ordinary judgments, one per query at a time: their records and rows.

        *rows* are those of the latest queries of their keys.
        """
        given = judgments.grades
        odd = np.zeros(len(rows), bool)
        withdrawn = np.flatnonzero(np.isnan(given.grades))
        odd[np.searchsorted(given.ends, withdrawn, side="right")] = True
        if self._queries.has_subtopics:
            odd[list(judgments.subtopics)] = True
        codes, heads = self._queries.coded(given), JudgmentHeads.of(judgments)
        applied: list[IntArray] = []
        left = np.flatnonzero(rows >= 0)
        while True:
            turn = np.sort(left[np.unique(rows[left], return_index=True)[1]])
            if applied and len(turn) < self._MIN_TURN:
                break
            chosen = turn[~odd[turn]]
            columns = rows[chosen], event_times_ms[chosen], given.counts[chosen]
            chosen = chosen[self._fits(*columns, heads.picked(chosen))]
            self._note_applied(rows[chosen], chosen, judgments, event_times_ms[chosen])
            self._queries.judged.merge(rows[chosen], codes.picked(chosen), heads.picked(chosen))
            applied.append(chosen)
            if len(turn) == len(left):
                break
            left = np.setdiff1d(left[np.isin(rows[left], rows[chosen])], chosen)
        done = np.concatenate(applied)
        return done, rows[done]

    def _fits(
        self, rows: IntArray, event_times_ms: IntArray, n_graded: IntArray, heads: JudgmentHeads
    ) -> NDArray[np.bool_]:
        """Whether judgments are applied by the rules, and the columns can represent the result.

        Columns represent settled queries, and queries with all judgments by maturity, or none of
        them; if grades merge by source, queries with one judgment.
        """
        table = self._queries.table
        ages_ms = event_times_ms - table["event_ms"][rows]
        n_applied = table["revision"][rows]
        alike = self._rules.by_maturity(ages_ms) == self.first_in_time(rows)
        fits: NDArray[np.bool_] = (
            self._rules.applies(ages_ms, self._queries.judged.seen(rows, heads))
            & ~self._rules.over_limit(n_applied, table["n_judged"][rows] + n_graded)
            & (n_applied == table["n_applied"][rows])
            & (n_applied < self._MOST_IN_COLUMNS)
            & ((n_applied == 0) | alike | table["settled"][rows])
        )
        return fits if self._rules.merge is None else fits & (n_applied == 0)

    def _note_applied(
        self,
        rows: IntArray,
        records: IntArray,
        judgments: JudgmentColumns,
        event_times_ms: IntArray,
    ) -> None:
        """Counts one more judgment of each query; *event_times_ms* are those of the records."""
        table = self._queries.table
        before = table["revision"][rows]
        first = before == 0
        table["judgment_event_ms"][rows[first]] = event_times_ms[first]
        table["revision"][rows] = before + 1
        self._outcomes["applied"] += len(rows)
        if self._queries.offered is not None or self._rules.merge is not None:
            sources = [judgments.sources[record] for record in records.tolist()]
            self._note_sources(rows, event_times_ms, sources)
            if self._rules.merge is not None:
                self._sources.update(zip(rows.tolist(), sources, strict=True))
        if self.changes is not None and len(records):
            values = judgments.values[records].compact()
            times = event_times_ms, judgments.timestamps_ms[records]
            queries, offsets = table["offset"][rows], judgments.offsets[records]
            self.changes.applied.append(AppliedRows(queries, before, offsets, *times, values))

    def _note_sources(
        self, rows: IntArray, event_times_ms: IntArray, sources: Sequence[str]
    ) -> None:
        """Adds the sources of judgments that came by maturity to the training data."""
        if self._queries.offered is not None:
            table = self._queries.table
            in_time = self._rules.by_maturity(event_times_ms - table["event_ms"][rows])
            counts = np.flatnonzero(in_time & ~table["settled"][rows])
            chosen = (sources[place] for place in counts.tolist())
            self._queries.offered.note_sources(rows[counts], chosen)

    # Slow path: one judgment at a time

    def _placed(self, judgment: PendingJudgment, row_of: Mapping[Key, int]) -> bool:
        """Applies or rejects a judgment; False for an early one.

        *row_of* has the row of the latest query of its key, -1 for none.
        """
        row: int | None = row_of[judgment.key]
        while row is not None and row >= 0:
            age_ms = judgment.event_ms - int(self._queries.table["event_ms"][row])
            outcome = self._rules.outcome(age_ms)
            if outcome == "late":
                most = f"at most {self._rules.retention_ms} ms (retention_ms) count"
                self._reject(judgment, "late", f"{age_ms} ms after its ranking; {most}")
            elif outcome == "applied":
                self._decide(row, judgment, age_ms)
            if outcome != "older":
                return outcome != "early"
            row = self.keys.older.get(row)
        return False

    def _decide(self, row: int, judgment: PendingJudgment, age_ms: int) -> None:
        """Applies a judgment to its open query, unless it is repeated, or exceeds a limit."""
        known = self._known(row)
        identity = known.identity(hash_of_id(judgment.judgment_id), judgment.hash)
        outcome = self._rules.outcome(age_ms, identity)
        if outcome == "duplicate":
            self._outcomes["duplicate"] += 1
        elif outcome == "conflicting":
            detail = "another judgment with this judgment_id was applied"
            self._reject(judgment, "conflicting", detail)
        elif crossed := self._crossed_limit(row, judgment, known):
            self._reject(judgment, "over_limit", crossed)
        else:
            self._apply(row, judgment, known, age_ms)

    def _crossed_limit(
        self, row: int, judgment: PendingJudgment, known: AppliedJudgments
    ) -> str | None:
        """The limit that a further judgment exceeds, as the detail of its dead letter."""
        n_applied, graded = int(self._queries.table["revision"][row]), known.running
        n_graded = len(graded) + sum(name not in graded for name in judgment.grades)
        if not self._rules.over_limit(n_applied, n_graded):
            return None
        if n_applied >= self._rules.max_judgments:
            most = self._rules.max_judgments
            return f"{most} judgments, the limit, are already applied to this query"
        most = self._rules.max_candidates
        return (
            f"it would raise the graded candidates of this query to {n_graded}; the limit is {most}"
        )

    def _reject(self, judgment: PendingJudgment, outcome: str, detail: str) -> None:
        self._outcomes[outcome] += 1
        self._batch.dead_letters.append(judgment.dead_letter(outcome, detail))

    def _apply(
        self, row: int, judgment: PendingJudgment, known: AppliedJudgments, age_ms: int
    ) -> None:
        table = self._queries.table
        revision = int(table["revision"][row])
        if not revision and None not in judgment.grades.values() and not judgment.subtopics:
            self._batch.first[row] = judgment
        else:
            before = known.n_bytes if row in self._applied else 0
            if not before:
                self._leave_columns(row, known)
            known.apply(judgment, in_time=self._rules.by_maturity(age_ms))
            self.n_bytes += known.n_bytes - before
        if not revision:
            table["judgment_event_ms"][row] = judgment.event_ms
        table["revision"][row] = revision + 1
        self._outcomes["applied"] += 1
        if self._queries.offered is not None:
            self._note_sources(np.array([row]), np.array([judgment.event_ms]), [judgment.source])
        self._batch.changed[row] = None
        self._batch.delays_ms.append(age_ms)
        if self.changes is not None:
            self.changes.applied_singly.append((int(table["offset"][row]), revision, judgment))

    def _known(self, row: int) -> AppliedJudgments:
        """The applied judgments of a query, taken from the columns if needed."""
        if row in self._applied:
            return self._applied[row]
        known = AppliedJudgments(rule=self._rules.merge)
        if row in self._batch.first:
            known.apply(self._batch.first[row], in_time=True)
        elif self._queries.table["revision"][row]:
            known.running = self._queries.merged_at(row)
            known.attribute_to(self._sources.get(row, ""))
            for id_hash, value_hash, _, _ in self._queries.judged.heads_at(row):
                known.remember(id_hash, value_hash)
        return known

    def _leave_columns(self, row: int, known: AppliedJudgments) -> None:
        """Moves the judgments of a query from the columns to *known*."""
        self._applied[row] = known
        if not self._queries.table["revision"][row]:
            return
        if self._batch.first.pop(row, None) is None:
            self._queries.judged.drop_heads(row)
            self._sources.pop(row, None)
        if not self.first_in_time(row):
            known.in_time = {}

    def _write_grades(self) -> None:
        """Writes the grades of the slow path into the columns."""
        changed, first = self._batch.changed, self._batch.first
        if not changed:
            return
        judged = self._queries.judged
        grades = GradeColumns.of([self._running_grades(row) for row in changed])
        judged.replace(np.array(list(changed), np.int64), self._queries.coded(grades), 0)
        if first:
            heads = JudgmentHeads.of_each(first.values())
            judged.add_heads(np.array(list(first), np.int64), heads)
            if self._rules.merge is not None:
                self._sources.update((row, judgment.source) for row, judgment in first.items())

    def _running_grades(self, row: int) -> Mapping[str, float]:
        applied = self._applied.get(row)
        if applied is not None:
            return without_withdrawn(applied.running)
        return cast(Mapping[str, float], self._batch.first[row].grades)

    # Grades and subtopics by maturity

    def first_in_time(self, rows: IntArray | int) -> Any:
        """Whether the first applied judgment came by maturity, elementwise."""
        table = self._queries.table
        return self._rules.by_maturity(table["judgment_event_ms"][rows] - table["event_ms"][rows])

    def grades_in_time(self, rows: Iterable[int]) -> dict[int, dict[str, float]]:
        """Grades by maturity of the queries for which they may differ from the running ones."""
        if not self._applied:
            return {}
        return {
            row: without_withdrawn(applied.in_time)
            for row in rows
            if (applied := self._applied.get(row)) is not None and applied.in_time is not None
        }

    def subtopics(self, rows: IntArray, *, in_time: bool = False) -> list[Subtopics] | None:
        """Subtopics of queries now, or by maturity; None if no measure needs them."""
        if not self._queries.has_subtopics:
            return None
        of_rankings = self._queries.subtopics
        chosen: list[Subtopics] = []
        for row in rows.tolist():
            applied = self._applied.get(row)
            merged = {} if applied is None else applied.subtopics
            if applied is not None and in_time:
                merged = applied.subtopics_in_time
            chosen.append({**of_rankings.get(row, {}), **without_withdrawn(merged)})
        return chosen

    # Timers

    def orphans(self, watermark_ms: int) -> list[DeadLetter]:
        """Removes early judgments past the age at which a ranking can match."""
        expired = self.early.expire(watermark_ms - self._rules.early_ms)
        self._outcomes["orphan"] += len(expired)
        detail = "no ranking of this trace_id and node_id came in time; do the keys match?"
        return [judgment.dead_letter("orphan", detail) for judgment in expired]

    def expire(self, rows: IntArray) -> None:
        """Expires queries and frees their judgments."""
        if self._applied or self._sources:
            for row in rows.tolist():
                self._sources.pop(row, None)
                if (applied := self._applied.pop(row, None)) is not None:
                    self.n_bytes -= applied.n_bytes
        self._queries.expire(rows)
