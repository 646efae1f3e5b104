"""A latched alarm: the figures of its window, the carriers of the drop, and its context."""

from typing import NamedTuple


class Carrier(NamedTuple):
    """A level that carries a drop: its share of the drop and of the queries, and its change.

    With the segment "" it is EVERYWHERE or MIX.
    """

    segment: str
    level: str
    share: float
    queries_share: float
    change: float


class Context(NamedTuple):
    """Other watched figures in the window of an alarm, and its reference weeks.

    `usual_judged` is the judged share of the past weeks in the same hours. `pair_change` is the
    change of a pair of the ranker against its own past, and `pair_se` the standard error of that.
    """

    judged: float | None = None
    usual_judged: float | None = None
    pair: str = ""
    pair_change: float = 0.0
    pair_se: float = 0.0
    weeks_ms: tuple[int, ...] = ()


class Alarm(NamedTuple):
    """A latched alarm, with the figures of the window that began it.

    `since_ms` is the end of its first tick, `onset_ms` the start of the hour in which the values
    most probably fell.
    """

    since_ms: int
    onset_ms: int
    window_hours: int
    drop: float
    observed: float
    expected: float
    se: float
    evidence: float
    queries: int
    acknowledged: bool = False
    carried_by: tuple[Carrier, ...] = ()
    context: Context = Context()
