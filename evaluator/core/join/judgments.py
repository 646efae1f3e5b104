"""Running grades of queries and the judgments that they come from, in columns."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evaluator.core.columns.table import SlotTable, SpanPool, span_indices
from evaluator.core.join.applied import PendingJudgment
from evaluator.core.types.records import FloatArray, IntArray, JudgmentColumns

_HEAD: Mapping[str, DTypeLike] = {
    "id": object,
    "hash": "V16",
    "timestamp_ms": np.int64,
    "offset": np.int64,
}


class JudgmentHeads(NamedTuple):
    """What has to be known of applied judgments besides their grades: all `[n_judgments]`."""

    ids: NDArray[np.object_]  # None for a judgment without a judgment_id
    hashes: NDArray[np.void]
    timestamps_ms: IntArray
    offsets: IntArray

    @classmethod
    def of(cls, judgments: JudgmentColumns) -> "JudgmentHeads":
        """Those of a batch."""
        return cls(
            np.fromiter(judgments.judgment_ids, object, len(judgments)),
            np.frombuffer(b"".join(judgments.hashes), "V16"),
            judgments.timestamps_ms,
            judgments.offsets,
        )

    @classmethod
    def of_each(cls, judgments: Collection[PendingJudgment]) -> "JudgmentHeads":
        """The same of judgments that stand on their own."""
        n = len(judgments)
        return cls(
            np.fromiter((judgment.judgment_id for judgment in judgments), object, n),
            np.frombuffer(b"".join(judgment.hash for judgment in judgments), "V16"),
            np.fromiter((judgment.timestamp_ms for judgment in judgments), np.int64, n),
            np.fromiter((judgment.offset for judgment in judgments), np.int64, n),
        )

    @property
    def have_ids(self) -> bool:
        """Whether one of them has a judgment_id."""
        n_without: int = self.ids.tolist().count(None)
        return n_without < len(self.ids)

    def picked(self, rows: IntArray | slice) -> "JudgmentHeads":
        """Some of them."""
        ids, hashes, timestamps_ms, offsets = self
        return JudgmentHeads(ids[rows], hashes[rows], timestamps_ms[rows], offsets[rows])


class GradeCodes(NamedTuple):
    """Grades by code of a candidate: a span per query or judgment, one after the other."""

    counts: IntArray  # [n_spans]
    codes: NDArray[np.int32]  # [sum of counts], like the grades
    grades: FloatArray

    def picked(self, spans: IntArray) -> "GradeCodes":
        """Some of the spans."""
        counts = self.counts[spans]
        entries = span_indices((np.cumsum(self.counts) - self.counts)[spans], counts)
        return GradeCodes(counts, self.codes[entries], self.grades[entries])


class JudgedCandidates:
    """What is judged of each query, and by which of its judgments, for the slots of a table.

    `candidates` has a span of `n_judged` entries from `judged_start`, in order of first
    application; `by` is the number of the judgment, from 0, whose grade stands. `judgments` has a
    span of `n_applied` judgments from `applied_start`, in order of application: all that were
    applied to the query, or none if they are kept elsewhere; then `by` says nothing.
    """

    def __init__(self, slots: SlotTable) -> None:
        self._slots = slots
        self.candidates = SpanPool({"code": np.int32, "grade": np.float64, "by": np.uint16})
        self.judgments = SpanPool(_HEAD)
        self._has_ids = False  # whether one of them ever had

    def replace(self, slots: IntArray, grades: GradeCodes, by: NDArray[np.uint16] | int) -> None:
        """Gives queries other running grades."""
        self.candidates.discard(int(self._slots["n_judged"][slots].sum()))
        self._slots["judged_start"][slots] = self.candidates.append(
            grades.counts, code=grades.codes, grade=grades.grades, by=np.asarray(by)
        )
        self._slots["n_judged"][slots] = grades.counts

    def note(self, slots: IntArray, heads: JudgmentHeads) -> None:
        """Adds one judgment to each query, behind those that it has."""
        table, pool = self._slots, self.judgments
        n_before = table["n_applied"][slots]
        self._has_ids |= heads.have_ids
        columns = dict(zip(_HEAD, heads, strict=True))
        if not self._has_ids:
            del columns["id"]
        if n_before.any():
            pool.discard(int(n_before.sum()))
            spans = span_indices(table["applied_start"][slots], n_before)
            every = np.arange(len(slots))
            order = np.argsort(np.concatenate((np.repeat(every, n_before), every)), kind="stable")
            columns = {
                name: np.concatenate((pool[name][spans], added))[order]
                for name, added in columns.items()
            }
        if not self._has_ids:
            columns["id"] = np.array(None)  # for all of them
        table["applied_start"][slots] = pool.append(n_before + 1, **columns)
        table["n_applied"][slots] = n_before + 1

    def heads(self, slots: IntArray) -> JudgmentHeads:
        """The judgments of queries, flat: `n_applied` of each."""
        pool = self.judgments
        spans = span_indices(self._slots["applied_start"][slots], self._slots["n_applied"][slots])
        return JudgmentHeads(*(pool[name][spans] for name in _HEAD))

    def heads_at(self, slot: int) -> list[tuple[str | None, bytes, int, int]]:
        """The judgments of one query: id, hash, timestamp and offset; quicker than `heads`."""
        first, pool = int(self._slots["applied_start"][slot]), self.judgments
        span = slice(first, first + int(self._slots["n_applied"][slot]))
        return list(zip(*(pool[name][span].tolist() for name in _HEAD), strict=True))

    def drop_heads(self, slot: int) -> None:
        """The judgments of this query are kept elsewhere from now on."""
        self.judgments.discard(int(self._slots["n_applied"][slot]))
        self._slots["n_applied"][slot] = 0

    def discard(self, slots: IntArray) -> None:
        """Nothing is asked of these queries any more."""
        self.candidates.discard(int(self._slots["n_judged"][slots].sum()))
        self.judgments.discard(int(self._slots["n_applied"][slots].sum()))
        self._slots["n_applied"][slots] = 0  # a late judgment still asks what was seen

    def seen(self, slots: IntArray, heads: JudgmentHeads) -> NDArray[np.bool_]:
        """Whether a judgment with this id, or without one and equal, is among those of a query."""
        owners = np.repeat(np.arange(len(slots)), self._slots["n_applied"][slots])
        pool = self.judgments
        spans = span_indices(self._slots["applied_start"][slots], self._slots["n_applied"][slots])
        same = pool["hash"][spans] == heads.hashes[owners]
        if self._has_ids or heads.have_ids:
            ids = heads.ids[owners]
            same = (pool["id"][spans] == ids) & ((ids != None) | same)  # noqa: E711  # `is` is not elementwise
        found: NDArray[np.bool_] = np.bincount(owners[same], minlength=len(slots)) > 0
        return found

    def merge(self, slots: IntArray, given: GradeCodes, heads: JudgmentHeads) -> None:
        """Applies one more judgment to each query, with the grades in *given*, none withdrawn.

        By candidate, the later (timestamp, offset) wins.
        """
        table, pool = self._slots, self.candidates
        if not table["n_applied"][slots].any():
            self.replace(slots, given, 0)
            self.note(slots, heads)
            return
        counts, n_before = table["n_judged"][slots], table["n_applied"][slots]
        spans = span_indices(table["judged_start"][slots], counts)
        codes, grades, by = (pool[name][spans] for name in ("code", "grade", "by"))
        owners = np.repeat(np.arange(len(slots)), counts)
        givers = np.repeat(np.arange(len(slots)), given.counts)
        _, again, source = np.intersect1d(
            owners << 32 | codes,
            givers << 32 | given.codes,
            assume_unique=True,
            return_indices=True,
        )
        judgments = table["applied_start"][slots][owners[again]] + by[again]
        wins = self._earlier(judgments, heads, owners[again])
        won = again[wins]
        grades[won], by[won] = given.grades[source[wins]], n_before[owners[won]]
        new = np.ones(len(givers), bool)
        new[source] = False
        behind = np.argsort(np.concatenate((owners, givers[new])), kind="stable")
        merged = GradeCodes(
            counts + np.bincount(givers[new], minlength=len(slots)),
            np.concatenate((codes, given.codes[new]))[behind],
            np.concatenate((grades, given.grades[new]))[behind],
        )
        self.replace(slots, merged, np.concatenate((by, n_before[givers[new]]))[behind])
        self.note(slots, heads)

    def _earlier(
        self, judgments: IntArray, heads: JudgmentHeads, which: IntArray
    ) -> NDArray[np.bool_]:
        """Whether judgments in the pool have an earlier (timestamp, offset) than *which* heads."""
        timestamps_ms = self.judgments["timestamp_ms"][judgments]
        offsets = self.judgments["offset"][judgments]
        new_ms = heads.timestamps_ms[which]
        earlier: NDArray[np.bool_] = (timestamps_ms < new_ms) | (
            (timestamps_ms == new_ms) & (offsets < heads.offsets[which])
        )
        return earlier
