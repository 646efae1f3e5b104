"""Backtest of alarms: the alarms that some settings would have raised on past settled queries.

The history is watched once as it was. Then drops are added to it: copies of each series continue
from some times on with values that are lower by the same amount, until an alarm begins.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Final, NamedTuple

from msgspec import Struct, field

from evaluator.core.alarms.series import AlarmSeries
from evaluator.core.alarms.sums import EMPTY, Sums
from evaluator.core.alarms.ticks import DAY_HOURS, HOUR_MS, TICK_MS, hour_before
from evaluator.core.online.alarm_watch import AlarmWatch, SeriesEvent, WatchResult
from evaluator.core.online.watched import COVERAGE, AlarmCommand, SeriesName, WatchRules
from evaluator.replay.alarms import tick_rows
from evaluator.replay.results import ResultDirectory

DROPS: Final = (0.02, 0.05, 0.1)
N_STARTS: Final = 8
FOLLOWED_MS: Final = 14 * DAY_HOURS * HOUR_MS
MIN_FOLLOWED_MS: Final = 3 * DAY_HOURS * HOUR_MS
REFERENCE_MS: Final = 15 * DAY_HOURS * HOUR_MS
"""After so much history at the earliest a drop is added: two weeks are the shortest reference."""
_STEPS: Final = 1 << 20


class Point(NamedTuple):
    """A series at the end of an hour.

    `level` is the mean of the last 24 hours, `expected` its reference, and `margin` how far below
    it an alarm of this window begins; None without enough queries or without a reference.
    `evidence` is of all windows; None without any.
    """

    end_ms: int
    level: float | None
    expected: float | None
    margin: float | None
    evidence: float | None
    excluded: bool


class Span(NamedTuple):
    """An alarm, and its end; None if it is still on at the end of the history."""

    on: SeriesEvent
    off_ms: int | None


class Delays(NamedTuple):
    """Hours from the begin of a drop to its alarm, ascending; *n* drops were added."""

    hours: tuple[float, ...]
    n: int

    @property
    def median(self) -> float | None:
        """The median, if half of the drops or more were found."""
        place = ceil(self.n / 2) - 1
        return self.hours[place] if 0 <= place < len(self.hours) else None


class Track(Struct):
    """The results of a series."""

    name: SeriesName
    n_queries: int = 0
    watched_hours: int = 0
    points: list[Point] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    delays: dict[float, Delays] = field(default_factory=dict)
    sums: dict[int, dict[str, Sums]] = field(default_factory=dict)
    """By end of the tick, and the name of the sums; without empty ticks."""
    copies: dict[int, AlarmSeries] = field(default_factory=dict)
    """As of the starts of drops."""

    @property
    def rate(self) -> float | None:
        """Alarms in 30 days that were watched; None without any."""
        days = self.watched_hours / DAY_HOURS
        return len(self.spans) / days * 30 if days else None


class BacktestResult(Struct, frozen=True):
    """All series by name, and the time of the history."""

    tracks: Sequence[Track]
    begin_ms: int
    end_ms: int
    n_left_out: int


class GridRow(NamedTuple):
    """All series together with some settings.

    *rate* is the sum of the rates of all series. *delays* are of the series `in_grid`.
    """

    settings: Mapping[str, str]
    n_alarms: int
    rate: float | None
    delays: Mapping[float, Delays]


def in_grid(name: SeriesName) -> bool:
    """Whether the delays of a series count in a grid: not those of objectives and judged shares."""
    return name.measure != COVERAGE and name.kind != "constant"


def grid_row(settings: Mapping[str, str], result: BacktestResult) -> GridRow:
    """The row of the result of these settings."""
    n_alarms = sum(len(track.spans) for track in result.tracks)
    rates = [track.rate for track in result.tracks if track.rate is not None]
    delays = {}
    for drop in DROPS:
        found = [track.delays[drop] for track in result.tracks if in_grid(track.name)]
        hours = sorted(hours for of in found for hours in of.hours)
        delays[drop] = Delays(tuple(hours), sum(of.n for of in found))
    return GridRow(settings, n_alarms, sum(rates) if rates else None, delays)


def starts_of(begin_ms: int, end_ms: int) -> list[int]:
    """Starts of drops within a history, evenly spread; [] if it is too short."""
    first_ms, room_ms = begin_ms + REFERENCE_MS, end_ms - begin_ms - REFERENCE_MS
    if room_ms < MIN_FOLLOWED_MS:
        return []
    last_ms = end_ms - min(FOLLOWED_MS, max(room_ms // 2, MIN_FOLLOWED_MS))
    times = [first_ms + (last_ms - first_ms) * i // (N_STARTS - 1) for i in range(N_STARTS)]
    return sorted({time_ms - time_ms % TICK_MS for time_ms in times})


class Backtest:
    """Watches a history, and adds drops to it.

    Args:
        rules: the watched series.
        commands: those that a leader has executed, e.g. excluded hours.
        begin_ms, end_ms: of the history: start of the first tick, end of the last one.
    """

    def __init__(
        self, rules: WatchRules, commands: Sequence[AlarmCommand], begin_ms: int, end_ms: int
    ) -> None:
        self._watch = AlarmWatch(rules, n_tasks=1)
        self._tolerance = rules.alarms.tolerance
        for command in commands:
            self._watch.command(command)
        self._excludes = [of for of in commands if of.action == "exclude"]
        self._begin_ms, self._end_ms = begin_ms, end_ms
        self._starts = starts_of(begin_ms, end_ms)
        self._tracks: dict[SeriesName, Track] = {}
        # Of the open hour, before the open tick, by the name of the sums.
        self._hours: dict[SeriesName, dict[str, Sums]] = {}
        self._on: dict[SeriesName, SeriesEvent] = {}

    def run(
        self, results: ResultDirectory, on_progress: Callable[[int, int], object] | None = None
    ) -> BacktestResult:
        """Watches the sorted rows of `AlarmReplay.add`, then adds the drops."""
        watch = self._watch
        for tick_ms, labels, units in tick_rows(results):
            self._close_until(tick_ms)
            watch.add_tick(tick_ms, labels, units, WatchResult())
        self._close_until(self._end_ms)
        return self._finished(watch.n_left_out, on_progress)

    def run_again(self, before: BacktestResult) -> BacktestResult:
        """The same for the sums of a result of other rules that declare the same series.

        Drops are added to the series that a row of a grid has.
        """
        watch = self._watch
        series = {track.name: watch.new_series(track.name) for track in before.tracks}
        watch.load({**watch.state(), "tick_end_ms": self._begin_ms}, series)
        for end_ms in sorted({end_ms for track in before.tracks for end_ms in track.sums}):
            self._close_until(end_ms - TICK_MS)
            for track in before.tracks:
                for name, sums in track.sums.get(end_ms, {}).items():
                    series[track.name].sums[name].add_closed(hour_before(end_ms), sums)
            self._close_until(end_ms)
        self._close_until(self._end_ms)
        return self._finished(before.n_left_out, None, all_delays=False)

    def _finished(
        self,
        n_left_out: int,
        on_progress: Callable[[int, int], object] | None,
        *,
        all_delays: bool = True,
    ) -> BacktestResult:
        for name, event in self._on.items():
            self._tracks[name].spans.append(Span(event, None))
        tracks = [self._tracks[name] for name in sorted(self._tracks)]
        for n_done, track in enumerate(tracks):
            if on_progress is not None:
                on_progress(n_done, len(tracks))
            if all_delays or in_grid(track.name):
                track.delays = {drop: self._delays(track, drop) for drop in DROPS}
        return BacktestResult(tracks, self._begin_ms, self._end_ms, n_left_out)

    # As it was

    def _close_until(self, time_ms: int) -> None:
        """Closes tick by tick."""
        watch = self._watch
        while watch.close_next(time_ms, result := WatchResult()):
            for name, series in watch.series.items():
                track = self._tracks.setdefault(name, Track(name))
                self._record(track, series, watch.tick_end_ms or 0)
            for event in result.events:
                self._take(event)

    def _record(self, track: Track, series: AlarmSeries, end_ms: int) -> None:
        hour = hour_before(end_ms)
        before = {} if end_ms % HOUR_MS == TICK_MS else self._hours.get(track.name, {})
        self._hours[track.name] = {name: of.of(hour) for name, of in series.sums.items()}
        for name, now in self._hours[track.name].items():
            tick = Sums(*map(int.__sub__, now, before.get(name, EMPTY)))
            if tick.queries:
                track.sums.setdefault(end_ms, {})[name] = tick
                track.n_queries += tick.queries
        if end_ms in self._starts and series.alarm is None and series.looks:
            track.copies[end_ms] = series.copy()
        if end_ms % HOUR_MS:
            return
        excluded = hour in series.exclusions
        track.watched_hours += bool(series.looks) and not excluded
        point = Point(end_ms, None, None, None, series.evidence if series.looks else None, excluded)
        for look in series.looks:
            if look.hours == DAY_HOURS:
                point = point._replace(
                    level=look.observed,
                    expected=look.observed - look.change,
                    margin=max(look.threshold * look.error, self._tolerance),
                )
        track.points.append(point)

    def _take(self, event: SeriesEvent) -> None:
        if event.name == "on":
            self._on[event.series] = event
        elif event.name in {"off", "accept"} and event.series in self._on:
            on = self._on.pop(event.series)
            self._tracks[event.series].spans.append(Span(on, event.time_ms))

    # With drops

    def _delays(self, track: Track, drop: float) -> Delays:
        """Delays of the drop from all starts that no alarm of the history itself follows."""
        hours, n = [], 0
        for start_ms, series in track.copies.items():
            until_ms = min(start_ms + FOLLOWED_MS, self._end_ms)
            if any(start_ms < span.on.time_ms <= until_ms for span in track.spans):
                continue
            n += 1
            later = [
                of for of in self._excludes if of.applied_ms > start_ms and of.is_for(track.name)
            ]
            alarms = _alarms(series.copy(), track.sums, drop, start_ms, until_ms, later)
            found_ms = next(alarms, None)
            if found_ms is not None:
                hours.append((found_ms - start_ms) / HOUR_MS)
        return Delays(tuple(sorted(hours)), n)


def _alarms(
    series: AlarmSeries,
    sums: Mapping[int, Mapping[str, Sums]],
    drop: float,
    start_ms: int,
    until_ms: int,
    excludes: Sequence[AlarmCommand],
) -> Iterator[int]:
    """The ends of the ticks in which an alarm begins, with values that are lower by *drop*.

    *excludes* are the commands that were executed after *start_ms*.
    """
    steps = round(drop * _STEPS)
    for end_ms in range(start_ms + TICK_MS, until_ms + 1, TICK_MS):
        for name, of in sums.get(end_ms, {}).items():
            lower = of if name else of.shifted(-steps)  # of two variants, the first is lower
            series.sums[name].add_closed(hour_before(end_ms), lower)
        event = series.tick(end_ms)
        if event is not None and event.name == "on":
            yield end_ms
        for command in excludes:
            if end_ms - TICK_MS < command.applied_ms <= end_ms:
                series.exclude(end_ms, command.from_ms, command.to_ms)
