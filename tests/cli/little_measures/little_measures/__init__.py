"""Valid and invalid measures of another package."""

from decimal import Decimal

import numpy as np

from evaluator.core.measures import NEVER_RANKED, JudgedLists, MeasureKind, Parameter, Terms


def last_relevant(lists: JudgedLists, terms: Terms) -> np.ndarray:
    """1 / rank of the last relevant candidate within the cutoff; no value without one."""
    counted = lists.relevant & (lists.ranks <= terms.cutoff)
    last = np.where(counted, lists.ranks, 0).max(axis=1, initial=0)
    return np.where(last > 0, 1.0 / np.maximum(last, 1), np.nan)


def share(lists: JudgedLists, terms: Terms) -> np.ndarray:
    """Half of the parameter as the value of every list."""
    assert terms.parameter is not None
    assert terms.cutoff < NEVER_RANKED
    return np.full(len(lists.query_of), float(terms.parameter) / 2)


def two(lists: JudgedLists, terms: Terms) -> np.ndarray:
    return np.full(len(lists.query_of), 2.0)


def raising(lists: JudgedLists, terms: Terms) -> np.ndarray:
    raise KeyError("nothing here")


LAST_RELEVANT = MeasureKind(last_relevant, "optional")
SHARE = MeasureKind(share, "never", Parameter("s", Decimal(0), Decimal(1)), averages_ties=True)
TWO = MeasureKind(two, "never")
RAISING = MeasureKind(raising, "never")
