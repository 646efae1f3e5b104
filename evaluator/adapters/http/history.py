"""The last samples of every series, for the charts of the live page."""

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.measures.exact_sums import SETTLED_AS
from evaluator.core.types.records import SERVED
from evaluator.core.types.tally import Group
from evaluator.exposition.snapshot import Snapshot

HISTORY_POINTS = 150
HISTORY_SERIES = 300


class Series(NamedTuple):
    """A line of a chart."""

    model: str
    variant: str
    ranker: str
    measure: str


class Point(NamedTuple):
    """Queries and values settled since the last point, and the running mean (None: no value)."""

    queries: int
    score: float
    running_mean: float | None


@dataclass(slots=True)
class Line:
    """The points of one series, and its settled sums at the last point."""

    queries: int
    sum_units: int
    points: deque[Point]


class History:
    """The last HISTORY_POINTS samples of the first HISTORY_SERIES series.

    Rankers other than the served order have at most a third of the series. Settled sums are those
    of this process: an assigned or revoked task does not change them.
    """

    def __init__(self, *, max_points: int = HISTORY_POINTS) -> None:
        self._times_ms: deque[int] = deque(maxlen=max_points)
        self._lines: dict[Series, Line] = {}
        self._n_keys_seen = 0

    def sample(self, snapshot: Snapshot, *, now_ms: int) -> None:
        """Adds a point to every line, new ones included."""
        self._discover(snapshot)
        self._times_ms.append(now_ms)
        for series, line in self._lines.items():
            line.points.append(self._point(series, line, snapshot))

    def document(self, snapshot: Snapshot, *, after_ms: int) -> dict[str, Any]:
        """The points after *after_ms*, and the judged queries of every pair."""
        times_ms = [t for t in self._times_ms if t > after_ms]
        return {
            "times_ms": times_ms,
            "series": [
                {
                    **series._asdict(),
                    "points": list(line.points)[-len(times_ms) :] if times_ms else [],
                }
                for series, line in self._lines.items()
            ],
            "coverage": _coverage(snapshot),
        }

    def _discover(self, snapshot: Snapshot) -> None:
        n_keys = len(snapshot.counters) + sum(len(view.tally) for view in snapshot)
        if n_keys == self._n_keys_seen:
            return
        self._n_keys_seen = n_keys
        for tally in (snapshot.counters, *(view.tally for view in snapshot)):
            for key in tally if len(self._lines) < HISTORY_SERIES else ():
                if key[0] in ("settled", "running"):
                    self._begin(Series(*key[1:5]), snapshot)

    def _begin(self, series: Series, snapshot: Snapshot) -> None:
        room = HISTORY_SERIES if series.ranker == SERVED else HISTORY_SERIES // 3
        if series not in self._lines and len(self._lines) < room:
            queries, sum_units = _settled(series, snapshot)
            self._lines[series] = Line(queries, sum_units, deque(maxlen=self._times_ms.maxlen))

    def _point(self, series: Series, line: Line, snapshot: Snapshot) -> Point:
        queries, sum_units = _settled(series, snapshot)
        new_queries = queries - line.queries
        new_score = (sum_units - line.sum_units) / UNITS_PER_ONE
        line.queries, line.sum_units = queries, sum_units
        return Point(new_queries, round(new_score, 5), _running_mean(series, snapshot))


def _settled(series: Series, snapshot: Snapshot) -> tuple[int, int]:
    path = ("settled", *series)
    counters = snapshot.counters
    return counters.get((*path, "queries"), 0), counters.get((*path, "sum_units"), 0)


def _running_mean(series: Series, snapshot: Snapshot) -> float | None:
    path = ("running", *series)
    queries = sum(view.tally.get((*path, "queries"), 0) for view in snapshot)
    sum_units = sum(view.tally.get((*path, "sum_units"), 0) for view in snapshot)
    return round(sum_units / (queries * UNITS_PER_ONE), 5) if queries else None


def _coverage(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Judged and other settled queries of the (model, variant) pairs with the most queries."""
    pairs: dict[Group, list[int]] = {}
    for view in snapshot:
        for pair, part in view.tally.groups.items():
            paths = [("settled_queries", *pair, judged) for judged in SETTLED_AS]
            if any(path in part for path in paths):
                yes, *others = (part.get(path, 0) for path in paths)
                counts = pairs.setdefault(pair, [0, 0])
                counts[:] = counts[0] + yes, counts[1] + sum(others)
    most = heapq.nlargest(HISTORY_SERIES, pairs.items(), key=lambda item: sum(item[1]))
    return [
        {"model": model, "variant": variant, "judged": judged, "unjudged": unjudged}
        for (model, variant), (judged, unjudged) in most
    ]
