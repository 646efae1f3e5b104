"""The tiers of a query, and their transitions."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from evaluator.core.types.transitions import IllegalTransition


class Tier(IntEnum):
    """Where a query is."""

    GONE = 0  # nowhere: not started, or its key was released
    MEMORY = 1  # in a row of the query table
    LOADED = 2  # in a row for one batch; the disk tier has the query too
    DISK = 3  # in the disk tier only


Event = Literal["start", "load", "load_for_batch", "keep", "evict", "release"]

TRANSITIONS: Final[Mapping[Event, Mapping[Tier, Tier]]] = {
    "start": {Tier.GONE: Tier.MEMORY},
    "load": {Tier.DISK: Tier.MEMORY},  # a record has its key
    "load_for_batch": {Tier.DISK: Tier.LOADED},  # a timer is due
    "keep": {Tier.LOADED: Tier.MEMORY},  # the batch ends, and memory suffices or its key changed
    "evict": {Tier.MEMORY: Tier.DISK, Tier.LOADED: Tier.DISK},
    "release": {Tier.MEMORY: Tier.GONE, Tier.LOADED: Tier.GONE, Tier.DISK: Tier.GONE},
}

_ILLEGAL: Final = 255
_NEXT: Final = {
    event: np.array([by_tier.get(tier, _ILLEGAL) for tier in Tier], np.uint8)
    for event, by_tier in TRANSITIONS.items()
}


def after(event: Event, tiers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The tiers of queries after an event, `[n]`. Raises IllegalTransition."""
    changed: NDArray[np.uint8] = _NEXT[event][tiers]
    illegal = changed == _ILLEGAL
    if illegal.any():
        found = Tier(int(tiers[illegal][0])).name
        raise IllegalTransition(f"{event} of a query whose tier is {found}")
    return changed
