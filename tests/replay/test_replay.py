"""The results of a replay of files."""

import base64
import dataclasses
import gzip
import hashlib
import json
import random
import subprocess
import sys

import cramjam
import pytest

from evaluator.adapters.files import FileRange
from evaluator.ports import ResultsUnusable, SourceUnavailable, SourceUnusable
from evaluator.replay.results import ResultDirectory
from evaluator.replay.run import replay
from evaluator.wire.outputs import sizes
from tests.oracle.messages import Raw
from tests.oracle.rules import Settings
from tests.oracle.totals import comparable, judge_raws, totals_of_files
from tests.oracle.worlds import crowd
from tests.repeats import sized
from tests.replay.running import (
    NAMES,
    TOPICS,
    contents,
    judgment,
    meaning,
    put,
    ranking,
    replayed,
    rows,
)

ONE = 1 << 40
N_QUERIES = sized(30, quick=15)


def lines_of(raws):
    """The records of a log for a file, which has no heartbeats."""
    return [raw.value for raw in raws if raw.value is not None and b"\n" not in raw.value]


@pytest.fixture(scope="module")
def crowds():
    worlds = [crowd(random.Random(seed), n_queries=N_QUERIES) for seed in (3, 4, 5)]
    settings = dataclasses.replace(
        worlds[0].settings,
        measures=("ndcg@3", "rbp[0.8]", "alpha_ndcg[0.9]@10", "subtopic_recall@3"),
        freshness_half_life_ms=7,
    )  # so that every member of a message has an effect
    return settings, [(lines_of(w.rankings), lines_of(w.judgments)) for w in worlds]


@pytest.fixture
def crowded(tmp_path, crowds):
    """Three partitions full of everything that can happen; the settings of the first."""
    settings, logs = crowds
    for partition, (rankings, judgments) in enumerate(logs):
        put(tmp_path / "in", f"rankings-{partition}.ndjson", rankings)
        put(tmp_path / "in", f"judgments-{partition}.ndjson", judgments)
    return tmp_path / "in", settings


def settings_of(settings: Settings, **changes):
    names = "retention_ms maturity_ms early_ms remember_ms out_of_orderness_ms window_ms".split()
    return {
        **{name: getattr(settings, name) for name in names},
        "measures": settings.measures,
        "empty": settings.empty,
        "judged_only": settings.judged_only,
        "freshness_half_life_ms": settings.freshness_half_life_ms,
        "map_graded_max_grade": settings.map_graded_max_grade,
        "err_max_grade": settings.err_max_grade,
        **changes,
    }


# --- the same input and settings, the same bytes ----------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("at_end", ["settle", "hold"])
async def test_the_bytes_do_not_depend_on_batch_size(crowded, tmp_path, at_end):
    directory, settings = crowded
    settings = settings_of(settings, at_end=at_end)
    left = [
        await replayed(directory, tmp_path / f"out-{n}", settings=settings, max_poll_records=n)
        for n in (1, 7, 5000)
    ]
    assert left[0] == left[1] == left[2]
    assert left[0].keys() == NAMES


@pytest.mark.slow(alone=False)
@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".zst", lambda text: bytes(cramjam.zstd.compress(text))), (".gz", gzip.compress)],
)
async def test_the_bytes_do_not_depend_on_compression(crowded, tmp_path, suffix, compress):
    directory, settings = crowded
    plain = await replayed(directory, tmp_path / "plain", settings=settings_of(settings))
    for path in list(directory.iterdir()):
        (directory / f"{path.name}{suffix}").write_bytes(compress(path.read_bytes()))
        path.unlink()
    packed = await replayed(directory, tmp_path / "packed", settings=settings_of(settings))
    assert packed == plain


