"""`evaluate`: qrels and a run, in any of the usual forms, to values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Final, Literal, TypedDict

import numpy as np

from evaluator.config.measures import parse_measures
from evaluator.core.join.subtopics import given_subtopics, subtopics_of_query
from evaluator.core.measures import NEVER_RANKED, JudgedLists, MeasureSet
from evaluator.core.measures.dense import dense_lists
from evaluator.core.measures.lists import BoolArray
from evaluator.core.types.records import IntArray, SubtopicsById
from evaluator.library.batches import Batch, Qrels, Run, Scores, batches_of_dicts
from evaluator.library.forms import batches_of, is_arrays, qrels_of, run_of
from evaluator.library.measured import Measured, QueryId

Empty = Literal["zero", "skip"]
Missing = Literal["skip", "zero"]
Ties = Literal["id", "average"]

_NO_SCORES: Final[Scores] = {}

SubtopicsByQuery = Mapping[str, SubtopicsById]
"""Subtopics by query id and candidate id."""


class EvaluateOptions(TypedDict, total=False):
    """The settings of `evaluate`, which says what they mean."""

    empty: Empty
    missing: Missing
    ties: Ties
    judged_only: bool
    map_graded_max_grade: int
    err_max_grade: int
    subtopics: SubtopicsByQuery | None


def evaluate(
    qrels: Any,
    run: Any,
    measures: str | Iterable[str],
    *,
    empty: Empty = "zero",
    missing: Missing = "skip",
    ties: Ties = "id",
    judged_only: bool = False,
    map_graded_max_grade: int = 2,
    err_max_grade: int = 4,
    subtopics: SubtopicsByQuery | None = None,
) -> Measured:
    """Measures one ranking per query; the same values as a worker's, to the last bit.

    Args:
        qrels: grades of candidates by query: `{query_id: {candidate_id: grade}}`, a pandas or
            polars frame, the path of a TREC qrels file, or an array `[n_queries, n_candidates]`
            with NaN for what is not judged. A grade that is negative or None is as none.
        run: scores of candidates by query, in the same forms; in an array NaN for a candidate
            that is not ranked. Arrays (or lists of lists) come in pairs: a column is a candidate.
        measures: names such as `ndcg@10` (docs/measures.md), or a text of them with commas.
        empty: what a judged query with nothing relevant is worth: 0 (`zero`), or no value.
        missing: a query of the qrels that the run does not have: left out (`skip`), or measured
            as an empty ranking (`zero`). A query of the run without qrels never has a value.
        ties: equal scores by candidate id, descending (`id`), or the mean of all orders.
        judged_only: whether unjudged candidates are taken out of a list before it is measured.
        map_graded_max_grade: grade that counts fully in `map_graded`, 1 to 31.
        err_max_grade: grade that counts fully in `err`, 1 to 31.
        subtopics: of candidates by query, for `alpha_ndcg` and `subtopic_recall`; not of arrays.
    Raises:
        UnknownMeasureError: for a name that is no measure; lists those that are.
        UnsupportedTiesError: if a measure cannot be averaged over ties.
        ValueError: for any other argument that cannot be used; says which and why.

    >>> qrels = {"q1": {"a": 1, "b": 0}, "q2": {"c": 2}}
    >>> run = {"q1": {"a": 0.3, "b": 0.7}, "q2": {"c": 1.5, "d": 0.5}}
    >>> result = evaluate(qrels, run, ["mrr", "p@1"])
    >>> result.mean
    {'mrr': 0.75, 'p@1': 0.5}
    >>> result.per_query["q1"]
    {'mrr': 0.5, 'p@1': 0.0}
    """
    asked = Asked.of(
        measures,
        empty=empty,
        missing=missing,
        ties=ties,
        judged_only=judged_only,
        map_graded_max_grade=map_graded_max_grade,
        err_max_grade=err_max_grade,
    )
    if is_arrays(qrels, run):
        if subtopics is not None:
            raise ValueError("subtopics are by candidate id: give qrels and run as mappings too.")
        return measured_arrays(qrels, run, asked)
    return measured_dicts(qrels_of(qrels), run_of(run), asked, subtopics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of every query."""

    measures: MeasureSet
    empty: Empty
    missing: Missing
    ties: Ties
    judged_only: bool

    @classmethod
    def of(
        cls,
        measures: str | Iterable[str],
        *,
        empty: Empty,
        missing: Missing,
        ties: Ties,
        judged_only: bool,
        map_graded_max_grade: int,
        err_max_grade: int,
    ) -> "Asked":
        """The same, checked. Raises as `evaluate` does."""
        for name, value, accepted in (
            ("empty", empty, ("zero", "skip")),
            ("missing", missing, ("skip", "zero")),
            ("ties", ties, ("id", "average")),
        ):
            if value not in accepted:
                raise ValueError(f"{name} is {value!r}; it must be {' or '.join(accepted)}.")
        for name, grade in (
            ("map_graded_max_grade", map_graded_max_grade),
            ("err_max_grade", err_max_grade),
        ):
            if not 1 <= grade <= 31:
                raise ValueError(f"{name} is {grade}; it must be a whole number from 1 to 31.")
        parsed = parse_measures(
            [name.strip() for name in measures.split(",")]
            if isinstance(measures, str)
            else list(measures),
            map_graded_max_grade=map_graded_max_grade,
            err_max_grade=err_max_grade,
        )
        if ties == "average":
            parsed.require_averages()
        return cls(
            measures=parsed, empty=empty, missing=missing, ties=ties, judged_only=judged_only
        )

    def units(self, lists: JudgedLists) -> IntArray:
        """Values in units of 2^-40: `[n_queries, n_measures]`."""
        return self.measures.units(lists.condensed() if self.judged_only else lists)

    def lists(self, batch: Batch) -> JudgedLists:
        """The batch as measures see it."""
        return dense_lists(
            batch.scores, batch.grades, tie_order=batch.tie_order, with_ties=self.ties == "average"
        )


