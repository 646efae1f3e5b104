"""The table of open queries: rankings, judgments and results in columns."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import DTypeLike, NDArray

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn, Interner
from evaluator.core.columns.key_hashes import KeyHashes
from evaluator.core.columns.table import RaggedColumns, RowTable, span_indices, spans_of
from evaluator.core.join.judgments import GradeCodes, JudgedCandidates, Merged
from evaluator.core.join.query_texts import TEXT_COLUMNS, QueryTexts
from evaluator.core.join.row_index import KEY_COLUMNS, RowIndex
from evaluator.core.join.stated import LEVEL_COLUMNS, Stated
from evaluator.core.join.strata import Strata
from evaluator.core.join.subtopics import Subtopics, given_subtopics
from evaluator.core.join.tiers import Event, Tier, after
from evaluator.core.join.training_data import OFFERED_COLUMNS, Offered
from evaluator.core.measures.align import (
    TOP,
    QuerySpans,
    RankedLists,
    RankedPools,
    published_ms,
    rank_lists,
)
from evaluator.core.types.records import FloatArray, IntArray, RankingColumns

_COLUMNS: Mapping[str, DTypeLike] = {
    **KEY_COLUMNS,
    **TEXT_COLUMNS,
    "stratum": np.int32,
    "event_ms": np.int64,
    "named_ms": np.int64,  # event time of the latest ranking of the key
    "offset": np.int64,
    "hash": "V16",  # of the latest well-formed ranking of the key
    "n_candidates": np.int16,
    "n_ranked": np.int16,  # candidates, repeated ones counted once
    "candidate_start": np.int32,
    "rank_start": np.int32,
    "top_start": np.int32,
    "revision": np.int16,
    "judged_start": np.int32,
    "n_judged": np.int16,
    "judgment_event_ms": np.int64,  # of the first applied judgment
    "applied_start": np.int32,
    "n_applied": np.int16,  # judgments in columns: all applied ones, or none
    "result_start": np.int32,  # -1: no value
    "tier": np.uint8,  # `Tier`; GONE for a free row
    "open": np.bool_,
    "uncommitted": np.bool_,  # started since the last commit
    "graded": np.bool_,  # counted as a query with running grades
    "settled": np.bool_,
}


_NEW: Mapping[str, object] = {
    **dict.fromkeys(("revision", "judged_start", "n_judged", "applied_start", "n_applied"), 0),
    "result_start": -1,
    "uncommitted": False,
    "graded": False,
}
_EXPIRED: Mapping[str, object] = {
    **dict.fromkeys(("stratum", "n_candidates", "n_ranked"), 0),
    **dict.fromkeys(("candidate_start", "rank_start", "top_start"), 0),
    **dict.fromkeys(TEXT_COLUMNS, 0),
    "settled": True,
    "open": False,
}
"""Columns of a query that only reserves its key, in addition to those of `_NEW`."""

_ROW_BYTES = 320
"""Approximate memory of a row without the pools: columns, index, timers."""


class Arrivals(Struct, frozen=True):
    """Rankings of one batch; arrays are `[n_rows]`, except `codes`, parallel to the ids."""

    rankings: RankingColumns
    keys: KeyHashes
    event_times_ms: IntArray
    strata: NDArray[np.int32]
    codes: NDArray[np.int32]
    ranked: RankedLists


class JudgedQueries(NamedTuple):
    """Judged queries: the spans of their lists, and flat columns of grades."""

    spans: QuerySpans
    codes: NDArray[np.int32]
    grades: FloatArray

    def picked(self, queries: IntArray | NDArray[np.bool_]) -> "JudgedQueries":
        """Some of the queries."""
        spans = QuerySpans(*(column[queries] for column in self.spans))
        return self._replace(spans=spans)


class OpenQueries:
    """Rows of queries, with their candidates, ranks, judged candidates and results in pools.

    A query is open from `start` to `expire`, and has a row until `free`. Columns of *ties*,
    *published* times, *subtopics*, training data (*offers*) and levels (*segments*) are optional.
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
        segments: bool = False,
    ) -> None:
        optional = {**(OFFERED_COLUMNS if offers else {}), **(LEVEL_COLUMNS if segments else {})}
        self.table = RowTable({**_COLUMNS, **optional})
        self.stated = Stated(self.table, segments=segments)
        self.offered = Offered(self.table) if offers else None
        self.strata = Strata()
        self.index = RowIndex(self.table)
        self.codes = Interner()
        self.n_measures = n_measures
        self.has_subtopics = subtopics
        self.subtopics: dict[int, Subtopics] = {}  # of rankings, by row
        self._has_ties = ties
        self._has_published = published
        times = {"published_ms": np.int64} if published else {}
        self._candidates = RaggedColumns({"code": np.int16, **times})
        bounds = {"first": np.uint8, "last": np.uint8} if ties else {}
        self._ranks = RaggedColumns({"rank": np.uint8, **bounds})
        self._tops = RaggedColumns({"code": np.int16, "score": np.float64})
        self.judged = JudgedCandidates(self.table)
        self._results = RaggedColumns({"units": np.int64})
        self.texts = QueryTexts(self.table)
        self._clean_codes_at = self._CODES_BEFORE_CLEANING

    def arrive(
        self, rankings: RankingColumns, keys: KeyHashes, event_times_ms: IntArray
    ) -> Arrivals:
        """Ranks the candidates of a batch."""
        codes, strata = self.codes.of_column(rankings.candidate_ids), self.strata.of(rankings)
        n_rankers = self.strata.n_rankers[strata]
        return Arrivals(
            rankings=rankings,
            keys=keys,
            event_times_ms=event_times_ms,
            strata=strata,
            codes=codes,
            ranked=rank_lists(rankings, codes, n_rankers, with_ties=self._has_ties),
        )

    def _allocate(self, keys: KeyHashes, event: Event) -> IntArray:
        rows = self.table.allocate(len(keys))
        for column, values in _NEW.items():
            self.table[column][rows] = values
        self.table["key"][rows] = keys
        before = self.table["tier"][rows] if event == "start" else np.uint8(Tier.DISK)
        self.table["tier"][rows] = after(event, np.broadcast_to(before, len(rows)))
        return rows

    def free(self, rows: IntArray, event: Event) -> None:
        """Frees the rows of queries that are evicted or released."""
        after(event, self.table["tier"][rows])
        self.table["tier"][rows] = Tier.GONE
        self.table["uncommitted"][rows] = False
        self.table.release(rows)

    def start(self, arrivals: Arrivals, records: IntArray, event: Event = "start") -> IntArray:
        """Starts or loads a query for each of *records*; returns their rows, `[n_records]`."""
        rankings, table = arrivals.rankings, self.table
        rows = self._allocate(arrivals.keys[records], event)
        self.texts.add(rows, rankings.texts.picked(records))
        table["stratum"][rows] = arrivals.strata[records]
        table["event_ms"][rows] = arrivals.event_times_ms[records]
        table["named_ms"][rows] = arrivals.event_times_ms[records]
        table["offset"][rows] = rankings.offsets[records]
        table["hash"][rows] = rankings.hashes[records]
        table["settled"][rows] = False
        table["open"][rows] = True
        self._add_lists(rows, arrivals, records)
        self.stated.add(rows, rankings, arrivals.ranked.served, records)
        if self.offered is not None:
            self.offered.add(rows, rankings, records)
        if self.has_subtopics and rankings.subtopics:
            for row, record in zip(rows.tolist(), records.tolist(), strict=True):
                if record in rankings.subtopics:
                    self.subtopics[row] = given_subtopics(rankings.subtopics[record])
        return rows

    def _add_lists(self, rows: IntArray, arrivals: Arrivals, records: IntArray) -> None:
        ranked, table = arrivals.ranked, self.table
        counts, n_rankers = arrivals.rankings.candidate_counts, ranked.n_rankers
        table["n_candidates"][rows] = counts[records]
        table["n_ranked"][rows] = ranked.n_ranked[records]
        of_candidate = spans_of(records, counts)
        candidates: dict[str, NDArray[np.generic]] = {"code": arrivals.codes[of_candidate]}
        if self._has_published:
            candidates["published_ms"] = published_ms(arrivals.rankings)[of_candidate]
        table["candidate_start"][rows] = self._candidates.append(counts[records], **candidates)
        lengths = counts * n_rankers
        of_rank = spans_of(records, lengths)
        ranks: dict[str, NDArray[np.generic]] = {"rank": ranked.ranks[of_rank]}
        if ranked.ties is not None:
            ranks |= {"first": ranked.ties[0][of_rank], "last": ranked.ties[1][of_rank]}
        table["rank_start"][rows] = self._ranks.append(lengths[records], **ranks)
        of_record = spans_of(records, n_rankers)
        table["top_start"][rows] = self._tops.append(
            n_rankers[records] * TOP,
            code=ranked.top_codes[of_record].reshape(-1),
            score=ranked.top_scores[of_record].reshape(-1),
        )

    def load_expired(self, keys: KeyHashes, named: NDArray[np.void], event: Event) -> IntArray:
        """Loads the keys of expired queries, `KEY_VERSION`; returns their rows."""
        rows = self._allocate(keys, event)
        for column, values in _EXPIRED.items():
            self.table[column][rows] = values
        for column in named.dtype.names or ():
            self.table[column][rows] = named[column]
        return rows

    def coded(self, grades: GradeColumns) -> GradeCodes:
        """Grades by code of the candidate."""
        return GradeCodes(grades.counts, self.codes.of_column(grades.candidates), grades.grades)

    def n_rankers(self, rows: IntArray) -> IntArray:
        """Number of rankers of each query: `[n_queries]`."""
        counts: IntArray = self.strata.n_rankers[self.table["stratum"][rows]]
        return counts

    def result_lengths(self, rows: IntArray) -> IntArray:
        """Entries of a result: per ranker the units of each measure, then the first rank."""
        return self.n_rankers(rows) * (self.n_measures + 1)

    def results(self, rows: IntArray) -> IntArray:
        """Results of queries with a value, flat: see `result_lengths`."""
        spans = span_indices(self.table["result_start"][rows], self.result_lengths(rows))
        units: IntArray = self._results["units"][spans]
        return units

    def set_results(self, rows: IntArray, results: IntArray) -> None:
        """Sets the results of queries without one, given flat."""
        self.table["result_start"][rows] = self._results.append(
            self.result_lengths(rows), units=results
        )

    def drop_results(self, rows: IntArray) -> None:
        """Discards the results of queries with a value."""
        self._results.discard(int(self.result_lengths(rows).sum()))
        self.table["result_start"][rows] = -1

    def judged_of(self, rows: IntArray) -> JudgedQueries:
        """Running grades of queries."""
        table, judged = self.table, self.judged.candidates
        columns = (
            *(table["candidate_start"], table["n_candidates"], table["rank_start"]),
            *(table["judged_start"], table["n_judged"], table["n_ranked"], table["event_ms"]),
        )
        first, n, ranks, *others = (column[rows].astype(np.int64) for column in columns)
        spans = QuerySpans(first, n, ranks, self.n_rankers(rows), *others)
        return JudgedQueries(spans, judged["code"], judged["grade"])

    def judged_by(self, rows: IntArray, grades: GradeColumns) -> JudgedQueries:
        """Other grades of queries."""
        starts = np.cumsum(grades.counts) - grades.counts
        spans = self.judged_of(rows).spans
        spans = spans._replace(judged_starts=starts, n_judged=grades.counts)
        return JudgedQueries(spans, self.coded(grades).codes, grades.grades)

    @property
    def pools(self) -> RankedPools:
        """Candidates and ranks, flat."""
        return RankedPools(
            self._candidates["code"],
            self._ranks["rank"],
            (self._ranks["first"], self._ranks["last"]) if self._has_ties else None,
            self._candidates["published_ms"] if self._has_published else None,
        )

    def merged_at(self, row: int) -> Merged:
        """Running grades of one query, with the timestamp and offset of their judgments."""
        judged, names = self.judged, self.codes.values_by_number
        stamps = [(timestamp_ms, offset) for _, _, timestamp_ms, offset in judged.heads_at(row)]
        first = int(self.table["judged_start"][row])
        span = slice(first, first + int(self.table["n_judged"][row]))
        columns = (judged.candidates[name][span].tolist() for name in ("code", "by", "grade"))
        return {names[code]: (*stamps[by], grade) for code, by, grade in zip(*columns, strict=True)}

    def grades_of(self, rows: IntArray) -> GradeColumns:
        """Running grades, in order of application."""
        counts = self.table["n_judged"][rows]
        spans = span_indices(self.table["judged_start"][rows], counts)
        judged = self.judged.candidates
        candidates = DictionaryColumn(self.codes.values_by_number, judged["code"][spans])
        return GradeColumns(counts, candidates, judged["grade"][spans].astype(np.float64))

    def n_top(self, rows: IntArray) -> IntArray:
        """Number of candidates in each top of a query, equal for all its rankers: `[n_queries]`."""
        first = self.table["top_start"][rows]
        counts = np.zeros(len(rows), np.int64)
        for place in range(TOP):
            counts += self._tops["code"].take(first + place, mode="clip") >= 0
        return counts

    def tops_of(self, rows: IntArray, *, n_top: int) -> tuple[DictionaryColumn, FloatArray]:
        """Ids and scores of the first *n_top* of each ranker, flat; with the same rankers."""
        rankers = np.arange(self.n_rankers(rows[:1])[0]) * TOP
        places = (rankers[:, None] + np.arange(n_top)).reshape(-1)
        spans = (self.table["top_start"][rows][:, None] + places).reshape(-1)
        ids = DictionaryColumn(self.codes.values_by_number, self._tops["code"][spans])
        return ids, self._tops["score"][spans]

    def drop_settled(self, rows: IntArray) -> None:
        """Discards data of settled queries that only settling reads."""
        self.stated.drop(rows)
        if self.offered is not None:
            self.offered.drop(rows)

    def expire(self, rows: IntArray) -> None:
        """Frees all columns of expired queries except their rows."""
        table = self.table
        n_candidates, n_rankers = table["n_candidates"][rows], self.n_rankers(rows)
        self._candidates.discard(int(n_candidates.sum()))
        self._ranks.discard(int((n_candidates * n_rankers).sum()))
        self._tops.discard(int(n_rankers.sum()) * TOP)
        self.judged.discard(rows)
        self.drop_settled(rows)
        self.drop_results(rows[table["result_start"][rows] >= 0])
        self.texts.discard(rows)
        if self.subtopics:
            for row in rows.tolist():
                self.subtopics.pop(row, None)

    @property
    def _pools(self) -> tuple[RaggedColumns, ...]:
        with_codes = self._candidates, self._tops, self.judged.candidates
        return (*with_codes, self._ranks, self.judged.judgments, self._results, self.texts.pool)

    @property
    def n_bytes(self) -> int:
        """Approximate memory of the queries in bytes."""
        others = self.stated.n_bytes + (0 if self.offered is None else self.offered.n_bytes)
        return len(self.table) * _ROW_BYTES + others + sum(pool.n_bytes for pool in self._pools)

    def tidy(self) -> None:
        """Compacts pools that waste memory, and drops ids of candidates without a query."""
        self.stated.tidy()
        if self.offered is not None:
            self.offered.tidy()
        crowded = len(self.codes.values_by_number) > self._clean_codes_at
        if not crowded and not any(pool.wasteful for pool in self._pools):
            return
        table = self.table
        rows = np.flatnonzero(table["open"])
        valued = rows[table["result_start"][rows] >= 0]
        n_rankers, n_candidates = self.n_rankers(rows), table["n_candidates"][rows]
        live = []
        for pool, column, of_rows, lengths in (
            (self._candidates, "candidate_start", rows, n_candidates),
            (self._tops, "top_start", rows, n_rankers * TOP),
            (self.judged.candidates, "judged_start", rows, table["n_judged"][rows]),
            (self._ranks, "rank_start", rows, n_candidates * n_rankers),
            (self.judged.judgments, "applied_start", rows, table["n_applied"][rows]),
            (self._results, "result_start", valued, self.result_lengths(valued)),
            (self.texts.pool, "text_start", rows, self.texts.of(rows).n_words),
        ):
            cleaned = crowded and pool in self._pools[:3]
            if pool.wasteful or cleaned:
                table[column][of_rows] = pool.compact(table[column][of_rows], lengths)
            if cleaned:
                live.append(pool["code"][: int(lengths.sum())])
        if crowded:
            self._clean_codes(live)

    def _clean_codes(self, live: Sequence[NDArray[np.int32]]) -> None:
        """Replaces the *live* codes by those of a new interner with only their candidate ids."""
        used = np.unique(np.concatenate(live))
        used = used[used >= 0]
        old, self.codes = self.codes.values_by_number, Interner()
        new_code = np.full(len(old) + 1, -1, np.int32)  # the last entry is that of -1
        new_code[used] = self.codes.of((old[code] for code in used.tolist()), len(used))
        for codes in live:
            codes[:] = new_code[codes]
        self._clean_codes_at = max(self._CODES_BEFORE_CLEANING, 2 * len(used))
