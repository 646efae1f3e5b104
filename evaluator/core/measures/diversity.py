"""Measures of subtopics: how early a list covers the meanings of a query.

Lists are computed one by one, because subtopics are rare. The value of a query without subtopics is
NaN.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from math import nan

import numpy as np

from evaluator.core.measures.lists import WHOLE_LIST, JudgedLists, QuerySubtopics, Terms, TieGroups
from evaluator.core.measures.positions import chance_within
from evaluator.core.measures.tables import discounts, entry, powers
from evaluator.core.types.records import FloatArray

Subtopics = Sequence[int]
"""Numbers of the subtopics of one candidate, each once."""


class _Coverage:
    """Novelty gains: the sum of (1 - alpha)^(times seen above) over a candidate's subtopics.

    Terms are added from the least seen subtopic to the most seen one, so that the sum depends only
    on how often they were seen.
    """

    def __init__(self, alpha: Decimal) -> None:
        self._powers = powers(1 - alpha)
        self._seen: Counter[int] = Counter()

    def gain(self, subtopics: Subtopics) -> float:
        times = sorted(Counter(self._seen[subtopic] for subtopic in subtopics).items())
        total = 0.0
        for seen, n in times:
            total += n * entry(self._powers, seen + 1)
        return total

    def see(self, subtopics: Subtopics) -> None:
        self._seen.update(subtopics)


def alpha_ndcg(lists: JudgedLists, terms: Terms) -> FloatArray:
    """DCG of novelty gains over that of a greedy best order of all judged: `[n_lists]`.

    The greedy order takes the largest gain first, ties by candidate id descending. It is not always
    the best order, so values are at most 1.
    Source: Clarke et al. 2008, Novelty and diversity in information retrieval evaluation.
    """
    ideals = [
        nan if of_query is None else _greedy_dcg(of_query, grades, terms.parameter, terms.cutoff)
        for of_query, grades in _queries(lists)
    ]
    values = np.full(len(lists.query_of), nan)
    for index, query, relevant in _relevant_of_lists(lists, terms.cutoff):
        found = _dcg(relevant, terms.parameter)
        values[index] = min(found / ideals[query], 1.0) if ideals[query] > 0 else 0.0
    return values


def _queries(lists: JudgedLists) -> Iterable[tuple[QuerySubtopics | None, list[float]]]:
    subtopics = lists.subtopics or [None] * len(lists.n_relevant)
    return zip(subtopics, lists.judged_grades.tolist(), strict=True)


def _relevant_of_lists(
    lists: JudgedLists, cutoff: int
) -> Iterable[tuple[int, int, list[tuple[int, Subtopics]]]]:
    """Each list of a query with subtopics: list, query, and relevant candidates.

    The candidates have rank and subtopics; they are within the cutoff, in rank order.
    """
    of_queries = lists.subtopics or [None] * len(lists.n_relevant)
    counted = lists.relevant & (lists.ranks <= cutoff)
    for index, query in enumerate(lists.query_of.tolist()):
        of_query = of_queries[query]
        if of_query is None:
            continue
        columns = np.flatnonzero(counted[index])
        ranks = lists.ranks[index, columns].tolist()
        judged = lists.columns[index, columns].tolist()
        subtopics = [of_query.of_judged[column] for column in judged]
        yield index, query, list(zip(ranks, subtopics, strict=True))


def _dcg(candidates: Iterable[tuple[int, Subtopics]], alpha: Decimal) -> float:
    """Adds gain x discount from rank 1 down."""
    coverage = _Coverage(alpha)
    total = 0.0
    for rank, subtopics in candidates:
        total += coverage.gain(subtopics) * entry(discounts, rank)
        coverage.see(subtopics)
    return total


def _greedy_dcg(
    of_query: QuerySubtopics, grades: list[float], alpha: Decimal, cutoff: int
) -> float:
    """DCG of the greedy order.

    Gains only shrink, so an earlier gain is an upper bound: the candidate on top of the heap is the
    best one if its gain is current.
    """
    coverage = _Coverage(alpha)
    heap = [
        (-coverage.gain(of_query.of_judged[column]), place, column)
        for place, column in enumerate(of_query.id_order)
        if grades[column] > 0 and of_query.of_judged[column]
    ]
    heapq.heapify(heap)
    total, rank = 0.0, 1
    while heap and rank <= cutoff:
        known, place, column = heap[0]
        subtopics = of_query.of_judged[column]
        gain = coverage.gain(subtopics)
        if gain != -known:
            heapq.heapreplace(heap, (-gain, place, column))
            continue
        heapq.heappop(heap)
        total += gain * entry(discounts, rank)
        coverage.see(subtopics)
        rank += 1
    return total


def subtopic_recall(lists: JudgedLists, terms: Terms) -> FloatArray:
    """Share of the subtopics of relevant candidates that are within the cutoff: `[n_lists]`.

    Source: Zhai et al. 2003, Beyond independent relevance.
    """
    wanted = [
        len({s for of, g in zip(of_query.of_judged, grades, strict=False) if g > 0 for s in of})
        if of_query
        else 0
        for of_query, grades in _queries(lists)
    ]
    values = np.full(len(lists.query_of), nan)
    if lists.ties is not None:
        return _expected_recall(lists, lists.ties, terms.cutoff, wanted, values)
    for index, query, relevant in _relevant_of_lists(lists, terms.cutoff):
        seen = {subtopic for _, subtopics in relevant for subtopic in subtopics}
        values[index] = len(seen) / wanted[query] if wanted[query] else 0.0
    return values


def _expected_recall(
    lists: JudgedLists, ties: TieGroups, cutoff: int, wanted: list[int], values: FloatArray
) -> FloatArray:
    """The mean over tied candidates: the sum of the probabilities that each subtopic is seen."""
    owners, groups = [], []
    for index, query, relevant in _relevant_of_lists(lists, WHOLE_LIST):
        values[index] = 0.0
        place_of = dict(zip(lists.ranks[index].tolist(), range(lists.ranks.shape[1]), strict=True))
        counts: dict[int, tuple[int, int, int]] = {}  # first rank and size of a group, how many
        for rank, subtopics in relevant:
            first = int(ties.firsts[index, place_of[rank]])
            size = int(ties.sizes[index, place_of[rank]])
            for subtopic in subtopics:
                its_first, its_size, n = counts.get(subtopic, (first, size, 0))
                counts[subtopic] = (its_first, its_size, n + (its_first == first))
        groups += sorted(counts.values())
        owners += [(index, query)] * len(counts)
    if groups:
        first, size, inside = np.array(groups).T
        chances = chance_within(first, size, inside, cutoff)
        for (index, query), chance in zip(owners, chances.tolist(), strict=True):
            values[index] += chance / wanted[query]
    return values
