"""Precision against recall: by recall within queries, and by thresholds of the score."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct

from evaluator.core.measures import NEVER_RANKED, InvalidInputError
from evaluator.core.measures.dense import dense_lists
from evaluator.core.measures.lists import BoolArray, JudgedLists
from evaluator.core.types.records import FloatArray, IntArray
from evaluator.library.batches import QueryBatch, batches_of_arrays
from evaluator.library.forms import is_arrays, least_relevant, qrels_of, run_of
from evaluator.library.matching import Empty, Missing, Sides, check_choices, match
from evaluator.library.measured import QueryId, frame_of
from evaluator.library.plots import line_plot

ELEVEN_LEVELS: Final = tuple(level / 10 for level in range(11))
_ROUNDED_UP: Final = 0.9
"""As in trec_eval: a level is reached if at most a tenth of a candidate is missing."""


class PrecisionAtRecall(Struct, frozen=True, eq=False):
    """Interpolated precision at levels of recall.

    `recall` are the levels, `[n_levels]`; `values` is `[n_queries, n_levels]`, parallel to
    `query_ids`.
    """

    query_ids: Sequence[QueryId]
    recall: FloatArray
    values: FloatArray

    @property
    def precision(self) -> FloatArray:
        """The mean over the queries, `[n_levels]`; NaN without a query."""
        if not len(self.values):
            return np.full(len(self.recall), np.nan)
        mean: FloatArray = self.values.mean(axis=0)
        return mean

    @property
    def area(self) -> float:
        """The area below the mean curve, by trapezoids between the levels."""
        return float(np.trapezoid(self.precision, self.recall))

    def to_frame(self) -> Any:
        """A row per level with `recall` and `precision`, of pandas or polars."""
        pairs = zip(self.recall.tolist(), self.precision.tolist(), strict=True)
        return frame_of({"recall": recall, "precision": precision} for recall, precision in pairs)

    def plot(self, ax: Any = None, *, label: str = "") -> Any:
        """Draws the mean curve with matplotlib; returns its axes."""
        names = "recall", "interpolated precision"
        return line_plot(
            self.recall, self.precision, label or f"area {self.area:.3f}", names, ax=ax
        )


def precision_at_recall(
    qrels: Any,
    run: Any,
    *,
    levels: Sequence[float] = ELEVEN_LEVELS,
    rel: float | None = None,
    empty: Empty = "zero",
    missing: Missing = "warn",
) -> PrecisionAtRecall:
    """The interpolated precision of each query: the best precision at this recall or a higher one.

    A level counts as reached if at most a tenth of a candidate is missing, as in trec_eval.

    Args:
        qrels: as in `evaluate`.
        run: as in `evaluate`.
        levels: of recall, 0 to 1, ascending.
        rel: the least relevant grade; None: any above 0.
        empty: the value of a query without a relevant candidate: 0, or none (`skip`).
        missing: as in `evaluate`.
    Raises:
        InvalidInputError: for unusable arguments.
    Source: Manning, Raghavan and Schuetze 2008, Introduction to Information Retrieval, 8.4.

    >>> found = precision_at_recall({"q": {"a": 1, "b": 1}}, {"q": {"a": 3, "x": 2, "b": 1}})
    >>> found.precision[[0, 5, 6, 10]].round(4).tolist()
    [1.0, 1.0, 0.6667, 0.6667]
    """
    check_choices(empty=empty, missing=missing)
    rel = least_relevant(rel)
    try:
        wanted = np.array(levels, np.float64)
    except (TypeError, ValueError):
        wanted = np.zeros(0)
    if wanted.ndim != 1 or not len(wanted) or not ((wanted >= 0) & (wanted <= 1)).all():
        raise InvalidInputError("levels must be numbers from 0 to 1, one or more.")
    if (np.diff(wanted) <= 0).any():
        raise InvalidInputError("levels must ascend.")
    query_ids: list[QueryId] = []
    parts: list[tuple[IntArray, FloatArray]] = []
    for part in _parts(qrels, run, missing):
        lists = dense_lists(part.batch.scores, part.batch.grades, tie_order=part.batch.tie_order)
        kept = part.counts & (lists.n_relevant > 0) if empty == "skip" else part.counts
        lists = lists.relevant_from(rel) if rel else lists
        parts.append((part.places[kept], _interpolated(lists, wanted)[kept]))
        query_ids += [part.names[row] for row in np.flatnonzero(kept).tolist()]
    if not parts:
        return PrecisionAtRecall([], wanted, np.zeros((0, len(wanted))))
    places = np.concatenate([places for places, _ in parts])
    order = np.argsort(places)
    values = np.concatenate([values for _, values in parts])[order]
    return PrecisionAtRecall([query_ids[place] for place in order.tolist()], wanted, values)


def _interpolated(lists: JudgedLists, levels: FloatArray) -> FloatArray:
    """`[n_lists, n_levels]`."""
    found = lists.relevant & (lists.ranks < NEVER_RANKED)
    hits = np.cumsum(found, axis=1)
    precision = np.where(found, hits / lists.ranks, 0.0)
    needed = np.floor(levels * lists.n_relevant[:, None] + _ROUNDED_UP)
    values = np.zeros(needed.shape)
    for level in range(len(levels)):
        reached = hits >= needed[:, level, None]
        values[:, level] = np.where(reached, precision, 0.0).max(axis=1, initial=0.0)
    return values


class ThresholdCurve(Struct, frozen=True, eq=False):
    """Results of keeping all candidates with a score of at least a threshold, over all queries.

    `threshold`, `kept` and `hits` are `[n_thresholds]`, the highest threshold first: each different
    score, the candidates at or above it, and the relevant ones among them. `n_relevant` and
    `n_other` count all candidates; those that were judged and not ranked are below any threshold.
    """

    threshold: FloatArray
    kept: IntArray
    hits: IntArray
    n_relevant: int
    n_other: int

    @property
    def precision(self) -> FloatArray:
        return self.hits / self.kept

    @property
    def recall(self) -> FloatArray:
        return self.hits / max(self.n_relevant, 1)

    @property
    def false_positive_rate(self) -> FloatArray:
        return (self.kept - self.hits) / max(self.n_other, 1)

    def f_beta(self, beta: float = 1.0) -> FloatArray:
        """F of each threshold; recall counts *beta* times as much as precision."""
        denominator = beta * beta * self.n_relevant + self.kept
        return (1 + beta * beta) * self.hits / denominator

    def best(self, beta: float = 1.0) -> tuple[float, float]:
        """The threshold with the largest F and this F; of equal ones the highest threshold."""
        values = self.f_beta(beta)
        if not len(values):
            raise InvalidInputError("there is no ranked candidate, so there is no threshold.")
        place = int(values.argmax())
        return float(self.threshold[place]), float(values[place])

    @property
    def pr_area(self) -> float:
        """Average precision: the sum of precision times the step of recall; NaN if undefined.

        Source: Davis and Goadrich 2006: straight lines between the points are too optimistic.
        """
        if not self.n_relevant:
            return float("nan")
        return float(np.sum(np.diff(self.recall, prepend=0.0) * self.precision))

    @property
    def roc_area(self) -> float:
        """Area below the ROC curve, by trapezoids from (0, 0) to (1, 1); NaN if undefined."""
        if not self.n_relevant or not self.n_other:
            return float("nan")
        x, y = self._roc()
        return float(np.trapezoid(y, x))

    def to_frame(self, beta: float = 1.0) -> Any:
        """A row per threshold, of pandas or polars."""
        columns = {
            "threshold": self.threshold,
            "precision": self.precision,
            "recall": self.recall,
            "false_positive_rate": self.false_positive_rate,
            "f_beta": self.f_beta(beta),
        }
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return frame_of(dict(zip(columns, row, strict=True)) for row in rows)

    def plot(self, kind: str = "pr", ax: Any = None, *, beta: float = 1.0, label: str = "") -> Any:
        """Draws `pr`, `roc` or `f` (F over the threshold) with matplotlib; returns the axes."""
        if kind == "pr":
            names, label = ("recall", "precision"), label or f"area {self.pr_area:.3f}"
            return line_plot(self.recall, self.precision, label, names, ax=ax, style="steps-pre")
        if kind == "roc":
            names, label = ("false positive rate", "recall"), label or f"area {self.roc_area:.3f}"
            return line_plot(*self._roc(), label, names, ax=ax)
        if kind == "f":
            names, label = ("threshold", "F"), label or f"F, beta = {beta:g}"
            return line_plot(self.threshold, self.f_beta(beta), label, names, ax=ax)
        raise InvalidInputError(f"kind is {kind!r}; it must be pr, roc or f.")

    def _roc(self) -> tuple[FloatArray, FloatArray]:
        """False positive rate and recall, from (0, 0) to (1, 1)."""
        x = np.concatenate([[0.0], self.false_positive_rate, [1.0]])
        return x, np.concatenate([[0.0], self.recall, [1.0]])


def thresholds(
    qrels: Any,
    run: Any,
    *,
    rel: float | None = None,
    judged_only: bool = False,
    missing: Missing = "warn",
) -> ThresholdCurve:
    """Precision, recall, false positive rate and F over thresholds of the score.

    All queries are taken together, so scores must be comparable between them. An unjudged candidate
    is not relevant, or left out with *judged_only*.

    Args:
        qrels: as in `evaluate`.
        run: as in `evaluate`.
        rel: the least relevant grade; None: any above 0.
        judged_only: leave out unjudged candidates.
        missing: as in `evaluate`.
    Raises:
        InvalidInputError: for unusable arguments.
    Source: Fawcett 2006, An introduction to ROC analysis.

    >>> found = thresholds({"q": {"a": 1, "b": 0}}, {"q": {"a": 0.9, "b": 0.4, "c": 0.2}})
    >>> found.precision.round(4).tolist(), found.recall.tolist(), found.best()
    ([1.0, 0.5, 0.3333], [1.0, 1.0, 1.0], (0.9, 1.0))
    """
    check_choices(missing=missing)
    rel = least_relevant(rel)
    scores, relevant = [np.zeros(0)], [np.zeros(0, bool)]
    for part in _parts(qrels, run, missing):
        judged = part.batch.grades >= 0
        wins = part.batch.grades >= rel if rel else part.batch.grades > 0
        ranked = np.isfinite(part.batch.scores)
        counts = part.counts[:, None] & (judged if judged_only else judged | ranked)
        scores.append(np.where(ranked, part.batch.scores, -np.inf)[counts])
        relevant.append(wins[counts])
    score, is_relevant = np.concatenate(scores), np.concatenate(relevant)
    order = np.argsort(-score, kind="stable")
    ordered = score[order] + 0.0  # -0.0 becomes 0.0
    changes = np.append(ordered[1:] != ordered[:-1], True)
    last_of_equal = np.flatnonzero(changes[: len(ordered)])
    last_of_equal = last_of_equal[np.isfinite(ordered[last_of_equal])]
    n_relevant = int(is_relevant.sum())
    return ThresholdCurve(
        threshold=ordered[last_of_equal],
        kept=last_of_equal + 1,
        hits=np.cumsum(is_relevant[order])[last_of_equal],
        n_relevant=n_relevant,
        n_other=len(score) - n_relevant,
    )


class _Part(NamedTuple):
    """A batch, the ids and places of its queries, and which of them count: `[n_queries]`."""

    batch: QueryBatch
    names: Sequence[QueryId]
    places: IntArray
    counts: BoolArray


def _parts(qrels: Any, run: Any, missing: Missing) -> Iterator[_Part]:
    """The queries with a grade, in batches."""
    arrays, sides = is_arrays(qrels, run), Sides()
    batches = (
        batches_of_arrays(qrels, run)
        if arrays
        else match(qrels_of(qrels), run_of(run), missing).batches()
    )
    for batch in batches:
        places = np.arange(len(run))[batch.queries] if arrays else np.asarray(batch.queries)
        counts, ranked = sides.add(batch)
        if arrays and missing != "zero":
            counts = counts & ranked
        yield _Part(batch, places.tolist() if arrays else batch.names, places, counts)
    if arrays:
        sides.report(missing)