@pytest.mark.slow(alone=False)
async def test_stubs_of_large_outputs_keep_n_and_do_not_depend_on_batch_size(
    crowded, tmp_path, monkeypatch
):
    directory, settings = crowded
    settings = settings_of(settings)
    whole = await replayed(directory, tmp_path / "whole", settings=settings)
    sizes_of_rows = sorted(map(len, whole["settled.ndjson"].splitlines()))
    monkeypatch.setattr(sizes, "MAX_OUTPUT_BYTES", sizes_of_rows[-10])
    left = [
        await replayed(directory, tmp_path / f"out-{n}", settings=settings, max_poll_records=n)
        for n in (7, 5000)
    ]
    assert left[0] == left[1]
    assert left[0]["totals.json"] == whole["totals.json"]
    stubs = [row for row in rows(left[0], "settled.ndjson") if "too_large" in row]
    assert 0 < len(stubs) < 10
    for name in ("n", "task", "trace_id", "node_id", "values"):
        assert [row[name] for row in rows(left[0], "settled.ndjson")] == [
            row[name] for row in rows(whole, "settled.ndjson")
        ]


@pytest.mark.slow(alone=False)
async def test_the_bytes_do_not_depend_on_available_memory(crowded, tmp_path):
    directory, settings = crowded
    settings = settings_of(settings)
    roomy = await replayed(directory, tmp_path / "roomy", settings=settings)
    tight = await replayed(
        directory, tmp_path / "tight", settings=settings, memory_bytes=2_000, max_poll_records=3
    )
    assert tight == roomy


# --- the right bytes ---------------------------------------------------------------------------


@pytest.mark.parametrize("at_end", ["settle", pytest.param("hold", marks=pytest.mark.slow)])
async def test_files_equal_the_oracle(crowded, tmp_path, crowds, at_end):
    directory, settings = crowded
    files = await replayed(
        directory, tmp_path / "out", settings=settings_of(settings, at_end=at_end)
    )
    settle = at_end == "settle"
    tasks = [
        judge_raws([[Raw(n, None, v) for n, v in enumerate(log)] for log in logs], settings,
                   at_end=settle)
        for logs in crowds[1]
    ]  # fmt: skip
    expected = totals_of_files(directory, settings, at_end=settle)
    assert comparable(json.loads(files["totals.json"])) == comparable(expected)
    assert [r["task"] for r in rows(files, "settled.ndjson")] == [
        number for number, task in enumerate(tasks) for _ in task.settled
    ]
    assert [
        (r["n"], r["event_time_ms"], r["trace_id"], r["node_id"])
        for r in rows(files, "settled.ndjson")
    ] == [(n, *query.identity) for task in tasks for n, query in enumerate(task.settled)]
    assert {
        (r["topic"], r["partition"], r["offset"]) for r in rows(files, "dead-letters.ndjson")
    } == {(log, p, o) for p, task in enumerate(tasks) for log, o, _ in task.dead_letters}
    assert windows_of(files) == expected_windows(tasks, settings)
    queries = sorted((q for task in tasks for q in task.queries), key=lambda q: q.identity)
    valued = [query for query in queries if query.running.units is not None]
    evaluations = rows(files, "evaluations.ndjson")
    expected_rows = [expected_evaluation(query) for query in valued]
    assert sorted(map(written_evaluation, evaluations), key=repr) == sorted(expected_rows, key=repr)
    assert list(map(settled_values, rows(files, "settled.ndjson"))) == [
        expected_values(q.settled_evaluation, settings) for task in tasks for q in task.settled
    ]


def written_evaluation(row):
    identity = (row["event_time_ms"], row["trace_id"], row["node_id"])
    return identity, row["revision"], row["grades"], row["rank"], settled_values(row)


def expected_evaluation(query):
    now = query.running
    ranks = {ranker: rank or None for ranker, rank in now.first_ranks.items()}
    values = expected_values(now, query.settings)
    return query.identity, now.revision, dict(now.grades), ranks, values


def settled_values(row):
    return {
        (ranker, name): value
        for ranker, values in row["values"].items()
        for name, value in values.items()
    }


def expected_values(evaluation, settings):
    canonical = dict(spelled(settings))
    return {
        (ranker, spelling): evaluation.units[ranker, canonical[spelling]] / ONE
        for ranker in evaluation.first_ranks
        for spelling in settings.spellings
        if (ranker, canonical[spelling]) in (evaluation.units or {})
    }


