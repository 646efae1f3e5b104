"""The levels of segments that carry a drop."""

from collections.abc import Sequence
from math import fsum
from typing import Final, NamedTuple

_CARRIED: Final = 0.8
_MAX_CARRIED: Final = 10
_ALIKE: Final = 0.1
_WHOLE: Final = 0.99
EVERYWHERE: Final = "everywhere"
MIX: Final = "change of mix"
"""Carriers that are no level, with the segment "": all levels alike, and their changed shares."""


class Carrier(NamedTuple):
    """A level that carries a drop: its share of the drop and of the queries, and its change.

    With the segment "" it is EVERYWHERE or MIX.
    """

    segment: str
    level: str
    share: float
    queries_share: float
    change: float


def carriers_of(segments: Sequence[Sequence[Carrier]], change: float) -> tuple[Carrier, ...]:
    """The carriers of a drop, from the levels of each segment and the *change* of the whole.

    If every query has a level of the segment, the unexplained rest is the change of mix.
    """
    best, most = list[Carrier](), 0.0
    for levels in segments:
        found, left = list(levels), 1.0 - fsum(level.share for level in levels)
        if fsum(level.queries_share for level in levels) > _WHOLE:
            found.append(Carrier("", MIX, left, 0.0, left * change))
        excess = max(carrier.share - carrier.queries_share for carrier in found)
        if not best or excess > most:
            best, most = found, excess
    if not best:
        return ()
    if most <= _ALIKE:
        return (Carrier("", EVERYWHERE, 1.0, 1.0, change),)
    best.sort(key=lambda carrier: -carrier.share)
    carried, total = list[Carrier](), 0.0
    for carrier in best[:_MAX_CARRIED]:
        if total >= _CARRIED or carrier.share <= 0:
            break
        carried.append(carrier)
        total += carrier.share
    return tuple(carried)
