"""Which rankings of a replay could be scored by weights, and what was wrong with the others."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from evaluator.core.features import FEATURE_NAMES, Embedder, History
from evaluator.core.learning.linear import weighed, with_made_features
from evaluator.core.types.records import RankingColumns
from evaluator.ports import SourceUnusable


class Weighing:
    """Adds the ranker of some weights, and counts where it could not.

    Args:
        weights, feature_names: parallel.
        embedder, history: what features of described candidates are made with.
    """

    def __init__(
        self,
        weights: Sequence[float],
        feature_names: Sequence[str],
        *,
        embedder: Embedder,
        history: History,
    ) -> None:
        self._embedder = embedder
        self._history = history
        self._weights = tuple(weights)
        self._feature_names = tuple(feature_names)
        self.n_rankings = 0
        self.n_without = 0
        self.n_others = 0
        self.n_not_finite = 0
        self._first_other = ""

    def on_rankings(self, rankings: RankingColumns) -> RankingColumns:
        """The rankings with one more ranker, where they have the features of the weights."""
        whole = rankings
        if self._feature_names == FEATURE_NAMES:
            whole = with_made_features(rankings, embedder=self._embedder, history=self._history)
        found = weighed(whole, self._weights, self._feature_names)
        if not self.n_others and found.others.any():
            self._first_other = _told(rankings, found.others)
        self.n_rankings += len(rankings)
        self.n_without += int(np.count_nonzero(found.without))
        self.n_others += int(np.count_nonzero(found.others))
        self.n_not_finite += int(np.count_nonzero(found.not_finite))
        return replace(found.rankings, features=rankings.features)

    @property
    def n_measured(self) -> int:
        """Rankings that have the ranker."""
        return self.n_rankings - self.n_without - self.n_others - self.n_not_finite

    def warning(self) -> str:
        """Which rankings were left out, and why; empty if none was."""
        parts = []
        if self.n_without:
            parts.append(f"{self.n_without:,} have no features")
        if self.n_others:
            parts.append(
                f"{self.n_others:,} have other features than the weights "
                f"({', '.join(self._feature_names)}), first {self._first_other}"
            )
        if self.n_not_finite:
            parts.append(f"{self.n_not_finite:,} would have scores beyond what a number can hold")
        if not parts:
            return ""
        return f"weights were measured on {self.n_measured:,} of {self.n_rankings:,} rankings: " + (
            "; ".join(parts)
        )

    def check(self) -> None:
        """Raises SourceUnusable if there were rankings and none could be scored."""
        if self.n_rankings and not self.n_measured:
            raise SourceUnusable(
                f"{self.warning()}. Give weights for these features, or leave --weights out."
            )


def _told(rankings: RankingColumns, others: NDArray[np.bool_]) -> str:
    row = int(np.argmax(others))
    names = None if rankings.features is None else rankings.features.names[row]
    return f"{rankings.trace_ids[row]}, {rankings.node_ids[row]} with {', '.join(names or ())}"
