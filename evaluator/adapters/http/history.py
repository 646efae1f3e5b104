"""The last samples of every series, for the charts of the live page."""

import heapq
from array import array
from collections import deque
from collections.abc import Mapping
from math import isnan, nan
from typing import Any, Final, NamedTuple

from msgspec import Struct

from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.measures.exact_sums import SETTLED_AS
from evaluator.core.types.records import SERVED
from evaluator.core.types.tally import LEVEL_KINDS, Group, Path
from evaluator.exposition.snapshot import Snapshot

HISTORY_SERIES: Final = 300
HISTORY_POINTS: Final = 150
HOURS_POINTS: Final = 360
LEVEL_SERIES: Final = 100
"""Limit of the series by level, in addition to the others."""
_PAIR_KINDS: Final = ("settled", "running")
_FIGURES: Final = 3


class Series(NamedTuple):
    """A line of a chart; segment and level are "" for all queries."""

    model: str
    variant: str
    ranker: str
    measure: str
    segment: str = ""
    level: str = ""

    def path(self, kind: str) -> Path:
        """The path of its sums of a kind, without the last part."""
        if not self.segment:
            return (kind, *self[:4])
        of = (self.model, self.variant, self.segment, self.level, self.ranker, self.measure)
        return (f"segment_{kind}", *of)


class Point(NamedTuple):
    """Queries and values settled since the last point, and the running mean (None: no value)."""

    queries: int
    score: float
    running_mean: float | None


class Line(Struct):
    """The points of one series as triples, NaN for no mean, and its sums at the last point."""

    queries: int
    sum_units: int
    points: "array[float]"

    def last(self, n: int) -> list[Point]:
        cells = self.points[-_FIGURES * n :] if n else ()
        triples = zip(*(iter(cells),) * _FIGURES, strict=True)
        return [Point(int(q), s, None if isnan(mean) else mean) for q, s, mean in triples]


class ChartHistory:
    """Points of the first HISTORY_SERIES series, and of LEVEL_SERIES by level.

    Rankers other than the served order have at most a third of the series; by level there is only
    the served order. Settled sums are those of this process: an assigned or revoked task does not
    change them.
    """

    def __init__(self, *, max_points: int = HISTORY_POINTS) -> None:
        self._max_points = max_points
        self._times_ms: deque[int] = deque(maxlen=max_points)
        self._lines: dict[Series, Line] = {}
        self._n_levels = 0
        self._n_keys_seen = 0

    def sample(self, snapshot: Snapshot, *, now_ms: int) -> None:
        """Adds a point to every line, new ones included."""
        self._discover(snapshot)
        self._times_ms.append(now_ms)
        for series, line in self._lines.items():
            line.points.extend(self._point(series, line, snapshot))
            del line.points[: -_FIGURES * self._max_points]

    def document(self, snapshot: Snapshot, *, after_ms: int, **chosen: str) -> dict[str, Any]:
        """The points after *after_ms* of the *chosen* series, and the judged queries of pairs.

        *chosen* has values of members of a series by name; without any, all series. With model,
        variant and measure also the recent queries with the lowest values.
        """
        times_ms = [t for t in self._times_ms if t > after_ms]
        return {
            "times_ms": times_ms,
            "series": [
                {**series._asdict(), "points": line.last(len(times_ms))}
                for series, line in self._lines.items()
                if all(getattr(series, name) == value for name, value in chosen.items())
            ],
            "coverage": _coverage(snapshot),
            "worst": _worst(snapshot, chosen),
        }

    def _discover(self, snapshot: Snapshot) -> None:
        n_keys = len(snapshot.counters) + sum(len(view.tally) for view in snapshot)
        if n_keys == self._n_keys_seen:
            return
        self._n_keys_seen = n_keys
        for tally in (snapshot.counters, *(view.tally for view in snapshot)):
            for key in tally:
                if key[0] in _PAIR_KINDS:
                    self._begin(Series(*key[1:5]))
                elif key[0] in LEVEL_KINDS and key[5] == SERVED:
                    model, variant, segment, level, ranker, measure = key[1:7]
                    self._begin(Series(model, variant, ranker, measure, segment, level))

    def _begin(self, series: Series) -> None:
        if series in self._lines:
            return
        if series.segment:
            has_room = self._n_levels < LEVEL_SERIES
        else:
            room = HISTORY_SERIES if series.ranker == SERVED else HISTORY_SERIES // 3
            has_room = len(self._lines) - self._n_levels < room
        if has_room:
            self._n_levels += bool(series.segment)
            unknown = (0.0, 0.0, nan) * (len(self._times_ms))
            self._lines[series] = Line(0, 0, array("d", unknown))

    def _point(self, series: Series, line: Line, snapshot: Snapshot) -> tuple[float, float, float]:
        queries, sum_units = _settled(series, snapshot)
        new_queries = queries - line.queries
        new_score = (sum_units - line.sum_units) / UNITS_PER_ONE
        line.queries, line.sum_units = queries, sum_units
        return new_queries, round(new_score, 5), _running_mean(series, snapshot)


def _settled(series: Series, snapshot: Snapshot) -> tuple[int, int]:
    path = series.path("settled")
    counters = snapshot.counters
    return counters.get((*path, "queries"), 0), counters.get((*path, "sum_units"), 0)


def _running_mean(series: Series, snapshot: Snapshot) -> float:
    path = series.path("running")
    queries = sum(view.tally.get((*path, "queries"), 0) for view in snapshot)
    sum_units = sum(view.tally.get((*path, "sum_units"), 0) for view in snapshot)
    return round(sum_units / (queries * UNITS_PER_ONE), 5) if queries else nan


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


def _worst(snapshot: Snapshot, chosen: Mapping[str, str]) -> list[dict[str, Any]]:
    """Recent queries with the lowest values of the served order."""
    series = chosen.get("model", ""), chosen.get("variant", ""), chosen.get("measure", "")
    return [
        {
            "value": query.value_units / UNITS_PER_ONE,
            "event_time_ms": query.event_time_ms,
            "trace_id": query.trace_id,
            "node_id": query.node_id,
        }
        for query in snapshot.worst.get(series, ())
    ]
