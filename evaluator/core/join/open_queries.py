"""The open queries: everything known of each ranking and its judgments, in columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evaluator.core.columns.dictionary_column import DictionaryColumn
from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interner import Interner
from evaluator.core.columns.table import SlotTable, SpanPool, span_indices
from evaluator.core.join.applied import Merged
from evaluator.core.join.judgments import GradeCodes, JudgedCandidates
from evaluator.core.join.strata import Strata
from evaluator.core.join.subtopics import Subtopics, given_subtopics
from evaluator.core.join.training_data import OFFERED_COLUMNS, Offered
from evaluator.core.measures.align import (
    TOP,
    QuerySpans,
    RankedLists,
    RankedPools,
    published_ms,
    rank_lists,
)
from evaluator.core.types.records import FloatArray, IntArray, Key, RankingColumns

_SLOT_COLUMNS: Mapping[str, DTypeLike] = {
    "key": object,
    "query": object,
    "stratum": np.int32,
    "event_ms": np.int64,
    "named_ms": np.int64,  # latest event time at which the log named the key
    "offset": np.int64,
    "hash": "V16",  # of the latest well-formed ranking of the key
    "n_candidates": np.int64,
    "n_ranked": np.int64,  # candidates, repeated ones counted once
    "candidate_start": np.int64,
    "rank_start": np.int64,
    "top_start": np.int64,
    "revision": np.int64,
    "judged_start": np.int64,
    "n_judged": np.int64,
    "judgment_event_ms": np.int64,  # of the first applied judgment
    "applied_start": np.int64,
    "n_applied": np.int64,  # judgments kept in columns: all that are applied, or none
    "result_start": np.int64,  # -1: no value
    "open": np.bool_,
    "graded": np.bool_,  # counted as a query with running grades
    "settled": np.bool_,
    **OFFERED_COLUMNS,
}


_NOTHING: Mapping[str, object] = {
    "query": None,
    **dict.fromkeys(("stratum", "n_candidates", "n_ranked", "revision", "n_judged"), 0),
    **dict.fromkeys(("candidate_start", "rank_start", "top_start", "judged_start"), 0),
    **dict.fromkeys(("applied_start", "n_applied"), 0),
    "result_start": -1,
    "open": False,
    "graded": False,
    "settled": True,
}
"""Columns of a query of which nothing is needed but its name."""

_SLOT_BYTES = 900
"""About what a slot takes besides the pools: columns, keys, texts, entries of dicts."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Rankings of one batch, ranked; arrays are `[n_rows]`, apart from `codes`.

    `codes` and `ranked` are laid out as the lists of `rankings` are.
    """

    rankings: RankingColumns
    keys: list[Key]
    event_times_ms: IntArray
    strata: NDArray[np.int32]
    codes: NDArray[np.int32]
    ranked: RankedLists


class OpenQueries:
    """Slots of queries, with their candidates, ranks, judged candidates and results in pools.

    A query is open from `hold` to `forget`; its key stays known until `release`. What only some
    measures need is kept if they are asked for: *ties*, *published* times, *subtopics*; and what
    can be learned from, *offers*.
    """

    _CODES_BEFORE_CLEANING = 1 << 20

    def __init__(
        self,
        *,
        n_measures: int,
        ties: bool = False,
        published: bool = False,
        subtopics: bool = False,
        offers: bool = False,
    ) -> None:
        self.slots = SlotTable(_SLOT_COLUMNS)
        self.offered = Offered(self.slots) if offers else None
        self.strata = Strata()
        self.codes = Interner()
        self.n_measures = n_measures
        self.has_subtopics = subtopics
        self.subtopics: dict[int, Subtopics] = {}  # of rankings, by slot
        self._has_ties = ties
        self._has_published = published
        self._candidates = SpanPool(
            {"code": np.int32, "published_ms": np.int64} if published else {"code": np.int32}
        )
        bounds = {"first": np.uint16, "last": np.uint16} if ties else {}
        self._ranks = SpanPool({"rank": np.uint16, **bounds})
        self._tops = SpanPool({"code": np.int32, "score": np.float64})
        self.judged = JudgedCandidates(self.slots)
        self._results = SpanPool({"units": np.int64})
        self._clean_codes_at = self._CODES_BEFORE_CLEANING

    def arrive(
        self, rankings: RankingColumns, keys: list[Key], event_times_ms: IntArray
    ) -> Arrivals:
        """Ranks a batch, whichever of its rows are open later."""
        codes = self.codes.of_column(rankings.candidate_ids)
        return Arrivals(
            rankings=rankings,
            keys=keys,
            event_times_ms=event_times_ms,
            strata=self.strata.of(rankings),
            codes=codes,
            ranked=rank_lists(rankings, codes, with_ties=self._has_ties),
        )

    def hold(self, arrivals: Arrivals, rows: IntArray) -> IntArray:
        """Starts a query for each of *rows*: their slots, `[n_rows]`."""
        rankings = arrivals.rankings
        chosen = rows.tolist()
        slots = self.slots.allocate(len(rows))
        table = self.slots
        keys = (arrivals.keys[row] for row in chosen)
        table["key"][slots] = np.fromiter(keys, object, len(rows))
        table["query"][slots] = [rankings.queries[row] for row in chosen]
        table["stratum"][slots] = arrivals.strata[rows]
        table["event_ms"][slots] = arrivals.event_times_ms[rows]
        table["named_ms"][slots] = arrivals.event_times_ms[rows]
        table["offset"][slots] = rankings.offsets[rows]
        table["hash"][slots] = np.frombuffer(b"".join(rankings.hashes), "V16")[rows]
        for column in ("revision", "judged_start", "n_judged", "applied_start", "n_applied"):
            table[column][slots] = 0
        table["result_start"][slots] = -1
        table["graded"][slots] = table["settled"][slots] = False
        table["open"][slots] = True
        self._hold_lists(slots, arrivals, rows)
        if self.offered is not None:
            self.offered.hold(slots, rankings, rows)
        if self.has_subtopics and rankings.subtopics:
            for slot, row in zip(slots.tolist(), chosen, strict=True):
                if row in rankings.subtopics:
                    self.subtopics[slot] = given_subtopics(rankings.subtopics[row])
        return slots

    def _hold_lists(self, slots: IntArray, arrivals: Arrivals, rows: IntArray) -> None:
        ranked, table = arrivals.ranked, self.slots
        counts, n_rankers = arrivals.rankings.candidate_counts, ranked.n_rankers
        everything = len(rows) == len(arrivals.keys)

        def chosen(lengths: IntArray) -> IntArray | slice:
            if everything:
                return slice(None)
            return span_indices((np.cumsum(lengths) - lengths)[rows], lengths[rows])

        table["n_candidates"][slots] = counts[rows]
        table["n_ranked"][slots] = ranked.n_ranked[rows]
        of_candidate = chosen(counts)
        candidates: dict[str, NDArray[np.generic]] = {"code": arrivals.codes[of_candidate]}
        if self._has_published:
            candidates["published_ms"] = published_ms(arrivals.rankings)[of_candidate]
        table["candidate_start"][slots] = self._candidates.append(counts[rows], **candidates)
        lengths = counts * n_rankers
        of_rank = chosen(lengths)
        ranks: dict[str, NDArray[np.generic]] = {"rank": ranked.ranks[of_rank]}
        if ranked.ties is not None:
            ranks |= {"first": ranked.ties[0][of_rank], "last": ranked.ties[1][of_rank]}
        table["rank_start"][slots] = self._ranks.append(lengths[rows], **ranks)
        of_row = chosen(n_rankers)
        table["top_start"][slots] = self._tops.append(
            n_rankers[rows] * TOP,
            code=ranked.top_codes[of_row].reshape(-1),
            score=ranked.top_scores[of_row].reshape(-1),
        )

    def hold_names(self, keys: Sequence[Key], named: NDArray[np.void]) -> IntArray:
        """Knows expired queries by nothing but their names, `NAMED_QUERY`: their slots."""
        slots = self.slots.allocate(len(keys))
        table = self.slots
        for column, values in _NOTHING.items():
            table[column][slots] = values
        table["key"][slots] = np.fromiter(keys, object, len(keys))
        for column in named.dtype.names or ():
            table[column][slots] = named[column]
        return slots

    def coded(self, grades: GradeColumns) -> GradeCodes:
        """The same grades by code of the candidate."""
        return GradeCodes(grades.counts, self.codes.of_column(grades.candidates), grades.grades)

    def n_rankers(self, slots: IntArray) -> IntArray:
        """How many rankers each query has: `[n_queries]`."""
        counts: IntArray = self.strata.n_rankers[self.slots["stratum"][slots]]
        return counts

    def result_lengths(self, slots: IntArray) -> IntArray:
        """Entries of a result: per ranker the units of each measure, then the first rank."""
        return self.n_rankers(slots) * (self.n_measures + 1)

    def results(self, slots: IntArray) -> IntArray:
        """Results of queries that have one, flat: see `result_lengths`."""
        spans = span_indices(self.slots["result_start"][slots], self.result_lengths(slots))
        units: IntArray = self._results["units"][spans]
        return units

    def set_results(self, slots: IntArray, results: IntArray) -> None:
        """Replaces the results of queries, given flat; `drop_results` the old ones first."""
        self.slots["result_start"][slots] = self._results.append(
            self.result_lengths(slots), units=results
        )

    def drop_results(self, slots: IntArray) -> None:
        """Takes the value away from queries that have one."""
        self._results.discard(int(self.result_lengths(slots).sum()))
        self.slots["result_start"][slots] = -1

    def spans(self, slots: IntArray) -> QuerySpans:
        """Where everything of these queries is, for `judged_lists`."""
        table = self.slots
        return QuerySpans(
            table["candidate_start"][slots],
            table["n_candidates"][slots],
            table["rank_start"][slots],
            self.n_rankers(slots),
            table["judged_start"][slots],
            table["n_judged"][slots],
            table["n_ranked"][slots],
            table["event_ms"][slots],
        )

    def spans_of_grades(
        self, slots: IntArray, grades: GradeColumns
    ) -> tuple[QuerySpans, NDArray[np.int32], FloatArray]:
        """As `spans`, but for other grades than the running ones; their codes and grades, flat."""
        codes = self.coded(grades).codes
        starts = np.cumsum(grades.counts) - grades.counts
        spans = self.spans(slots)._replace(judged_starts=starts, n_judged=grades.counts)
        return spans, codes, grades.grades

    @property
    def pools(self) -> RankedPools:
        """Candidates and ranks, flat."""
        return RankedPools(
            self._candidates["code"],
            self._ranks["rank"],
            (self._ranks["first"], self._ranks["last"]) if self._has_ties else None,
            self._candidates["published_ms"] if self._has_published else None,
        )

    @property
    def judged_codes(self) -> NDArray[np.int32]:
        return self.judged.candidates["code"]

    @property
    def judged_grades(self) -> FloatArray:
        return self.judged.candidates["grade"]

    def merged_at(self, slot: int) -> Merged:
        """Running grades of one query, with the timestamp and offset of their judgments."""
        judged, names = self.judged, self.codes.values_by_number
        stamps = [(timestamp_ms, offset) for _, _, timestamp_ms, offset in judged.heads_at(slot)]
        first = int(self.slots["judged_start"][slot])
        span = slice(first, first + int(self.slots["n_judged"][slot]))
        columns = (judged.candidates[name][span].tolist() for name in ("code", "by", "grade"))
        return {names[code]: (*stamps[by], grade) for code, by, grade in zip(*columns, strict=True)}

    def grades_of(self, slots: IntArray) -> GradeColumns:
        """Running grades, in order of application."""
        counts = self.slots["n_judged"][slots]
        spans = span_indices(self.slots["judged_start"][slots], counts)
        candidates = DictionaryColumn(self.codes.values_by_number, self.judged_codes[spans])
        return GradeColumns(counts, candidates, self.judged_grades[spans])

    def n_top(self, slots: IntArray) -> IntArray:
        """How many candidates stand in the tops of each query, the same for all its rankers."""
        first = self.slots["top_start"][slots]
        counts = np.zeros(len(slots), np.int64)
        for place in range(TOP):
            counts += self._tops["code"].take(first + place, mode="clip") >= 0
        return counts

    def tops_of(self, slots: IntArray, *, n_top: int) -> tuple[list[str], list[float | None]]:
        """Ids and scores of the first *n_top* of each ranker, flat.

        All queries have as many, and as many rankers.
        """
        rankers = np.arange(self.n_rankers(slots[:1])[0]) * TOP
        places = (rankers[:, None] + np.arange(n_top)).reshape(-1)
        spans = (self.slots["top_start"][slots][:, None] + places).reshape(-1)
        found = self._tops["score"][spans]
        scores: list[float | None] = found.tolist()
        for position in np.flatnonzero(np.isnan(found)).tolist():
            scores[position] = None
        return self.codes.of_numbers(self._tops["code"][spans]), scores

    def expire(self, slots: IntArray) -> None:
        """Frees all but what is needed to know the keys."""
        table = self.slots
        n_candidates, n_rankers = table["n_candidates"][slots], self.n_rankers(slots)
        self._candidates.discard(int(n_candidates.sum()))
        self._ranks.discard(int((n_candidates * n_rankers).sum()))
        self._tops.discard(int(n_rankers.sum()) * TOP)
        self.judged.discard(slots)
        if self.offered is not None:
            self.offered.drop(slots)
        self.drop_results(slots[table["result_start"][slots] >= 0])
        table["query"][slots] = None
        if self.subtopics:
            for slot in slots.tolist():
                self.subtopics.pop(slot, None)

    def release(self, slots: IntArray) -> None:
        """Gives the slots of expired queries back."""
        self.slots.release(slots)

    @property
    def n_bytes(self) -> int:
        """About how much memory the queries take."""
        judged = self.judged.candidates, self.judged.judgments
        pools = (self._candidates, self._ranks, self._tops, *judged, self._results)
        offered = 0 if self.offered is None else self.offered.n_bytes
        return len(self.slots) * _SLOT_BYTES + offered + sum(pool.n_bytes for pool in pools)

    def tidy(self) -> None:
        """Moves what the open queries need together where a pool has become wasteful."""
        if self.offered is not None:
            self.offered.tidy()
        if not self._wasteful:
            return
        table = self.slots
        open_slots = np.flatnonzero(table["open"])
        n_rankers = self.n_rankers(open_slots)
        n_candidates = table["n_candidates"][open_slots]
        valued = open_slots[table["result_start"][open_slots] >= 0]
        for pool, column, slots, lengths in (
            (self._candidates, "candidate_start", open_slots, n_candidates),
            (self._ranks, "rank_start", open_slots, n_candidates * n_rankers),
            (self._tops, "top_start", open_slots, n_rankers * TOP),
            (self.judged.candidates, "judged_start", open_slots, table["n_judged"][open_slots]),
            (self.judged.judgments, "applied_start", open_slots, table["n_applied"][open_slots]),
            (self._results, "result_start", valued, self.result_lengths(valued)),
        ):
            if pool.wasteful:
                table[column][slots] = pool.compact(table[column][slots], lengths)
        if len(self.codes.values_by_number) > self._clean_codes_at:
            self._clean_codes(open_slots)

    @property
    def _wasteful(self) -> bool:
        pools = (self._candidates, self._ranks, self._tops, self._results)
        return (
            any(pool.wasteful for pool in (*pools, self.judged.candidates, self.judged.judgments))
            or len(self.codes.values_by_number) > self._clean_codes_at
        )

    def _clean_codes(self, open_slots: IntArray) -> None:
        """Forgets candidate ids that no open query mentions."""
        table = self.slots
        compacted = (
            (self._candidates, "candidate_start", table["n_candidates"][open_slots]),
            (self._tops, "top_start", self.n_rankers(open_slots) * TOP),
            (self.judged.candidates, "judged_start", table["n_judged"][open_slots]),
        )
        live = []
        for pool, column, lengths in compacted:
            table[column][open_slots] = pool.compact(table[column][open_slots], lengths)
            live.append(pool["code"][: int(lengths.sum())])
        used = np.unique(np.concatenate(live))
        used = used[used >= 0]
        old, self.codes = self.codes.values_by_number, Interner()
        new_code = np.full(len(old) + 1, -1, np.int32)  # the last entry answers for -1
        new_code[used] = self.codes.of((old[code] for code in used.tolist()), len(used))
        for codes in live:
            codes[:] = new_code[codes]
        self._clean_codes_at = max(self._CODES_BEFORE_CLEANING, 2 * len(used))
