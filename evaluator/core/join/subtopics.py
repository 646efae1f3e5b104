"""Subtopics of candidates: what messages say of them, and what stands for a query."""

from collections.abc import Iterable, Mapping, Sequence

from evaluator.core.measures.lists import QuerySubtopics
from evaluator.core.types.records import SubtopicsById

Subtopics = Mapping[str, tuple[str, ...]]
"""By candidate id, each once; an empty tuple for a candidate that is said to have none."""


def given_subtopics(message: SubtopicsById) -> Subtopics:
    """What a message gives; null is as if nothing were said.

    >>> given_subtopics({"a": ["x", "x"], "b": None, "c": []})
    {'a': ('x',), 'c': ()}
    """
    return {
        candidate_id: tuple(dict.fromkeys(names))
        for candidate_id, names in message.items()
        if names is not None
    }


def standing_subtopics(of_ranking: Subtopics | None, of_judgments: Subtopics | None) -> Subtopics:
    """Of each candidate those of the judgments, else those of the ranking."""
    return {**(of_ranking or {}), **(of_judgments or {})}


def subtopics_of_query(
    judged_ids: Sequence[str], standing: Subtopics | None
) -> QuerySubtopics | None:
    """For the measures; None if no candidate of the query, judged or not, has a subtopic.

    >>> subtopics_of_query(["b", "a"], {"a": ("x", "y"), "b": ("y",)})
    QuerySubtopics(of_judged=[[0], [1, 0]], id_order=[0, 1])
    """
    if not standing or not any(standing.values()):
        return None
    numbers: dict[str, int] = {}
    of_judged = [
        [numbers.setdefault(name, len(numbers)) for name in standing.get(candidate_id, ())]
        for candidate_id in judged_ids
    ]
    return QuerySubtopics(of_judged, _descending(judged_ids))


def _descending(judged_ids: Sequence[str]) -> list[int]:
    return sorted(range(len(judged_ids)), key=judged_ids.__getitem__, reverse=True)


def subtopics_of_queries(
    judged_ids: Iterable[Sequence[str]], standing: Iterable[Subtopics | None]
) -> list[QuerySubtopics | None]:
    """The same for many queries."""
    return [
        subtopics_of_query(ids, subtopics)
        for ids, subtopics in zip(judged_ids, standing, strict=True)
    ]