def windows_of(files):
    return {
        (r["start_ms"], r["model"], r["variant"], r["ranker"], r["measure"]): (
            r["queries"],
            r["sum_units"],
        )
        for r in rows(files, "windows.ndjson")
    }


def expected_windows(tasks, settings):
    """Merged over the tasks, for the windows that are final in all of them."""
    last_final = min(task.watermark for task in tasks) - settings.retention_ms
    merged = {}
    for task in tasks:
        for window in task.windows:
            if window.start_ms + settings.window_ms - 1 < last_final:
                for row, (queries, units) in window.sums.items():
                    before = merged.get((window.start_ms, *row), (0, 0))
                    merged[window.start_ms, *row] = (before[0] + queries, before[1] + units)
    names = {canonical: spelling for spelling, canonical in spelled(settings)}
    return {(*row[:4], names[row[4]]): sums for row, sums in merged.items() if sums[0]}


def spelled(settings):
    measures = meaning(measures=settings.measures).measures
    return [(s, measures.canonical[measures.columns[s]]) for s in measures.spellings]


async def test_the_documented_example_is_correct(tmp_path):
    messages = {
        "rankings.ndjson": ranking(
            "t-81", 1763690000000, ["search_flights", "weather"], [1.7, 0.2],
            node_id="plan/3", model="tool-ranker", variant="prod", query="book a flight",
        ),
        "judgments.ndjson": judgment(
            "t-81", 1763690420000, {"weather": 0, "search_flights": 2}, node_id="plan/3",
            source="human", judgment_id="j-9",
        ),
    }  # fmt: skip
    for name, message in messages.items():
        put(tmp_path / "in", name, [message])
    files = await replayed(tmp_path / "in", tmp_path / "out")
    assert rows(files, "evaluations.ndjson") == [
        {
            "trace_id": "t-81", "node_id": "plan/3", "event_time_ms": 1763690000000,
            "model": "tool-ranker", "variant": "prod", "query": "book a flight", "revision": 1,
            "grades": {"weather": 0, "search_flights": 2}, "rank": {"served": 1},
            "top3": {"served": [["search_flights", 1.7], ["weather", 0.2]]},
            "values": {
                "served": {"top1": 1.0, "top3": 1.0, "mrr": 1.0, "ndcg@10": 1.0, "map@10": 1.0}
            },
        }
    ]  # fmt: skip
    [settled] = rows(files, "settled.ndjson")
    assert (settled["n"], settled["task"], settled["offset"]) == (0, 0, 0)
    assert settled["settled_time_ms"] == 1763690000000 + 3_600_000
    assert rows(files, "windows.ndjson")[0] == {
        "start_ms": 1763689980000, "end_ms": 1763690040000, "model": "tool-ranker",
        "variant": "prod", "ranker": "served", "measure": "top1", "queries": 1, "sum_units": ONE,
    }  # fmt: skip
    totals = json.loads(files["totals.json"])
    assert totals["totals"][0] == {
        "kind": "running", "model": "tool-ranker", "variant": "prod", "ranker": "served",
        "measure": "top1", "queries": 1, "sum_units": ONE, "mean": 1.0,
    }  # fmt: skip


@pytest.mark.slow(alone=False)
async def test_evaluations_are_sorted_over_all_tasks(crowded, tmp_path):
    directory, settings = crowded
    files = await replayed(directory, tmp_path / "out", settings=settings_of(settings))
    keys = [
        (row["event_time_ms"], row["trace_id"], row["node_id"])
        for row in rows(files, "evaluations.ndjson")
    ]
    assert keys == sorted(keys)
    assert len(keys) > N_QUERIES, "of more than one task"


async def test_a_query_without_a_value_has_no_row(tmp_path):
    put(tmp_path / "in", "rankings.ndjson", [ranking("judged"), ranking("unjudged")])
    put(tmp_path / "in", "judgments.ndjson", [judgment("judged")])
    files = await replayed(tmp_path / "in", tmp_path / "out")
    assert [row["trace_id"] for row in rows(files, "evaluations.ndjson")] == ["judged"]
    assert [row["trace_id"] for row in rows(files, "settled.ndjson")] == ["judged", "unjudged"]


