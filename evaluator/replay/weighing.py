"""Additional rankers of a replay: given linear weights, or functions from features to scores."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.features import FEATURE_NAMES, Embedder, SuccessTable, features_of
from evaluator.core.learning.elementary import linear_scores
from evaluator.core.learning.transforms import NO_TRANSFORMS, Transforms, transformed
from evaluator.core.types.records import WEIGHTS, FloatArray, RankingColumns, Stratum
from evaluator.ports import SourceUnusable

Score = Callable[[FloatArray], Any]
"""From features `[n_candidates, n_features]`, of several rankings, to scores `[n_candidates]`."""


def linear(
    weights: Sequence[float], names: Sequence[str] = (), transforms: Transforms = NO_TRANSFORMS
) -> Score:
    """The scores of linear weights on features, after the transforms of these names."""
    return lambda features: linear_scores(transformed(features, names, transforms).T, weights) + 0.0


class Weighing:
    """Adds one ranker to rankings with its features, and counts the others.

    Args:
        score: gets copies of features; may raise anything.
        feature_names: of the ranker; None: those of the first ranking with features.
        ranker: its name.
        described: computes the features of described candidates, if FEATURE_NAMES are its features.
    """

    def __init__(
        self,
        score: Score,
        feature_names: Sequence[str] | None = None,
        *,
        ranker: str = WEIGHTS,
        described: tuple[Embedder, SuccessTable] | None = None,
    ) -> None:
        self._score = score
        self._feature_names = None if feature_names is None else tuple(feature_names)
        self._ranker = ranker
        self._features_of = None
        if described is not None and self._feature_names == FEATURE_NAMES:
            self._features_of = partial(features_of, embedder=described[0], history=described[1])
        self._n_rankings = 0
        self._left_out: Counter[str] = Counter()
        self._first_other = ""

    def on_rankings(self, rankings: RankingColumns) -> RankingColumns:
        """The rankings with the ranker, if they have its features. Raises SourceUnusable."""
        self._n_rankings += len(rankings)
        features_by_row = self._features_by_row(rankings)
        scores_by_row: dict[int, FloatArray] = {}
        if features_by_row:
            scores = self._scores(np.concatenate(list(features_by_row.values())))
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
                if self._ranker in strata[row].rankers:
                    raise SourceUnusable(
                        f"{_key(rankings, row)} has a scorer named "
                        f"{self._ranker} already. Give --scorer another name."
                    )
                strata[row] = strata[row]._replace(rankers=(*strata[row].rankers, self._ranker))
        column = DictionaryColumn.of(strata)
        return replace(rankings, strata=column, scores=np.concatenate(parts))

    def _scores(self, features: FloatArray) -> FloatArray:
        """The scores of candidates, `[n_candidates]`. Raises SourceUnusable."""
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                scores = np.asarray(self._score(features), np.float64)
        except Exception as error:
            raise SourceUnusable(
                f"the scorer {self._ranker} raised {type(error).__name__}: {error}"
            ) from error
        if scores.shape != features.shape[:1]:
            raise SourceUnusable(
                f"the scorer {self._ranker} returned an array {scores.shape} for features "
                f"{features.shape}. Return one score for each row."
            )
        return scores

    def _features_by_row(self, rankings: RankingColumns) -> dict[int, FloatArray]:
        """The rows with the features of the weights; the others are counted."""
        features = rankings.features
        if features is None:
            raise ValueError("these rankings were decoded without their features")
        computed = features.described if self._features_of else {}
        found: dict[int, FloatArray] = {}
        for row, matrix in enumerate(features.of_rows(rankings.candidate_counts)):
            names = features.names[row]
            if self._features_of is not None and row in computed:
                found[row] = self._features_of(computed[row])
            elif matrix is None or names is None:
                self._left_out["without"] += 1
            elif names == (self._feature_names or names):
                self._feature_names = names
                found[row] = matrix
            else:
                with_names = f"{_key(rankings, row)} with {', '.join(names)}"
                self._first_other = self._first_other or with_names
                self._left_out["others"] += 1
        return found

    @property
    def _of(self) -> str:
        return "weights" if self._ranker == WEIGHTS else f"scorer {self._ranker}"

    def warning(self) -> str:
        """The numbers of rankings without the ranker, by reason; empty if all have it."""
        if not self._left_out:
            return ""
        reasons = {
            "without": "have no features",
            "others": f"have other features than the {self._of} "
            f"({', '.join(self._feature_names or ())}), first {self._first_other}",
            "not_finite": "would have scores beyond the range of a float",
        }
        texts = [
            f"{self._left_out[name]:,} {text}"
            for name, text in reasons.items()
            if self._left_out[name]
        ]
        verb = "were" if self._ranker == WEIGHTS else "was"
        n_measured = self._n_rankings - self._left_out.total()
        return (
            f"{self._of} {verb} measured on {n_measured:,} of {self._n_rankings:,} rankings: "
            + "; ".join(texts)
        )

    def check(self) -> None:
        """Raises SourceUnusable if there were rankings and none has the ranker."""
        if self._n_rankings and self._left_out.total() == self._n_rankings:
            raise SourceUnusable(
                f"{self.warning()}. Give {self._of} for these features, or leave "
                f"{'--weights' if self._ranker == WEIGHTS else '--scorer'} out."
            )


def _key(rankings: RankingColumns, row: int) -> str:
    return ", ".join(rankings.texts[row][:2])
