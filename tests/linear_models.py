"""Tuned linear rankers of other programs, with which `evaluator fit` is compared."""

from collections.abc import Iterator, Sequence

import numpy as np

import evaluator
from tests.ranked_data import Query

RATES = (0.03, 0.1, 0.3, 1.0)
"""Steps of the full batch."""


def ndcg(queries: Sequence[Query], weights: np.ndarray) -> float:
    """Mean NDCG@10 of the order by linear scores."""
    scores = [(features @ weights).tolist() for features, _ in queries]
    grades = [grades.tolist() for _, grades in queries]
    mean = evaluator.evaluate(grades, scores, ["ndcg@10"]).mean["ndcg@10"]
    assert mean is not None
    return mean


def centred(queries: Sequence[Query]) -> np.ndarray:
    """Features minus their means in their query; a constant in a query is 0, without rounding."""
    return np.concatenate(
        [np.where(np.ptp(of, axis=0) > 0, of - of.mean(axis=0), 0.0) for of, _ in queries]
    )


def scale_of(queries: Sequence[Query]) -> np.ndarray:
    """The standard deviation of each feature within queries, 1 for constants."""
    features = centred(queries)
    return np.where(features.any(axis=0), features.std(axis=0), 1.0)


def full_batch_softmax(queries: Sequence[Query], steps: int = 200) -> Iterator[np.ndarray]:
    """Weights for each of RATES, by plain gradient descent on scaled features."""
    scale, sizes = scale_of(queries), [len(grades) for _, grades in queries]
    starts, rows = np.cumsum([0, *sizes[:-1]]), np.repeat(np.arange(len(sizes)), sizes)
    features = np.concatenate([of_query for of_query, _ in queries]) / scale
    targets = np.concatenate([grades / grades.sum() for _, grades in queries])[:, None]
    weights = np.zeros((len(scale), len(RATES)))
    for _ in range(steps):
        scores = features @ weights
        shares = np.exp(scores - np.maximum.reduceat(scores, starts)[rows])
        errors = shares / np.add.reduceat(shares, starts)[rows] - targets
        weights -= features.T @ errors * RATES / len(sizes)
    yield from weights.T / scale


def of_sklearn(queries: Sequence[Query]) -> Iterator[np.ndarray]:
    """Weights of seven linear models of scikit-learn: three losses, strengths of regularisation."""
    from sklearn.linear_model import LogisticRegression, Ridge

    scale = scale_of(queries)
    within = centred(queries) / scale
    grades = np.concatenate([grades for _, grades in queries])
    rng, pairs = np.random.default_rng(0), []
    for features, of_query in queries:
        better, worse = np.nonzero(of_query[:, None] > of_query)
        some = rng.permutation(len(better))[:100]
        pairs.append((features[better[some]] - features[worse[some]]) / scale)
    differences = np.concatenate(pairs)
    signs = np.where(np.arange(len(differences)) % 2, 1, -1)
    for alpha in (1, 100, 1000):
        yield Ridge(alpha=alpha).fit(within, grades).coef_ / scale
    for c in (0.01, 1):
        yield LogisticRegression(C=c, max_iter=300).fit(within, grades > 0).coef_[0] / scale
        of_pairs = LogisticRegression(C=c, max_iter=300, fit_intercept=False)
        yield of_pairs.fit(differences * signs[:, None], signs).coef_[0] / scale