async def test_evaluations_have_the_last_revision(tmp_path):
    put(tmp_path / "in", "rankings.ndjson", [ranking()])
    first, second = judgment(grades={"a": 1}), judgment(timestamp_ms=5, grades={"a": 0, "b": 1})
    put(tmp_path / "in", "judgments.ndjson", [first, second])
    files = await replayed(tmp_path / "in", tmp_path / "out")
    [row] = rows(files, "evaluations.ndjson")
    assert (row["revision"], row["grades"], row["rank"]) == (2, {"a": 0, "b": 1}, {"served": 2})


async def test_the_query_is_left_out_on_request(tmp_path):
    put(tmp_path / "in", "rankings.ndjson", [ranking(query="secret words")])
    put(tmp_path / "in", "judgments.ndjson", [judgment()])
    files = await replayed(tmp_path / "in", tmp_path / "out", settings={"emit_query": False})
    assert not [name for name, content in files.items() if b"secret" in content]


async def test_dead_letters_keep_their_bytes_and_are_sorted(tmp_path):
    put(tmp_path / "in", "rankings-0.ndjson", [b"\xff", ranking(), b""])
    put(tmp_path / "in", "judgments-1.ndjson", [judgment("nobody"), b"{" + b"x" * 300 * 1024])
    files = await replayed(tmp_path / "in", tmp_path / "out")
    letters = rows(files, "dead-letters.ndjson")
    assert [(r["topic"], r["partition"], r["offset"], r["reason"]) for r in letters] == [
        ("judgments", 1, 0, "orphan"),
        ("judgments", 1, 1, "oversize"),
        ("rankings", 0, 0, "decode"),
        ("rankings", 0, 2, "decode"),
    ]
    assert [base64.b64decode(r["value"]) for r in letters] == [
        judgment("nobody"),
        b"{" + b"x" * (64 * 1024 - 1),
        b"\xff",
        b"",
    ]
    assert {r["key"] for r in letters} == {None}
    assert [r.get("truncated") for r in letters] == [None, 1 + 300 * 1024, None, None]


async def test_empty_logs_leave_all_files(tmp_path):
    put(tmp_path / "in", "rankings.ndjson", [])
    files = await replayed(tmp_path / "in", tmp_path / "out")
    assert files.keys() == NAMES
    assert json.loads(files["totals.json"])["ledger"]["rankings"]["read"] == 0


# --- settle and hold ---------------------------------------------------------------------------


async def test_hold_leaves_immature_queries_unsettled_and_writes_known_results(tmp_path):
    put(tmp_path / "in", "rankings.ndjson", [ranking()])
    put(tmp_path / "in", "judgments.ndjson", [judgment()])
    held = await replayed(tmp_path / "in", tmp_path / "hold", settings={"at_end": "hold"})
    assert rows(held, "settled.ndjson") == rows(held, "windows.ndjson") == []
    assert json.loads(held["totals.json"])["ledger"]["rankings"]["open"] == 1
    settled = await replayed(tmp_path / "in", tmp_path / "settle", settings={"at_end": "settle"})
    assert len(rows(settled, "settled.ndjson")) == 1
    assert json.loads(settled["totals.json"])["ledger"]["rankings"]["expired"] == 1
    assert held["evaluations.ndjson"] == settled["evaluations.ndjson"] != b""


async def test_under_hold_a_window_is_final_once_every_task_has_passed_it(tmp_path):
    settings = {
        "at_end": "hold", "retention_ms": 10, "maturity_ms": 0, "window_ms": 10,
        "out_of_orderness_ms": 0,
    }  # fmt: skip
    # final when watermark > start + window - 1 + retention = 0 + 9 + 10
    for partition, last_ms in enumerate((20, 19)):
        put(tmp_path / "in", f"rankings-{partition}.ndjson", [ranking(), ranking("u", last_ms)])
        judgments = [judgment(), judgment("u", last_ms)]
        put(tmp_path / "in", f"judgments-{partition}.ndjson", judgments)
    files = await replayed(tmp_path / "in", tmp_path / "out", settings=settings)
    assert rows(files, "windows.ndjson") == []
    put(tmp_path / "in", "rankings-1.ndjson", [ranking(), ranking("u", 20)])
    put(tmp_path / "in", "judgments-1.ndjson", [judgment(), judgment("u", 20)])
    files = await replayed(tmp_path / "in", tmp_path / "out2", settings=settings)
    assert {(r["start_ms"], r["queries"]) for r in rows(files, "windows.ndjson")} == {(0, 2)}


