"""Which judgment belongs to which query, and what becomes of it.

Times decide, presence never does: what is still in memory changes no answer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from evaluator.core.applied import (
    MAX_APPLIED,
    AppliedJudgments,
    PendingJudgment,
    said_subtopics,
    standing_grades,
)
from evaluator.core.durations import Durations
from evaluator.core.grades import GradeColumns
from evaluator.core.held import HeldQueries
from evaluator.core.keys import Keys
from evaluator.core.stored import AppliedRows, Changes
from evaluator.core.subtopics import Subtopics, standing_subtopics
from evaluator.core.types import (
    DeadLetter,
    IntArray,
    JudgmentColumns,
    Key,
)
from evaluator.core.waiting import WaitingRoom


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

    def __init__(self, held: HeldQueries, durations: Durations) -> None:
        self._held = held
        self._retention_ms = durations.retention_ms
        self._maturity_ms = durations.maturity_ms
        self._early_ms = durations.early_ms
        self._remember_ms = durations.remember_ms
        self.keys = Keys(held, key_taken_ms=durations.key_taken_ms)
        self.waiting = WaitingRoom()
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
        self._place_waiting(started)
        rows = slots = np.empty(0, np.int64)
        if judgments is not None and len(judgments):
            keys = list(zip(judgments.trace_ids, judgments.node_ids, strict=True))
            rows, slots = self._apply_ordinary(judgments, event_times_ms, keys)
            for row in np.delete(np.arange(len(judgments)), rows).tolist():
                judgment = self._pending(judgments, row, int(event_times_ms[row]), keys[row])
                if not self._placed(judgment):
                    self.waiting.add(judgment)
        self._write_grades()
        batch = self._batch
        delays = event_times_ms[rows] - self._held.slots["event_ms"][slots]
        return Judged(
            np.unique(np.concatenate((slots, np.array(list(batch.changed), np.int64)))),
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
        """Applies first judgments of queries, in columns: their rows and slots."""
        table = self._held.slots
        slots = self.keys.newest_of(keys)
        found = np.flatnonzero(slots >= 0)
        first = np.zeros(len(slots), bool)
        first[np.unique(slots, return_index=True)[1]] = True
        given = judgments.grades
        odd = np.zeros(len(slots), bool)
        withdrawn = np.flatnonzero(np.isnan(given.grades))
        odd[np.searchsorted(given.ends, withdrawn, side="right")] = True
        if self._held.has_subtopics:
            odd[list(judgments.subtopics)] = True
        held = slots[found]
        ages = event_times_ms[found] - table["event_ms"][held]
        rows = found[
            first[found]
            & ~odd[found]
            & (table["revision"][held] == 0)
            & (ages >= -self._early_ms)
            & (ages <= self._retention_ms)
        ]
        self._held.set_judged(slots[rows], given.picked(rows))
        self._note_first(judgments, event_times_ms, rows, slots[rows])
        return rows, slots[rows]

    def _note_first(
        self, judgments: JudgmentColumns, event_times_ms: IntArray, rows: IntArray, slots: IntArray
    ) -> None:
        table = self._held.slots
        ids = np.fromiter(judgments.judgment_ids, object, len(judgments))
        table["revision"][slots] = 1
        table["judgment_id"][slots] = ids[rows]
        table["judgment_ms"][slots] = judgments.timestamps_ms[rows]
        table["judgment_offset"][slots] = judgments.offsets[rows]
        table["judgment_event_ms"][slots] = event_times_ms[rows]
        table["judgment_hash"][slots] = np.frombuffer(b"".join(judgments.hashes), "V16")[rows]
        self.judgments["applied"] += len(rows)
        if self.changes is not None and len(rows):
            values = [judgments.values[row] for row in rows.tolist()]
            times = event_times_ms[rows], judgments.timestamps_ms[rows]
            offsets = table["offset"][slots], judgments.offsets[rows]
            self.changes.applied.append(AppliedRows(*offsets, *times, values))

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
            judgments.subtopics.get(row) if self._held.has_subtopics else None,
        )

    def _place_waiting(self, started: IntArray) -> None:
        if not len(self.waiting):
            return
        for key in self._held.slots["key"][started].tolist():
            self.waiting.keep(key, lambda judgment: not self._placed(judgment))

    def _placed(self, judgment: PendingJudgment) -> bool:
        """Whether a query is there that the judgment belongs to, or is too late for."""
        slot = self.keys.newest(judgment.key)
        while slot is not None:
            age_ms = judgment.event_ms - int(self._held.slots["event_ms"][slot])
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
        table = self._held.slots
        verdict = self._verdict(slot, judgment)
        if verdict == "duplicate":
            self.judgments["duplicate"] += 1
        elif verdict == "conflicting":
            self._refuse(
                judgment, "conflicting", "another judgment with this judgment_id was applied"
            )
        elif table["revision"][slot] >= MAX_APPLIED:
            self._refuse(judgment, "over_limit", f"{MAX_APPLIED} judgments of this query count")
        else:
            self._merge(slot, judgment)
            table["revision"][slot] += 1
            self.judgments["applied"] += 1
            self._batch.changed[slot] = None
            self._batch.delays_ms.append(judgment.event_ms - int(table["event_ms"][slot]))
            if self.changes is not None:
                self.changes.applied_singly.append((int(table["offset"][slot]), judgment))

    def _verdict(self, slot: int, judgment: PendingJudgment) -> str | None:
        applied = self._applied.get(slot)
        table = self._held.slots
        if applied is None:
            if not table["revision"][slot]:
                return None
            applied = AppliedJudgments()
            applied.remember(table["judgment_id"][slot], table["judgment_hash"][slot].tobytes())
        return applied.verdict(judgment.judgment_id, judgment.hash)

    def _merge(self, slot: int, judgment: PendingJudgment) -> None:
        table = self._held.slots
        applied = self._applied.get(slot)
        first = not table["revision"][slot]
        if first:
            table["judgment_id"][slot] = judgment.judgment_id
            table["judgment_ms"][slot] = judgment.timestamp_ms
            table["judgment_offset"][slot] = judgment.offset
            table["judgment_event_ms"][slot] = judgment.event_ms
            table["judgment_hash"][slot] = np.void(judgment.hash)
        if first and None not in judgment.grades.values() and not judgment.subtopics:
            self._batch.first[slot] = judgment
            return
        if applied is None:
            applied = self._applied[slot] = self._unfolded(slot)
        due_ms = int(table["event_ms"][slot]) + self._maturity_ms
        applied.apply(judgment, in_time=judgment.event_ms <= due_ms)

    def _unfolded(self, slot: int) -> AppliedJudgments:
        """What the columns say of a query's only applied judgment, if any, on its own."""
        applied = AppliedJudgments()
        table = self._held.slots
        if not table["revision"][slot]:
            return applied
        applied.remember(table["judgment_id"][slot], table["judgment_hash"][slot].tobytes())
        first = self._batch.first.pop(slot, None)
        grades = first.grades if first else self._held.grades_at(slot)
        at = (int(table["judgment_ms"][slot]), int(table["judgment_offset"][slot]))
        applied.running = {candidate_id: (*at, grade) for candidate_id, grade in grades.items()}
        if not self.first_in_time(slot):
            applied.in_time = {}
        return applied

    def first_in_time(self, slots: IntArray | int) -> Any:
        """Whether the only applied judgment came by maturity, elementwise."""
        table = self._held.slots
        return table["judgment_event_ms"][slots] - table["event_ms"][slots] <= self._maturity_ms

    def _write_grades(self) -> None:
        slots = list(self._batch.changed)
        if not slots:
            return
        grades = [self.running_grades(slot) for slot in slots]
        self._held.set_judged(np.array(slots, np.int64), GradeColumns.of(grades))

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
        if not self._held.has_subtopics:
            return None
        said = self._held.subtopics
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
        expired = self.waiting.expire(watermark_ms - self._early_ms)
        self.judgments["orphan"] += len(expired)
        detail = "no ranking of this trace_id and node_id came in time; do the keys match?"
        return [judgment.dead_letter("orphan", detail) for judgment in expired]

    def forget(self, slots: IntArray) -> None:
        """Frees what is kept of queries that no judgment can belong to any more."""
        if self._applied:
            for slot in slots.tolist():
                self._applied.pop(slot, None)
        self._held.forget(slots)
