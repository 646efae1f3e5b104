"""Which judgment belongs to which query, and what becomes of it.

Times decide, presence never does: what is still in memory changes no answer.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.event_time.durations import Durations
from evaluator.core.join.applied import (
    LIMITS,
    AppliedJudgments,
    PendingJudgment,
    QueryLimits,
    said_subtopics,
    standing_grades,
)
from evaluator.core.join.changes import AppliedRows, Changes
from evaluator.core.join.early_buffer import EarlyBuffer
from evaluator.core.join.judgments import JudgmentHeads
from evaluator.core.join.keys import Keys
from evaluator.core.join.open_queries import OpenQueries
from evaluator.core.join.subtopics import Subtopics, standing_subtopics
from evaluator.core.join.training_data import Offered
from evaluator.core.types.records import (
    DeadLetter,
    IntArray,
    JudgmentColumns,
    Key,
)


@dataclass(slots=True)
class _Batch:
    """What the judgments that are handled one by one did in this batch."""

    changed: dict[int, None] = field(default_factory=dict)  # slots, in order
    first: dict[int, PendingJudgment] = field(default_factory=dict)  # not in the pools yet
    delays_ms: list[int] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)


@dataclass(slots=True)
class Judged:
    """What a batch did to the queries: `slots` are those whose running grades changed."""

    slots: IntArray
    delays_ms: IntArray
    dead_letters: list[DeadLetter]


class Join:
    """Gives each judgment to its query, merges grades, and counts what becomes of judgments.

    The meaning of every outcome is in docs/messages.md.
    """

    _LEAST_IN_A_TURN = 16  # fewer are applied as quickly one by one
    _MOST_IN_COLUMNS = 64  # judgments of a query: each one copies those before it

    def __init__(
        self, open_queries: OpenQueries, durations: Durations, limits: QueryLimits = LIMITS
    ) -> None:
        self._queries = open_queries
        self._limits = limits
        self._retention_ms = durations.retention_ms
        self._maturity_ms = durations.maturity_ms
        self._early_ms = durations.early_ms
        self._remember_ms = durations.remember_ms
        self.keys = Keys(open_queries, key_reserved_ms=durations.key_reserved_ms)
        self.early = EarlyBuffer()
        self.changes: Changes | None = None  # where applied judgments are noted
        self._applied: dict[int, AppliedJudgments] = {}
        self._batch = _Batch()
        self.judgments = dict.fromkeys(
            ("duplicate", "conflicting", "late", "orphan", "over_limit", "applied"), 0
        )

    # Judgments

    def apply_judgments(
        self, judgments: JudgmentColumns | None, event_times_ms: IntArray, started: IntArray
    ) -> Judged:
        """Gives judgments that waited for the *started* queries, then new ones, to queries."""
        self._batch = _Batch()
        self._place_early(started)
        rows = slots = np.empty(0, np.int64)
        if judgments is not None and len(judgments):
            keys = list(zip(judgments.trace_ids, judgments.node_ids, strict=True))
            rows, slots = self._apply_ordinary(judgments, event_times_ms, keys)
            left = np.ones(len(judgments), bool)
            left[rows] = False
            for row in np.flatnonzero(left).tolist():
                judgment = self._pending(judgments, row, int(event_times_ms[row]), keys[row])
                if not self._placed(judgment):
                    self.early.add(judgment)
        self._write_grades()
        batch = self._batch
        delays = event_times_ms[rows] - self._queries.slots["event_ms"][slots]
        changed = np.sort(np.concatenate((slots, np.array(list(batch.changed), np.int64))))
        first = np.ones(len(changed), bool)
        np.not_equal(changed[1:], changed[:-1], out=first[1:])
        return Judged(
            changed[first],  # np.unique takes ten times as long
            np.concatenate((delays, np.array(batch.delays_ms, np.int64))),
            batch.dead_letters,
        )

    def restore(self, judgments: JudgmentColumns, event_times_ms: IntArray) -> None:
        """Applies judgments once more that were applied to queries now back in memory."""
        counts, changes = dict(self.judgments), self.changes
        self.changes = None
        self.apply_judgments(judgments, event_times_ms, np.empty(0, np.int64))
        self.judgments, self.changes = counts, changes

    def _apply_ordinary(
        self, judgments: JudgmentColumns, event_times_ms: IntArray, keys: list[Key]
    ) -> tuple[IntArray, IntArray]:
        """Applies ordinary judgments in columns, those of one query in turns: rows and slots."""
        slots = self.keys.newest_of(keys)
        given = judgments.grades
        odd = np.zeros(len(slots), bool)
        withdrawn = np.flatnonzero(np.isnan(given.grades))
        odd[np.searchsorted(given.ends, withdrawn, side="right")] = True
        if self._queries.has_subtopics:
            odd[list(judgments.subtopics)] = True
        codes, heads = self._queries.coded(given), JudgmentHeads.of(judgments)
        most_judged = self._limits.candidates
        applied: list[IntArray] = []
        left = np.flatnonzero(slots >= 0)
        while True:
            turn = left[np.unique(slots[left], return_index=True)[1]]
            if applied and len(turn) < self._LEAST_IN_A_TURN:
                break
            rows = turn[~odd[turn]]
            fits = self._fits(slots[rows], event_times_ms[rows], heads.picked(rows))
            fits &= self._queries.slots["n_judged"][slots[rows]] <= most_judged - given.counts[rows]
            rows = rows[fits]
            self._note_applied(slots[rows], rows, judgments, event_times_ms[rows])
            self._queries.judged.merge(slots[rows], codes.picked(rows), heads.picked(rows))
            applied.append(rows)
            if len(turn) == len(left):
                break
            left = np.setdiff1d(left[np.isin(slots[left], slots[rows])], rows)
        done = np.concatenate(applied)
        return done, slots[done]

    def _fits(
        self, slots: IntArray, event_times_ms: IntArray, heads: JudgmentHeads
    ) -> NDArray[np.bool_]:
        """Whether judgments belong to queries, are new to them, and can be applied in columns.

        Of a query that is not settled all judgments there came by maturity, or none did.
        """
        table = self._queries.slots
        ages_ms = event_times_ms - table["event_ms"][slots]
        revisions = table["revision"][slots]
        alike = (ages_ms <= self._maturity_ms) == self.first_in_time(slots)
        fits: NDArray[np.bool_] = (
            (ages_ms >= -self._early_ms)
            & (ages_ms <= self._retention_ms)
            & (revisions == table["n_applied"][slots])
            & (revisions < min(self._MOST_IN_COLUMNS, self._limits.judgments))
            & ((revisions == 0) | alike | table["settled"][slots])
            & ~self._queries.judged.seen(slots, heads)
        )
        return fits

    def _note_applied(
        self,
        slots: IntArray,
        rows: IntArray,
        judgments: JudgmentColumns,
        event_times_ms: IntArray,
    ) -> None:
        """Counts one more judgment of each query; *event_times_ms* are those of the rows."""
        table = self._queries.slots
        before = table["revision"][slots]
        first = before == 0
        table["judgment_event_ms"][slots[first]] = event_times_ms[first]
        table["revision"][slots] = before + 1
        self.judgments["applied"] += len(slots)
        if self._queries.offered is not None:
            sources = [judgments.sources[row] for row in rows.tolist()]
            self._note_sources(self._queries.offered, slots, event_times_ms, sources)
        if self.changes is not None and len(rows):
            values = [judgments.values[row] for row in rows.tolist()]
            times = event_times_ms, judgments.timestamps_ms[rows]
            queries, offsets = table["offset"][slots], judgments.offsets[rows]
            self.changes.applied.append(AppliedRows(queries, before, offsets, *times, values))

    def _note_sources(
        self, offered: Offered, slots: IntArray, event_times_ms: IntArray, sources: Sequence[str]
    ) -> None:
        """Notes who gave judgments that count when their queries settle."""
        table = self._queries.slots
        in_time = event_times_ms - table["event_ms"][slots] <= self._maturity_ms
        counts = np.flatnonzero(in_time & ~table["settled"][slots])
        offered.note_sources(slots[counts], (sources[place] for place in counts.tolist()))

    def _pending(
        self, judgments: JudgmentColumns, row: int, event_ms: int, key: Key
    ) -> PendingJudgment:
        return PendingJudgment(
            int(judgments.offsets[row]),
            int(judgments.timestamps_ms[row]),
            event_ms,
            key,
            judgments.judgment_ids[row],
            judgments.hashes[row],
            judgments.grades[row],
            judgments.keys[row],
            judgments.values[row],
            judgments.subtopics.get(row) if self._queries.has_subtopics else None,
            judgments.sources[row],
        )

    def _place_early(self, started: IntArray) -> None:
        if not len(self.early):
            return
        for key in self._queries.slots["key"][started].tolist():
            self.early.keep(key, lambda judgment: not self._placed(judgment))

    def _placed(self, judgment: PendingJudgment) -> bool:
        """Whether a query is there that the judgment belongs to, or is too late for."""
        slot = self.keys.newest(judgment.key)
        while slot is not None:
            age_ms = judgment.event_ms - int(self._queries.slots["event_ms"][slot])
            if age_ms > self._retention_ms + self._remember_ms:
                return False
            if age_ms > self._retention_ms:
                self._refuse(
                    judgment,
                    "late",
                    f"{age_ms} ms after its ranking; at most "
                    f"{self._retention_ms} ms (retention_ms) count",
                )
                return True
            if age_ms >= -self._early_ms:
                self._apply(slot, judgment)
                return True
            slot = self.keys.older(slot)
        return False

    def _refuse(self, judgment: PendingJudgment, outcome: str, detail: str) -> None:
        self.judgments[outcome] += 1
        self._batch.dead_letters.append(judgment.dead_letter(outcome, detail))

    def _apply(self, slot: int, judgment: PendingJudgment) -> None:
        table = self._queries.slots
        known = self._known(slot)
        verdict = known.verdict(judgment.judgment_id, judgment.hash)
        if verdict == "duplicate":
            self.judgments["duplicate"] += 1
        elif verdict == "conflicting":
            self._refuse(
                judgment, "conflicting", "another judgment with this judgment_id was applied"
            )
        elif crossed := self._limits.crossed(table["revision"][slot], self._graded(slot), judgment):
            self._refuse(judgment, "over_limit", crossed)
        else:
            self._merge(slot, judgment, known)
            if not table["revision"][slot]:
                table["judgment_event_ms"][slot] = judgment.event_ms
            table["revision"][slot] += 1
            self.judgments["applied"] += 1
            if self._queries.offered is not None:
                one, source = np.array([slot]), [judgment.source]
                self._note_sources(
                    self._queries.offered, one, np.array([judgment.event_ms]), source
                )
            self._batch.changed[slot] = None
            self._batch.delays_ms.append(judgment.event_ms - int(table["event_ms"][slot]))
            if self.changes is not None:
                at = int(table["offset"][slot]), int(table["revision"][slot]) - 1
                self.changes.applied_singly.append((*at, judgment))

    def _graded(self, slot: int) -> Collection[str]:
        """The candidates that the applied judgments of a query grade or withdraw."""
        if slot in self._applied:
            return self._applied[slot].running
        if slot in self._batch.first:
            return self._batch.first[slot].grades
        return self._queries.merged_at(slot) if self._queries.slots["revision"][slot] else ()

    def _known(self, slot: int) -> AppliedJudgments:
        """The applied judgments of a query, to tell duplicates."""
        applied = self._applied.get(slot)
        if applied is not None:
            return applied
        applied = AppliedJudgments()
        first = self._batch.first.get(slot)
        if first is not None:
            applied.remember(first.judgment_id, first.hash)
        else:
            for judgment_id, value_hash, _, _ in self._queries.judged.heads_at(slot):
                applied.remember(judgment_id, value_hash)
        return applied

    def _merge(self, slot: int, judgment: PendingJudgment, known: AppliedJudgments) -> None:
        table = self._queries.slots
        first = not table["revision"][slot]
        if first and None not in judgment.grades.values() and not judgment.subtopics:
            self._batch.first[slot] = judgment
            return
        if slot not in self._applied:
            self._unfold(slot, known)
        due_ms = int(table["event_ms"][slot]) + self._maturity_ms
        known.apply(judgment, in_time=judgment.event_ms <= due_ms)

    def _unfold(self, slot: int, known: AppliedJudgments) -> None:
        """Keeps a query's judgments on its own from now on, with what the columns say of them."""
        self._applied[slot] = known
        if not self._queries.slots["revision"][slot]:
            return
        first = self._batch.first.pop(slot, None)
        if first is not None:
            at = (first.timestamp_ms, first.offset)
            known.running = {name: (*at, grade) for name, grade in first.grades.items()}
        else:
            known.running = self._queries.merged_at(slot)
            self._queries.judged.drop_heads(slot)
        if not self.first_in_time(slot):
            known.in_time = {}

    def first_in_time(self, slots: IntArray | int) -> Any:
        """Whether the first applied judgment came by maturity, elementwise."""
        table = self._queries.slots
        return table["judgment_event_ms"][slots] - table["event_ms"][slots] <= self._maturity_ms

    def _write_grades(self) -> None:
        """Brings what was applied one by one into the columns."""
        slots = list(self._batch.changed)
        if not slots:
            return
        judged = self._queries.judged
        grades = GradeColumns.of([self.running_grades(slot) for slot in slots])
        judged.replace(np.array(slots, np.int64), self._queries.coded(grades), 0)
        first = self._batch.first
        if first:
            judged.note(np.array(list(first), np.int64), JudgmentHeads.of_each(first.values()))

    def running_grades(self, slot: int) -> Mapping[str, float]:
        applied = self._applied.get(slot)
        if applied is not None:
            return standing_grades(applied.running)
        return cast(Mapping[str, float], self._batch.first[slot].grades)

    def grades_in_time(self, slots: Iterable[int]) -> dict[int, dict[str, float]]:
        """Grades by maturity of those queries for which they may differ from the running ones."""
        if not self._applied:
            return {}
        return {
            slot: standing_grades(applied.in_time)
            for slot in slots
            if (applied := self._applied.get(slot)) is not None and applied.in_time is not None
        }

    def subtopics(self, slots: IntArray, *, in_time: bool = False) -> list[Subtopics] | None:
        """What stands of the subtopics of queries, or stood by maturity; None if nobody asks."""
        if not self._queries.has_subtopics:
            return None
        said = self._queries.subtopics
        return [
            standing_subtopics(said.get(slot), self._said_subtopics(slot, in_time=in_time))
            for slot in slots.tolist()
        ]

    def _said_subtopics(self, slot: int, *, in_time: bool) -> Subtopics | None:
        applied = self._applied.get(slot)
        if applied is None:
            return None
        return said_subtopics(applied.subtopics_in_time if in_time else applied.subtopics)

    # Timers

    def orphans(self, watermark_ms: int) -> list[DeadLetter]:
        """Removes judgments whose ranking can come no more."""
        expired = self.early.expire(watermark_ms - self._early_ms)
        self.judgments["orphan"] += len(expired)
        detail = "no ranking of this trace_id and node_id came in time; do the keys match?"
        return [judgment.dead_letter("orphan", detail) for judgment in expired]

    def expire(self, slots: IntArray) -> None:
        """Frees what is kept of queries that no judgment can belong to any more."""
        if self._applied:
            for slot in slots.tolist():
                self._applied.pop(slot, None)
        self._queries.expire(slots)
