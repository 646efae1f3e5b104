"""A backfill by tasks: the bytes of a replay of each task, and the totals of all by `merge`."""

import json

import pytest
from hypothesis import given
from hypothesis import settings as examples_of
from hypothesis import strategies as st
from msgspec.structs import replace

from evaluator.adapters.files import archives
from evaluator.cli import main
from evaluator.cli.exits import UsageError
from evaluator.config import Settings
from evaluator.ports import RequestRefused, SourceUnusable
from evaluator.replay.results import DERIVED
from tests.repeats import first_quick, sized
from tests.replay.running import contents
from tests.replay.test_merging import N_TASKS, write_logs
from tests.replay.test_parquet_archives import write

pa = pytest.importorskip("pyarrow", reason="of the group compare")
pq = pytest.importorskip("pyarrow.parquet", reason="of the group compare")

from evaluator.backfill import SUMMARIES, merge, result_schema, run_task  # noqa: E402

CHANGED = {"retention_ms": 20_000, "maturity_ms": 5_000, "window_ms": 10_000}
SETTINGS = Settings(segments=("locale",), **CHANGED)
SCHEMA = pa.schema(
    [
        ("log", pa.string()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
FIRST = 1_000
"""Offset of the first record of each log."""


def records_of(root, task):
    """The records of a task in the order of time; empty lines are heartbeats."""
    rows = []
    for log in ("rankings", "judgments"):
        clock_ms = 0
        lines = (root / "logs" / f"{log}-{task}.ndjson").read_bytes().splitlines()
        for offset, value in enumerate(lines, FIRST):
            time_ms = json.loads(value)["timestamp_ms"] if value.endswith(b"}") else 5
            clock_ms = max(clock_ms, time_ms)
            rows.append((clock_ms, (log, offset, time_ms, b"k", value or None)))
    return [row for _, row in sorted(rows, key=lambda of: (of[0], *of[1][:2]))]


def batches_of(rows, size=40):
    for first in range(0, len(rows), size):
        columns = zip(*rows[first : first + size], strict=True)
        arrays = [pa.array(list(of), f.type) for of, f in zip(columns, SCHEMA, strict=True)]
        yield pa.record_batch(arrays, schema=SCHEMA)


@pytest.fixture(scope="module", params=first_quick("settle", "hold"))
def root(request, tmp_path_factory):
    """Records as an archive, and replays of it: of all tasks and of each."""
    root = tmp_path_factory.mktemp(f"backfill-{request.param}")
    (root / "at_end").write_text(request.param)
    write_logs(root / "logs")
    for task in range(N_TASKS):
        for log in ("rankings", "judgments"):
            rows = [row for row in records_of(root, task) if row[0] == log]
            _, offsets, times, keys, values = map(list, zip(*rows, strict=True))
            write(
                root / "in" / f"{log}+{task}+{FIRST:010d}.parquet",
                offset=offsets,
                timestamp=times,
                key=(keys, pa.binary()),
                value=(values, pa.binary()),
            )
    chosen = [f"--set={name}={value}" for name, value in CHANGED.items()]
    chosen += ["--set=segments=locale", "--set=alarms=off", f"--at-end={request.param}"]
    for tasks in (f"0-{N_TASKS - 1}", *map(str, range(N_TASKS))):
        arguments = ["--source", f"archive://{root / 'in'}", "--out", str(root / tasks)]
        arguments += ["--format=parquet", "--tasks", tasks, "--processes=1"]
        assert main(["replay", *arguments, *chosen]) == 0
    return root


def evaluated(root, task, rows=None, size=40, settings=SETTINGS):
    """The rows of all tables of a task, by table."""
    rows = records_of(root, task) if rows is None else rows
    at_end = (root / "at_end").read_text()
    found = {}
    for batch in run_task(task, batches_of(rows, size), settings, at_end=at_end):
        assert batch.schema == result_schema()
        for row in batch.to_pylist():
            found.setdefault(row["table"], []).append(row)
    return found


def summary_of(found):
    [row] = found[SUMMARIES]
    return json.loads(row["line"])


@pytest.mark.parametrize("task", range(N_TASKS))
@pytest.mark.parametrize("size", first_quick(7, 1, 5_000))
def test_a_task_has_the_results_of_its_replay(root, task, size):
    found, expected = evaluated(root, task, size=size), contents(root / str(task))
    manifest = json.loads(expected["manifest.json"])
    del manifest["tables"]
    assert summary_of(found) == {
        "manifest": manifest,  # so the hashes of all files are equal
        "totals": json.loads(expected["totals.json"]),
    }
    assert manifest["ranges"][f"rankings-{task}"]["start"] == FIRST
    for name in ("windows", "dead-letters"):
        lines = [row["line"].encode() for row in found.get(name, ())]
        assert lines == expected[f"{name}.ndjson"].splitlines()
    for name in DERIVED:
        table = pq.read_table(root / str(task) / name).to_pylist()
        rows = found.get(name.removesuffix(".parquet"), ())
        columns = table[0].keys() if table else ()
        assert [{column: row[column] for column in columns} for row in rows] == table
        assert {row["task"] for row in rows} <= {task}


@examples_of(max_examples=sized(10, quick=2))
@given(data=st.data())
def test_results_do_not_depend_on_how_the_logs_alternate(root, data):
    rows = records_of(root, 1)
    by_log = {
        log: iter([row for row in rows if row[0] == log]) for log in ("rankings", "judgments")
    }
    order = data.draw(st.permutations([row[0] for row in rows]))
    mixed = [next(by_log[log]) for log in order]
    assert evaluated(root, 1, mixed) == evaluated(root, 1)


def test_a_merge_in_any_grouping_has_the_totals_of_one_replay(root):
    each = [json.dumps(summary_of(evaluated(root, task))) for task in range(N_TASKS)]
    whole = contents(root / f"0-{N_TASKS - 1}")
    merged = json.loads(merge(each))
    assert merged["totals"] == json.loads(whole["totals.json"])
    expected = json.loads(whole["manifest.json"])
    for name in ("settings", "meaning", "ranges", "tasks", "levels", "code_sha256"):
        assert merged["manifest"][name] == expected[name], name
    del expected["counts"]["windows"]  # of each task, and not summed here
    assert merged["manifest"]["counts"] == expected["counts"]
    assert merged["manifest"]["files"]["totals.json"] == expected["files"]["totals.json"]
    grouped = merge([merge([each[3], each[1]]), each[0], merge([each[2]]), each[0]])
    assert json.loads(grouped) == merged


def test_a_task_of_other_records_or_meaning_is_not_merged(root):
    whole = evaluated(root, 1)
    part = evaluated(root, 1, records_of(root, 1)[:-2])
    other = evaluated(root, 2, settings=replace(SETTINGS, retention_ms=21_000))
    texts = [json.dumps(summary_of(of)) for of in (whole, part, other)]
    with pytest.raises(RequestRefused, match="task 1 occurs twice and differs"):
        merge(texts[:2])
    with pytest.raises(RequestRefused, match="task 2 has another meaning than task 1"):
        merge([texts[0], texts[2]])
    of_other = {**json.loads(texts[0]), "totals": json.loads(texts[1])["totals"]}
    changed = {
        "'manifest'": "{}",
        "char [0-9]": texts[0][:-1],
        "of format 92": texts[0].replace('"format": ', '"format": 9'),
        "its chain differs": texts[0].replace('"at_end": "', '"at_end": "un'),
        "task 1 has other totals than its manifest": json.dumps(of_other),
    }
    for message, damaged in changed.items():
        with pytest.raises(SourceUnusable, match=message):
            merge([damaged])
    with pytest.raises(SourceUnusable, match="no summary of a task"):
        merge([])


def test_repeats_count_once_and_other_records_are_refused(root):
    rows = records_of(root, 0)
    repeated, once = [row for row in rows for _ in range(2)], evaluated(root, 0)
    for size in (1, 3, 5_000):
        assert evaluated(root, 0, repeated, size) == once
    log, offset, time_ms, key, _ = rows[4]
    with pytest.raises(SourceUnusable, match=f"two different records with the offset {offset}"):
        evaluated(root, 0, [*rows[:5], (log, offset, time_ms, key, b"other"), *rows[5:]])


def test_records_out_of_order_or_without_an_offset_are_refused(root):
    rows = records_of(root, 0)
    with pytest.raises(SourceUnusable, match="Sort the records of each log by offset"):
        evaluated(root, 0, rows[::-1])
    log, _, *others = rows[0]
    with pytest.raises(SourceUnusable, match=f"{log}, partition 0, has records without an offset"):
        evaluated(root, 0, [(log, None, *others)])


@pytest.mark.parametrize("log", ["v2.rankings", None])
def test_records_of_another_log_are_refused(root, log):
    rows = records_of(root, 0)
    _, *others = rows[4]
    with pytest.raises(SourceUnusable, match=f"records of the log {log!r}. Name the log of each"):
        evaluated(root, 0, [*rows[:4], (log, *others), *rows[5:]])


def test_missing_offsets_are_in_the_manifest_up_to_a_limit(root, monkeypatch):
    rows = [row for row in records_of(root, 3) if row[0] == "rankings"]
    left = [row for row in rows if row[1] - FIRST not in {3, 7, 8, 20}]
    gaps = [[FIRST + 3, FIRST + 4], [FIRST + 7, FIRST + 9], [FIRST + 20, FIRST + 21]]
    found = summary_of(evaluated(root, 3, left))["manifest"]
    assert found["gaps"] == {"rankings-3": gaps}
    assert found["ranges"]["judgments-3"] == {"start": 0, "end": 0}
    monkeypatch.setattr(archives, "MAX_GAPS", 2)
    found = summary_of(evaluated(root, 3, left))["manifest"]
    assert found["gaps"] == {"rankings-3": [gaps[0], [FIRST + 7, FIRST + 21]]}


def test_records_are_read_batch_by_batch(root):
    """A batch is evaluated before the next one is read, so memory is that of one batch."""
    rows, taken, seen = records_of(root, 2), [], []

    def batches():
        for batch in batches_of(rows, 5):
            taken.append(len(batch))
            yield batch

    from evaluator.core.engine.engine import Engine

    receive = Engine.receive

    def watched(engine, rankings, judgments):
        seen.append(len(taken))
        return receive(engine, rankings, judgments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "receive", watched)
        list(run_task(2, batches(), SETTINGS))
    assert set(seen) == set(range(1, len(taken) + 1))  # each before the next one is taken


@pytest.mark.parametrize("queries", [(), ("settled",), ("evaluations", "settled")])
def test_tables_of_queries_can_be_left_out(root, queries):
    rows = list(batches_of(records_of(root, 0)))
    found = {
        batch.column("table")[0].as_py() for batch in run_task(0, rows, SETTINGS, queries=queries)
    }
    expected = {name for each in queries for name in (each, f"{each}-values")}
    assert found == {SUMMARIES, "windows", "dead-letters", *expected}


def test_learning_and_alarms_are_left_out(root):
    settings = Settings(segments=("locale",), learning="propose", **CHANGED)
    assert evaluated(root, 0, settings=settings) == evaluated(root, 0)


def test_a_mapping_of_keys_is_refused(tmp_path):
    path = tmp_path / "mapping.toml"
    path.write_text(
        '[rankings]\ntopic = "searches"\ntrace_id = "key:"\nnode_id = "turn"\n'
        '[rankings.rows]\neach = "items"\ncandidate_id = "sku"\n'
    )
    with pytest.raises(UsageError, match=r"names key:.*, and files have no keys"):
        next(run_task(0, [], Settings(mapping=str(path))))
