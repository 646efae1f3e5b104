"""Subtopics of candidates, from rankings and judgments."""

from collections.abc import Mapping, Sequence

from evaluator.core.measures.lists import QuerySubtopics
from evaluator.core.types.records import SubtopicsById

Subtopics = Mapping[str, tuple[str, ...]]
"""By candidate id, each once; an empty tuple for a candidate without subtopics."""


def given_subtopics(message: SubtopicsById) -> Subtopics:
    """The subtopics of a message; null is equal to an absent member.

    >>> given_subtopics({"a": ["x", "x"], "b": None, "c": []})
    {'a': ('x',), 'c': ()}
    """
    return {
        candidate_id: tuple(dict.fromkeys(names))
        for candidate_id, names in message.items()
        if names is not None
    }


def subtopics_of_query(judged_ids: Sequence[str], current: Subtopics) -> QuerySubtopics | None:
    """Subtopics as measures need them; None if no candidate of the query has a subtopic.

    >>> subtopics_of_query(["b", "a"], {"a": ("x", "y"), "b": ("y",)})
    QuerySubtopics(of_judged=[[0], [1, 0]], id_order=[0, 1])
    """
    if not any(current.values()):
        return None
    numbers: dict[str, int] = {}
    of_judged = [
        [numbers.setdefault(name, len(numbers)) for name in current.get(candidate_id, ())]
        for candidate_id in judged_ids
    ]
    texts = list(map(str, judged_ids))  # the library takes ids of any type
    descending = sorted(range(len(texts)), key=texts.__getitem__, reverse=True)
    return QuerySubtopics(of_judged, descending)
