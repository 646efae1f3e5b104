"""Ranks of rankings, and judged lists from ranks and judgments.

The rules of explicit ranks (they take precedence over scores), of unjudged candidates (they add
nothing) and of judged candidates that were never ranked (they count as relevant and in the ideal)
are here; those of ties and repeated candidates are in `order`.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from evaluator.core.columns.table import span_indices
from evaluator.core.measures.lists import (
    NEVER_RANKED,
    BoolArray,
    JudgedLists,
    TieGroups,
    counts_of,
    descending,
    tie_bounds,
)
from evaluator.core.measures.order import exact_order, packed_order
from evaluator.core.measures.tables import decay
from evaluator.core.types.records import FloatArray, IntArray, RankingColumns, Ranks, ServedList

TOP = 3
"""Number of first candidates of a ranker that outputs show."""

_Entry = TypeVar("_Entry", bound=np.generic)

_SIZE_CLASSES = (8, 32, 128, 1024, 1 << 21)
_CHUNK = 1 << 21  # pairs of candidate and judgment compared at once: fits a cache
_CELLS = 1 << 15  # entries of lists that are sorted at once: their arrays fit a cache


class RankedLists(Struct, frozen=True):
    """Ranks by ranker of each ranking.

    `n_rankers` is `[n_rows]`. `ranks` is flat and parallel to `RankingColumns.scores`: the rank
    of every candidate, from 1; all mentions of a repeated candidate carry the rank of its best
    one. `top_codes` and `top_scores` are `[n_lists, TOP]`: codes of the first candidates, -1 past
    the end. `n_ranked` is `[n_rows]`: candidates, repeated ones counted once. `ties` are the first
    and the last rank of the tied candidates that each candidate belongs to, parallel to `ranks`.
    `served` is by row.
    """

    n_rankers: IntArray
    ranks: NDArray[np.uint16]
    top_codes: NDArray[np.int32]
    top_scores: FloatArray
    n_ranked: IntArray
    ties: tuple[NDArray[np.uint16], NDArray[np.uint16]] | None = None
    served: Mapping[int, ServedList] = field(default_factory=dict)


def rank_lists(
    rankings: RankingColumns,
    codes: NDArray[np.int32],
    n_rankers: IntArray,
    *,
    with_ties: bool = False,
) -> RankedLists:
    """Ranks every list of a batch.

    *codes* parallels `rankings.candidate_ids`, *n_rankers* is `[n_rows]`.
    """
    if rankings.ranks is not None:
        return _ranked_before(rankings, rankings.ranks, codes, n_rankers)
    counts = rankings.candidate_counts
    row_of = np.repeat(np.arange(len(rankings)), n_rankers)
    lengths = counts[row_of]
    starts = np.cumsum(lengths) - lengths
    code_starts = (np.cumsum(counts) - counts)[row_of]
    ranked = RankedLists(
        n_rankers,
        np.zeros(len(rankings.scores), np.uint16),
        np.full((len(row_of), TOP), -1, np.int32),
        np.full((len(row_of), TOP), np.nan),
        counts.copy(),
    )
    exact = _rows_with_repeats(codes, counts)
    exact[list(rankings.explicit_ranks)] = True
    needs_exact = exact[row_of]
    for lists in _in_parts(lengths):
        tied = _rank_by_packed_keys(
            rankings.scores, codes, lists, starts[lists], lengths[lists], code_starts[lists], ranked
        )
        needs_exact[lists[tied]] = True
    if with_ties:
        ranked = replace(ranked, ties=(ranked.ranks.copy(), ranked.ranks.copy()))
    first_list = np.cumsum(n_rankers) - n_rankers
    for index in np.flatnonzero(needs_exact).tolist():
        row = int(row_of[index])
        served = index == first_list[row]
        _rank_exactly(
            rankings, codes, row, index, int(starts[index]), int(code_starts[index]), served, ranked
        )
    if rankings.exposed or rankings.propensities:
        rows = sorted(rankings.exposed.keys() | rankings.propensities.keys())
        places = zip(rows, starts[first_list[rows]].tolist(), strict=True)
        served_lists = {row: _served_list(rankings, ranked, row, start) for row, start in places}
        ranked = replace(ranked, served=served_lists)
    return ranked


def _served_list(rankings: RankingColumns, ranked: RankedLists, row: int, start: int) -> ServedList:
    """Stated data in served order; a repeated candidate has those of its best mention."""
    counts = rankings.candidate_counts
    n, n_ranked = int(counts[row]), int(ranked.n_ranked[row])
    ranks = ranked.ranks[start : start + n]
    order = np.argsort(ranks, kind="stable").tolist()
    if n_ranked < n:
        first_id = int(counts[:row].sum())
        ids = rankings.candidate_ids.values(first_id, first_id + n)
        explicit = rankings.explicit_ranks.get(row)
        scores = rankings.scores[start : start + n].tolist()
        order = exact_order(ids, scores if explicit is None else [-rank for rank in explicit])
    exposed, propensities = rankings.exposed.get(row), rankings.propensities.get(row)
    if isinstance(exposed, int):
        exposed = (1 << min(exposed, n_ranked)) - 1
    elif exposed is not None:
        exposed = sum(exposed[position] << rank for rank, position in enumerate(order))
    by_rank = None if propensities is None else [propensities[position] for position in order]
    return ServedList(exposed, by_rank)


def _ranked_before(
    rankings: RankingColumns, found: Ranks, codes: NDArray[np.int32], n_rankers: IntArray
) -> RankedLists:
    """The lists of stored rankings."""
    counts = rankings.candidate_counts
    lengths = np.repeat(counts, n_rankers)
    list_of = np.repeat(np.arange(len(lengths)), lengths)
    code_of = span_indices(np.repeat(np.cumsum(counts) - counts, n_rankers), lengths)
    top_codes = np.full((len(lengths), TOP), -1, np.int32)
    shown = np.flatnonzero(found.ranks <= TOP)
    top_codes[list_of[shown], found.ranks[shown].astype(np.int64) - 1] = codes[code_of[shown]]
    tops = top_codes, found.top_scores
    return RankedLists(n_rankers, found.ranks, *tops, found.n_ranked, found.ties, found.served)


def _by_size(lengths: IntArray) -> Iterator[IntArray]:
    """Indices of the non-empty lists, grouped by similar length."""
    smallest, longest = 0, lengths.max(initial=0)
    for largest in _SIZE_CLASSES:
        if smallest >= longest:
            return
        members = np.flatnonzero((lengths > smallest) & (lengths <= largest))
        smallest = largest
        if len(members):
            yield members


def _in_parts(lengths: IntArray) -> Iterator[IntArray]:
    """As `_by_size`, up to `_CELLS` entries at a time."""
    for members in _by_size(lengths):
        step = max(1, _CELLS // int(lengths[members].max()))
        yield from (members[first : first + step] for first in range(0, len(members), step))


def _rows_with_repeats(codes: NDArray[np.int32], counts: IntArray) -> BoolArray:
    repeats = np.zeros(len(counts), bool)
    starts = np.cumsum(counts) - counts
    for rows in _in_parts(counts):
        padded, inside = _padded(codes, starts[rows], counts[rows])
        ordered = np.sort(np.where(inside, padded, -1 - np.arange(padded.shape[1])), axis=1)
        repeats[rows] = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    return repeats


def _padded(
    flat: NDArray[_Entry], starts: IntArray, lengths: IntArray
) -> tuple[NDArray[_Entry], BoolArray]:
    """Spans as `[n_spans, longest]`, and the mask of their entries; padding has any value.

    Both are column after column in memory.
    """
    columns = np.arange(lengths.max(initial=0))[:, None]
    return flat.take(starts + columns, mode="clip").T, (columns < lengths).T


def _rank_by_packed_keys(
    scores: FloatArray,
    codes: NDArray[np.int32],
    lists: IntArray,
    starts: IntArray,
    lengths: IntArray,
    code_starts: IntArray,
    ranked: RankedLists,
) -> BoolArray:
    """Ranks lists by score with one integer sort; returns which may have ties."""
    padded, inside = _padded(scores, starts, lengths)
    width = padded.shape[1]
    is_uniform = lengths.min() == width
    positions, tied = packed_order(padded, None if is_uniform else inside)
    by_rank = positions.T  # `[width, n_lists]`, in the order of the memory
    targets, ranks = starts + by_rank, np.arange(1, width + 1)[:, None]
    if is_uniform:
        ranked.ranks[targets] = ranks
    else:
        there = inside.T
        ranked.ranks[targets[there]] = np.broadcast_to(ranks, there.shape)[there]
    shown = min(TOP, width)
    first, there = by_rank[:shown], inside.T[:shown]
    top_codes = codes.take(code_starts + first, mode="clip")
    top_scores = scores.take(targets[:shown], mode="clip")
    ranked.top_codes[lists, :shown] = np.where(there, top_codes, -1).T
    ranked.top_scores[lists, :shown] = np.where(there, top_scores, np.nan).T
    return tied


def _rank_exactly(
    rankings: RankingColumns,
    codes: NDArray[np.int32],
    row: int,
    index: int,
    start: int,
    first_id: int,
    served: bool,
    ranked: RankedLists,
) -> None:
    """Ranks one list by all rules and overwrites its entries in *ranked*."""
    n = int(rankings.candidate_counts[row])
    ids = rankings.candidate_ids.values(first_id, first_id + n)
    scores = rankings.scores[start : start + n].tolist()
    explicit = rankings.explicit_ranks.get(row) if served else None
    keys = scores if explicit is None else [-rank for rank in explicit]
    order = exact_order(ids, keys)
    rank_of = {ids[position]: rank for rank, position in enumerate(order, start=1)}
    ranked.ranks[start : start + n] = [rank_of[candidate] for candidate in ids]
    top = order[:TOP]
    ranked.top_codes[index] = [codes[first_id + i] for i in top] + [-1] * (TOP - len(top))
    ranked.top_scores[index] = [scores[i] for i in top] + [np.nan] * (TOP - len(top))
    ranked.n_ranked[row] = len(order)
    if ranked.ties is not None:
        bounds = tie_bounds(np.array([[keys[position] for position in order]]))
        for part, (of_rank,) in zip(ranked.ties, bounds, strict=True):
            part[start : start + n] = of_rank[ranked.ranks[start : start + n] - 1]


class QuerySpans(NamedTuple):
    """Spans of the candidates, ranks and judged candidates of some queries: `[n_queries]` each."""

    candidate_starts: IntArray
    n_candidates: IntArray
    rank_starts: IntArray
    n_rankers: IntArray
    judged_starts: IntArray
    n_judged: IntArray
    n_ranked: IntArray
    event_ms: IntArray


class RankedPools(NamedTuple):
    """The flat columns that spans of queries point into.

    `ties` are as in `RankedLists`; `published_ms` parallels the codes, -1 for unknown times. Either
    is None if it is not used.
    """

    candidate_codes: NDArray[np.int32]
    ranks: NDArray[np.unsignedinteger]
    ties: tuple[NDArray[np.unsignedinteger], NDArray[np.unsignedinteger]] | None = None
    published_ms: IntArray | None = None


def judged_lists(
    spans: QuerySpans,
    pools: RankedPools,
    judged_codes: NDArray[np.int32],
    judged_grades: FloatArray,
    *,
    half_life_ms: int = 0,
) -> Iterator[tuple[IntArray, JudgedLists]]:
    """Judged lists of queries, some queries at a time.

    Yields the indices of the queries and their lists: all rankers of the first query, of the
    second, ... With *half_life_ms*, freshness decays with the age of a candidate.
    """
    for members in _by_size(spans.n_judged):
        for queries in _by_size(np.maximum(spans.n_candidates[members], 1)):
            alike = members[queries]
            cells = np.maximum(spans.n_judged[alike], 1) * np.maximum(spans.n_candidates[alike], 1)
            step = max(1, _CHUNK // int(cells.max()))
            for first in range(0, len(alike), step):
                chunk = alike[first : first + step]
                part = QuerySpans(*(column[chunk] for column in spans))
                yield chunk, _align(part, pools, judged_codes, judged_grades, half_life_ms)


def _align(
    spans: QuerySpans,
    pools: RankedPools,
    judged_codes: NDArray[np.int32],
    judged_grades: FloatArray,
    half_life_ms: int,
) -> JudgedLists:
    judged, inside = _padded(judged_codes, spans.judged_starts, spans.n_judged)
    width = judged.shape[1]
    grades, _ = _padded(judged_grades, spans.judged_starts, spans.n_judged)
    grades = np.where(inside, grades.astype(np.float64), 0.0)
    positions, found = _positions(spans, pools.candidate_codes, judged)
    found &= inside
    query_of = np.repeat(np.arange(len(judged)), spans.n_rankers)
    list_starts = span_list_starts(spans.rank_starts, spans.n_rankers, spans.n_candidates)
    flat = list_starts[:, None] + positions[query_of]
    is_ranked = found[query_of]
    column_bits = max(width - 1, 1).bit_length()
    keys = (_ranks_at(pools.ranks, flat, is_ranked) << column_bits) | np.arange(width)
    keys.sort(axis=1)
    keys = keys.T.copy()  # `[n_judged, n_lists]`: a column of all lists is contiguous
    columns = keys & ((1 << column_bits) - 1)
    ties = None
    if pools.ties is not None:
        bounds = (_ranks_at(bound, flat, is_ranked) for bound in pools.ties)
        ties = TieGroups(*(np.take_along_axis(bound, columns.T, axis=1) for bound in bounds))
    return JudgedLists(
        ranks=(keys >> column_bits).T,
        grades=grades.T.take(columns * len(grades) + query_of).T,
        columns=columns.T,
        n_ranked=spans.n_ranked[query_of],
        query_of=query_of,
        judged_grades=grades,
        ideal_grades=descending(grades),
        n_relevant=counts_of(grades > 0),
        freshness=_freshness(spans, pools.published_ms, positions, found, half_life_ms),
        ties=ties,
    )


def _ranks_at(pool: NDArray[np.unsignedinteger], flat: IntArray, is_ranked: BoolArray) -> IntArray:
    return np.where(is_ranked, pool.take(flat, mode="clip").astype(np.int64), NEVER_RANKED)


def _freshness(
    spans: QuerySpans,
    published_ms: IntArray | None,
    positions: IntArray,
    found: BoolArray,
    half_life_ms: int,
) -> FloatArray | None:
    """The share of the gain that each judged candidate keeps; 1 where its age is unknown."""
    if published_ms is None or not half_life_ms:
        return None
    published = published_ms.take(spans.candidate_starts[:, None] + positions, mode="clip")
    known = found & (published >= 0)
    return decay(np.where(known, spans.event_ms[:, None] - published, 0), half_life_ms)


def span_list_starts(starts: IntArray, n_lists: IntArray, length: IntArray) -> IntArray:
    """Starts of the consecutive lists in each span: `[sum of n_lists]`."""
    which = np.arange(int(n_lists.sum())) - np.repeat(np.cumsum(n_lists) - n_lists, n_lists)
    return np.repeat(starts, n_lists) + which * np.repeat(length, n_lists)


def _positions(
    spans: QuerySpans, candidate_codes: NDArray[np.int32], judged: NDArray[np.int32]
) -> tuple[IntArray, BoolArray]:
    """First position of each judged candidate in its ranking, and whether it is in the ranking."""
    ranked, inside = _padded(candidate_codes, spans.candidate_starts, spans.n_candidates)
    ranked = np.where(inside, ranked, -1).T
    n = len(ranked)
    # From the end, so that the first position has the largest number: `[n_judged, n, n_queries]`.
    from_end = np.arange(n, 0, -1, dtype=np.min_scalar_type(n))[:, None]
    last = ((judged.T[:, None] == ranked) * from_end).max(axis=1, initial=0).T.astype(np.int64)
    return n - last, last > 0


def published_ms(rankings: RankingColumns) -> IntArray:
    """Publication time of each candidate of a batch, -1 for an unknown one."""
    times = np.full(len(rankings.candidate_ids), -1, np.int64)
    ends = np.cumsum(rankings.candidate_counts)
    starts = ends - rankings.candidate_counts
    for row, published in rankings.published_ms.items():
        times[starts[row] : ends[row]] = [-1 if ms is None else ms for ms in published]
    return times
