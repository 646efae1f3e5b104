"""Linear weights as one more ranker beside the others."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.table import span_indices
from evaluator.core.features import FEATURE_NAMES, Embedder, History, features_of
from evaluator.core.learning.groups import linear_scores
from evaluator.core.types.records import WEIGHTS, FloatArray, IntArray, RankingColumns


class Weighed(NamedTuple):
    """Rankings with the ranker WEIGHTS where it could be had; masks are `[n_rows]`.

    `without` have no features, `others` features of other names, `not_finite` scores that no
    number can hold; none of these has the ranker.
    """

    rankings: RankingColumns
    without: NDArray[np.bool_]
    others: NDArray[np.bool_]
    not_finite: NDArray[np.bool_]


def with_made_features(
    rankings: RankingColumns, *, embedder: Embedder, history: History
) -> RankingColumns:
    """The rankings with features in place of what describes their candidates."""
    features = rankings.features
    if features is None or not features.described:
        return rankings
    rows = list(features.of_rows(rankings.candidate_counts))
    names = list(features.names)
    for row, described in features.described.items():
        rows[row] = features_of(described, embedder=embedder, history=history)
        names[row] = FEATURE_NAMES
    values = [row.reshape(-1) for row in rows if row is not None]
    made = replace(features, names=names, values=np.concatenate(values), described={})
    return replace(rankings, features=made)


def weighed(
    rankings: RankingColumns, weights: Sequence[float], feature_names: tuple[str, ...]
) -> Weighed:
    """Scores rankings by linear weights, one for each of *feature_names*.

    Raises:
        ValueError: if the rankings were decoded without their features.
    """
    features = rankings.features
    if features is None:
        raise ValueError("these rankings were decoded without their features")
    widths = np.array([0 if names is None else len(names) for names in features.names], np.int64)
    without = np.array([names is None for names in features.names], bool)
    same = np.array([names == feature_names for names in features.names], bool)
    sizes = rankings.candidate_counts * widths
    starts = np.cumsum(sizes) - sizes
    rows = np.flatnonzero(same)
    values = features.values[span_indices(starts[rows], sizes[rows])]
    with np.errstate(over="ignore", invalid="ignore"):
        scores = linear_scores(values.reshape(-1, len(feature_names)).T, weights) + 0.0
    counts = rankings.candidate_counts[rows]
    not_finite = np.zeros(len(rankings), bool)
    not_finite[np.repeat(rows, counts)[~np.isfinite(scores)]] = True
    kept = ~not_finite[rows]
    scores = scores[np.repeat(kept, counts)]
    return Weighed(
        _with_ranker(rankings, rows[kept], scores), without, ~without & ~same, not_finite
    )


def _with_ranker(rankings: RankingColumns, rows: IntArray, scores: FloatArray) -> RankingColumns:
    """One more ranker behind the others of *rows*; its scores lie row after row."""
    rankers = list(rankings.rankers)
    for row in rows.tolist():
        rankers[row] = (*rankers[row], WEIGHTS)
    counts = rankings.candidate_counts
    before = counts * np.fromiter(map(len, rankings.rankers), np.int64, len(rankings))
    added = np.zeros(len(rankings), np.int64)
    added[rows] = counts[rows]
    starts = np.cumsum(before + added) - before - added
    whole = np.empty(len(rankings.scores) + len(scores))
    whole[span_indices(starts, before)] = rankings.scores
    whole[span_indices(starts + before, added)] = scores
    return replace(rankings, rankers=rankers, scores=whole)
