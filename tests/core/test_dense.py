"""Judged lists from arrays equal, to the last bit, lists that Python sorts one by one."""

from itertools import groupby
from math import isfinite, nan

import numpy as np
import pytest

from evaluator.core.measures import NEVER_RANKED
from evaluator.core.measures.dense import dense_lists
from tests.repeats import repeated

SCORES = {
    "random": lambda rng, shape: rng.random(shape),
    "tied": lambda rng, shape: rng.integers(-2, 3, shape) * 1.0,
    "of any size": lambda rng, shape: rng.normal(size=shape) * 10.0 ** rng.integers(-320, 305),
    "equal as floats": lambda rng, shape: 1 + rng.integers(0, 9, shape) * 2.0**-50,
    "zeros of both signs": lambda rng, shape: np.where(rng.random(shape) < 0.5, 0.0, -0.0),
}
GRADES = {
    "whole": lambda rng, shape: rng.integers(0, 5, shape) * 1.0,
    "fractional": lambda rng, shape: rng.random(shape) * 31,
    "halves, negative ones too": lambda rng, shape: rng.integers(-3, 62, shape) * 0.5,
    "hardly apart": lambda rng, shape: 1 + rng.integers(0, 3, shape) * 2.0**-52,
    "zeros of both signs": lambda rng, shape: np.where(rng.random(shape) < 0.5, 0.0, -0.0),
}


def bits(array):
    whole = np.ascontiguousarray(array)
    return whole.view(np.int64) if whole.dtype == np.float64 else whole


def one_list(scores, grades):
    """Ranks, grades, columns and tie bounds of the judged candidates of one list, in order."""
    ranked = [column for column, score in enumerate(scores) if isfinite(score)]
    order = sorted(ranked, key=lambda column: (-scores[column], -column))
    order += [column for column in range(len(scores)) if column not in ranked]
    firsts, lasts = [], []
    for _, run in groupby(order[: len(ranked)], key=lambda column: scores[column] + 0.0):
        n, above = len(list(run)), len(firsts)
        firsts += [above + 1] * n
        lasts += [above + n] * n
    bounds = zip(firsts, lasts, strict=True)
    places = [(rank, *bound) for rank, bound in enumerate(bounds, start=1)]
    places += [(NEVER_RANKED,) * 3] * (len(scores) - len(ranked))
    return [
        (rank, grades[column], column, first, last)
        for (rank, first, last), column in zip(places, order, strict=True)
        if grades[column] >= 0
    ]


def assert_plain(lists, scores, grades):
    """That *lists* are those of `one_list`, padded to the longest of them."""
    plain = [one_list(*rows) for rows in zip(scores.tolist(), grades.tolist(), strict=True)]
    padding = (NEVER_RANKED, 0.0, 0, NEVER_RANKED, NEVER_RANKED)
    longest = max(map(len, plain))
    cells = [one + [padding] * (longest - len(one)) for one in plain]
    expected = [[[cell[part] for cell in one] for one in cells] for part in range(5)]
    found = [lists.ranks, lists.grades, lists.columns, *(lists.ties or ())]
    for here, cells_of in zip(found, expected, strict=False):
        there = np.array(cells_of, here.dtype).reshape(len(plain), longest)
        assert np.array_equal(bits(here), bits(there))
    judged = np.where(grades >= 0, grades, 0.0)
    ideal = np.sort(judged, axis=1)[:, ::-1][:, :longest]
    assert np.array_equal(bits(lists.ideal_grades), bits(ideal + 0.0))
    assert lists.n_ranked.tolist() == np.isfinite(scores).sum(axis=1).tolist()
    assert lists.n_relevant.tolist() == (judged > 0).sum(axis=1).tolist()
    assert lists.query_of.tolist() == list(range(len(scores)))
    assert np.array_equal(lists.judged_grades, judged)


def some_missing(rng, numbers, *others):
    """The numbers, some of them NaN or one of *others*."""
    for other in (nan, *others):
        if rng.random() < 0.5:
            numbers = np.where(rng.random(numbers.shape) < rng.random(), other, numbers)
    return numbers


@pytest.mark.parametrize("grades_of", GRADES.values(), ids=GRADES)
@pytest.mark.parametrize("scores_of", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("seed", repeated(5, quick=1))
def test_dense_lists_equal_lists_sorted_one_by_one(seed, scores_of, grades_of):
    rng = np.random.default_rng([20261122, seed])
    for width in (1, 2, 3, *rng.integers(1, 67, 4).tolist(), 64, 200):
        shape = (int(rng.integers(1, 5 if width > 100 else 20)), width)
        scores = some_missing(rng, scores_of(rng, shape), np.inf, -np.inf)
        grades = some_missing(rng, grades_of(rng, shape))
        with_ties = bool(rng.random() < 0.5)
        assert_plain(dense_lists(scores, grades, with_ties=with_ties), scores, grades)


@pytest.mark.parametrize("seed", range(10))
def test_tie_order_affects_only_lists_with_ties(seed):
    rng = np.random.default_rng([20261123, seed])
    shape = (int(rng.integers(1, 40)), int(rng.integers(2, 65)))
    scores, asked = rng.integers(0, 3 * shape[1], shape) / 7, []

    def first_first(rows):
        asked.extend(rows.tolist())
        return np.array([np.argsort(-scores[row], kind="stable") for row in rows.tolist()])

    lists = dense_lists(scores, np.ones(shape), tie_order=first_first)
    assert lists.columns.tolist() == np.argsort(-scores, axis=1, kind="stable").tolist()
    tied = [row for row in range(shape[0]) if len(set(scores[row].tolist())) < shape[1]]
    assert set(tied) <= set(asked)


def test_rows_that_are_not_contiguous_are_accepted():
    scores, grades = np.arange(60.0).reshape(2, 5, 6)
    for turned in (scores.T, scores[::2], scores[:, ::-2]):
        judged = grades.reshape(-1)[: turned.size].reshape(turned.shape)
        assert_plain(dense_lists(turned, judged), turned, judged)
