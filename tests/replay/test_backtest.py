"""Backtests of alarms: the actual ones, and those with lower values."""

import gzip
import json
import re
import shutil
import subprocess

import cramjam
import pytest
from msgspec.structs import replace

from evaluator.cli import backtest as command
from evaluator.cli import main
from evaluator.core.alarms.rules import AlarmRules
from evaluator.core.alarms.ticks import HOUR_MS, TICK_MS
from evaluator.core.online.alarm_watch import AlarmWatch, WatchResult
from evaluator.core.online.watched import AlarmCommand, WatchRules
from evaluator.core.online.watched_queries import TickSums, WatchedQueries
from evaluator.core.types.records import WatermarkRecord
from evaluator.replay.alarms import sort_ticks
from evaluator.replay.backtest import DROPS, Backtest, Delays, grid_row, in_grid, starts_of
from evaluator.replay.backtest_page import page_of
from evaluator.replay.results import ResultDirectory
from tests.core.alarms.settled import DROP_HOUR, MATURITY_MS, START_MS, receive, settled_world
from tests.core.alarms.worlds import ONE
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

RULES = WatchRules(
    alarms=AlarmRules(max_series=4, budget_days=300),
    measures=("ndcg@10",),
    levels=(("locale", "de"), ("locale", "fr")),
    maturity_ms=MATURITY_MS,
)
HOURS = 20 * 24
SHORT = 18 * 24
"""The shortest history to which drops are added, from one start."""
NEVER = 10**9
DAY_MS = 24 * HOUR_MS


def backtest(queries, directory, *, rules=RULES, commands=(), hours=HOURS):
    ticks = TickSums(rules)
    with ResultDirectory(directory, force=False) as results:
        in_order = sorted(queries, key=lambda query: query.event_time_ms)
        for first in range(0, len(in_order), 500):
            some = in_order[first : first + 500]
            sort_ticks(results, ticks, WatchedQueries.of_settled(some, rules.columns()))
        sort_ticks(results, ticks)
        return Backtest(rules, commands, START_MS, START_MS + hours * HOUR_MS).run(results)


def watched(queries, rules=RULES):
    """The events of the live watch."""
    watch, result = AlarmWatch(rules, n_tasks=1), WatchResult()
    in_order = sorted(queries, key=lambda query: query.event_time_ms)
    numbered = [query._replace(task=0, n=n) for n, query in enumerate(in_order)]
    receive(watch, numbered, result, rules)
    watch.receive(
        0, [WatermarkRecord(numbered[-1].settled_time_ms + TICK_MS, len(numbered))], result
    )
    return result.events


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """A history without a drop, and its backtest."""
    queries = settled_world(8, hours=HOURS, drop_hour=NEVER)
    return queries, backtest(queries, tmp_path_factory.mktemp("quiet") / "sorted")


@pytest.fixture(scope="module")
def fallen(tmp_path_factory):
    """A history in which the level `de` falls, and its backtest; tests only read them."""
    queries = settled_world(3, hours=SHORT)
    return queries, backtest(queries, tmp_path_factory.mktemp("fallen") / "sorted", hours=SHORT)


def test_alarms_of_a_backtest_are_those_of_the_watch(fallen):
    queries, result = fallen
    events = [event for event in watched(queries) if event.name == "on"]
    assert events
    spans = [span for track in result.tracks for span in track.spans]
    assert sorted(span.on for span in spans) == sorted(events)
    (german,) = (track for track in result.tracks if track.name.level == "de")
    (span,) = german.spans
    assert span.off_ms is None  # the drop stays
    alarm = span.on.alarm
    assert alarm.onset_ms == START_MS + DROP_HOUR * HOUR_MS
    assert german.n_queries == sum(
        bool(query.units) and query.segments["locale"] == "de" for query in queries
    )


def test_a_delay_equals_that_of_a_history_with_lower_values(quiet):
    queries, result = quiet
    (start_ms, *_) = starts_of(START_MS, START_MS + HOURS * HOUR_MS)
    assert not any(track.spans for track in result.tracks)
    for drop in DROPS:
        lower = round(drop * (1 << 20)) << 20
        worse = [
            query._replace(
                units={
                    ranker: {name: units - lower for name, units in of.items()}
                    for ranker, of in query.units.items()
                }
            )
            if query.event_time_ms >= start_ms
            else query
            for query in queries
        ]
        events = watched(worse)
        for track in result.tracks:
            expected = [
                (event.time_ms - start_ms) / HOUR_MS
                for event in events
                if event.series == track.name and event.name == "on"
            ]
            if track.name.measure != "coverage":
                assert set(expected[:1]) <= set(track.delays[drop].hours)
                assert len(expected) <= 1
    (whole,) = (
        track for track in result.tracks if track.name.measure == "ndcg@10" and not track.name.level
    )
    assert whole.delays[0.1].n == 8
    assert len(whole.delays[0.1].hours) == 8
    assert whole.delays[0.1].median < whole.delays[0.05].median


