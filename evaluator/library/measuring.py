"""`evaluate`: the values of a run, from qrels and scores in the usual forms."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypedDict, cast, get_args

import numpy as np

from evaluator.config.measures import parse_measures
from evaluator.core.measures import (
    NEVER_RANKED,
    JudgedLists,
    MeasureSet,
    Terms,
    split_names,
)
from evaluator.core.measures.dense import dense_lists
from evaluator.core.measures.lists import BoolArray
from evaluator.core.types.records import IntArray
from evaluator.library.batches import (
    Batch,
    Grades,
    Qrels,
    Run,
    Scores,
    batches_of_arrays,
    batches_of_dicts,
)
from evaluator.library.candidates import Freshness, OfCandidates, SubtopicsByQuery
from evaluator.library.errors import InvalidInputError, MissingQueriesWarning
from evaluator.library.forms import check_ids, is_arrays, qrels_of, run_of
from evaluator.library.measured import Groups, Measured, QueryId
from evaluator.library.names import own_name

Empty = Literal["zero", "skip"]
Missing = Literal["warn", "skip", "zero", "error"]
Ties = Literal["id", "average"]

_NO_SCORES: Final[Scores] = {}


class EvaluateOptions(TypedDict, total=False):
    """The optional arguments of `evaluate`."""

    empty: Empty
    missing: Missing
    ties: Ties
    judged_only: bool
    map_graded_max_grade: int
    err_max_grade: int
    subtopics: SubtopicsByQuery | None
    freshness: Freshness | None
    groups: Groups | None


def evaluate(
    qrels: Any,
    run: Any,
    measures: str | Iterable[str],
    *,
    empty: Empty = "zero",
    missing: Missing = "warn",
    ties: Ties = "id",
    judged_only: bool = False,
    map_graded_max_grade: int = 2,
    err_max_grade: int = 4,
    subtopics: SubtopicsByQuery | None = None,
    freshness: Freshness | None = None,
    groups: Groups | None = None,
) -> Measured:
    """Measures one ranking per query; values have the same bits as those of a worker.

    Args:
        qrels: grades of candidates by query: `{query_id: {candidate_id: grade}}`, a frame of pandas
            or polars, the path of a TREC file, or an array `[n_queries, n_candidates]`. Negative
            grades, None and NaN mean unjudged.
        run: scores in the same forms; NaN in an array: not ranked. Both are arrays (or lists of
            lists) or none: a column is a candidate.
        measures: names such as `ndcg@10` (docs/measures.md), or one text with commas.
        empty: the value of a judged query without a relevant candidate: 0, or none (`skip`).
        missing: a judged query that is not in the run: left out with a warning (`warn`) or without
            (`skip`), measured as an empty ranking (`zero`), or refused (`error`).
        ties: equal scores by candidate id, descending (`id`), or the mean of all orders.
        judged_only: remove unjudged candidates from a list before it is measured.
        map_graded_max_grade: grade that counts fully in `map_graded`, 1 to 31.
        err_max_grade: grade that counts fully in `err`, 1 to 31.
        subtopics: of candidates by query, for `alpha_ndcg` and `subtopic_recall`; not of arrays.
        freshness: ages of candidates, with which gains in `ndcg` and `ndcg_linear` decay.
        groups: of queries by id, or of arrays one per row, for `by_group` of the result.
    Raises:
        UnknownMeasureError: for an unknown measure; lists the known ones.
        UnsupportedTiesError: if a measure cannot be averaged over ties.
        InvalidInputError: for any other unusable argument, and for qrels and a run without a
            common query.

    >>> qrels, run = {"q1": {"a": 1}, "q2": {"c": 2}}, {"q1": {"a": 1, "b": 2}, "q2": {"c": 1}}
    >>> evaluate(qrels, run, ["mrr", "p@1"]).mean
    {'mrr': 0.75, 'p@1': 0.5}
    """
    parsed = _parsed(
        _names(measures),
        Terms(map_graded_max_grade=map_graded_max_grade, err_max_grade=err_max_grade),
    )
    rules = Rules(measures=parsed, empty=empty, missing=missing, ties=ties, judged_only=judged_only)
    more = OfCandidates(subtopics if parsed.needs_subtopics else None, freshness)
    if is_arrays(qrels, run):
        if subtopics is not None or freshness is not None:
            raise InvalidInputError(
                "subtopics and freshness are by candidate id: give qrels and run as mappings too."
            )
        return replace(measured_arrays(qrels, run, rules), groups=_groups(groups, len(run)))
    measured = measured_dicts(qrels_of(qrels), run_of(run), rules, more)
    return replace(measured, groups=_groups(groups, None))


def _groups(groups: Any, n_rows: int | None) -> Groups | None:
    """The groups. Raises InvalidInputError for those of other queries; *n_rows* is of arrays."""
    if groups is None or isinstance(groups, Mapping):
        return groups
    if n_rows is None or isinstance(groups, str) or not hasattr(groups, "__len__"):
        raise InvalidInputError("groups must be a mapping {query_id: group}.")
    if len(groups) != n_rows:
        raise InvalidInputError(f"groups are {len(groups)} for {n_rows} rows; give one per row.")
    return cast("Groups", groups)


def _names(measures: Any) -> list[str]:
    """The requested names; objects of ir_measures have theirs. Raises InvalidInputError."""
    if isinstance(measures, str):
        return split_names(measures)
    try:
        return list(map(str, measures))
    except TypeError:
        raise InvalidInputError(
            f"measures is of type {type(measures).__name__}; give names in a list, or a text with "
            "commas."
        ) from None


def _parsed(asked: Sequence[str], scales: Terms) -> MeasureSet:
    """The measures of names, also of other programs, which keep their spellings."""
    own = {name: own_name(name) for name in asked}
    parsed = parse_measures(list(own.values()), scales)
    for _, measure in (*parsed.of_seen, *parsed.of_clicks):
        raise ValueError(f"{measure.canonical} needs what users have seen: use replay.")
    spellings = dict.fromkeys(
        asked_name
        for spelling in parsed.spellings
        for asked_name in [name for name, meant in own.items() if meant == spelling] or [spelling]
    )
    columns = {name: parsed.columns[own.get(name, name)] for name in spellings}
    return replace(parsed, spellings=tuple(spellings), columns=columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of an evaluation, checked. Raises ValueError, UnsupportedTiesError."""

    measures: MeasureSet
    empty: Empty
    missing: Missing
    ties: Ties
    judged_only: bool

    def __post_init__(self) -> None:
        scales = self.measures.scales
        for name, kind in (("empty", Empty), ("missing", Missing), ("ties", Ties)):
            if (value := getattr(self, name)) not in get_args(kind):
                raise InvalidInputError(
                    f"{name} is {value!r}; it must be {' or '.join(get_args(kind))}."
                )
        for name in ("map_graded_max_grade", "err_max_grade"):
            if not 1 <= (grade := getattr(scales, name)) <= 31:
                raise InvalidInputError(
                    f"{name} is {grade}; it must be a whole number from 1 to 31."
                )
        if self.ties == "average":
            self.measures.require_averages()

    def units(self, lists: JudgedLists) -> IntArray:
        """Values in units of 2^-40: `[n_queries, n_measures]`."""
        return self.measures.units(lists.condensed() if self.judged_only else lists)

    def lists(self, batch: Batch) -> JudgedLists:
        """The judged lists of a batch."""
        return dense_lists(
            batch.scores, batch.grades, tie_order=batch.tie_order, with_ties=self.ties == "average"
        )


