"""`alarms backtest`: the alarms that these settings would have had over past weeks."""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from tqdm import tqdm

from evaluator.adapters.files import NewFile, read_file, result_lines
from evaluator.cli.alarms import carried_text
from evaluator.cli.batch import commands_of
from evaluator.cli.execution import settings_of
from evaluator.cli.exits import UsageError
from evaluator.cli.leader import watch_rules_of
from evaluator.cli.ranges import read_rules_of, replay_rules_of, source_of
from evaluator.cli.wiring import topic_names, warn
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.config.settings import SPECS
from evaluator.core.alarms.ticks import DAY_HOURS, HOUR_MS, TICK_MS, tick_end_of
from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.measures import MeasureSet
from evaluator.core.online.watched import AlarmCommand, SeriesName, WatchRules
from evaluator.core.online.watched_queries import TickSums, WatchedQueries
from evaluator.ports import SourceUnusable
from evaluator.replay.alarms import ALARM_COMMANDS, sort_ticks
from evaluator.replay.backtest import (
    DROPS,
    Backtest,
    BacktestResult,
    Delays,
    GridRow,
    Span,
    grid_row,
)
from evaluator.replay.backtest_page import page_of
from evaluator.replay.results import ResultDirectory
from evaluator.replay.run import replay as run_replay
from evaluator.replay.writing import SETTLED
from evaluator.tables import format_table, printable, utc_time
from evaluator.wire.alarms.records import read_commands
from evaluator.wire.outputs.settled import WatchedReader
from evaluator.wire.reading import refused_as

GRID: Final[Mapping[str, Sequence[str]]] = {
    "alarm_tolerance": ("0.005", "0.01", "0.02"),
    "alarm_budget_days": ("10", "30", "90"),
}
"""The settings that a grid may have, and their values by default."""
MAX_GRID: Final = 16
GRID_SECONDS: Final = 900
"""After this time no further settings of a grid are tried."""

_LINES: Final = 2_000
_SERIES: Final = ("series", "queries", "days watched", "alarms", "in 30 days")
_ALARMS: Final = (
    *("series", "from (UTC)", "to (UTC)", "onset (UTC)", "observed", "expected", "se"),
    *("evidence", "carried by"),
)