# --- from and to -------------------------------------------------------------------------------


TIMES = [100, 300, 200, 300, 400, 350, 500]


@pytest.mark.parametrize(
    "size", [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 3, 5000))]
)
@pytest.mark.parametrize(
    ("from_ms", "to_ms", "start", "end"),
    [
        (None, None, 0, 7),
        (0, None, 0, 7),
        (101, None, 1, 7),
        (300, None, 1, 7),
        (301, None, 4, 7),
        (500, None, 6, 7),
        (501, None, 7, 7),
        (None, 100, 0, 0),
        (None, 300, 0, 1),
        (None, 301, 0, 4),
        (None, 500, 0, 6),
        (None, 501, 0, 7),
        (200, 400, 1, 4),
        (300, 300, 1, 1),
        (301, 450, 4, 6),
        (600, 700, 7, 7),
    ],
)
async def test_a_range_begins_and_ends_where_the_clock_reaches_a_moment(
    tmp_path, size, from_ms, to_ms, start, end
):
    lines = [ranking(f"t-{n}", at_ms) for n, at_ms in enumerate(TIMES)]
    put(tmp_path / "in", "rankings.ndjson", lines)
    files = await replayed(
        tmp_path / "in", tmp_path / "out", from_ms=from_ms, to_ms=to_ms, max_poll_records=size
    )
    manifest = json.loads(files["manifest.json"])
    assert manifest["ranges"]["rankings-0"] == {"start": start, "end": end}
    settled = sorted(row["offset"] for row in rows(files, "settled.ndjson"))
    assert settled == list(range(start, end))


async def test_only_well_formed_records_move_a_clock(tmp_path):
    bad = ranking("bad", 900).replace(b'"schema_version": 1', b'"schema_version": 7')
    put(tmp_path / "in", "rankings.ndjson", [bad, ranking("a", 10), bad, ranking("b", 900)])
    files = await replayed(tmp_path / "in", tmp_path / "out", from_ms=900)
    manifest = json.loads(files["manifest.json"])
    assert manifest["ranges"]["rankings-0"] == {"start": 3, "end": 4}
    assert rows(files, "dead-letters.ndjson") == []


async def test_each_log_has_its_own_range(tmp_path):
    put(tmp_path / "in", "rankings.ndjson", [ranking("a", 10), ranking("b", 20)])
    put(tmp_path / "in", "judgments.ndjson", [judgment("a", 12), judgment("a", 13)])
    files = await replayed(tmp_path / "in", tmp_path / "out", to_ms=20)
    assert json.loads(files["manifest.json"])["ranges"] == {
        "rankings-0": {"start": 0, "end": 1},
        "judgments-0": {"start": 0, "end": 2},
    }


# --- the manifest ------------------------------------------------------------------------------


@pytest.mark.slow(alone=False)
async def test_the_manifest_has_the_hash_and_the_rows_of_every_other_file(crowded, tmp_path):
    directory, settings = crowded
    files = await replayed(directory, tmp_path / "out", settings=settings_of(settings))
    manifest = json.loads(files["manifest.json"])
    assert manifest["files"].keys() == NAMES - {"manifest.json"}
    for name, known in manifest["files"].items():
        assert known["sha256"] == hashlib.sha256(files[name]).hexdigest()
        assert known["bytes"] == len(files[name])
        assert known["rows"] == files[name].count(b"\n") or name == "totals.json"
    assert manifest["counts"]["evaluations"] == len(rows(files, "evaluations.ndjson"))
    assert (manifest["format"], manifest["place"]) == (2, None)  # files have no place


