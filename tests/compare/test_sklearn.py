"""Comparison with scikit-learn, for which every judged candidate must be ranked."""

from random import Random

import numpy as np
import pytest

from tests.compare.lists import EXACTLY, engine_values

pytestmark = pytest.mark.slow  # it takes seconds to import

LISTS = [(2, 400), (5, 600), (20, 800), (100, 200), (1_000, 10)]  # 2,010 lists


def lists(width, n, *, levels):
    """Scores and grades, `[n, width]`, and both as dicts."""
    random = np.random.default_rng((width, n))
    if levels:
        scores = random.integers(0, levels, (n, width)) / 8
    else:
        scores = random.random((n, width)).argsort(axis=1) / 8
    grades = random.choice((0, 0, 0, 1, 2, 3, 4), (n, width))
    names = [f"c{i:04}" for i in range(width)]
    runs = {f"q{i}": dict(zip(names, row, strict=True)) for i, row in enumerate(scores.tolist())}
    qrels = {f"q{i}": dict(zip(names, row, strict=True)) for i, row in enumerate(grades.tolist())}
    return scores, grades, runs, qrels


def column(values, n):
    return np.array([values[f"q{i}"] for i in range(n)])


@pytest.mark.parametrize(("ties", "levels"), [("id", 0), ("average", 3), ("average", 1)])
@pytest.mark.parametrize(("width", "n"), LISTS)
def test_values_equal_those_of_ndcg_score_which_averages_ties(width, n, ties, levels):
    from sklearn.metrics._ranking import _ndcg_sample_scores  # ndcg_score gives the mean only

    scores, grades, runs, qrels = lists(width, n, levels=levels)
    mine = engine_values(["ndcg_linear@5", "ndcg_linear", "ndcg@10"], runs, qrels, ties=ties)
    for name, gains, k in (
        ("ndcg_linear@5", grades, 5),
        ("ndcg_linear", grades, None),
        ("ndcg@10", 2**grades - 1, 10),
    ):
        theirs = _ndcg_sample_scores(gains.astype(float), scores, k=k, ignore_ties=levels == 0)
        assert np.abs(column(mine[name], n) - theirs).max() <= EXACTLY


@pytest.mark.parametrize(("width", "n"), LISTS)
def test_precision_recall_and_f_equal_those_of_the_first_k_as_labels(width, n):
    from sklearn.metrics import precision_recall_fscore_support

    k = min(width, 5)
    scores, grades, runs, qrels = lists(width, n, levels=0)
    first = (-scores).argsort(axis=1).argsort(axis=1) < k
    names = (f"p@{k}", f"r@{k}", f"f1@{k}", f"fbeta[2]@{k}", f"fbeta[0.5]@{k}")
    mine = engine_values(names, runs, qrels)
    for beta, f_name in ((1, names[2]), (2, names[3]), (0.5, names[4])):
        precision, recall, f, _ = precision_recall_fscore_support(
            (grades > 0).T, first.T, beta=beta, average=None, zero_division=0
        )
        assert np.abs(column(mine[names[0]], n) - precision).max() <= EXACTLY
        assert np.abs(column(mine[names[1]], n) - recall).max() <= EXACTLY
        assert np.abs(column(mine[f_name], n) - f).max() <= EXACTLY


def test_the_mean_of_map_equals_label_ranking_average_precision():
    from sklearn.metrics import label_ranking_average_precision_score

    n = 800
    scores, grades, runs, qrels = lists(20, n, levels=0)
    some = (grades > 0).any(axis=1)  # it gives 1 where nothing is relevant
    theirs = label_ranking_average_precision_score(grades[some] > 0, scores[some])
    mine = column(engine_values(["map"], runs, qrels)["map"], n)
    assert mine[some].mean() == pytest.approx(theirs, rel=1e-12)
    assert Random(0).random() < some.mean() <= 1