def test_a_drop_is_not_added_where_an_alarm_of_the_history_follows(tmp_path):
    fall = 17 * 24
    queries = settled_world(3, hours=SHORT, drop_hour=fall)
    result = backtest(queries, tmp_path / "sorted", hours=SHORT)
    (german,) = (track for track in result.tracks if track.name.level == "de")
    (french,) = (track for track in result.tracks if track.name.level == "fr")
    assert german.spans
    assert {of.n for of in german.delays.values()} == {0}
    assert {of.n for of in french.delays.values()} == {1}


def test_excluded_hours_begin_no_alarm_and_are_drawn(fallen, tmp_path):
    queries, _ = fallen
    command = AlarmCommand(
        "1",
        "exclude",
        {},
        START_MS + DROP_HOUR * HOUR_MS,
        START_MS + SHORT * HOUR_MS,
        START_MS + TICK_MS,
    )
    result = backtest(queries, tmp_path / "sorted", commands=[command], hours=SHORT)
    for track in result.tracks:
        assert not track.spans
        assert [point.excluded for point in track.points] == [n >= DROP_HOUR for n in range(SHORT)]
        assert track.watched_hours == DROP_HOUR - 2 * 168


def test_hours_that_are_excluded_after_the_begin_of_a_drop_find_no_drop(tmp_path):
    """A holiday is excluded in advance: with or without it, small drops are found as late."""
    day_ms, begin_ms = DAY_MS, START_MS + 17 * DAY_MS
    queries = settled_world(8, hours=HOURS, drop_hour=NEVER)
    lower = [
        query._replace(units={of: {"ndcg@10": ONE // 10} for of in query.units})
        if begin_ms <= query.event_time_ms < begin_ms + day_ms
        else query
        for query in queries
    ]
    found = []
    for name, applied_ms in (("at first", START_MS + TICK_MS), ("a day before", begin_ms - day_ms)):
        commands = [AlarmCommand("c", "exclude", {}, begin_ms, begin_ms + day_ms, applied_ms)]
        result = backtest(lower, tmp_path / name, commands=commands)
        assert any(track.copies for track in result.tracks)
        found.append([track.delays for track in result.tracks])
    assert found[0] == found[1]


def test_a_level_that_is_accepted_while_an_hour_is_open_changes_no_sum(fallen, tmp_path):
    queries, before = fallen
    (german,) = (track for track in before.tracks if track.name.level == "de")
    at_ms = german.spans[0].on.time_ms // HOUR_MS * HOUR_MS + 5 * HOUR_MS + 2 * TICK_MS
    command = AlarmCommand("1", "accept", {}, applied_ms=at_ms)
    result = backtest(queries, tmp_path / "after", commands=[command], hours=SHORT)
    assert [track.sums for track in result.tracks] == [track.sums for track in before.tracks]
    (german,) = (track for track in result.tracks if track.name.level == "de")
    assert [span.off_ms for span in german.spans] == [at_ms]


def test_starts_are_spread_over_the_time_that_has_a_reference():
    assert starts_of(0, 17 * DAY_MS) == []  # 15 days, and 3 to follow
    starts = starts_of(0, 50 * DAY_MS)
    assert len(starts) == 8
    assert (starts[0], starts[-1]) == (15 * DAY_MS, (50 - 14) * DAY_MS)
    assert all(start % TICK_MS == 0 for start in starts)
    assert starts_of(0, 18 * DAY_MS) == [15 * DAY_MS]


def test_the_median_delay_exists_if_half_of_the_drops_were_found():
    assert Delays((1.0, 2.0), 4).median == 2.0
    assert Delays((1.0, 2.0), 5).median is None
    assert Delays((1.0, 2.0, 3.0), 3).median == 2.0
    assert Delays((), 0).median is None


# A grid of settings


def figures(result):
    """All of a result but the copies that drops are added to, and hours before a reference."""
    return [
        (
            *(of.name, of.n_queries, of.watched_hours, of.spans, of.sums),
            of.delays if in_grid(of.name) else None,
            [point for point in of.points if point.evidence is not None],
        )
        for of in result.tracks
    ]


def test_a_result_watched_again_is_that_of_its_rules(tmp_path):
    hours = 16 * 24
    queries = [
        query._replace(variant="prod" if number % 3 else "canary")
        for number, query in enumerate(settled_world(3, per_hour=8, hours=hours))
    ]
    watched = {
        "variants": (("canary", "prod"),),
        "levels": RULES.levels[:1],
        "objectives": (("ndcg@10", 0.55),),
    }
    one, other = (
        replace(RULES, **watched, alarms=AlarmRules(tolerance, days, 20))
        for tolerance, days in ((0.01, 300), (0.03, 20))
    )
    fall_ms = START_MS + DROP_HOUR * HOUR_MS
    commands = [
        AlarmCommand("1", "exclude", {}, fall_ms + 30 * HOUR_MS, fall_ms + 40 * HOUR_MS),
        AlarmCommand("2", "accept", {}, applied_ms=fall_ms + 20 * HOUR_MS),
    ]
    before, expected = (
        backtest(queries, tmp_path / name, rules=rules, commands=commands, hours=hours)
        for name, rules in (("before", one), ("after", other))
    )
    assert any(track.spans for track in expected.tracks)
    assert figures(before) != figures(expected)
    again = Backtest(other, commands, START_MS, START_MS + hours * HOUR_MS).run_again(before)
    assert figures(again) == figures(expected)


def test_a_row_sums_the_alarms_and_delays_of_all_series(fallen, tmp_path):
    queries, _ = fallen
    rules = replace(RULES, alarms=AlarmRules(max_series=5), objectives=(("ndcg@10", 0.2),))
    result = backtest(queries, tmp_path / "sorted", rules=rules, hours=SHORT)
    row = grid_row({"alarm_tolerance": "0.01"}, result)
    assert row.n_alarms == sum(len(track.spans) for track in result.tracks) > 0
    assert {track.watched_hours for track in result.tracks} == {SHORT - 2 * 168, SHORT - 7}
    (fallen,) = (len(track.spans) for track in result.tracks if track.name.level == "de")
    others = row.n_alarms - fallen
    assert row.rate == pytest.approx((fallen + others) / 4 * 30)
    quality = [track for track in result.tracks if in_grid(track.name)]
    assert len(quality) == len(result.tracks) - 2  # the coverage and the objective
    assert row.delays[0.1].n == sum(track.delays[0.1].n for track in quality)
    found = [hours for track in quality for hours in track.delays[0.1].hours]
    assert list(row.delays[0.1].hours) == sorted(found) != []


# The command


def write_settled(queries, folder):
    folder.mkdir()
    rows = []
    for query in sorted(queries, key=lambda query: (query.task, query.n)):
        names = ("task", "n", "trace_id", "node_id", "event_time_ms", "settled_time_ms", "variant")
        row = {name: getattr(query, name) for name in (*names, "grades", "segments")}
        units = query.units.get("served")
        values = {} if units is None else {"served": {"ndcg@10": units["ndcg@10"] / ONE}}
        rows.append({**row, "model": "</script><b>", "values": values})
    path = folder / "settled.ndjson"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def folder(fallen, tmp_path_factory):
    """The folder of a replay in which the level `de` falls."""
    path = tmp_path_factory.mktemp("replayed") / "out"
    write_settled(fallen[0], path)
    return path


SETTINGS = ("--set=segments=locale", "--set=alarm_levels=locale=de", "--set=alarm_max_series=3")


@pytest.fixture(scope="module")
def page(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "backtest.html"
    arguments = ["--settled", str(folder), "--out", str(path), *SETTINGS]
    assert main(["alarms", "backtest", *arguments]) == 0
    return path


def test_the_command_has_a_table_of_series_and_one_of_alarms(folder, capsys):
    more = ["--settings", *(text.removeprefix("--set=") for text in SETTINGS[1:])]
    assert main(["alarms", "backtest", "--settled", str(folder), SETTINGS[0], *more]) == 0
    first, series, legend, alarms = capsys.readouterr().out.split("\n\n")
    assert "18.0 days" in first
    assert len(series.splitlines()) == 1 + 3
    (german,) = (line for line in series.splitlines() if "level=de" in line)
    assert german.split()[-3:-1] != ["0", "0.0"]
    assert "one false alarm in 30 days" in legend
    lines = alarms.splitlines()[1:]
    assert any("level=de" in line and "still on" in line for line in lines)
    assert any("locale=de" in line.split("still on")[1] for line in lines if "level=de" not in line)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--settled", "nowhere"], "settled.ndjson does not exist, with or without .gz or .zst."),
        (
            ["--settled", "bzip2"],
            "without .gz or .zst. Decompress settled.ndjson.bz2.",
        ),
        (["--settled", "twice"], "twice has settled.ndjson and settled.ndjson.gz. Move all but"),
        (["--settled", "empty"], "has no settled query: there is nothing to watch"),
        (
            ["--settled", "damaged"],
            "line 2 of damaged/settled.ndjson: a record of settled cannot be",
        ),
        (["--settled", "mixed"], "line 3 of mixed/settled.ndjson settled before the line above it"),
        (["--settled", "whole", "--source", "file://whole"], "not allowed with argument"),
        (["--settled", "whole", "--from", "2025-01-01"], "--from and --to are for --source"),
        (["--settled", "whole", "--out", "whole/settled.ndjson.gz"], "is an input of this command"),
        (["--settled", "whole", "--grid", "measures=mrr"], "is not NAME=VALUE,VALUE with one of"),
        (["--settled", "whole", "--grid", "alarm_tolerance"], "is not NAME=VALUE,VALUE with one"),
        (
            ["--settled", "whole", "--grid", "alarm_tolerance=0"],
            "alarm_tolerance is 0 (--set). Accepted: a number",
        ),
        (
            [
                *("--settled", "whole", "--grid", "alarm_tolerance=0.1,0.2,0.3,0.4"),
                *("--grid", "alarm_budget_days=7,8,9,10,11"),
            ],
            "--grid has 20 settings, more than 16",
        ),
        ([], "one of the arguments --settled --source is required"),
    ],
)
def test_an_unusable_history_is_an_error(arguments, error, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = write_settled(settled_world(3, hours=2), tmp_path / "whole")
    lines = path.read_text().splitlines()
    for name, text in (
        ("empty", ""),
        ("damaged", f"{lines[0]}\n{{\n"),
        ("mixed", "\n".join((*lines[:2], lines[0], ""))),
        ("twice", f"{lines[0]}\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "settled.ndjson").write_text(text)
    (tmp_path / "twice" / "settled.ndjson.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "bzip2").mkdir()
    (tmp_path / "bzip2" / "settled.ndjson.bz2").touch()
    assert main(["alarms", "backtest", *arguments]) in (2, 3)
    assert error in capsys.readouterr().err
    assert path.read_text().splitlines() == lines


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".zst", cramjam.zstd.compress)]
)
def test_a_compressed_file_is_read(suffix, compress, tmp_path, capsys):
    arguments = ["alarms", "backtest", "--settled"]
    path = write_settled(settled_world(3, hours=30), tmp_path / "short")
    assert main([*arguments, str(path.parent)]) == 0
    plain = capsys.readouterr().out
    text = path.read_bytes()
    (tmp_path / f"settled.ndjson{suffix}").write_bytes(compress(text))
    assert main([*arguments, str(tmp_path)]) == 0
    assert capsys.readouterr().out == plain


def test_a_grid_has_one_row_per_setting_and_first_the_current_one(folder, tmp_path, capsys):
    arguments = ["alarms", "backtest", "--settled", str(folder), *SETTINGS]
    out = tmp_path / "page.html"
    values = "--grid=alarm_tolerance=0.01,0.4", "--grid=alarm_budget_days=30"
    assert main([*arguments, *values, "--out", str(out)]) == 0
    *_, table, text, _ = capsys.readouterr().out.split("\n\n")
    header, now, other = table.splitlines()
    assert header.split()[:3] == ["alarm_tolerance", "alarm_budget_days", "alarms"]
    assert now.split()[:2] == ["0.01", "30"]  # once, though it is in the grid too
    assert int(now.split()[2]) > 0
    assert other.split()[:4] == ["0.4", "30", "0", "0.0"]
    assert "never" in other
    assert "were not tried" not in text
    data = json.loads(out.read_text("utf-8").split("const data = ")[1].split(";\n")[0])
    assert [dict(of["settings"])["alarm_tolerance"] for of in data["grid"]] == ["0.01", "0.4"]
    assert data["grid"][1]["alarms"] == 0


@pytest.mark.parametrize(
    ("grid", "n"),
    [
        (["--grid"], 3 * 3 - 1),
        (["--grid=alarm_tolerance=0.02", "--grid=alarm_tolerance=0.04"], 2),
        (["--grid", "--grid=alarm_tolerance=0.04"], 3),
    ],
)
def test_a_grid_that_takes_too_long_ends(grid, n, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "GRID_SECONDS", -1)
    write_settled(settled_world(3, hours=2), tmp_path / "short")
    assert main(["alarms", "backtest", "--settled", str(tmp_path / "short"), *grid]) == 0
    *_, table, text = capsys.readouterr().out.split("\n\n")
    assert len(table.splitlines()) == 2
    assert f"\n{n} settings were not tried" in text


def test_the_page_has_external_text_as_data_only(page):
    text = page.read_text("utf-8")
    assert text.count("</script>") == 1
    assert "\\u003c/script>\\u003cb>" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


RIGHT_EDGE = """
const cell = document.getElementById("summary").tBodies[0].rows[0].cells[3];
document.body.dataset.right = Math.ceil(cell.getBoundingClientRect().right);
"""


@pytest.mark.browser
def test_the_page_renders_without_an_error(page, tmp_path):
    """On a phone, the alarms of the table of series are within the width."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium is not None, "chromium is missing; `make system` installs it"
    measured = tmp_path / "measured.html"
    measured.write_text(
        page.read_text().replace("</body>", f"<script>{RIGHT_EDGE}</script></body>")
    )
    command = [
        *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
        *(
            "--virtual-time-budget=5000",
            f"--user-data-dir={tmp_path}",
            "--window-size=400,900",
            "--dump-dom",
            f"file://{measured}",
        ),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<svg") == 3
    assert done.stdout.count('class="since"') == page.read_text().count('"since_ms"')
    assert "<b>" not in done.stdout
    assert int(re.search('data-right="([0-9]+)"', done.stdout)[1]) <= 400


def test_the_page_of_a_too_short_history_reports_it(tmp_path, capsys):
    write_settled(settled_world(3, hours=30), tmp_path / "short")
    out = tmp_path / "made" / "page.html"
    assert (
        main(["alarms", "backtest", "--settled", str(tmp_path / "short"), "--out", str(out)]) == 0
    )
    assert "that needs two complete weeks" in capsys.readouterr().out
    assert '"evidence":[null' in out.read_text("utf-8")


def test_a_source_is_replayed(tmp_path, capsys):
    logs = tmp_path / "logs"
    logs.mkdir()
    for log, more in (
        ("rankings", {"candidate_ids": ["a"], "scores": [1]}),
        ("judgments", {"grades": {"a": 1}}),
    ):
        row = {
            "schema_version": 1,
            "trace_id": "t",
            "node_id": "n",
            "timestamp_ms": START_MS,
            "model": "m",
            **more,
        }
        (logs / f"{log}.ndjson").write_text(json.dumps(row) + "\n")
    assert main(["alarms", "backtest", "--source", f"file://{logs}"]) == 0
    rows = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert [row.split()[-3:] for row in rows[1:]] == [["1", "0.0", "0"]] * 2


def test_a_page_has_the_figures_of_its_series(quiet):
    _, result = quiet
    text = page_of(result, {"alarm_budget_days": "30"})
    data = json.loads(text.split("const data = ")[1].split(";\n")[0])
    for series, track in zip(data["series"], result.tracks, strict=True):
        assert len(series["level"]) == HOURS
        known = [point for point in track.points if point.level is not None]
        assert [v for v in series["level"] if v is not None] == [round(p.level, 5) for p in known]
        assert series["delays"][1] == [list(track.delays[0.05].hours), track.delays[0.05].n]


def test_a_time_thousands_of_years_later_takes_no_longer(tmp_path):
    """E.g. of a producer that sends microseconds."""
    queries = settled_world(8, hours=48, drop_hour=NEVER)
    last = queries[-1]
    late = last._replace(
        n=last.n + 1,
        event_time_ms=1_000 * last.event_time_ms,
        settled_time_ms=1_000 * last.settled_time_ms,
    )
    hours = (late.event_time_ms + TICK_MS - START_MS) // HOUR_MS + 1
    result = backtest([*queries, late], tmp_path / "sorted", hours=hours)
    assert sum(track.n_queries for track in result.tracks if track.name.measure == "coverage") == (
        len(queries) + 1
    )
    test = Backtest(RULES, (), result.begin_ms, result.end_ms)
    assert figures(test.run_again(result)) == figures(result)


def test_drops_of_a_comparison_lower_the_first_variant(tmp_path):
    rules = replace(RULES, levels=(), variants=(("canary", "prod"),))
    queries = [
        query._replace(variant="prod" if number % 3 else "canary")
        for number, query in enumerate(settled_world(8, hours=SHORT, drop_hour=NEVER))
    ]
    result = backtest(queries, tmp_path / "sorted", rules=rules, hours=SHORT)
    (track,) = [track for track in result.tracks if track.name.kind == "variants"]
    assert track.name.variant == "canary-prod"
    assert track.spans == []
    assert track.n_queries > 4_000  # of both
    assert track.points[-1].expected == pytest.approx(0.0)
    (found, n) = track.delays[0.1]
    assert len(found) == n == 1
    assert found[0] < 24
