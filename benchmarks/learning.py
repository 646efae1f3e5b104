"""The learner: updates per second, and the quality of its weights compared with other programs.

`python -m benchmarks.learning` (`make bench-learn`). Updates are timed in rounds, interleaved, with
medians. Every program learns from the same queries of a seeded linear world and is measured on the
same others.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import evaluator
from evaluator.core.learning.elementary import linear_scores
from evaluator.core.learning.groups import Group
from evaluator.core.learning.learner import Learner
from evaluator.core.learning.names import LABEL_MODES, LOSSES
from evaluator.tables import format_table

N_CANDIDATES, N_FEATURES = 20, 4
BATCH = 64
TRUTH = np.array([1.0, -2.0, 0.5, 0.25])
UNITS = np.array([1.0, 100.0, 0.01, 10.0])
"""The units of the features."""
GRADES = np.array([2.0, 1.0, 1.0] + [0.0] * (N_CANDIDATES - 3))


def world(n_queries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features `[n_queries, n_candidates, n_features]`, grades `[n_queries, n_candidates]`.

    The three best by a linear utility with noise have grades; each query shifts its features.
    """
    rng = np.random.default_rng(seed)
    shape = (n_queries, N_CANDIDATES)
    features = rng.normal(size=(*shape, N_FEATURES)) + rng.normal(size=(n_queries, 1, N_FEATURES))
    utility = features @ TRUTH + rng.normal(size=shape)
    grades = np.zeros(shape)
    np.put_along_axis(grades, np.argsort(-utility, axis=1), GRADES[None], axis=1)
    return features * UNITS, grades


# --- updates per second ---


PLAIN: str = "softmax, plainly: NumPy's exp and @, group by group"


def plain_update(weights: np.ndarray, groups: list[Group]) -> np.ndarray:
    """The obvious implementation, and a correct one: one update by the mean gradient."""
    gradient = np.zeros(len(weights))
    for features, grades in groups:
        scores = features @ weights
        shares = np.exp(scores - scores.max())
        gradient += features.T @ (shares / shares.sum() - grades / grades.sum())
    return weights - 1e-6 * gradient / len(groups)


def updates_per_second(n_rounds: int, n_updates: int) -> dict[str, dict[str, float]]:
    """By loss and size of the batch: medians over the rounds, each of which has all of them.

    Each update has groups of its own, and their preparation counts.
    """
    named = [(name, LABEL_MODES[0]) for name in LOSSES]
    groups = {
        size: [Group(*one) for one in zip(*world(size * n_updates, seed=size), strict=True)]
        for size in (1, BATCH)
    }
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(n_rounds):
        for size, mine in groups.items():
            weights = np.zeros(N_FEATURES)
            began = time.perf_counter()
            for first in range(0, len(mine), size):
                weights = plain_update(weights, mine[first : first + size])
            seconds.setdefault((PLAIN, size), []).append(time.perf_counter() - began)
        for name, mode in named:
            for size, mine in groups.items():
                learner = Learner(loss=name, label_mode=mode, learning_rate=1e-6)
                state = learner.start([0.0] * N_FEATURES)
                gc.collect()
                began = time.perf_counter()
                for batches in learner.batches(mine, size):
                    state, _ = learner.learn(state, batches)
                seconds.setdefault((name, size), []).append(time.perf_counter() - began)
                assert state.updates == n_updates
    return {
        name: {
            f"batch {size}": n_updates / statistics.median(seconds[name, size]) for size in groups
        }
        for name in (PLAIN, *(name for name, _ in named))
    }


# --- quality ---

Scorer = Callable[[np.ndarray], np.ndarray]
"""From features to scores, `[n_queries, n_candidates]`."""


def ours(loss: str, features: np.ndarray, grades: np.ndarray) -> Scorer:
    """Five epochs in batches of 8, as `evaluator fit` would."""
    learner = Learner(
        loss=loss, scale="within_query", schedule="inv_sqrt", learning_rate=1.0, l2=1e-4
    )
    state = learner.start([0.0] * N_FEATURES)
    groups = [Group(*one) for one in zip(features, grades, strict=True)]
    for _ in range(5):
        for batches in learner.batches(groups, 8):
            state, _ = learner.learn(state, batches)
    weights = learner.snapshot(state)
    return lambda others: linear_scores(np.moveaxis(others, 2, 0), weights)


def flat(scorer: Callable[[np.ndarray], np.ndarray]) -> Scorer:
    """A scorer of single candidates, for whole queries."""
    return lambda others: scorer(others.reshape(-1, N_FEATURES)).reshape(others.shape[:2])


def lightgbm(features: np.ndarray, grades: np.ndarray) -> Scorer:
    import lightgbm  # noqa: PLC0415 - it may not be there

    ranker = lightgbm.LGBMRanker(
        objective="lambdarank", random_state=0, deterministic=True, n_jobs=1, verbose=-1
    )
    ranker.fit(
        features.reshape(-1, N_FEATURES),
        grades.reshape(-1).astype(int),
        group=[N_CANDIDATES] * len(features),
    )
    return flat(ranker.predict)


