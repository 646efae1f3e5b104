"""The counters of a replay in event time: the content of a file for Prometheus, and its end."""

import json
import random
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

from evaluator.adapters.files import FileRange
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.types.records import OTHER
from evaluator.exposition.label_limits import MAX_QUALITY_SERIES
from evaluator.replay import exposition
from evaluator.replay.exposition import OPENMETRICS, Exposition
from evaluator.replay.history import IDLE_MINUTES, Busy
from evaluator.replay.results import ResultDirectory
from evaluator.replay.run import replay
from tests.exposition.checked import Checked
from tests.replay.running import TOPICS, contents, judgment, meaning, put, ranking, rows
from tests.replay.test_replay import crowded, crowds, settings_of  # noqa: F401  (fixtures)

MINUTE_MS = 60_000
DAY = 1_440  # minutes
MATURITY_MS = 10 * MINUTE_MS
START_MS = 1_760_918_400_000  # a full minute
START = START_MS // MINUTE_MS
SETTINGS = {"maturity_ms": MATURITY_MS, "measures": ("ndcg@10", "mrr")}
QUALITY = {
    "evaluator_quality_queries_total": 0,
    "evaluator_quality_value_total": 1,
    "evaluator_quality_value_squares_total": 2,
}


async def written(source, out, *, labels=None, histograms=(), memory_bytes=64 << 20,
                  settings=None, **options):  # fmt: skip
    """The text of the file, which is strict; the other files are in *out*.

    A source may be a directory.
    """
    results = ResultDirectory(out, force=False, memory_bytes=memory_bytes)
    read = {"max_poll_records": options.pop("max_poll_records", 5_000)}
    done = await replay(
        FileRange(source) if isinstance(source, Path) else source,
        results,
        meaning(**{**SETTINGS, **(settings or {}), **read}),
        topic_names=TOPICS,
        show_progress=False,
        exposition=Exposition(labels=labels or {"run": "r"}, histograms=histograms),
        **options,
    )
    checked = Checked()
    for _ in checked.lines((out / OPENMETRICS).read_bytes().splitlines()):
        pass
    assert done.samples == (checked.n_samples, checked.first_time, checked.last_time)
    return (out / OPENMETRICS).read_text("utf-8")


