"""The ranker of linear weights, beside the rankers of the rankings."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evaluator.core.features import FEATURE_NAMES, Embedder, History, features_of
from evaluator.core.learning.linear import linear_scores
from evaluator.core.types.records import WEIGHTS, FloatArray, RankingColumns
from evaluator.ports import SourceUnusable


class Weighing:
    """Adds the ranker of some weights, and counts the rankings without it.

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
        self._n_without = 0
        self._n_others = 0
        self._n_not_finite = 0
        self._first_other = ""

    def on_rankings(self, rankings: RankingColumns) -> RankingColumns:
        """The rankings with the ranker WEIGHTS, if they have the features of the weights."""
        names, matrices = self._features_of(rankings)
        for row, of_row in enumerate(names):
            if of_row is None:
                self._n_without += 1
            elif of_row != self._feature_names:
                key = f"{rankings.trace_ids[row]}, {rankings.node_ids[row]}"
                self._first_other = self._first_other or f"{key} with {', '.join(of_row)}"
                self._n_others += 1
        rows = [row for row, of_row in enumerate(names) if of_row == self._feature_names]
        self._n_rankings += len(rankings)
        scores = self._scores([matrices[row] for row in rows])
        added = {
            row: of_row
            for row, of_row in zip(rows, scores, strict=True)
            if np.isfinite(of_row).all()
        }
        self._n_not_finite += len(rows) - len(added)
        ends = np.cumsum(rankings.candidate_counts * [len(each) for each in rankings.rankers])
        parts: list[FloatArray] = []
        for row, scores_of_row in enumerate(np.split(rankings.scores, ends[:-1])):
            parts += [scores_of_row, added[row]] if row in added else [scores_of_row]
        rankers = [
            (*of, WEIGHTS) if row in added else of for row, of in enumerate(rankings.rankers)
        ]
        return replace(
            rankings, rankers=rankers, scores=np.concatenate([rankings.scores[:0], *parts])
        )

    def _features_of(
        self, rankings: RankingColumns
    ) -> tuple[list[tuple[str, ...] | None], list[FloatArray]]:
        """Names and features of each row, those of described candidates if they are needed."""
        features = rankings.features
        if features is None:
            raise ValueError("these rankings were decoded without their features")
        nothing = np.zeros((0, 0))
        rows = [nothing if of is None else of for of in features.of_rows(rankings.candidate_counts)]
        names = list(features.names)
        if self._feature_names == FEATURE_NAMES:
            for row, described in features.described.items():
                names[row] = FEATURE_NAMES
                rows[row] = features_of(described, embedder=self._embedder, history=self._history)
        return names, rows

    def _scores(self, matrices: Sequence[FloatArray]) -> list[FloatArray]:
        """The scores of the candidates of each ranking."""
        if not matrices:
            return []
        with np.errstate(over="ignore", invalid="ignore"):
            scores = linear_scores(np.concatenate(matrices).T, self._weights) + 0.0
        return np.split(scores, np.cumsum([len(each) for each in matrices])[:-1])

    @property
    def _n_measured(self) -> int:
        return self._n_rankings - self._n_without - self._n_others - self._n_not_finite

    def warning(self) -> str:
        """Which rankings were left out, and why; empty if none was."""
        parts = []
        if self._n_without:
            parts.append(f"{self._n_without:,} have no features")
        if self._n_others:
            parts.append(
                f"{self._n_others:,} have other features than the weights "
                f"({', '.join(self._feature_names)}), first {self._first_other}"
            )
        if self._n_not_finite:
            parts.append(f"{self._n_not_finite:,} would have scores beyond what a number can hold")
        if not parts:
            return ""
        return (
            f"weights were measured on {self._n_measured:,} of {self._n_rankings:,} rankings: "
            + "; ".join(parts)
        )

    def check(self) -> None:
        """Raises SourceUnusable if there were rankings and none could be scored."""
        if self._n_rankings and not self._n_measured:
            raise SourceUnusable(
                f"{self.warning()}. Give weights for these features, or leave --weights out."
            )
