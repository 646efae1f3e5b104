"""`evaluate`: the values of a run, from qrels and scores in the usual forms."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, TypedDict

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from evaluator.config.kinds import ConfigError
from evaluator.config.measures import parse_measures
from evaluator.core.measures import (
    MAX_GRADE,
    NEVER_RANKED,
    InvalidInputError,
    JudgedLists,
    MeasureSet,
    Terms,
    split_names,
)
from evaluator.core.measures.dense import dense_lists
from evaluator.core.measures.lists import BoolArray
from evaluator.core.types.records import IntArray
from evaluator.library.batches import Qrels, QueryBatch, Run, batches_of_arrays
from evaluator.library.candidates import (
    Freshness,
    OfCandidates,
    SubtopicsByQuery,
    check_of_candidates,
)
from evaluator.library.forms import check_ids_of, check_keys, is_arrays, qrels_of, run_of
from evaluator.library.matching import Empty, Missing, Sides, Ties, check_choices, match
from evaluator.library.measured import Groups, Measured, QueryId
from evaluator.library.names import own_name


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
        missing: a query of one side alone: left out with a warning (`warn`) or without (`skip`),
            or refused (`error`); with `zero` one of the qrels is measured as an empty ranking.
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
    scales = _scales(map_graded_max_grade=map_graded_max_grade, err_max_grade=err_max_grade)
    parsed = _parsed(names_of(measures), scales)
    rules = Rules(measures=parsed, empty=empty, missing=missing, ties=ties, judged_only=judged_only)
    check_of_candidates(subtopics, freshness)
    more = OfCandidates(subtopics if parsed.needs_subtopics else None, freshness)
    if is_arrays(qrels, run):
        if subtopics is not None or freshness is not None:
            raise InvalidInputError(
                "subtopics and freshness are by candidate id: give qrels and run as mappings too."
            )
        return replace(measured_arrays(qrels, run, rules), groups=_groups(groups, range(len(run))))
    judged = qrels_of(qrels)
    check_ids_of("subtopics", subtopics, judged)
    check_ids_of("ages_ms", freshness and freshness.ages_ms, judged)
    return replace(measured_dicts(judged, run_of(run), rules, more), groups=_groups(groups, judged))


def _groups(groups: Any, query_ids: Collection[Any]) -> Groups | None:
    """The groups. Raises InvalidInputError for those of other queries; ids of arrays are rows."""
    if groups is None or isinstance(groups, Mapping):
        check_keys("groups", groups, query_ids)
        return groups
    if (
        not isinstance(query_ids, range)
        or isinstance(groups, (str, set, frozenset))
        or not hasattr(groups, "__len__")
    ):
        raise InvalidInputError("groups must be a mapping {query_id: group}.")
    if len(groups) != len(query_ids):
        raise InvalidInputError(
            f"groups are {len(groups)} for {len(query_ids)} rows; give one per row."
        )
    return list(groups)  # by place: a column of pandas would be read by its index


def _scales(**largest: Any) -> Terms:
    """The scales, as Python integers: those of NumPy may overflow. Raises InvalidInputError."""
    for name, grade in largest.items():
        if not (isinstance(grade, Integral) and 1 <= int(grade) <= MAX_GRADE):
            raise InvalidInputError(
                f"{name} is {grade!r}; it must be a whole number from 1 to {MAX_GRADE}."
            )
    whole: dict[str, Any] = {name: int(grade) for name, grade in largest.items()}
    return Terms(**whole)


def names_of(measures: Any) -> list[str]:
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
    try:
        parsed = parse_measures(list(own.values()), scales)
    except ConfigError as error:
        raise InvalidInputError(str(error)) from None
    for _, measure in (*parsed.of_seen, *parsed.of_clicks):
        raise InvalidInputError(f"{measure.canonical} needs exposure, so use replay.")
    spellings = dict.fromkeys(
        asked_name
        for spelling in parsed.spellings
        for asked_name in [name for name, meant in own.items() if meant == spelling] or [spelling]
    )
    columns = {name: parsed.columns[own.get(name, name)] for name in spellings}
    return replace(parsed, spellings=tuple(spellings), columns=columns)


class Rules(Struct, frozen=True, kw_only=True):
    """The rules of an evaluation, checked. Raises InvalidInputError."""

    measures: MeasureSet
    empty: Empty
    missing: Missing
    ties: Ties
    judged_only: bool

    def __post_init__(self) -> None:
        check_choices(empty=self.empty, missing=self.missing, ties=self.ties)
        if self.ties == "average":
            self.measures.require_averages()

    def units(self, lists: JudgedLists) -> IntArray:
        """Values in units of 2^-40: `[n_queries, n_measures]`."""
        return self.measures.units(lists.condensed() if self.judged_only else lists)

    def lists(self, batch: QueryBatch) -> JudgedLists:
        return dense_lists(
            batch.scores, batch.grades, tie_order=batch.tie_order, with_ties=self.ties == "average"
        )


def measured_arrays(grades: Any, scores: Any, rules: Rules) -> Measured:
    """The values of rows with a judged candidate."""
    sides = Sides()

    def batches() -> Iterator[tuple[QueryBatch, JudgedLists]]:
        for batch in batches_of_arrays(grades, scores):
            sides.add(batch)
            yield batch, rules.lists(batch)

    measured = _measured(range(len(scores)), batches(), rules, ranked=rules.missing == "zero")
    sides.report(rules.missing)
    return replace(measured, missing=sides.missing, unjudged=sides.unjudged)


def measured_dicts(qrels: Qrels, run: Run, rules: Rules, more: OfCandidates) -> Measured:
    """The values of queries with a judged candidate."""
    found = match(qrels, run, rules.missing)
    batches = (
        (batch, more.added_to(rules.lists(batch), batch))
        for batch in found.batches(with_ids=any(each is not None for each in more))
    )
    measured = _measured(found.query_ids, batches, rules, ranked=True)
    return replace(measured, missing=found.missing, unjudged=found.unjudged)


def _any_judged(batch: QueryBatch, lists: JudgedLists) -> BoolArray:
    """Mask of the queries with a grade; in most batches the ranks of the lists suffice."""
    if lists.ranks.shape[1]:
        first_is_ranked: BoolArray = lists.ranks[:, 0] < NEVER_RANKED
        if first_is_ranked.all():
            return first_is_ranked
    any_judged: BoolArray = np.any(batch.grades >= 0, axis=1)
    return any_judged


def _measured(
    query_ids: Sequence[QueryId],
    batches: Iterable[tuple[QueryBatch, JudgedLists]],
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
