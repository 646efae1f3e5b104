"""From named candidates to ranks and judged lists: who stands where, and what it was worth.

Decided here and nowhere else: ties (candidate id descending), repeated candidates (the best
ranked counts), explicit ranks (they beat scores), unjudged candidates (they add nothing) and
judged candidates that were never ranked (they count among the relevant and in the ideal).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from evaluator.core.measures import NEVER_RANKED, JudgedLists
from evaluator.core.types import FloatArray, IntArray, RankingColumns

TOP = 3
"""How many of the first candidates of a ranker are kept for people to see."""

_Entry = TypeVar("_Entry", bound=np.generic)

_SIZE_CLASSES = (8, 32, 128, 1024, 1 << 21)
_CHUNK = 1 << 21  # pairs of candidate and judgment compared at once, to stay in cache


@dataclass(frozen=True, slots=True)
class RankedLists:
    """The order that each ranker of each ranking gave.

    `n_rankers` is `[n_rows]`. `ranks` is flat and parallel to `RankingColumns.scores`: the rank
    of every candidate, from 1; all mentions of a repeated candidate carry the rank of its best
    one. `top_codes` and `top_scores` are `[n_lists, TOP]`: codes of the first candidates, -1 past
    the end.
    """

    n_rankers: IntArray
    ranks: NDArray[np.uint16]
    top_codes: NDArray[np.int32]
    top_scores: FloatArray


def rank_lists(rankings: RankingColumns, codes: NDArray[np.int32]) -> RankedLists:
    """Ranks every list of a batch. *codes* parallels `rankings.candidate_ids`."""
    counts = rankings.candidate_counts
    n_rankers = np.fromiter(map(len, rankings.rankers), np.int64, len(rankings))
    row_of = np.repeat(np.arange(len(rankings)), n_rankers)
    lengths = counts[row_of]
    starts = np.cumsum(lengths) - lengths
    code_starts = (np.cumsum(counts) - counts)[row_of]
    ranked = RankedLists(
        n_rankers,
        np.zeros(len(rankings.scores), np.uint16),
        np.full((len(row_of), TOP), -1, np.int32),
        np.full((len(row_of), TOP), np.nan),
    )
    exact = _rows_with_repeats(codes, counts)
    exact[list(rankings.explicit_ranks)] = True
    needs_exact = exact[row_of]
    for lists in _by_size(lengths):
        tied = _rank_by_packed_keys(
            rankings.scores, codes, lists, starts[lists], lengths[lists], code_starts[lists], ranked
        )
        needs_exact[lists[tied]] = True
    first_list = np.cumsum(n_rankers) - n_rankers
    for index in np.flatnonzero(needs_exact).tolist():
        row = int(row_of[index])
        served = index == first_list[row]
        _rank_exactly(
            rankings, codes, row, index, int(starts[index]), int(code_starts[index]), served, ranked
        )
    return ranked


def _by_size(lengths: IntArray) -> Iterator[IntArray]:
    """Indices of the non-empty lists, those of similar length together."""
    smallest = 0
    for largest in _SIZE_CLASSES:
        members = np.flatnonzero((lengths > smallest) & (lengths <= largest))
        smallest = largest
        if len(members):
            yield members


def _rows_with_repeats(codes: NDArray[np.int32], counts: IntArray) -> NDArray[np.bool_]:
    repeats = np.zeros(len(counts), bool)
    starts = np.cumsum(counts) - counts
    for rows in _by_size(counts):
        width = int(counts[rows].max())
        padded, inside = _padded(codes, starts[rows], counts[rows], width)
        ordered = np.sort(np.where(inside, padded, -1 - np.arange(width)), axis=1)
        repeats[rows] = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    return repeats


def _padded(
    flat: NDArray[_Entry], starts: IntArray, lengths: IntArray, width: int
) -> tuple[NDArray[_Entry], NDArray[np.bool_]]:
    """Spans as `[n_spans, width]` and where they are inside; outside stands anything."""
    columns = np.arange(width)
    inside = columns < lengths[:, None]
    return flat.take(starts[:, None] + columns, mode="clip"), inside


def _rank_by_packed_keys(
    scores: FloatArray,
    codes: NDArray[np.int32],
    lists: IntArray,
    starts: IntArray,
    lengths: IntArray,
    code_starts: IntArray,
    ranked: RankedLists,
) -> NDArray[np.bool_]:
    """Ranks lists by score with one integer sort; returns which of them may have ties.

    A key is the score's bits in descending order with the position in the lowest bits.
    """
    width = int(lengths.max())
    padded, inside = _padded(scores, starts, lengths, width)
    position_bits = max(width - 1, 1).bit_length()
    low = (1 << position_bits) - 1
    bits = padded.view(np.int64)
    descending = ~(bits ^ ((bits >> 63) & np.int64((1 << 63) - 1)))
    keys = np.where(inside, (descending & ~low) | np.arange(width), np.int64((1 << 63) - 1))
    keys.sort(axis=1)
    high = keys >> position_bits
    tied: NDArray[np.bool_] = ((high[:, 1:] == high[:, :-1]) & inside[:, 1:]).any(axis=1)
    positions = np.where(inside, keys & low, np.arange(width))
    targets = (starts[:, None] + positions)[inside]
    ranked.ranks[targets] = np.broadcast_to(np.arange(1, width + 1), inside.shape)[inside]
    shown = min(TOP, width)
    first, there = positions[:, :shown], inside[:, :shown]
    top_codes = codes.take(code_starts[:, None] + first, mode="clip")
    top_scores = scores.take(starts[:, None] + first, mode="clip")
    ranked.top_codes[lists, :shown] = np.where(there, top_codes, -1)
    ranked.top_scores[lists, :shown] = np.where(there, top_scores, np.nan)
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
    """Ranks one list by the full rules and overwrites what stands in *ranked* for it."""
    n = int(rankings.candidate_counts[row])
    ids = rankings.candidate_ids.strings(first_id, first_id + n)
    scores = rankings.scores[start : start + n].tolist()
    explicit = rankings.explicit_ranks.get(row) if served else None
    order = exact_order(ids, [-rank for rank in explicit] if explicit is not None else scores)
    rank_of = {ids[position]: rank for rank, position in enumerate(order, start=1)}
    ranked.ranks[start : start + n] = [rank_of[candidate] for candidate in ids]
    top = order[:TOP]
    ranked.top_codes[index] = [codes[first_id + i] for i in top] + [-1] * (TOP - len(top))
    ranked.top_scores[index] = [scores[i] for i in top] + [np.nan] * (TOP - len(top))


def exact_order(candidate_ids: Sequence[str], keys: Sequence[float]) -> list[int]:
    """Positions by key descending, ties by candidate id bytes descending; the first of each id.

    >>> exact_order(["a", "b", "a"], [1.0, 1.0, 2.0])
    [2, 1]
    """
    order = sorted(
        range(len(candidate_ids)), key=lambda i: (keys[i], candidate_ids[i]), reverse=True
    )  # str sorts by code point, which is the order of UTF-8 bytes
    first_mention: dict[str, int] = {}
    for position in order:
        first_mention.setdefault(candidate_ids[position], position)
    return list(first_mention.values())


class HeldSpans(NamedTuple):
    """Where the candidates, ranks and judged candidates of some queries are: all `[n_queries]`."""

    candidate_starts: IntArray
    n_candidates: IntArray
    rank_starts: IntArray
    n_rankers: IntArray
    judged_starts: IntArray
    n_judged: IntArray


def judged_lists(
    spans: HeldSpans,
    candidate_codes: NDArray[np.int32],
    ranks: NDArray[np.uint16],
    judged_codes: NDArray[np.int32],
    judged_grades: FloatArray,
) -> Iterator[tuple[IntArray, JudgedLists]]:
    """Brings judgments and ranks together, some queries at a time.

    Yields the indices of the queries and their lists: all rankers of the first query, of the
    second, ...
    """
    cells = np.maximum(spans.n_judged, 1) * np.maximum(spans.n_candidates, 1)
    for members in _by_size(spans.n_judged):
        for queries in _by_size(np.maximum(spans.n_candidates[members], 1)):
            alike = members[queries]
            step = max(1, _CHUNK // int(cells[alike].max()))
            for first in range(0, len(alike), step):
                chunk = alike[first : first + step]
                part = HeldSpans(*(column[chunk] for column in spans))
                yield chunk, _align(part, candidate_codes, ranks, judged_codes, judged_grades)


def _align(
    spans: HeldSpans,
    candidate_codes: NDArray[np.int32],
    ranks: NDArray[np.uint16],
    judged_codes: NDArray[np.int32],
    judged_grades: FloatArray,
) -> JudgedLists:
    width = int(spans.n_judged.max())
    judged, inside = _padded(judged_codes, spans.judged_starts, spans.n_judged, width)
    grades = np.where(
        inside,
        judged_grades.take(spans.judged_starts[:, None] + np.arange(width), mode="clip"),
        0.0,
    )
    positions, found = _positions(spans, candidate_codes, judged)
    found &= inside
    query_of = np.repeat(np.arange(len(judged)), spans.n_rankers)
    list_starts = span_list_starts(spans.rank_starts, spans.n_rankers, spans.n_candidates)
    flat = list_starts[:, None] + positions[query_of]
    rank = np.where(found[query_of], ranks.take(flat, mode="clip").astype(np.int64), NEVER_RANKED)
    column_bits = max(width - 1, 1).bit_length()
    keys = (rank << column_bits) | np.arange(width)
    keys.sort(axis=1)
    columns = keys & ((1 << column_bits) - 1)
    return JudgedLists(
        ranks=keys >> column_bits,
        grades=np.take_along_axis(grades[query_of], columns, axis=1),
        ideal_grades=-np.sort(-grades, axis=1),
        n_relevant=np.count_nonzero(grades > 0, axis=1),
        query_of=query_of,
    )


def span_list_starts(starts: IntArray, n_lists: IntArray, length: IntArray) -> IntArray:
    """Starts of the lists that lie one after the other in each span: `[sum of n_lists]`."""
    which = np.arange(int(n_lists.sum())) - np.repeat(np.cumsum(n_lists) - n_lists, n_lists)
    list_starts: IntArray = np.repeat(starts, n_lists) + which * np.repeat(length, n_lists)
    return list_starts


def _positions(
    spans: HeldSpans, candidate_codes: NDArray[np.int32], judged: NDArray[np.int32]
) -> tuple[IntArray, NDArray[np.bool_]]:
    """Position of each judged candidate in its ranking, and whether it is there."""
    width = int(spans.n_candidates.max())
    if width == 0:
        return np.zeros(judged.shape, np.int64), np.zeros(judged.shape, bool)
    ranked, inside = _padded(candidate_codes, spans.candidate_starts, spans.n_candidates, width)
    same = judged[:, :, None] == np.where(inside, ranked, -1)[:, None, :]
    positions = same.argmax(axis=2)
    found = np.take_along_axis(same, positions[:, :, None], axis=2)[:, :, 0]
    return positions, found
