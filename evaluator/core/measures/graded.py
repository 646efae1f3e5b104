"""Measures of how relevant candidates are."""

from collections.abc import Callable

import numpy as np

from evaluator.core.measures.lists import JudgedLists, Terms, column_sum, ratio
from evaluator.core.measures.positions import precisions, weights
from evaluator.core.measures.tables import discount, discounts, gain
from evaluator.core.types.records import FloatArray

Gain = Callable[[FloatArray], FloatArray]


def ndcg(lists: JudgedLists, terms: Terms) -> FloatArray:
    """DCG over the DCG of the best order of all judged candidates: `[n_lists]`.

    0 without relevant candidates. Gain 2^grade - 1, discount 1/log2(rank + 1).
    Source: Burges et al. 2005, Learning to rank using gradient descent.
    """
    return _ndcg(lists, terms.cutoff, gain)


def ndcg_linear(lists: JudgedLists, terms: Terms) -> FloatArray:
    """As `ndcg`, with the grade itself as gain: `[n_lists]`.

    Source: Jarvelin and Kekalainen 2002, Cumulated gain-based evaluation of IR techniques.
    """
    return _ndcg(lists, terms.cutoff, np.asarray)


def _ndcg(lists: JudgedLists, cutoff: int, gain_of: Gain) -> FloatArray:
    gains = gain_of(lists.grades)
    if lists.freshness is None:
        best = gain_of(lists.ideal_grades[:, :cutoff])
    else:
        fresh = gain_of(lists.judged_grades) * lists.freshness
        gains = np.take_along_axis(fresh[lists.query_of], lists.columns, axis=1)
        best = -np.sort(-fresh, axis=1)[:, :cutoff]
    found = column_sum(gains * weights(lists, discounts, cutoff))
    ideal = column_sum(best * discount(np.arange(1, best.shape[1] + 1)))
    # Gains near the smallest double are so coarse that another order may exceed the ideal.
    return np.minimum(ratio(found, ideal[lists.query_of]), 1.0)


def map_graded(lists: JudgedLists, terms: Terms) -> FloatArray:
    """Sum of precision x min(g, g_max)/g_max over the relevant, over all relevant: `[n_lists]`."""
    shares = precisions(lists, terms.cutoff) * _share_of_best(lists.grades, terms)
    return ratio(column_sum(shares), lists.relevant_of_query)


def map_graded_ceiling(lists: JudgedLists, terms: Terms) -> FloatArray:
    """`map_graded` of the best order of the judged candidates: `[n_lists]`."""
    within = np.arange(1, lists.ideal_grades.shape[1] + 1) <= terms.cutoff
    best = column_sum(np.where(within, _share_of_best(lists.ideal_grades, terms), 0.0))
    return ratio(best, lists.n_relevant)[lists.query_of]


def _share_of_best(grades: FloatArray, terms: Terms) -> FloatArray:
    best = terms.map_graded_max_grade
    return np.minimum(grades, best) / best


def expected_reciprocal_rank(lists: JudgedLists, terms: Terms) -> FloatArray:
    """Expected 1/rank of the candidate at which a user stops: `[n_lists]`.

    The probability to stop at a grade is (2^min(g, g_max) - 1) / 2^g_max.
    Source: Chapelle et al. 2009, Expected reciprocal rank for graded relevance.
    """
    best = terms.err_max_grade
    stopping = gain(np.minimum(lists.grades, best)) / float(1 << best)
    stopping = np.where(lists.ranks <= terms.cutoff, stopping, 0.0)
    continuing = np.ones(len(stopping))
    total = np.zeros(len(stopping))
    for column in range(stopping.shape[1]):
        stops = stopping[:, column]
        total += continuing * stops / lists.ranks[:, column]
        continuing *= 1.0 - stops
    return total
