"""The additional ranker of given linear weights."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.features import FEATURE_NAMES, Embedder, History, features_of
from evaluator.core.learning.elementary import linear_scores
from evaluator.core.types.records import WEIGHTS, FloatArray, RankingColumns, Stratum
from evaluator.ports import SourceUnusable


class Weighing:
    """Adds the ranker of given weights, and counts the rankings without it.

    Args:
        weights, feature_names: parallel.
        embedder, history: for the features of described candidates.
    """

    def __init__(
        self,
        weights: Sequence[float],
        feature_names: Sequence[str],
        *,
        embedder: Embedder,
        history: History,
    ) -> None:
        self._weights = tuple(weights)
        self._feature_names = tuple(feature_names)
        self._embedder = embedder
        self._history = history
        self._n_rankings = 0
        self._left_out: Counter[str] = Counter()
        self._first_other = ""

    def on_rankings(self, rankings: RankingColumns) -> RankingColumns:
        """The rankings with the ranker WEIGHTS, if they have the features of the weights."""
        self._n_rankings += len(rankings)
        features_by_row = self._features_by_row(rankings)
        scores_by_row: dict[int, FloatArray] = {}
        if features_by_row:
            with np.errstate(over="ignore", invalid="ignore"):
                matrix = np.concatenate(list(features_by_row.values()))
                scores = linear_scores(matrix.T, self._weights) + 0.0
            ends = np.cumsum([len(each) for each in features_by_row.values()])
            for row, of_row in zip(features_by_row, np.split(scores, ends[:-1]), strict=True):
                if np.isfinite(of_row).all():
                    scores_by_row[row] = of_row
                else:
                    self._left_out["not_finite"] += 1
        strata: list[Stratum] = rankings.strata.values()
        ends = np.cumsum(rankings.candidate_counts * [len(each.rankers) for each in strata])
        parts = [rankings.scores[:0]]
        for row, before in enumerate(np.split(rankings.scores, ends[:-1])):
            parts.append(before)
            if row in scores_by_row:
                parts.append(scores_by_row[row])
                strata[row] = strata[row]._replace(rankers=(*strata[row].rankers, WEIGHTS))
        column = DictionaryColumn.of(strata)
        return replace(rankings, strata=column, scores=np.concatenate(parts))

    def _features_by_row(self, rankings: RankingColumns) -> dict[int, FloatArray]:
        """The rows with the features of the weights; the others are counted."""
        features = rankings.features
        if features is None:
            raise ValueError("these rankings were decoded without their features")
        computed = features.described if self._feature_names == FEATURE_NAMES else {}
        found: dict[int, FloatArray] = {}
        for row, matrix in enumerate(features.of_rows(rankings.candidate_counts)):
            names = features.names[row]
            if row in computed:
                found[row] = features_of(
                    computed[row], embedder=self._embedder, history=self._history
                )
            elif matrix is None or names is None:
                self._left_out["without"] += 1
            elif names == self._feature_names:
                found[row] = matrix
            else:
                key = f"{rankings.trace_ids[row]}, {rankings.node_ids[row]}"
                self._first_other = self._first_other or f"{key} with {', '.join(names)}"
                self._left_out["others"] += 1
        return found

    def warning(self) -> str:
        """The numbers of rankings without the ranker, by reason; empty if all have it."""
        if not self._left_out:
            return ""
        reasons = {
            "without": "have no features",
            "others": f"have other features than the weights ({', '.join(self._feature_names)}), "
            f"first {self._first_other}",
            "not_finite": "would have scores beyond what a number can hold",
        }
        texts = [
            f"{self._left_out[name]:,} {text}"
            for name, text in reasons.items()
            if self._left_out[name]
        ]
        n_measured = self._n_rankings - self._left_out.total()
        return (
            f"weights were measured on {n_measured:,} of {self._n_rankings:,} rankings: "
            + "; ".join(texts)
        )

    def check(self) -> None:
        """Raises SourceUnusable if there were rankings and none has the ranker."""
        if self._n_rankings and self._left_out.total() == self._n_rankings:
            raise SourceUnusable(
                f"{self.warning()}. Give weights for these features, or leave --weights out."
            )