def backtest(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator alarms backtest`."""
    measures = measure_set(settings)
    rules = watch_rules_of(settings, measures)
    file = None if options.out is None else NewFile(options.out, force=options.force)
    if options.settled is not None and (options.begin or options.end):
        raise UsageError("--from and --to are for --source: a folder is watched as a whole.")
    others = _grid_of(options, settings)
    with tempfile.TemporaryDirectory(prefix="evaluator-backtest-") as directory:
        place = Path(directory)
        folder, warnings = options.settled or place / "replay", list[str]()
        if options.settled is None:
            commands = commands_of(options, settings, warnings)
            _replay(options, settings, measures, folder)
        else:
            commands = _commands_in(folder)
        result = _run(rules, commands, measures, folder / SETTLED, place / "sorted")
    for warning in warnings:
        warn(warning)
    print(report(result, settings.alarm_budget_days), flush=True)
    grid = _try_all([settings, *others], commands, measures, result) if others else []
    if grid:
        print(f"\n{grid_table(grid, 1 + len(others))}")
    if file is not None:
        names = [*(name for name in SPECS if name.startswith("alarm_")), "maturity_ms"]
        shown = {name: _setting_text(getattr(settings, name)) for name in names}
        file.write(page_of(result, shown, grid).encode())
        print(f"\nDrawn in {options.out}.")
    return 0


def _grid_of(options: argparse.Namespace, settings: Settings) -> list[Settings]:
    """The further settings of --grid. Raises UsageError."""
    if options.grid is None:
        return []
    texts = [text for text in options.grid if text]
    values, made = dict[str, list[str]](), list[Settings]()
    for text in texts:
        name, _, listed = text.partition("=")
        if name not in GRID or not listed:
            raise UsageError(
                f"--grid {text!r} is not NAME=VALUE,VALUE with one of the settings "
                f"{', '.join(GRID)}. Run once for each value of another setting, with --set."
            )
        values.setdefault(name, []).extend(listed.split(","))
    if len(texts) < len(options.grid):  # one without values
        values = {name: [*of] for name, of in GRID.items()} | values
    if (n := prod(map(len, values.values()))) > MAX_GRID:
        raise UsageError(f"--grid has {n} settings, more than {MAX_GRID}: give fewer values.")
    for of in product(*values.values()):
        given = [f"{name}={text}" for name, text in zip(values, of, strict=True)]
        each = settings_of(argparse.Namespace(**{**vars(options), "set": [*options.set, *given]}))
        if each not in (settings, *made):
            made.append(each)
    return made


def _try_all(
    grid: Sequence[Settings],
    commands: Sequence[AlarmCommand],
    measures: MeasureSet,
    result: BacktestResult,
) -> list[GridRow]:
    """The rows of all settings that can be tried in time; *result* is that of the first."""
    rows, until = list[GridRow](), time.monotonic() + GRID_SECONDS
    for each in tqdm(grid, unit="settings", desc="grid", disable=None):
        if rows and time.monotonic() > until:
            break
        rules = watch_rules_of(each, measures)
        test = Backtest(rules, commands, result.begin_ms, result.end_ms)
        shown = {name: _setting_text(getattr(each, name)) for name in GRID}
        rows.append(grid_row(shown, test.run_again(result) if rows else result))
    return rows


def _setting_text(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    items = ("=".join(map(str, of)) if isinstance(of, tuple) else str(of) for of in value)
    return ",".join(items) or "(none)"


def _commands_in(folder: Path) -> list[AlarmCommand]:
    """The commands that a replay has executed, in its folder."""
    path = folder / ALARM_COMMANDS
    with refused_as(SourceUnusable, str(path)):
        return read_commands(read_file(path).splitlines()) if path.exists() else []


def _replay(
    options: argparse.Namespace, settings: Settings, measures: MeasureSet, folder: Path
) -> None:
    """Writes the settled queries of the logs of --source into a folder."""
    read = read_rules_of(options, settings)
    source = source_of(options, settings, read)
    rules = replay_rules_of(options, settings, measures, read, learns=False)
    results = ResultDirectory(folder, force=False)
    asyncio.run(run_replay(source, results, rules, topic_names=topic_names(settings)))


def _run(
    rules: WatchRules, commands: list[AlarmCommand], measures: MeasureSet, path: Path, place: Path
) -> BacktestResult:
    ticks: dict[int, TickSums] = {}
    times_ms: list[int] = []
    with ResultDirectory(place, force=False) as results:
        for task, queries in _watched_queries(path, rules, measures):
            of_task = ticks.setdefault(task, TickSums(rules))
            sort_ticks(results, of_task, queries)
            found = [int(of(queries.event_times_ms)) for of in (np.min, np.max)]
            times_ms = [min(found + times_ms), max(found + times_ms)]
        for of_task in ticks.values():
            sort_ticks(results, of_task)
        if not times_ms:
            raise SourceUnusable(f"{path} has no settled query: there is nothing to watch.")
        begin_ms = times_ms[0] - times_ms[0] % TICK_MS
        test = Backtest(rules, commands, begin_ms, tick_end_of(times_ms[-1]))
        with tqdm(unit="series", desc="drops", disable=None) as bar:
            return test.run(results, _mover(bar))


def _mover(bar: Any) -> Callable[[int, int], None]:
    """A callback that moves a progress bar, with how much is done and of how much."""

    def move(n_done: int, n: int) -> None:
        bar.total = n
        bar.update(n_done - bar.n)

    return move


def _watched_queries(
    path: Path, rules: WatchRules, measures: MeasureSet
) -> Iterator[tuple[int, WatchedQueries]]:
    """Task and settled queries in a file of `replay`; those of each task in their order."""
    read = WatchedReader(rules.watched(measures), rules.columns())
    newest_ms: dict[int, int] = {}
    with tqdm(unit="B", unit_scale=True, desc="settled", disable=None) as bar:
        lines = enumerate(result_lines(path, _mover(bar)), 1)
        while some := list(islice(lines, _LINES)):
            numbers, values = zip(*some, strict=True)
            found, refused = read(ByteStrings.of(values), np.array(numbers))
            for number, error in refused:
                raise SourceUnusable(f"line {number} of {path}: {error}")
            for queries in found:
                if isinstance(queries, WatchedQueries):
                    yield from _by_task(queries, path, newest_ms)


def _by_task(
    queries: WatchedQueries, path: Path, newest_ms: dict[int, int]
) -> Iterator[tuple[int, WatchedQueries]]:
    """The queries of each task that follow each other; their offsets are numbers of lines."""
    first = 0
    for end in [*(np.flatnonzero(np.diff(queries.tasks)) + 1).tolist(), len(queries.tasks)]:
        of_task, task = queries.rows(slice(first, end)), int(queries.tasks[first])
        times_ms = np.append(newest_ms.get(task, 0), of_task.settled_times_ms)
        for place in np.flatnonzero(np.diff(times_ms) < 0).tolist():
            raise SourceUnusable(
                f"line {of_task.offsets[place]} of {path} settled before the line above it of task "
                f"{task}: give the file as `evaluator replay` writes it."
            )
        newest_ms[task], first = int(times_ms[-1]), end
        yield task, of_task


# The tables


def report(result: BacktestResult, budget_days: int) -> str:
    """Both tables, and how to read them."""
    days = (result.end_ms - result.begin_ms) / (DAY_HOURS * HOUR_MS)
    period = f"{_day(result.begin_ms)} to {_day(result.end_ms)}"
    parts = [f"{period}: {days:.1f} days of settled queries."]
    drops = [f"-{drop:.2f}" for drop in DROPS]
    rows = []
    for track in result.tracks:
        days, n = track.watched_hours / 24, len(track.spans)
        delays = [delay_text(track.delays[drop]) for drop in DROPS]
        figures = f"{track.n_queries:,}", f"{days:.1f}", str(n), _rate_text(track.rate)
        rows.append([series_text(track.name), *figures, *delays])
    parts.append(
        format_table((*_SERIES, *drops), rows, numbers=range(1, len(_SERIES) + len(drops)))
    )
    n_alarms = sum(len(track.spans) for track in result.tracks)
    parts.append(
        f"Alarms: the budget is one false alarm in {budget_days} days over all series; there were "
        f"{n_alarms}, true ones included.\nColumns of drops: median hours from the begin of such a "
        "drop to its alarm, and how many of the added\ndrops were found. Delays of the live "
        "evaluator: add maturity_ms and out_of_orderness_ms."
    )
    if not any(track.copies for track in result.tracks):
        parts.append(
            "No drop was added: that needs two complete weeks, from a Monday on (UTC), and three "
            "days more."
        )
    alarms = [
        _alarm_row(series_text(track.name), span) for track in result.tracks for span in track.spans
    ]
    if alarms:
        alarms.sort(key=lambda row: row[1])
        parts.append(format_table(_ALARMS, alarms, numbers=(4, 5, 6, 7)))
    if result.n_left_out:
        parts.append(
            f"{result.n_left_out} series more are not watched: raise alarm_max_series, or declare "
            "fewer."
        )
    return "\n\n".join(parts)


def grid_table(rows: Sequence[GridRow], n_settings: int) -> str:
    """The table of a grid, and how to read it."""
    header = *GRID, "alarms", "in 30 days", *(f"-{drop:.2f}" for drop in DROPS)
    lines = []
    for row in rows:
        figures = str(row.n_alarms), _rate_text(row.rate)
        lines.append([*row.settings.values(), *figures, *map(delay_text, row.delays.values())])
    text = (
        "Alarms of all series; delays without objectives and coverage. The first row is of the "
        "settings as they are.\nChoose the row with the fewest alarms of those that find the drop "
        "that matters to you soon enough.\nExclude the hours of known incidents first: then alarms "
        "are false ones."
    )
    if len(rows) < n_settings:
        text += (
            f"\n{n_settings - len(rows)} settings were not tried within {GRID_SECONDS // 60} "
            "minutes: give fewer values."
        )
    return f"{format_table(header, lines, numbers=range(len(header)))}\n\n{text}"


def _rate_text(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.1f}"


def _alarm_row(series: str, span: Span) -> list[str]:
    alarm = span.on.alarm
    if alarm is None:
        raise TypeError("an alarm that is on has figures")
    ended = "still on" if span.off_ms is None else _minute(span.off_ms)
    return [
        *(series, _minute(alarm.since_ms), ended, _minute(alarm.onset_ms)),
        *(f"{alarm.observed:.4f}", f"{alarm.expected:.4f}", f"{alarm.se:.4f}"),
        *(f"{alarm.evidence:.1f}", carried_text(alarm.carried_by)),
    ]


def delay_text(delays: Delays) -> str:
    """Median and share, e.g. `2.5 h (8/8)`."""
    if not delays.n:
        return ""
    median = "never" if delays.median is None else f"{delays.median:.3g} h"
    return f"{median} ({len(delays.hours)}/{delays.n})"


def series_text(name: SeriesName) -> str:
    """The labels of a series that are not empty, as `--series` takes them."""
    labels = [(label, text) for label, text in name._asdict().items() if text and text != "own"]
    return printable(" ".join(f"{label}={text}" for label, text in labels))


def _minute(time_ms: int) -> str:
    return utc_time(time_ms / 1000, "%Y-%m-%d %H:%M")


def _day(time_ms: int) -> str:
    return utc_time(time_ms / 1000, "%Y-%m-%d")