@pytest.mark.slow(alone=False)
async def test_the_manifest_names_no_directory(crowded, tmp_path):
    directory, settings = crowded
    files = await replayed(directory, tmp_path / "out", settings=settings_of(settings))
    assert str(tmp_path).encode() not in files["manifest.json"]


async def test_the_chain_changes_with_input_and_settings(tmp_path):
    put(tmp_path / "in", "rankings.ndjson", [ranking()])

    async def chain(out, **settings):
        files = await replayed(tmp_path / "in", tmp_path / out, settings=settings)
        return json.loads(files["manifest.json"])["chain"]

    chains = [await chain("1"), await chain("2"), await chain("3", early_ms=1)]
    put(tmp_path / "in", "rankings.ndjson", [ranking(scores=(2.0, 1.5))])
    chains.append(await chain("4"))
    assert chains[0] == chains[1]
    assert len(set(chains)) == 3 or chains[3] == chains[0]


# --- all files or none -------------------------------------------------------------------------


async def test_the_directory_is_created_with_its_parents(tmp_path):
    put(tmp_path / "in", "rankings.ndjson", [ranking()])
    files = await replayed(tmp_path / "in", tmp_path / "a" / "b" / "out")
    assert files.keys() == NAMES


async def test_a_directory_that_is_not_empty_is_refused_and_unchanged(tmp_path):
    put(tmp_path / "in", "rankings.ndjson", [ranking()])
    out = put(tmp_path / "out", "notes.txt", [b"mine"])
    with pytest.raises(ResultsUnusable, match="--force"):
        await replayed(tmp_path / "in", out)
    assert contents(out) == {"notes.txt": b"mine\n"}


async def test_force_replaces_results_and_keeps_other_files(tmp_path):
    put(tmp_path / "in", "rankings.ndjson", [ranking()])
    out = put(tmp_path / "out", "notes.txt", [b"mine"])
    put(out, "totals.json", [b"old"])
    files = await replayed(tmp_path / "in", out, force=True)
    assert files.keys() == NAMES | {"notes.txt"}
    assert json.loads(files["totals.json"])["format"] == 2


async def test_force_removes_files_of_an_earlier_replay_that_this_one_has_not(tmp_path):
    put(tmp_path / "in", "rankings.ndjson", [ranking()])
    out = put(tmp_path / "out", "weights.ndjson", [b"old"])
    for name in ("alarms.ndjson", "alarm-commands.ndjson", "schemas.json"):
        put(out, name, [b"old"])
    assert (await replayed(tmp_path / "in", out, force=True)).keys() == NAMES


async def test_an_empty_directory_is_used(tmp_path):
    put(tmp_path / "in", "rankings.ndjson", [ranking()])
    (tmp_path / "out").mkdir()
    assert (await replayed(tmp_path / "in", tmp_path / "out")).keys() == NAMES


async def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    put(tmp_path / "in", "rankings.ndjson", [ranking()])
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ResultsUnusable, match="Name a directory"):
        await replayed(tmp_path / "in", tmp_path / "out")


