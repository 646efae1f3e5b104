"""Running grades of queries and the judgments that they come from."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct, field
from numpy.typing import DTypeLike, NDArray

from evaluator.core.columns.key_hashes import Key
from evaluator.core.columns.table import RaggedColumns, RowTable, span_indices
from evaluator.core.join.merging import GradeMerge, GradesBySource
from evaluator.core.join.rules import Identity, is_later
from evaluator.core.join.subtopics import given_subtopics
from evaluator.core.types.records import (
    DeadLetter,
    FloatArray,
    IntArray,
    JudgmentColumns,
    SubtopicsById,
)

_HEAD: Mapping[str, DTypeLike] = {
    "id": np.int64,  # see `hash_of_id`
    "hash": "V16",
    "timestamp_ms": np.int64,
    "offset": np.int64,
}

NO_ID: Final = 0


def hash_of_id(judgment_id: str | None) -> int:
    """64-bit hash of a judgment_id, valid in this process; `NO_ID` for none.

    Hashes of strings have a random seed, and are only compared within a query.
    """
    return NO_ID if judgment_id is None else hash(judgment_id) or 1


# One judgment at a time


class PendingJudgment(NamedTuple):
    """One judgment outside the columns of its batch."""

    offset: int
    timestamp_ms: int
    event_ms: int
    key: Key
    names: tuple[str, str]  # trace_id, node_id
    judgment_id: str | None
    hash: bytes
    grades: Mapping[str, float | None]
    record_key: bytes | None
    value: bytes
    subtopics: SubtopicsById | None = None
    source: str = ""

    @classmethod
    def of(
        cls, judgments: JudgmentColumns, record: int, event_ms: int, *, subtopics: bool = True
    ) -> "PendingJudgment":
        """One judgment of a batch, with its *subtopics* or without."""
        return cls(
            int(judgments.offsets[record]),
            int(judgments.timestamps_ms[record]),
            event_ms,
            judgments.key_hashes[record].tobytes(),
            (judgments.trace_ids[record], judgments.node_ids[record]),
            judgments.judgment_ids[record],
            judgments.hashes[record].tobytes(),
            judgments.grades[record],
            judgments.keys[record],
            judgments.values[record] or b"",
            judgments.subtopics.get(record) if subtopics else None,
            judgments.sources[record],
        )

    def dead_letter(self, reason: str, detail: str) -> DeadLetter:
        """The dead letter of this judgment."""
        return DeadLetter("judgments", self.offset, reason, detail, self.record_key, self.value)


Merged = dict[str, tuple[int, int, Any]]
"""By candidate id: timestamp and offset of the judgment that won, and its grade or subtopics;
None for a withdrawn one."""


_APPLIED_BYTES: Final = 900
_NAME_BYTES: Final = 150
_SOURCE_BYTES: Final = 400
"""Measured memory of `AppliedJudgments`: without judgments, of a merged grade, of its sources."""


class AppliedJudgments(Struct):
    """Applied judgments of a query that the columns cannot represent."""

    hash_by_id: dict[int, bytes] = field(default_factory=dict)  # by `hash_of_id`
    anonymous: set[bytes] = field(default_factory=set)
    running: Merged = field(default_factory=dict)
    in_time: Merged | None = None  # None: equal to running so far
    subtopics: Merged = field(default_factory=dict)
    subtopics_in_time: Merged = field(default_factory=dict)
    rule: GradeMerge | None = None  # None: the latest grade counts
    by_source: dict[str, GradesBySource] = field(default_factory=dict)  # with a rule; by candidate
    by_source_in_time: dict[str, GradesBySource] = field(default_factory=dict)  # like in_time

    @property
    def n_bytes(self) -> int:
        """Approximate memory."""
        n_sources = len(self.by_source) + len(self.by_source_in_time)
        n_names = len(self.running) + len(self.in_time or ()) + len(self.subtopics)
        n_names += len(self.subtopics_in_time) + len(self.hash_by_id) + len(self.anonymous)
        return _APPLIED_BYTES + _NAME_BYTES * n_names + _SOURCE_BYTES * n_sources

    def remember(self, id_hash: int, value_hash: bytes) -> None:
        """Adds the identity of an applied judgment."""
        if id_hash == NO_ID:
            self.anonymous.add(value_hash)
        else:
            self.hash_by_id[id_hash] = value_hash

    def identity(self, id_hash: int, value_hash: bytes) -> Identity:
        """The identity of a judgment, compared with those that were applied."""
        if id_hash == NO_ID:
            return Identity.EQUAL if value_hash in self.anonymous else Identity.NEW
        known = self.hash_by_id.get(id_hash)
        if known is None:
            return Identity.NEW
        return Identity.EQUAL if known == value_hash else Identity.DIFFERENT

    def apply(self, judgment: PendingJudgment, *, in_time: bool) -> None:
        """Merges the grades and subtopics of a judgment."""
        self.remember(hash_of_id(judgment.judgment_id), judgment.hash)
        if not in_time and self.in_time is None:
            self.in_time, self.by_source_in_time = dict(self.running), deepcopy(self.by_source)
        if in_time and self.in_time is not None:
            self._merge_grades(self.in_time, self.by_source_in_time, judgment)
        self._merge_grades(self.running, self.by_source, judgment)
        if judgment.subtopics:
            names = {**dict.fromkeys(judgment.subtopics), **given_subtopics(judgment.subtopics)}
            _merge(self.subtopics, judgment, names)
            if in_time:
                _merge(self.subtopics_in_time, judgment, names)

    def _merge_grades(
        self, merged: Merged, by_source: dict[str, GradesBySource], judgment: PendingJudgment
    ) -> None:
        if self.rule is None:
            _merge(merged, judgment, judgment.grades)
            return
        stamp, takes_max = (judgment.timestamp_ms, judgment.offset), self.rule.takes_max
        source = judgment.source
        for name, grade in judgment.grades.items():
            of_candidate = by_source.setdefault(name, GradesBySource())
            of_candidate.add(stamp, source, grade, takes_max=takes_max(source))
            merged[name] = of_candidate.merged()

    def attribute_to(self, source: str) -> None:
        """Attributes the running grades to this source, if grades are merged by source.

        They come from the columns, which then hold the grades of a single judgment.
        """
        if self.rule is not None:
            for name, (timestamp_ms, offset, grade) in self.running.items():
                stamp, takes_max = (timestamp_ms, offset), self.rule.takes_max(source)
                self.by_source[name] = GradesBySource()
                self.by_source[name].add(stamp, source, grade, takes_max=takes_max)


def _merge(merged: Merged, judgment: PendingJudgment, given: Mapping[str, Any]) -> None:
    new = judgment.timestamp_ms, judgment.offset
    for candidate_id, value in given.items():
        current = merged.get(candidate_id)
        if current is None or is_later(*new, *current[:2]):
            merged[candidate_id] = (*new, value)


def without_withdrawn(merged: Merged) -> dict[str, Any]:
    """Grades or subtopics that are not withdrawn, in order of first application."""
    return {name: value for name, (_, _, value) in merged.items() if value is not None}


# In columns


class JudgmentHeads(NamedTuple):
    """Identity and order of applied judgments: all `[n_judgments]`."""

    ids: IntArray  # see `hash_of_id`
    hashes: NDArray[np.void]
    timestamps_ms: IntArray
    offsets: IntArray

    @classmethod
    def of(cls, judgments: JudgmentColumns) -> "JudgmentHeads":
        """Heads of a batch."""
        return cls(
            np.fromiter(map(hash_of_id, judgments.judgment_ids), np.int64, len(judgments)),
            judgments.hashes,
            judgments.timestamps_ms,
            judgments.offsets,
        )

    @classmethod
    def of_each(cls, judgments: Collection[PendingJudgment]) -> "JudgmentHeads":
        """Heads of pending judgments."""
        hashes = np.frombuffer(b"".join(each.hash for each in judgments), "V16")
        order = np.array([(each.timestamp_ms, each.offset) for each in judgments], np.int64)
        given = (hash_of_id(each.judgment_id) for each in judgments)
        ids = np.fromiter(given, np.int64, len(judgments))
        return cls(ids, hashes, order[:, 0], order[:, 1])

    def picked(self, records: IntArray | slice) -> "JudgmentHeads":
        """Some of the heads."""
        return JudgmentHeads._make(column[records] for column in self)


class GradeCodes(NamedTuple):
    """Grades by candidate code: a span per query or judgment, one after the other."""

    counts: IntArray  # [n_spans]
    codes: NDArray[np.int32]  # [sum of counts], like the grades
    grades: FloatArray

    def picked(self, spans: IntArray) -> "GradeCodes":
        """Some of the spans."""
        counts = self.counts[spans]
        entries = span_indices((np.cumsum(self.counts) - self.counts)[spans], counts)
        return GradeCodes(counts, self.codes[entries], self.grades[entries])


class JudgedCandidates:
    """Judged candidates of each query, and the judgments that their grades come from.

    `candidates` has a span of `n_judged` entries from `judged_start`, in order of first
    application; `by` is the number, from 0, of the judgment with the winning grade. `judgments` has
    a span of `n_applied` judgments from `applied_start`, in order of application: all that were
    applied to the query, or none if `AppliedJudgments` has them; then `by` is not used.
    """

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self.candidates = RaggedColumns({"code": np.int16, "grade": np.float32, "by": np.uint8})
        self.judgments = RaggedColumns(_HEAD)

    def replace(self, rows: IntArray, grades: GradeCodes, by: NDArray[np.uint16] | int) -> None:
        """Replaces the running grades of queries."""
        self.candidates.discard(int(self._table["n_judged"][rows].sum()))
        self._table["judged_start"][rows] = self.candidates.append(
            grades.counts, code=grades.codes, grade=grades.grades, by=np.asarray(by)
        )
        self._table["n_judged"][rows] = grades.counts

    def add_heads(self, rows: IntArray, heads: JudgmentHeads) -> None:
        """Adds one judgment to each query, after its earlier ones."""
        table, pool = self._table, self.judgments
        n_before = table["n_applied"][rows]
        columns = dict(zip(_HEAD, heads, strict=True))
        if n_before.any():
            pool.discard(int(n_before.sum()))
            spans = span_indices(table["applied_start"][rows], n_before)
            every = np.arange(len(rows))
            order = np.argsort(np.concatenate((np.repeat(every, n_before), every)), kind="stable")
            columns = {
                name: np.concatenate((pool[name][spans], added))[order]
                for name, added in columns.items()
            }
        table["applied_start"][rows] = pool.append(n_before + 1, **columns)
        table["n_applied"][rows] = n_before + 1

    def heads_at(self, row: int) -> list[tuple[int, bytes, int, int]]:
        """The judgments of one query: hashes of id and value, timestamp and offset."""
        first, pool = int(self._table["applied_start"][row]), self.judgments
        span = slice(first, first + int(self._table["n_applied"][row]))
        return list(zip(*(pool[name][span].tolist() for name in _HEAD), strict=True))

    def drop_heads(self, row: int) -> None:
        """Discards the judgments of a query; `AppliedJudgments` has them from now on."""
        self.judgments.discard(int(self._table["n_applied"][row]))
        self._table["n_applied"][row] = 0

    def discard(self, rows: IntArray) -> None:
        """Discards the judged candidates and judgments of queries."""
        self.candidates.discard(int(self._table["n_judged"][rows].sum()))
        self.judgments.discard(int(self._table["n_applied"][rows].sum()))
        self._table["n_applied"][rows] = 0  # a late judgment still calls `seen`

    def seen(self, rows: IntArray, heads: JudgmentHeads) -> NDArray[np.bool_]:
        """Whether the query of each judgment has an applied one with the same identity."""
        owners = np.repeat(np.arange(len(rows)), self._table["n_applied"][rows])
        pool = self.judgments
        spans = span_indices(self._table["applied_start"][rows], self._table["n_applied"][rows])
        same = pool["hash"][spans] == heads.hashes[owners]
        ids = heads.ids[owners]
        same = (pool["id"][spans] == ids) & ((ids != NO_ID) | same)
        found: NDArray[np.bool_] = np.bincount(owners[same], minlength=len(rows)) > 0
        return found

    def merge(self, rows: IntArray, given: GradeCodes, heads: JudgmentHeads) -> None:
        """Applies one more judgment to each query, with the grades in *given*, none withdrawn."""
        table, pool = self._table, self.candidates
        if not table["n_applied"][rows].any():
            self.replace(rows, given, 0)
            self.add_heads(rows, heads)
            return
        counts, n_before = table["n_judged"][rows], table["n_applied"][rows]
        spans = span_indices(table["judged_start"][rows], counts)
        codes, grades, by = (pool[name][spans] for name in ("code", "grade", "by"))
        grades = grades.astype(np.float64)
        owners = np.repeat(np.arange(len(rows)), counts)
        given_owners = np.repeat(np.arange(len(rows)), given.counts)
        _, again, source = np.intersect1d(
            owners << 32 | codes,
            given_owners << 32 | given.codes,
            assume_unique=True,
            return_indices=True,
        )
        current = table["applied_start"][rows][owners[again]] + by[again]
        wins = is_later(
            *(column[owners[again]] for column in (heads.timestamps_ms, heads.offsets)),
            *(self.judgments[name][current] for name in ("timestamp_ms", "offset")),
        )
        won = again[wins]
        grades[won], by[won] = given.grades[source[wins]], n_before[owners[won]]
        new = np.ones(len(given_owners), bool)
        new[source] = False
        behind = np.argsort(np.concatenate((owners, given_owners[new])), kind="stable")
        merged = GradeCodes(
            counts + np.bincount(given_owners[new], minlength=len(rows)),
            np.concatenate((codes, given.codes[new]))[behind],
            np.concatenate((grades, given.grades[new]))[behind],
        )
        self.replace(rows, merged, np.concatenate((by, n_before[given_owners[new]]))[behind])
        self.add_heads(rows, heads)