def measured_arrays(grades: Any, scores: Any, asked: Asked) -> Measured:
    """Values of the rows that have a judged candidate."""
    n, batches = batches_of(grades, scores)
    gathered = _Gathered(n, asked)
    for batch in batches:
        gathered.add(batch, asked.lists(batch), ranked=asked.missing == "zero")
    return gathered.measured(range(n))


def measured_dicts(
    qrels: Qrels, run: Run, asked: Asked, subtopics: SubtopicsByQuery | None = None
) -> Measured:
    """Values of the queries that have a judged candidate."""
    query_ids, judged = list(qrels), list(qrels.values())
    rankings = [run.get(query_id) for query_id in query_ids]
    if asked.missing == "skip":
        both = [ranking is not None for ranking in rankings]
        query_ids, judged = list(compress(query_ids, both)), list(compress(judged, both))
        rankings = list(compress(rankings, both))
    there: list[Scores] = [_NO_SCORES if ranking is None else ranking for ranking in rankings]
    gathered = _Gathered(len(query_ids), asked)
    asks = asked.measures.needs_subtopics and subtopics is not None
    for batch in batches_of_dicts(query_ids, judged, there, with_ids=asks):
        lists = asked.lists(batch)
        if asks:
            lists = _with_subtopics(lists, batch.names, batch.ids or (), subtopics or {})
        gathered.add(batch, lists, ranked=True)
    return gathered.measured(query_ids)


def _with_subtopics(
    lists: JudgedLists,
    names: Sequence[str],
    ids: Sequence[Sequence[str]],
    subtopics: SubtopicsByQuery,
) -> JudgedLists:
    found = [
        subtopics_of_query(columns, given_subtopics(subtopics.get(name, {})))
        for name, columns in zip(names, ids, strict=True)
    ]
    return replace(lists, subtopics=found)


def _any_judged(batch: Batch, lists: JudgedLists) -> BoolArray:
    """Which queries have a grade; mostly seen from the first judged candidate of the lists."""
    if lists.ranks.shape[1]:
        first_is_ranked: BoolArray = lists.ranks[:, 0] < NEVER_RANKED
        if first_is_ranked.all():
            return first_is_ranked
    any_judged: BoolArray = np.any(batch.grades >= 0, axis=1)
    return any_judged


class _Gathered:
    """Values of the batches so far, and which of the queries have one."""

    def __init__(self, n_queries: int, asked: Asked) -> None:
        self._asked = asked
        self._units = np.zeros((n_queries, len(asked.measures.canonical)), np.int64)
        self._valued = np.ones(n_queries, bool)

    def add(self, batch: Batch, lists: JudgedLists, *, ranked: bool) -> None:
        """Measures a batch; unless *ranked*, an empty list is a query that the run lacks."""
        self._units[batch.queries] = self._asked.units(lists)
        skips = self._asked.empty == "skip"
        valued = lists.n_relevant > 0 if skips else _any_judged(batch, lists)
        if not ranked:
            valued = valued & (lists.n_ranked > 0)
        self._valued[batch.queries] = valued

    def measured(self, query_ids: Sequence[QueryId]) -> Measured:
        """The queries that have a value."""
        if self._valued.all():
            return Measured(query_ids, self._units, self._asked.measures)
        kept = np.flatnonzero(self._valued)
        names = [query_ids[query] for query in kept.tolist()]
        return Measured(names, self._units[kept], self._asked.measures)
