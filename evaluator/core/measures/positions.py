"""Weights of the ranks of judged candidates: exact, or the mean over tied candidates.

With `lists.ties` a value is the expectation over all orders of each group of tied candidates, with
equal probability (McSherry and Najork 2008, Computing information retrieval performance measures
efficiently in the presence of tied scores). A candidate without a tie gives the same bits either
way.
"""

import numpy as np

from evaluator.core.measures.lists import (
    NEVER_RANKED,
    BoolArray,
    JudgedLists,
    TieGroups,
    running_counts,
    tie_bounds,
)
from evaluator.core.measures.tables import Table, entries, ones, size_for
from evaluator.core.types.records import FloatArray, IntArray


def weights(lists: JudgedLists, table: Table, cutoff: int | IntArray) -> FloatArray:
    """The table's entry for each judged candidate's rank, 0 past the cutoff.

    Broadcasts to `[n_lists, n_judged]`; with ties, the mean of the entries of its possible ranks.
    """
    ranks = lists.ranks_in_common
    own = entries(table, np.where(ranks <= cutoff, ranks, 0))
    ties = lists.ties
    if ties is None:
        return own
    starts, ends = _within(ties.firsts - 1, cutoff), _within(ties.lasts, cutoff)
    sums = table(size_for(ends)).cumsum()
    return np.where(ties.sizes == 1, own, (sums[ends] - sums[starts]) / ties.sizes)


def _within(ranks: IntArray, cutoff: int | IntArray) -> IntArray:
    """The ranks, at most the cutoff; 0 for NEVER_RANKED, so that tables stay short."""
    return np.where(ranks < NEVER_RANKED - 1, np.minimum(ranks, cutoff), 0)


def counts(lists: JudgedLists, cutoff: int | IntArray) -> FloatArray:
    """1 for a judged candidate within the cutoff, else 0; with ties, the probability of that.

    *cutoff* is one for all lists, or `[n_lists, 1]`.
    """
    return np.broadcast_to(weights(lists, ones, cutoff), lists.ranks.shape)


def precisions(lists: JudgedLists, cutoff: int) -> FloatArray:
    """Share of relevant candidates down to each relevant one, 0 for others and past the cutoff.

    `[n_lists, n_judged]`.
    """
    ranks = lists.ranks_in_common
    counted = lists.relevant & (ranks <= cutoff)
    exact = running_counts(counted) / ranks * counted
    if lists.ties is None:
        return exact
    alone = lists.ties.sizes == 1
    return np.where(alone, exact, _tied_precisions(lists, lists.ties, cutoff))


def _tied_precisions(lists: JudgedLists, ties: TieGroups, cutoff: int) -> FloatArray:
    """The expectations for tied candidates.

    Above a candidate at place t of its group of n, with r relevant ones, are the relevant
    ones above the group and, on average, (r - 1)(t - 1) / (n - 1) of its group.
    """
    ranked_relevant = lists.relevant & (lists.ranks < NEVER_RANKED)
    before, inside = group_counts(ranked_relevant, ties.firsts)
    others = ties.sizes - 1
    slope = np.divide(inside - 1, others, out=np.zeros(others.shape), where=others > 0)
    last = _within(ties.lasts, cutoff)
    total = np.zeros(lists.ranks.shape)
    tied = ranked_relevant & (others > 0)
    for place in range(int(ties.sizes[tied].max(initial=0))):
        rank = ties.firsts + place
        total += np.where(tied & (rank <= last), (before + 1 + slope * place) / rank, 0.0)
    return total / ties.sizes


def group_counts(marked: BoolArray, firsts: IntArray) -> tuple[IntArray, IntArray]:
    """Number of marked candidates above the group of each candidate, and in it."""
    hits = np.zeros((len(marked), marked.shape[1] + 1), np.int64)
    np.cumsum(marked, axis=1, out=hits[:, 1:])
    begins, ends = tie_bounds(firsts)
    before = np.take_along_axis(hits, begins - 1, axis=1)
    return before, np.take_along_axis(hits, ends, axis=1) - before


def first_group(marked: BoolArray, ties: TieGroups) -> tuple[IntArray, IntArray, IntArray]:
    """The group with the first marked candidate of each list: its first rank, size and marked.

    `[n_lists]` each; NEVER_RANKED, 1 and 1 for a list without one.
    """
    if not marked.shape[1]:
        none = np.ones(len(marked), np.int64)
        return none * NEVER_RANKED, none, none
    there = marked & (ties.firsts < NEVER_RANKED)
    column = there.argmax(axis=1)[:, None]
    found = there.any(axis=1)
    first = np.take_along_axis(ties.firsts, column, axis=1)[:, 0]
    size = np.take_along_axis(ties.sizes, column, axis=1)[:, 0]
    inside = np.take_along_axis(group_counts(there, ties.firsts)[1], column, axis=1)[:, 0]
    return (
        np.where(found, first, NEVER_RANKED),
        np.where(found, size, 1),
        np.where(found, inside, 1),
    )


def chance_within(first: IntArray, size: IntArray, inside: IntArray, cutoff: int) -> FloatArray:
    """Probability that a marked candidate of a group is within the cutoff: `[n_lists]`."""
    drawn = np.clip(cutoff - first + 1, 0, size)
    missed = np.ones(len(first))
    for place in range(int(drawn.max(initial=0))):
        left = np.maximum(size - place, 1)
        missed *= np.where(place < drawn, np.maximum(size - inside - place, 0) / left, 1.0)
    return 1.0 - missed


def expected_reciprocal(
    first: IntArray, size: IntArray, inside: IntArray, cutoff: int
) -> FloatArray:
    """Mean of 1 / rank of the best marked candidate of a group, 0 past the cutoff: `[n_lists]`."""
    total = np.zeros(len(first))
    none_yet = np.ones(len(first))
    reached = np.where(first <= cutoff, size, 0)
    for place in range(int(reached.max(initial=0))):
        left = np.maximum(size - place, 1)
        here = none_yet * np.minimum(inside / left, 1.0)
        counts_here = (place < reached) & (first + place <= cutoff)
        total += np.where(counts_here, here / (first + place), 0.0)
        none_yet *= np.maximum(left - inside, 0) / left
    return total
