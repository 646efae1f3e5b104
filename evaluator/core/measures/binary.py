"""Measures of binary relevance, and of judged candidates."""

import numpy as np

from evaluator.core.measures.lists import JudgedLists, Terms, column_sum, counts_of, ratio
from evaluator.core.measures.positions import (
    chance_within,
    counts,
    expected_reciprocal,
    first_group,
    precisions,
    weights,
)
from evaluator.core.measures.tables import powers
from evaluator.core.types.records import FloatArray, IntArray


def hit(lists: JudgedLists, terms: Terms) -> FloatArray:
    """1 if a relevant candidate is within the cutoff, else 0: `[n_lists]`."""
    if lists.ties is not None:
        return chance_within(*first_group(lists.relevant, lists.ties), terms.cutoff)
    return (lists.first_relevant <= terms.cutoff).astype(np.float64)


def reciprocal_rank(lists: JudgedLists, terms: Terms) -> FloatArray:
    """1 / rank of the first relevant candidate within the cutoff, else 0: `[n_lists]`."""
    if lists.ties is not None:
        return expected_reciprocal(*first_group(lists.relevant, lists.ties), terms.cutoff)
    first = lists.first_relevant
    return np.where(first <= terms.cutoff, 1.0 / first, 0.0)


def average_precision(lists: JudgedLists, terms: Terms) -> FloatArray:
    """Sum of the precision at each relevant rank up to the cutoff, over all relevant: `[n_lists]`.

    0 without relevant candidates. Relevant ones that were never ranked count in the denominator.
    Source: Buckley and Voorhees 2000, Evaluating evaluation measure stability.
    """
    return ratio(column_sum(precisions(lists, terms.cutoff)), lists.relevant_of_query)


def average_precision_of_reachable(lists: JudgedLists, terms: Terms) -> FloatArray:
    """As `average_precision`, over min(relevant, cutoff): `[n_lists]`."""
    reachable = np.minimum(lists.relevant_of_query, terms.cutoff)
    return ratio(column_sum(precisions(lists, terms.cutoff)), reachable)


def _hits(lists: JudgedLists, cutoff: int | IntArray) -> FloatArray:
    """Relevant candidates within the cutoff: `[n_lists]`."""
    if lists.ties is None:
        return counts_of(lists.relevant & (lists.ranks_in_common <= cutoff)).astype(np.float64)
    return column_sum(np.where(lists.relevant, counts(lists, cutoff), 0.0))


def precision(lists: JudgedLists, terms: Terms) -> FloatArray:
    """Relevant candidates within the cutoff, over the cutoff, for shorter lists too: `[n_lists]`.

    Source: Van Rijsbergen 1979, Information retrieval, chapter 7.
    """
    return _hits(lists, terms.cutoff) / terms.cutoff


def recall(lists: JudgedLists, terms: Terms) -> FloatArray:
    """Share of all relevant candidates that are within the cutoff: `[n_lists]`."""
    return ratio(_hits(lists, terms.cutoff), lists.relevant_of_query)


def r_precision(lists: JudgedLists, terms: Terms) -> FloatArray:
    """Precision at R, the number of relevant candidates: `[n_lists]`; 0 without any.

    Source: Buckley and Voorhees 2000, Evaluating evaluation measure stability.
    """
    del terms
    n_relevant = lists.relevant_of_query
    return ratio(_hits(lists, n_relevant[:, None]), n_relevant)


def f1(lists: JudgedLists, terms: Terms) -> FloatArray:
    """Harmonic mean of precision and recall: `[n_lists]`."""
    return _f(lists, terms, square=1.0)


def f_beta(lists: JudgedLists, terms: Terms) -> FloatArray:
    """(1 + b^2) P R / (b^2 P + R), 0 without hits: `[n_lists]`. Recall counts b times as much.

    Linear in the hits, so the mean over tied candidates is the value at the mean of the hits.
    Source: Van Rijsbergen 1979, Information retrieval, chapter 7.
    """
    return _f(lists, terms, square=float(terms.parameter * terms.parameter))


def _f(lists: JudgedLists, terms: Terms, *, square: float) -> FloatArray:
    found, share = precision(lists, terms), recall(lists, terms)
    return ratio((1.0 + square) * found * share, square * found + share)


def rank_biased_precision(lists: JudgedLists, terms: Terms) -> FloatArray:
    """(1 - p) times the sum of p^(rank - 1) over the relevant candidates: `[n_lists]`.

    Source: Moffat and Zobel 2008, Rank-biased precision for measurement of retrieval
    effectiveness.
    """
    seen = np.where(lists.relevant, weights(lists, powers(terms.parameter), terms.cutoff), 0.0)
    return float(1 - terms.parameter) * column_sum(seen)


def judged_share(lists: JudgedLists, terms: Terms) -> FloatArray:
    """Share of the candidates within the cutoff that are judged: `[n_lists]`."""
    shown = np.minimum(lists.n_ranked, terms.cutoff)
    return ratio(column_sum(counts(lists, terms.cutoff)), shown)


def unjudged_share(lists: JudgedLists, terms: Terms) -> FloatArray:
    """Unjudged candidates within the cutoff, over the cutoff: `[n_lists]`."""
    shown = np.minimum(lists.n_ranked, terms.cutoff)
    return (shown - column_sum(counts(lists, terms.cutoff))) / terms.cutoff