def samples(text):
    """(minute, value) of every series by name and labels but `run`, in the order of the file."""
    found = defaultdict(list)
    for family in parse(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "run"}
            seconds = float(sample.timestamp)
            assert seconds % 60 == 0
            path = (sample.name, *sorted(labels.items()))
            found[path].append((int(seconds) // 60, sample.value))
    return found


def world(directory, *, seed=5, n_queries=150, silence_ms=0):
    """Two partitions; two variants, one with a second scorer; silence in the middle.

    Some queries are not judged, some have nothing relevant, times are any milliseconds.
    """
    chance = random.Random(seed)
    for partition in range(2):
        rankings, judgments = [], []
        for n in range(n_queries):
            time_ms = START_MS + n * 20_000 + chance.randrange(1, 20_000)
            time_ms += silence_ms if n >= n_queries // 2 else 0
            variant = chance.choice(["prod", "canary"])
            more = {"scorers": {"bm25": [1.0, 2.0, 3.0]}} if variant == "canary" else {}
            scores = [3.0, 2.0, 1.0]
            name = f"{partition}-{n}"
            rankings.append(
                ranking(name, time_ms, list("abc"), scores, model="m", variant=variant, **more)
            )
            if chance.random() < 0.8:
                grades = {chance.choice("abc"): chance.randrange(3)}
                judgments.append((time_ms + chance.randrange(2 * MATURITY_MS), name, grades))
        put(directory, f"rankings-{partition}.ndjson", rankings)
        lines = [judgment(name, time_ms, grades) for time_ms, name, grades in sorted(judgments)]
        put(directory, f"judgments-{partition}.ndjson", lines)
    return directory


@pytest.fixture
def logs(tmp_path):
    return world(tmp_path / "logs")


def settled_until(settled, minute):
    """The expected series at a full minute, by the rows of settled.ndjson: exact sums."""
    sums = defaultdict(lambda: [0, Fraction(0), Fraction(0)])
    queries = defaultdict(int)
    for row in settled:
        if row["settled_time_ms"] > minute * MINUTE_MS:
            continue
        queries[row["variant"], "yes" if row["grades"] else "no"] += 1
        for ranker, values in row["values"].items():
            for measure, value in values.items():
                square = round(value * value * UNITS_PER_ONE)
                added = (1, Fraction(value), Fraction(square, UNITS_PER_ONE))
                at = sums[row["variant"], ranker, measure]
                at[:] = [old + new for old, new in zip(at, added, strict=True)]
    return sums, queries


@pytest.mark.slow(alone=False)
async def test_every_sample_is_the_sum_of_what_has_settled_by_then(logs, tmp_path):
    found = samples(await written(logs, tmp_path / "out"))
    settled = rows(contents(tmp_path / "out"), "settled.ndjson")
    assert len(settled) == 300
    by_minute = {}
    n_checked = 0
    for (name, *labels), points in found.items():
        named = dict(labels)
        for minute, value in points:
            if minute not in by_minute:
                by_minute[minute] = settled_until(settled, minute)
            sums, queries = by_minute[minute]
            if name in QUALITY:
                at = (named["variant"], named["ranker"], named["measure"])
                expected = float(sums[at][QUALITY[name]])
            elif name == "evaluator_queries_settled_total":
                expected = queries[named["variant"], named["judged"]]
            else:
                continue
            assert value == expected, (name, named, minute)
            n_checked += 1
    # Three blocks of two measures and three sums, two pairs of two outcomes.
    assert len(found) == 3 * 2 * 3 + 2 * 3 + 1
    assert n_checked > 60 * 22


@pytest.mark.slow(alone=False)
async def test_a_series_begins_at_zero_before_its_first_query_and_ends_with_the_totals(
    logs, tmp_path
):
    found = samples(await written(logs, tmp_path / "out"))
    totals = json.loads((tmp_path / "out" / "totals.json").read_bytes())
    for points in found.values():
        assert points[0][1] == 0
        assert START <= points[0][0] <= START + 1
    n_checked = 0
    for row in totals["totals"]:
        if row["kind"] == "settled":
            labels = sorted((name, row[name]) for name in ("model", "variant", "ranker", "measure"))
            last = [found[name, *labels][-1][1] for name in list(QUALITY)[:2]]
            assert last == [row["queries"], row["sum_units"] / UNITS_PER_ONE]
            n_checked += 1
    assert n_checked == 6
    nothing = found["evaluator_queries_nothing_relevant_total",][-1][1]
    assert nothing == totals["extra"]["nothing_relevant"] > 0


@pytest.mark.slow
async def test_every_minute_has_a_sample_except_in_a_day_without_records(tmp_path):
    logs = world(tmp_path / "logs", silence_ms=DAY * MINUTE_MS * 3 // 2)
    found = samples(await written(logs, tmp_path / "out"))
    settled = rows(contents(tmp_path / "out"), "settled.ndjson")
    changed = {-(-row["settled_time_ms"] // MINUTE_MS) for row in settled}
    (silence,) = [(a, b) for a, b in pairwise(sorted(changed)) if b - a > 100]
    judged = max(
        json.loads(line)["timestamp_ms"]
        for path in logs.glob("judgments*")
        for line in path.read_bytes().splitlines()
    )
    expected = [*range(START, silence[0] + DAY + 1), *range(silence[1] - 1, max(changed) + 1)]
    longest = max(found.values(), key=len)
    minutes = [minute for minute, _ in longest]
    assert minutes == [*expected, *range(max(changed) + 1, judged // MINUTE_MS + 1)]
    for points in found.values():
        assert [minute for minute, _ in points] == minutes[minutes.index(points[0][0]) :]


@pytest.mark.slow
async def test_one_wrong_time_does_not_fill_the_disk(tmp_path):
    century_ms = 100 * 365 * DAY * MINUTE_MS
    put(tmp_path / "logs", "rankings.ndjson", [ranking("a", START_MS), ranking("b", century_ms)])
    put(tmp_path / "logs", "judgments.ndjson", [judgment("a", START_MS)])
    found = samples(await written(tmp_path / "logs", tmp_path / "out"))
    for points in found.values():
        # From the minute before the first query until it settles and a day; the second's settling.
        assert len(points) == 1 + 11 + DAY + 2
        assert all(second[0] > first[0] for first, second in pairwise(points))


@pytest.mark.slow
@pytest.mark.parametrize("at_end", ["settle", "hold"])
async def test_the_bytes_depend_only_on_input_and_settings(crowded, tmp_path, at_end):  # noqa: F811  (a fixture)
    logs, settings = crowded
    how = {"settings": settings_of(settings, at_end=at_end), "histograms": ["ndcg@3"]}
    once = await written(logs, tmp_path / "once", **how)
    assert once.endswith("\n# EOF\n")
    for name, more in (
        ("small", {"max_poll_records": 7, "memory_bytes": 500}),
        ("large", {"max_poll_records": 100_000}),
    ):
        assert await written(logs, tmp_path / name, **how, **more) == once


@pytest.mark.slow(alone=False)
async def test_few_rows_are_in_memory_at_once(logs, tmp_path, monkeypatch):
    monkeypatch.setattr(exposition, "ROWS_AT_ONCE", 5)
    once = await written(logs, tmp_path / "once")
    most = []

    def sort(self, name, rows):
        rows = list(rows)
        most.append(len(rows) if name == exposition.CHANGES else 0)
        return plain(self, name, rows)

    plain = ResultDirectory.sort
    monkeypatch.setattr(ResultDirectory, "sort", sort)
    assert await written(logs, tmp_path / "again") == once
    assert max(most) == 5


async def test_the_other_files_do_not_change(logs, tmp_path):
    out = tmp_path / "out"
    await replay(
        FileRange(logs), ResultDirectory(out, force=False), meaning(**SETTINGS),
        topic_names=TOPICS, show_progress=False,
    )  # fmt: skip
    await written(logs, tmp_path / "with")
    with_it = contents(tmp_path / "with")
    del with_it[OPENMETRICS]
    assert with_it == contents(out)


async def test_under_hold_samples_end_with_the_watermark(logs, tmp_path):
    text = await written(logs, tmp_path / "out", settings={"at_end": "hold"})
    clocks_ms = [
        max(json.loads(line)["timestamp_ms"] for line in path.read_bytes().splitlines())
        for path in sorted(logs.glob("*.ndjson"))
    ]
    watermarks_ms = [min(clocks_ms[task::2]) - 300_000 for task in range(2)]
    settled = rows(contents(tmp_path / "out"), "settled.ndjson")
    last_ms = max(row["settled_time_ms"] for row in settled)
    assert 0 < len(settled) < 300
    assert last_ms < max(watermarks_ms)
    last = max(-(-last_ms // MINUTE_MS), (max(watermarks_ms) - 1) // MINUTE_MS)
    assert {points[-1][0] for points in samples(text).values()} == {last}


@pytest.mark.slow(alone=False)
async def test_buckets_add_up_to_the_queries(logs, tmp_path):
    found = samples(await written(logs, tmp_path / "out", histograms=["ndcg@10"]))
    settled = rows(contents(tmp_path / "out"), "settled.ndjson")
    values = [
        row["values"]["served"]["ndcg@10"]
        for row in settled
        if row["variant"] == "prod" and row["values"]
    ]
    for bound in ("0.0", "0.6", "1.0", "+Inf"):
        labels = [("le", bound), ("measure", "ndcg@10"), ("model", "m"), ("ranker", "served")]
        path = ("evaluator_quality_values_bucket", *labels, ("variant", "prod"))
        assert found[path][-1][1] == sum(value <= float(bound) for value in values)
    path = ("evaluator_quality_values_count", *path[2:])
    assert found[path][-1][1] == len(values)
    path = ("evaluator_quality_values_sum", *path[1:])
    assert found[path][-1][1] == float(sum(map(Fraction, values)))


@pytest.mark.slow(alone=False)
async def test_the_rest_counts_under_other_in_the_order_of_appearance(tmp_path):
    n_models = 60
    rankings = [
        ranking(f"t{n}", START_MS + n, model=f"m{n % n_models}", variant="v") for n in range(200)
    ]
    put(tmp_path / "logs", "rankings.ndjson", rankings)
    judgments = [judgment(f"t{n}", START_MS + 1_000 + n) for n in range(200)]
    put(tmp_path / "logs", "judgments.ndjson", judgments)
    found = samples(await written(tmp_path / "logs", tmp_path / "out"))
    models = [dict(labels)["model"] for name, *labels in found if name.endswith("settled_total")]
    assert list(dict.fromkeys(models)) == [*(f"m{n}" for n in range(50)), OTHER]
    other = [("judged", "yes"), ("model", OTHER), ("variant", OTHER)]
    assert found["evaluator_queries_settled_total", *other][-1][1] == 10 * 3  # of 200, 60 a round
    quality = [name for name, *_ in found if name.startswith("evaluator_quality")]
    assert len(quality) == 51 * 2 * 3 <= MAX_QUALITY_SERIES


@pytest.mark.slow(alone=False)
async def test_a_run_is_named_by_the_manifest_or_by_its_label(logs, tmp_path):
    results = ResultDirectory(tmp_path / "out", force=False)
    how = {"topic_names": TOPICS, "show_progress": False}
    labels = {"job": 'a "b"\\\n'}
    await replay(
        FileRange(logs), results, meaning(**SETTINGS), exposition=Exposition(labels=labels), **how
    )
    families = list(parse((tmp_path / "out" / OPENMETRICS).read_text("utf-8")))
    chain = json.loads((tmp_path / "out" / "manifest.json").read_bytes())["chain"]
    found = {
        (sample.labels["run"], sample.labels["job"])
        for family in families
        for sample in family.samples
    }
    assert found == {(chain[:12], labels["job"])}


async def test_empty_logs_give_an_empty_file(tmp_path):
    put(tmp_path / "logs", "rankings.ndjson", [])
    text = await written(tmp_path / "logs", tmp_path / "out")
    assert samples(text) == {}
    assert text.endswith("# EOF\n")


def test_minutes_with_changes_are_joined_in_any_order_across_gaps_of_a_day():
    busy = Busy()
    for minute in (10, 9_000, 5, 10 + IDLE_MINUTES):
        busy.add(minute)
    last = 10 + 2 * IDLE_MINUTES
    assert busy.sampled(9_002) == [range(5, last + 1), range(8_999, 9_003)]