def sklearn_logistic(features: np.ndarray, grades: np.ndarray) -> Scorer:
    """Is a candidate relevant?"""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - it takes seconds
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415 - the same
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415 - the same

    model = make_pipeline(StandardScaler(), LogisticRegression())
    model.fit(features.reshape(-1, N_FEATURES), grades.reshape(-1) > 0)
    return flat(model.decision_function)


def sklearn_pairs(features: np.ndarray, grades: np.ndarray) -> Scorer:
    """Which of two candidates of a query is better? The order of a pair is drawn."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - it takes seconds
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415 - the same
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415 - the same

    query, better, worse = np.nonzero(grades[:, :, None] > grades[:, None, :])
    signs = np.random.default_rng(0).choice((-1.0, 1.0), len(query))
    differences = (features[query, better] - features[query, worse]) * signs[:, None]
    model = make_pipeline(StandardScaler(with_mean=False), LogisticRegression(fit_intercept=False))
    model.fit(differences, signs > 0)
    return flat(model.decision_function)


def river_logistic(features: np.ndarray, grades: np.ndarray) -> Scorer:
    """Is a candidate relevant? One after the other, once."""
    return _river(features.reshape(-1, N_FEATURES), grades.reshape(-1) > 0, intercept_lr=0.01)


def river_pairs(features: np.ndarray, grades: np.ndarray) -> Scorer:
    """Which of two candidates of a query is better? Pair after pair, once; the order is drawn."""
    query, better, worse = np.nonzero(grades[:, :, None] > grades[:, None, :])
    signs = np.random.default_rng(0).choice((-1.0, 1.0), len(query))
    differences = (features[query, better] - features[query, worse]) * signs[:, None]
    return _river(differences, signs > 0, intercept_lr=0.0)


def _river(rows: np.ndarray, labels: np.ndarray, *, intercept_lr: float) -> Scorer:
    """Scores by the final weights; the intercept does not affect the order."""
    from river import linear_model, preprocessing  # noqa: PLC0415 - it may not be there

    scaler = preprocessing.StandardScaler()
    model = linear_model.LogisticRegression(intercept_lr=intercept_lr)
    for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
        named = dict(enumerate(row))
        scaler.learn_one(named)
        model.learn_one(scaler.transform_one(named), label)
    weights = [model.weights[i] / (scaler.vars[i] ** 0.5 or 1.0) for i in range(N_FEATURES)]
    return flat(lambda others: others @ np.array(weights))


def qualities(n_queries: int, seed: int) -> list[tuple[str, float, float]]:
    """NDCG@10 on queries that no program learned from, and seconds to learn."""
    train, test = world(n_queries, seed), world(n_queries, seed + 1)
    programs: dict[str, Callable[[np.ndarray, np.ndarray], Scorer]] = {
        "the truth, without its noise": lambda *_: lambda others: others / UNITS @ TRUTH,
        **{f"evaluator, {loss}": _bound(loss) for loss in LOSSES},
        "LightGBM, lambdarank (100 trees)": lightgbm,
        "scikit-learn, logistic regression": sklearn_logistic,
        "scikit-learn, the same of pairs": sklearn_pairs,
        "River, logistic regression": river_logistic,
        "River, the same of pairs": river_pairs,
        "no order": lambda *_: lambda others: np.zeros(others.shape[:2]),
    }
    rows = []
    for name, learn in programs.items():
        began = time.perf_counter()
        scorer = learn(*train)
        took = time.perf_counter() - began
        found = evaluator.evaluate(test[1], scorer(test[0]), ["ndcg@10"], ties="average")
        rows.append((name, float(found.mean["ndcg@10"] or 0.0), took))
    return rows


def _bound(loss: str) -> Callable[[np.ndarray, np.ndarray], Scorer]:
    return lambda features, grades: ours(loss, features, grades)


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("--queries", type=int, default=2_000)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    speeds = updates_per_second(arguments.rounds, arguments.updates)
    print(f"\nupdates per second, {N_CANDIDATES} candidates x {N_FEATURES} features")
    header = ["loss", "batch 1", f"batch {BATCH}", f"groups/s in batches of {BATCH}"]
    rows = [
        [
            name,
            f"{of['batch 1']:,.0f}",
            f"{of[f'batch {BATCH}']:,.0f}",
            f"{BATCH * of[f'batch {BATCH}']:,.0f}",
        ]
        for name, of in speeds.items()
    ]
    print(format_table(header, rows, numbers=range(1, 4)))
    found = qualities(arguments.queries, arguments.seed)
    print(f"\nlearned from {arguments.queries:,} queries, measured on as many others")
    told: list[list[Any]] = [[name, f"{ndcg:.4f}", f"{took:.2f}"] for name, ndcg, took in found]
    print(format_table(["", "NDCG@10", "s to learn"], told, numbers=range(1, 3)))
    names = ("numpy", "lightgbm", "scikit-learn", "river")
    print(
        f"\n{os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in names)
    )
    if arguments.json:
        figures = {"updates per second": speeds, "quality": found}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
