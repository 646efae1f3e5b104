"""Measures of what a user has seen and clicked of the served order, when a query settles.

Before that nobody knows, so running values and the values of other rankers are lacking.
"""

from typing import NamedTuple

import numpy as np

from evaluator.core.measures.lists import JudgedLists, Terms
from evaluator.core.types.records import FloatArray


class Seen(NamedTuple):
    """Bit r of `exposed` and of `clicked` is that of the candidate at rank r + 1."""

    exposed: int
    clicked: int  # graded above 0
    silent: bool


def unknown(lists: JudgedLists, terms: Terms) -> FloatArray:  # noqa: ARG001  # of all lists and terms
    """NaN for every list."""
    return np.full(len(lists.query_of), np.nan)


def click_through(seen: Seen, terms: Terms) -> float | None:
    """The clicked share of the exposed candidates at rank <= k; None if there is none.

    >>> click_through(Seen(exposed=0b0111, clicked=0b0010, silent=False), Terms(cutoff=2))
    0.5
    """
    cutoff = min(terms.cutoff, seen.exposed.bit_length())
    exposed = seen.exposed & ((1 << cutoff) - 1)
    return (exposed & seen.clicked).bit_count() / exposed.bit_count() if exposed else None


def abandoned(seen: Seen, terms: Terms) -> float:  # noqa: ARG001  # it takes none
    """1 for a silent query, else 0."""
    return float(seen.silent)