def damaged_input(tmp_path):
    directory = put(tmp_path / "in", "rankings.ndjson", [ranking()])
    whole = gzip.compress(b"".join(judgment(f"t-{n}") + b"\n" for n in range(1000)))
    (directory / "judgments.ndjson.gz").write_bytes(whole[: len(whole) // 2])
    return directory


async def test_a_failure_leaves_no_files(tmp_path):
    directory = damaged_input(tmp_path)
    with pytest.raises(SourceUnusable, match="damaged"):
        await replayed(directory, tmp_path / "a" / "out", max_poll_records=10)
    assert {path.name for path in tmp_path.iterdir()} == {"in"}


async def test_a_failure_keeps_earlier_results(tmp_path):
    out = put(tmp_path / "out", "totals.json", [b"old"])
    with pytest.raises(SourceUnusable, match="damaged"):
        await replayed(damaged_input(tmp_path), out, force=True, max_poll_records=10)
    assert contents(out) == {"totals.json": b"old\n"}


class Away(FileRange):
    """Becomes unavailable within `judgments`; lists the calls that end."""

    def __init__(self, directory):
        super().__init__(directory)
        self.ended = []

    async def read(self, log, partition, start, end, *, max_records):
        try:
            async for records in super().read(log, partition, start, end, max_records=1):
                if log == "judgments":
                    raise SourceUnavailable("nobody answers")
                yield records
        finally:
            self.ended.append(log)

    async def close(self):
        self.ended.append("source")
        await super().close()


async def test_a_failure_in_one_log_ends_the_reading_of_the_other(tmp_path):
    put(tmp_path / "in", "rankings.ndjson", [ranking("a", 1), ranking("b", 1_000_000)] * 2)
    put(tmp_path / "in", "judgments.ndjson", [judgment("a", 2)])
    source = Away(tmp_path / "in")
    results = ResultDirectory(tmp_path / "out", force=False)
    with pytest.raises(SourceUnavailable, match="nobody answers"):
        await replay(source, results, meaning(), topic_names=TOPICS, show_progress=False)
    assert source.ended == ["judgments", "rankings", "source"]
    assert not (tmp_path / "out").exists()


# --- memory ------------------------------------------------------------------------------------

MEASURE_MEMORY = """
import asyncio, resource, sys
from tests.replay.running import run
def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
settings = {"retention_ms": 60_000, "maturity_ms": 1_000, "remember_ms": 0, "early_ms": 0}
async def main():
    for name in ("small", "large"):
        await run(f"{sys.argv[1]}/{name}", f"{sys.argv[1]}/out-{name}", settings=settings,
                  memory_bytes=4 << 20)
        print(peak_mib())
asyncio.run(main())
"""


def write_logs(directory, n_queries):
    """Of about 1.7 kB a query; one is born every 100 ms."""
    directory.mkdir()
    features = [[0.125, 0.25, 0.5, 0.75]] * 20
    ids = [f"candidate-{n:03}" for n in range(20)]
    scores = [n / 7 for n in range(20)]
    grades = {"candidate-003": 1, "candidate-007": 2}
    write_copies(
        directory / "rankings.ndjson", ranking, n_queries, 0, ids, scores, features=features
    )
    write_copies(directory / "judgments.ndjson", judgment, n_queries, 50, grades)


def write_copies(path, message, n_queries, delay_ms, *values, **more):
    """The same message for each query, with its own trace and time."""
    time_ms = 123_456_789
    line = message("TRACE", time_ms, *values, **more) + b"\n"
    first, rest = line.split(b"TRACE")
    middle, last = rest.split(str(time_ms).encode())
    with path.open("wb") as file:
        file.writelines(
            b"%bt-%d%b%d%b" % (first, n, middle, n * 100 + delay_ms, last) for n in range(n_queries)
        )


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(tmp_path):
    write_logs(tmp_path / "small", 20_000)  # with fewer, buffers have not reached their sizes
    write_logs(tmp_path / "large", 60_000)
    assert sum(path.stat().st_size for path in (tmp_path / "large").iterdir()) > 50_000_000
    done = subprocess.run(
        [sys.executable, "-c", MEASURE_MEMORY, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    small_mib, large_mib = map(float, done.stdout.split())
    assert large_mib < small_mib + 25


async def test_with_learning_settled_queries_have_their_features(tmp_path):
    features = [[0.5, 1.0], [0.25, 0.0]]
    one = ranking(features=features, feature_names=["phi_rel", "phi_hist"])
    put(tmp_path / "in", "rankings.ndjson", [one, ranking("u", 1)])
    put(tmp_path / "in", "judgments.ndjson", [judgment()])
    plain = rows(await replayed(tmp_path / "in", tmp_path / "plain"), "settled.ndjson")
    learned = await replayed(tmp_path / "in", tmp_path / "out", settings={"learns": True})
    first, second = rows(learned, "settled.ndjson")
    assert first.pop("features") == features
    assert first.pop("feature_names") == ["phi_rel", "phi_hist"]
    assert first.pop("candidate_ids") == ["a", "b"]
    assert (first.pop("sources"), second.pop("sources")) == ({"": 1}, {})
    assert [first, second] == plain