def measured_arrays(grades: Any, scores: Any, rules: Rules) -> Measured:
    """The values of rows with a judged candidate."""
    batches = ((batch, rules.lists(batch)) for batch in batches_of_arrays(grades, scores))
    return _measured(range(len(scores)), batches, rules, ranked=rules.missing == "zero")


def measured_dicts(
    qrels: Qrels, run: Run, rules: Rules, more: OfCandidates | None = None
) -> Measured:
    """The values of queries with a judged candidate."""
    found = match(qrels, run, rules.missing)
    more = more or OfCandidates()
    batches = (
        (batch, more.added_to(rules.lists(batch), batch))
        for batch in found.batches(with_ids=any(each is not None for each in more))
    )
    measured = _measured(found.query_ids, batches, rules, ranked=True)
    return replace(measured, missing=found.missing, unjudged=found.unjudged)


class Matched(NamedTuple):
    """The queries of qrels that count, their grades and scores, and how many others there are."""

    query_ids: list[str]
    judged: list[Grades]
    rankings: list[Scores]
    missing: int
    unjudged: int

    def batches(self, *, with_ids: bool = False) -> Iterator[Batch]:
        """The queries in batches."""
        return batches_of_dicts(self.query_ids, self.judged, self.rankings, with_ids=with_ids)


def match(qrels: Qrels, run: Run, missing: Missing) -> Matched:
    """The queries of both. Raises InvalidInputError, or warns of queries that the run lacks."""
    check_ids(qrels, run)
    found = dict(zip(qrels, map(run.get, qrels), strict=True))
    n_missing = sum(ranking is None for ranking in found.values())
    n_unjudged = len(run) - len(found) + n_missing
    _report_missing(n_missing, len(qrels), missing)
    if missing != "zero":
        found = {name: ranking for name, ranking in found.items() if ranking is not None}
    rankings = [ranking or _NO_SCORES for ranking in found.values()]
    return Matched(list(found), [qrels[name] for name in found], rankings, n_missing, n_unjudged)


def _report_missing(n_missing: int, n_queries: int, missing: Missing) -> None:
    """Raises InvalidInputError, or warns, about queries that the run lacks."""
    if not n_missing or missing not in ("warn", "error"):
        return
    text = (
        f"{n_missing:,} of {n_queries:,} queries of the qrels are not in the run. "
        'Set missing="zero" to measure them as empty rankings, or "skip" to leave them out'
    )
    if missing == "error":
        raise InvalidInputError(f"{text}.")
    warnings.warn(f"{text}, as now.", MissingQueriesWarning, stacklevel=5)


def _any_judged(batch: Batch, lists: JudgedLists) -> BoolArray:
    """Mask of the queries with a grade; in most batches the ranks of the lists suffice."""
    if lists.ranks.shape[1]:
        first_is_ranked: BoolArray = lists.ranks[:, 0] < NEVER_RANKED
        if first_is_ranked.all():
            return first_is_ranked
    any_judged: BoolArray = np.any(batch.grades >= 0, axis=1)
    return any_judged


def _measured(
    query_ids: Sequence[QueryId],
    batches: Iterable[tuple[Batch, JudgedLists]],
    rules: Rules,
    *,
    ranked: bool,
) -> Measured:
    """The queries with a value; without *ranked* empty lists are queries that the run lacks."""
    units = np.zeros((len(query_ids), len(rules.measures.canonical)), np.int64)
    valued = np.ones(len(query_ids), bool)
    for batch, lists in batches:
        units[batch.queries] = rules.units(lists)
        skips = rules.empty == "skip"
        have_value = lists.n_relevant > 0 if skips else _any_judged(batch, lists)
        valued[batch.queries] = have_value if ranked else have_value & (lists.n_ranked > 0)
    if valued.all():
        return Measured(query_ids, units, rules.measures)
    kept = np.flatnonzero(valued)
    return Measured([query_ids[query] for query in kept.tolist()], units[kept], rules.measures)
