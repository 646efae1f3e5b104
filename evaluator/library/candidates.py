"""Further inputs by candidate: subtopics and ages; and the details of rankings."""

import heapq
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from numbers import Integral
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from evaluator.core.join.subtopics import given_subtopics, subtopics_of_query
from evaluator.core.measures import InvalidInputError
from evaluator.core.measures.lists import JudgedLists
from evaluator.core.measures.tables import decay
from evaluator.core.types.records import SubtopicsById
from evaluator.library.batches import QueryBatch
from evaluator.library.forms import is_arrays, least_relevant, qrels_of, run_of
from evaluator.library.matching import Missing, match

SubtopicsByQuery = Mapping[str, SubtopicsById]
"""Subtopics by query id and candidate id."""

MAX_AGE_MS: Final = 2**63 - 1


class Freshness(Struct, frozen=True, kw_only=True):
    """Ages of candidates in ms by query id and candidate id, and the age at which a gain is halved.

    A candidate without an age, or with one below 0, keeps its gain, as does one that is not ranked.
    """

    half_life_ms: int
    ages_ms: Mapping[str, Mapping[str, int]]

    def __post_init__(self) -> None:
        given: Any = self.half_life_ms
        if not (isinstance(given, int) and 1 <= given <= MAX_AGE_MS):
            raise InvalidInputError(
                f"half_life_ms is {given!r}; it must be a whole number of ms, 1 or more."
            )
        ages: Any = self.ages_ms
        if not (
            isinstance(ages, Mapping) and all(isinstance(each, Mapping) for each in ages.values())
        ):
            raise InvalidInputError("ages_ms must be {query_id: {candidate_id: age}}.")

    def of_columns(self, query_id: str, ids: Sequence[str], n_ranked: int) -> list[int]:
        """The ages of the columns of a query. Raises InvalidInputError for other than integers."""
        ages: Mapping[str, Any] = self.ages_ms.get(query_id, {})
        found = [ages.get(name, 0) for name in ids[:n_ranked]]
        for age in found:
            if not (isinstance(age, (int, np.integer)) and abs(int(age)) <= MAX_AGE_MS):
                raise InvalidInputError(
                    f"an age of query {query_id!r} is {age!r}; ages are whole numbers of ms."
                )
        return found


def check_of_candidates(subtopics: Any, freshness: Any) -> None:
    """Raises InvalidInputError for subtopics and ages that cannot be used."""
    if not isinstance(freshness, Freshness | None):
        raise InvalidInputError(f"freshness is {freshness!r:.100}; it must be a Freshness.")
    if subtopics is None:
        return
    for of_query in subtopics.values() if isinstance(subtopics, Mapping) else [subtopics]:
        if not (isinstance(of_query, Mapping) and all(map(_are_names, of_query.values()))):
            raise InvalidInputError(
                "subtopics must be {query_id: {candidate_id: [subtopic, ...]}}, "
                f"and have {of_query!r:.100}."
            )


def _are_names(given: Any) -> bool:
    is_list = isinstance(given, list | tuple | None)
    return is_list and all(isinstance(name, Hashable) for name in given or ())


class OfCandidates(NamedTuple):
    """The subtopics and ages of candidates, as far as measures need them."""

    subtopics: SubtopicsByQuery | None = None
    freshness: Freshness | None = None

    def added_to(self, lists: JudgedLists, batch: QueryBatch) -> JudgedLists:
        """The lists of a batch with both."""
        named = list(zip(batch.names, batch.ids or (), strict=False))
        if self.subtopics is not None:
            given = self.subtopics
            found = [
                subtopics_of_query(columns, given_subtopics(given.get(name, {})))
                for name, columns in named
            ]
            lists = replace(lists, subtopics=found)
        if self.freshness is not None:
            ages = np.zeros(lists.judged_grades.shape, np.int64)
            for row, (name, columns) in enumerate(named):
                n_ranked = int(lists.n_ranked[row])
                ages[row, :n_ranked] = self.freshness.of_columns(name, columns, n_ranked)
            lists = replace(lists, freshness=decay(ages, self.freshness.half_life_ms))
        return lists


class Detail(NamedTuple):
    """The rank of the first relevant candidate, None without one, and the first candidates."""

    rank: int | None
    top: list[tuple[str, float]]


def details(
    qrels: Any,
    run: Any,
    *,
    top: int = 3,
    rel: float | None = None,
    missing: Missing = "warn",
) -> dict[str, Detail]:
    """The rank of the first relevant candidate and the top of each query with a grade.

    These are `rank` and `top3` of `evaluations.ndjson`. Ties are by candidate id, descending.

    Args:
        qrels: as in `evaluate`, but no arrays.
        run: as in `evaluate`, but no arrays.
        top: the number of candidates, 0 or more.
        rel: the least relevant grade; None: any above 0.
        missing: as in `evaluate`.
    Raises:
        InvalidInputError: for unusable arguments.

    >>> details({"q": {"a": 1}}, {"q": {"a": 0.5, "b": 0.9, "c": 0.5}}, top=2)
    {'q': Detail(rank=3, top=[('b', 0.9), ('c', 0.5)])}
    """
    given: Any = top
    if not (isinstance(given, Integral) and top >= 0):
        raise InvalidInputError(f"top is {top!r}; it must be a whole number, 0 or more.")
    rel = least_relevant(rel)
    if is_arrays(qrels, run):
        raise InvalidInputError("details are by candidate id: give qrels and run as mappings.")
    matched = match(qrels_of(qrels), run_of(run), missing)
    deque(matched.batches(), 0)  # raises InvalidInputError for numbers that cannot be used
    found = {}
    judged: Sequence[Mapping[str, Any]] = matched.judged
    for query_id, given, scores in zip(matched.query_ids, judged, matched.rankings, strict=True):
        grades = {name: float(grade) for name, grade in given.items() if grade is not None}
        if not any(grade >= 0 for grade in grades.values()):
            continue
        keys = {name: (float(score) + 0.0, str(name)) for name, score in scores.items()}
        least = [
            keys[name]
            for name, grade in grades.items()
            if name in keys and (grade >= rel if rel else grade > 0)
        ]
        first = max(least, default=None)
        rank = None if first is None else 1 + sum(key > first for key in keys.values())
        names = heapq.nlargest(top, keys, key=keys.__getitem__)
        found[query_id] = Detail(rank, [(name, keys[name][0]) for name in names])
    return found
