"""Judgments of one query: which of them count, and which grade stands for each candidate."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from evaluator.core.join.subtopics import Subtopics, given_subtopics
from evaluator.core.types.records import DeadLetter, Key, SubtopicsById


class PendingJudgment(NamedTuple):
    """One judgment on its own, outside the columns of its batch."""

    offset: int
    timestamp_ms: int
    event_ms: int
    key: Key
    judgment_id: str | None
    hash: bytes
    grades: Mapping[str, float | None]
    record_key: bytes | None
    value: bytes
    subtopics: SubtopicsById | None = None
    source: str = ""

    def dead_letter(self, reason: str, detail: str) -> DeadLetter:
        """This judgment as a record that counts for nothing."""
        return DeadLetter("judgments", self.offset, reason, detail, self.record_key, self.value)


class QueryLimits(NamedTuple):
    """What one query takes of judgments; one that would cross a limit is `over_limit` as a whole.

    `candidates` are all that applied judgments name in their grades, withdrawn ones included.
    """

    judgments: int = 1_000
    candidates: int = 10_000

    def crossed(
        self, n_applied: int, graded: Collection[str], judgment: PendingJudgment
    ) -> str | None:
        """The limit that one more judgment would cross, in words; None for none."""
        if n_applied >= self.judgments:
            return f"{self.judgments} judgments of this query count"
        n_graded = len(graded) + sum(name not in graded for name in judgment.grades)
        if n_graded <= self.candidates:
            return None
        return f"with it {n_graded} candidates of this query were graded; at most {self.candidates}"


LIMITS = QueryLimits()


Merged = dict[str, tuple[int, int, float | None]]
"""By candidate id: timestamp and offset of the judgment whose grade stands, and that grade."""

MergedSubtopics = dict[str, tuple[int, int, tuple[str, ...] | None]]
"""The same of subtopics."""


@dataclass(slots=True)
class AppliedJudgments:
    """What has to be known of the judgments of a query that has more than one ordinary one."""

    hash_by_id: dict[str, bytes] = field(default_factory=dict)
    anonymous: set[bytes] = field(default_factory=set)
    running: Merged = field(default_factory=dict)
    in_time: Merged | None = None  # None: the same as running so far
    subtopics: MergedSubtopics = field(default_factory=dict)
    subtopics_in_time: MergedSubtopics = field(default_factory=dict)

    def remember(self, judgment_id: str | None, value_hash: bytes) -> None:
        """Notes an applied judgment, to know its duplicates."""
        if judgment_id is None:
            self.anonymous.add(value_hash)
        else:
            self.hash_by_id[judgment_id] = value_hash

    def verdict(self, judgment_id: str | None, value_hash: bytes) -> str | None:
        """What a judgment is that was seen before: duplicate or conflicting; None if it was not."""
        if judgment_id is None:
            return "duplicate" if value_hash in self.anonymous else None
        if judgment_id not in self.hash_by_id:
            return None
        return "duplicate" if self.hash_by_id[judgment_id] == value_hash else "conflicting"

    def apply(self, judgment: PendingJudgment, *, in_time: bool) -> None:
        """Merges a judgment: by candidate, the later (timestamp, offset) wins."""
        self.remember(judgment.judgment_id, judgment.hash)
        if not in_time and self.in_time is None:
            self.in_time = dict(self.running)
        if in_time and self.in_time is not None:
            _merge(self.in_time, judgment, judgment.grades)
        _merge(self.running, judgment, judgment.grades)
        if judgment.subtopics:
            names = {**dict.fromkeys(judgment.subtopics), **given_subtopics(judgment.subtopics)}
            _merge(self.subtopics, judgment, names)
            if in_time:
                _merge(self.subtopics_in_time, judgment, names)


def _merge(merged: dict[str, Any], judgment: PendingJudgment, said: Mapping[str, Any]) -> None:
    for candidate_id, what in said.items():
        standing = merged.get(candidate_id)
        if standing is None or standing[:2] < (judgment.timestamp_ms, judgment.offset):
            merged[candidate_id] = (judgment.timestamp_ms, judgment.offset, what)


def standing_grades(merged: Merged) -> dict[str, float]:
    """Grades that are not withdrawn, in order of first application."""
    return {
        candidate_id: grade for candidate_id, (_, _, grade) in merged.items() if grade is not None
    }


def said_subtopics(merged: MergedSubtopics) -> Subtopics:
    """Subtopics that are not withdrawn."""
    return {
        candidate_id: names for candidate_id, (_, _, names) in merged.items() if names is not None
    }
