"""Realistic ranked data: tables of scikit-learn cut into queries, and irregular seeded data.

Features are correlated, have units of their own, ties and constants; few candidates are relevant.
"""

from collections.abc import Callable, Sequence

import numpy as np

Query = tuple[np.ndarray, np.ndarray]
"""Features `[n_candidates, n_features]` and grades `[n_candidates]`."""

Parts = tuple[list[Query], list[Query]]
"""To learn from, and to measure on; no row of a table is in both."""


def of_table(table: np.ndarray, grades: np.ndarray, *, n: int, most: int, seed: int = 0) -> Parts:
    """Queries of 5 to *most* rows that are drawn at random."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(table))
    cut = int(0.7 * len(rows))

    def drawn(some: np.ndarray, n_queries: int) -> list[Query]:
        made = []
        for _ in range(n_queries):
            chosen = rng.choice(some, int(rng.integers(5, most)), replace=False)
            made.append((table[chosen], grades[chosen]))
        return made

    return drawn(rows[:cut], n), drawn(rows[cut:], 150)


def diabetes(n: int = 250, *, seed: int = 0) -> Parts:
    """442 patients, 10 features in raw units, of which six depend on each other."""
    from sklearn import datasets  # slow, and only these tests need it

    table, course = datasets.load_diabetes(return_X_y=True, scaled=False)
    grades = np.searchsorted(np.quantile(course, [0.6, 0.8, 0.93]), course, side="right")
    return of_table(table, grades.astype(float), n=n, most=26, seed=seed)


def cancer(*, seed: int = 0) -> Parts:
    """569 images, 30 features from 1e-3 to 1e3, ten in three versions; few are relevant."""
    from sklearn import datasets  # slow, and only these tests need it

    table, benign = datasets.load_breast_cancer(return_X_y=True)
    large = (benign == 0) * ((table[:, 0] > 17.5) + 1.0 * (table[:, 0] > 21))
    return of_table(table, large, n=250, most=50, seed=seed)


def wine(*, seed: int = 0) -> Parts:
    """178 wines, 13 features from 0.1 to 1,680; two of three are relevant, in two grades."""
    from sklearn import datasets  # slow, and only these tests need it

    table, cultivar = datasets.load_wine(return_X_y=True)
    return of_table(table, 2.0 - cultivar, n=240, most=25, seed=seed)


def digits(*, seed: int = 0) -> Parts:
    """1,797 images of 64 pixels, many of them constant; an 8 is relevant, one in ten."""
    from sklearn import datasets  # slow, and only these tests need it

    table, digit = datasets.load_digits(return_X_y=True)
    return of_table(table, 1.0 * (digit == 8), n=300, most=80, seed=seed)


def messy(n: int = 220, *, most: int = 150, seed: int = 0) -> Parts:
    """24 features of 4 causes: rounded, binary and skewed ones, in units from 1e-2 to 1e4.

    Each query shifts its features; it has 5 to *most* candidates, of which one to three are
    relevant.
    """
    rng = np.random.default_rng(seed)
    causes, units = rng.normal(size=(4, 24)), 10.0 ** rng.uniform(-2, 4, size=24)
    truth = rng.normal(size=24) * (rng.random(24) < 0.5)

    def query() -> Query:
        n_candidates = int(np.exp(rng.uniform(np.log(5), np.log(most + 1))))
        plain = rng.normal(size=(n_candidates, 4)) @ causes
        plain += 0.5 * rng.normal(size=plain.shape)
        utility = plain @ truth / np.linalg.norm(causes @ truth) + rng.normal(size=n_candidates)
        features = plain + 2 * rng.normal(size=24)
        features[:, ::3] = np.round(features[:, ::3])
        features[:, 1::6] = features[:, 1::6] > 1.5
        features[:, 5::6] = np.exp(features[:, 5::6] / 2)
        grades = np.zeros(n_candidates)
        grades[np.argsort(-utility)[: rng.integers(1, 4)]] = 1.0
        return features * units, grades

    return [query() for _ in range(n)], [query() for _ in range(100)]


def few(*, seed: int = 0) -> Parts:
    """Sixty queries to learn from."""
    return diabetes(60, seed=seed)


ALL: dict[str, Callable[..., Parts]] = {
    each.__name__: each for each in (diabetes, cancer, wine, digits, messy, few)
}


def rows(queries: Sequence[Query], *, scores: Sequence[np.ndarray] | None = None) -> list[dict]:
    """Samples: a row per candidate."""
    return [
        {
            "trace_id": f"t{number}",
            "node_id": "n",
            "candidate_id": f"c{place}",
            "features": features[place].tolist(),
            "label": float(grades[place]),
            **({} if scores is None else {"score": float(scores[number][place])}),
        }
        for number, (features, grades) in enumerate(queries)
        for place in range(len(grades))
    ]
