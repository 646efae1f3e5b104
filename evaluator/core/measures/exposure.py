"""Measures of the candidates that a user has seen and clicked, at settlement.

Before that it is unknown, so running values are lacking.
"""

from collections.abc import Sequence
from math import fsum
from typing import Final, NamedTuple

import numpy as np

from evaluator.core.measures.lists import JudgedLists, Terms
from evaluator.core.measures.tables import discounts, entry
from evaluator.core.types.records import FloatArray

MAX_IPS_CLIP: Final = 1_000
"""With 1,000 candidates a value is at most 10^6, which fits 64 bits in units."""


class Seen(NamedTuple):
    """Bit r of `exposed` and of `clicked` is that of the candidate at rank r + 1."""

    exposed: int
    clicked: int  # graded above 0
    silent: bool


class Clicks(NamedTuple):
    """Candidates graded above 0: ranks by one ranker, and propensities in the served order."""

    ranks: Sequence[int]
    propensities: Sequence[float]

    def weights(self, clip: float) -> list[float]:
        """1 / propensity, at most *clip*."""
        return [min(1 / each, clip) for each in self.propensities]


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


def ips_clicks(clicks: Clicks, terms: Terms) -> float:
    """The sum of the weights of all clicks.

    >>> ips_clicks(Clicks(ranks=[2, 4], propensities=[0.5, 0.01]), Terms(ips_clip=20))
    22.0
    """
    return fsum(clicks.weights(terms.ips_clip))


def ips_dcg(clicks: Clicks, terms: Terms) -> float:
    """The sum of weight / log2(rank + 1) of the clicks at rank <= k.

    >>> ips_dcg(Clicks(ranks=[1, 3, 4], propensities=[0.5, 0.25, 0.01]), Terms(cutoff=3))
    4.0
    """
    weighted = zip(clicks.ranks, clicks.weights(terms.ips_clip), strict=True)
    return fsum(w * entry(discounts, rank) for rank, w in weighted if rank <= terms.cutoff)


def ips_clipped(clicks: Clicks, terms: Terms) -> float | None:
    """The share of the clicks whose weight is clipped; None without a click."""
    clipped = sum(1 / each > terms.ips_clip for each in clicks.propensities)
    return clipped / len(clicks.propensities) if clicks.propensities else None
