"""Archives in Parquet: raw records with keys, times and offsets, and rows of columns."""

import datetime as dt
import json
import re
import sys
from decimal import Decimal

import pytest

from evaluator.adapters.files import ArchiveRange, archives
from evaluator.cli import main
from evaluator.ports import UNKNOWN_END, SourceUnusable
from tests.repeats import first_quick
from tests.replay.running import contents, judgment, ranking
from tests.replay.running import put as put_lines
from tests.replay.test_archives import run
from tests.replay.test_merging import write_logs
from tests.tidy.tree import ROOT

pa = pytest.importorskip("pyarrow", reason="of the group compare")
pq = pytest.importorskip("pyarrow.parquet", reason="of the group compare")

HOUR_MS = 3_600_000


def write(path, **columns):
    """A Parquet file of columns; those with a type are (cells, type)."""
    arrays = [pa.array(*of) if isinstance(of, tuple) else pa.array(of) for of in columns.values()]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(arrays, names=list(columns)), path)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("archived")
    write_logs(root / "logs")
    assert run(f"file://{root / 'logs'}", root / "expected") == 0
    return root


def objects(root, into, *, more=lambda first, n: {}, repeated=0, suffix=".parquet"):
    for path in sorted((root / "logs").iterdir()):
        topic, _, partition = path.stem.partition("-")
        lines = path.read_bytes().splitlines()
        for first in range(0, len(lines), 7):
            values = lines[first : first + 7 + repeated]
            name = f"{topic}+{partition}+{first:010d}{suffix}"
            write(into / name, value=(values, pa.binary()), **more(first, len(values)))
    return f"archive://{into}"


def with_offsets(first, n):
    return {"offset": list(range(first, first + n)), "key": (["k"] * n, pa.string())}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(lambda first, n: {}, id="values"),
        pytest.param(with_offsets, id="offsets", marks=pytest.mark.slow(alone=False)),
    ],
)
@pytest.mark.parametrize("repeated", first_quick(3, 0, 20))
def test_raw_values_give_the_results_of_their_logs(root, tmp_path, more, repeated):
    source = objects(root, tmp_path / "in", more=more, repeated=repeated, suffix=".snappy.parquet")
    assert run(source, tmp_path / "out", "--strict") == 0
    found, expected = contents(tmp_path / "out"), contents(root / "expected")
    if more is with_offsets:  # dead letters have the keys
        for of in (found, expected):
            del of["manifest.json"], of["dead-letters.ndjson"]
    assert found == expected


def test_a_repeat_with_another_offset_is_refused(root, tmp_path, capsys):
    source = objects(root, tmp_path / "in", more=with_offsets, repeated=2)
    values = (root / "logs" / "rankings-1.ndjson").read_bytes().splitlines()[7:16]
    values[0] = values[1]
    name = tmp_path / "in" / "rankings+1+0000000007.parquet"
    write(name, value=(values, pa.binary()), **with_offsets(7, 9))
    assert run(source, tmp_path / "out") == 3
    assert "has other records than earlier objects between the offsets 7 and" in (
        capsys.readouterr().err
    )


# --- keys, times, nulls and offsets ------------------------------------------------------------


async def read(folder, *, start=0, end=UNKNOWN_END, max_records=100):
    range_ = ArchiveRange(str(folder))
    await range_.open()
    batches = [
        each async for each in range_.read("rankings", 0, start, end, max_records=max_records)
    ]
    await range_.close()
    return batches, range_


async def test_a_raw_table_has_keys_times_heartbeats_and_offsets(tmp_path):
    times = [dt.datetime(2026, 1, 1, 0, 0, n, 999, tzinfo=dt.UTC) for n in range(4)]
    write(
        tmp_path / "2026-01-01" / "rankings.parquet",
        key=([b"k", None, b"k", b"k"], pa.binary()),
        value=(["a", None, "c", "d"], pa.string()),
        timestamp=(times, pa.timestamp("us", tz="UTC")),
        timestampType=[0] * 4,
        offset=[5, 6, 9, 10],
    )
    batches, range_ = await read(tmp_path)
    assert [of.offsets.tolist() for of in batches] == [[5, 6], [9, 10]]
    assert [list(of.values) for of in batches] == [[b"a", None], [b"c", b"d"]]
    assert [list(of.keys) for of in batches] == [[b"k", None], [b"k", b"k"]]
    first_ms = int(times[0].timestamp()) * 1000
    assert [of.timestamps_ms.tolist() for of in batches] == [
        [first_ms, first_ms + 1000],
        [first_ms + 2000, first_ms + 3000],
    ]
    assert range_.gaps == {"rankings-0": [(7, 9)]}
    (middle, last), _ = await read(tmp_path, start=6, end=10)
    assert (middle.offsets.tolist(), last.offsets.tolist()) == ([6], [9])


async def test_a_table_without_timestamps_gives_none(tmp_path):
    write(tmp_path / "rankings.parquet", value=([b"a"], pa.binary()))
    ((only,), _) = await read(tmp_path)
    assert only.timestamps_ms is None


async def test_offsets_of_folders_by_day_repeat_only_with_equal_rows(tmp_path):
    for day, first in ((1, 100), (2, 102)):
        values = [b"%d" % n for n in range(first, first + 4)]
        name = tmp_path / f"2026-01-0{day}" / "rankings.parquet"
        write(name, value=(values, pa.binary()), offset=list(range(first, first + 4)))
    batches, range_ = await read(tmp_path)
    assert [n for of in batches for n in of.offsets.tolist()] == list(range(100, 106))
    assert range_.gaps == {}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"partition": [0, 1]}, "its column partition has 0 and 1"),
        ({"partition": [3, 3]}, "its column partition has 0 and 3"),
        ({"topic": ["rankings", "other"]}, "its column topic has other and rankings"),
    ],
)
async def test_a_file_has_the_partition_of_its_name_and_one_topic(tmp_path, more, why):
    value = ([b"a", b"b"], pa.binary())
    write(tmp_path / "rankings.parquet", value=value, partition=[0, 0], topic=["t", "t"])
    assert sum(len(of) for of in (await read(tmp_path))[0]) == 2
    write(tmp_path / "rankings.parquet", value=value, **more)
    with pytest.raises(SourceUnusable, match=why):
        await read(tmp_path)


@pytest.mark.slow(alone=False)
async def test_dictionary_values_count_for_the_batch_limit_at_every_use(tmp_path):
    write(tmp_path / "rankings.parquet", value=([b"x" * 100_000] * 1_000, pa.binary()))
    assert (tmp_path / "rankings.parquet").stat().st_size < 200_000
    (batches, _) = await read(tmp_path, max_records=5_000)
    assert max(len(of) for of in batches) * 100_000 < archives.MAX_BATCH_BYTES
    assert sum(len(of) for of in batches) == 1_000


@pytest.mark.parametrize(
    ("offsets", "why"),
    [([2, 1], "the offset 1 comes after 2"), ([1, None], "has nulls"), ([-1, 0], "negative")],
)
async def test_impossible_offsets_are_refused(tmp_path, offsets, why):
    name = tmp_path / "rankings.parquet"
    write(name, value=([b"a", b"b"], pa.binary()), offset=(offsets, pa.int64()))
    with pytest.raises(SourceUnusable, match=why):
        await read(tmp_path)


async def test_a_batch_has_a_limit_of_rows_and_of_bytes(tmp_path, monkeypatch):
    write(tmp_path / "rankings.parquet", value=([b"x" * 1_000] * 100, pa.binary()))
    (batches, _) = await read(tmp_path, max_records=40)
    assert [len(of) for of in batches] == [40, 40, 20]
    monkeypatch.setattr(archives, "MAX_BATCH_BYTES", 10_500)
    pq.write_table(
        pa.table({"value": [b"%d" % n + b"x" * 1_000 for n in range(100)]}),
        tmp_path / "rankings.parquet",
        compression="zstd",
        use_dictionary=False,
    )
    (batches, _) = await read(tmp_path)
    assert {len(of) for of in batches[:-1]} == {10}


def test_a_message_without_a_time_has_that_of_its_record(tmp_path):
    lines = [ranking(f"t{n}", None) for n in range(3)]
    write(
        tmp_path / "in" / "rankings+0+0000000000.parquet",
        value=(lines, pa.binary()),
        timestamp=[HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS],
    )
    assert run(f"archive://{tmp_path / 'in'}", tmp_path / "out") == 0
    settled = (tmp_path / "out" / "settled.ndjson").read_text().splitlines()
    assert [json.loads(line)["event_time_ms"] for line in settled] == [
        HOUR_MS,
        2 * HOUR_MS,
        3 * HOUR_MS,
    ]


@pytest.mark.parametrize("later", [None, 10 * HOUR_MS], ids=["without", "with"])
def test_archived_heartbeats_move_the_clocks_with_at_end_hold(tmp_path, later):
    first, last = ("rankings", [ranking("t", 0)]), ("judgments", [judgment("t", 1000)])
    for log, lines in (first, last):
        beats = [] if later is None else [None]
        times = [1000, *(later for _ in beats)]
        values = ([*lines, *beats], pa.binary())
        write(tmp_path / "in" / f"{log}.parquet", value=values, timestamp=(times, pa.int64()))
    held = run(f"archive://{tmp_path / 'in'}", tmp_path / "out", "--at-end", "hold")
    assert held == 0
    settled = (tmp_path / "out" / "settled.ndjson").read_text().splitlines()
    assert len(settled) == (0 if later is None else 1)


# --- rows of columns ----------------------------------------------------------------------------


def test_rows_of_columns_are_messages(tmp_path):
    rankings = [
        json.loads(ranking(f"t{n}", n * 1000, ids=("a", "b"), model="m", segments={"locale": "de"}))
        for n in range(9)
    ]
    judgments = [json.loads(judgment(f"t{n}", n * 1000 + 5, {"b": 1.5})) for n in range(0, 9, 2)]
    put_lines(tmp_path / "logs", "rankings.ndjson", [json.dumps(x).encode() for x in rankings])
    put_lines(tmp_path / "logs", "judgments.ndjson", [json.dumps(x).encode() for x in judgments])
    grades = [[(c, Decimal(str(g))) for c, g in of.pop("grades").items()] for of in judgments]
    times = [each.pop("timestamp_ms") for each in rankings]
    pq.write_table(
        pa.Table.from_pylist(rankings).append_column(
            "timestamp_ms", pa.array([t * 10**6 for t in times], pa.timestamp("ns"))
        ),
        _made(tmp_path / "in" / "rankings.parquet"),
    )
    pq.write_table(
        pa.Table.from_pylist(judgments)
        .append_column("grades", pa.array(grades, pa.map_(pa.string(), pa.decimal128(5, 2))))
        .append_column("source", pa.array([None] * len(judgments), pa.string())),
        _made(tmp_path / "in" / "judgments.parquet"),
    )
    assert run(f"file://{tmp_path / 'logs'}", tmp_path / "expected") == 0
    assert run(f"archive://{tmp_path / 'in'}", tmp_path / "out") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")
    assert len((tmp_path / "out" / "evaluations.ndjson").read_text().splitlines()) == 5


def _made(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_a_null_withdraws_a_grade_in_a_map_and_is_absent_in_a_struct(tmp_path):
    ids = [["a", "b"]] * 2
    common = {"schema_version": [1, 1], "trace_id": ["t", "u"], "node_id": ["n", "n"]}
    times = {"timestamp_ms": [1000, 2000]}
    write(
        tmp_path / "in" / "rankings.parquet",
        **common,
        **times,
        candidate_ids=ids,
        ranks=[[1, 2]] * 2,
    )
    write(
        tmp_path / "in" / "judgments.parquet",
        **common,
        **times,
        grades=([{"a": 1.0, "b": None}, {"a": None, "b": 2.0}], None),
    )
    assert run(f"archive://{tmp_path / 'in'}", tmp_path / "out") == 0
    rows = (tmp_path / "out" / "evaluations.ndjson").read_text().splitlines()
    assert [json.loads(row)["grades"] for row in rows] == [{"a": 1}, {"b": 2}]
    pairs = [[("a", 1.0), ("b", 2.0)], [("a", 1.0), ("b", 2.0)]]
    later = [[("a", None)], [("b", None)]]
    of_both = {name: cells * 2 for name, cells in common.items()}
    write(
        tmp_path / "in" / "judgments.parquet",
        **of_both,
        timestamp_ms=[1000, 2000, 3000, 4000],
        grades=([*pairs, *later], pa.map_(pa.string(), pa.float64())),
    )
    assert run(f"archive://{tmp_path / 'in'}", tmp_path / "maps") == 0
    rows = (tmp_path / "maps" / "evaluations.ndjson").read_text().splitlines()
    assert [json.loads(row)["grades"] for row in rows] == [{"b": 2}, {"a": 1}]


def test_rows_of_columns_are_mapped(tmp_path):
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(
        '[rankings]\ntopic = "impressions"\ntrace_id = "session"\nnode_id = "request"\n'
        'timestamp_ms = "at"\nrows = { each = "items", candidate_id = "id" }\n'
    )
    write(
        tmp_path / "in" / "impressions.parquet",
        session=["s"],
        request=["r"],
        at=([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", tz="UTC")),
        items=[[{"id": "a"}, {"id": "b"}]],
        value=[7.5],
    )
    source = f"archive://{tmp_path / 'in'}"
    assert run(source, tmp_path / "out", f"--mapping={mapping}") == 0
    [line] = (tmp_path / "out" / "settled.ndjson").read_text().splitlines()
    found = json.loads(line)
    assert (found["trace_id"], found["event_time_ms"]) == ("s", 1_767_225_600_000)


# --- dumps ---------------------------------------------------------------------------------------


@pytest.mark.slow(alone=False)
async def test_the_split_of_the_page_gives_an_archive(tmp_path, monkeypatch):
    duckdb = pytest.importorskip("duckdb", reason="of the group compare")
    section = (
        (ROOT / "docs" / "history.md").read_text("utf-8").split("\n### Archives in Parquet\n")[1]
    )
    [statement] = re.findall(r"^```sql\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "archived").mkdir()
    of = {
        "topic": ["rankings", "judgments"] * 4,
        "partition": ([0, 0, 0, 0, 1, 1, 0, 0], pa.int32()),
    }
    write(
        tmp_path / "dump" / "part-0.parquet",
        **of,
        key=([None] * 8, pa.binary()),
        value=([b"%d" % n for n in range(8)], pa.binary()),
        timestamp=([dt.datetime(2026, 1, 1)] * 8, pa.timestamp("us")),  # noqa: DTZ001 - as Spark
        offset=[3, 3, 2, 2, 0, 0, 7, 7],
    )
    duckdb.sql(statement)
    batches, range_ = await read(tmp_path / "archived")
    assert [n for of in batches for n in of.offsets.tolist()] == [2, 3, 7]
    assert [value for of in batches for value in of.values] == [b"2", b"0", b"6"]
    assert batches[0].timestamps_ms.tolist() == [1_767_225_600_000] * 2
    assert range_.gaps == {"rankings-0": [(4, 7)]}


# --- files that cannot be read ------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"PAR1 no table PAR1"])
def test_a_damaged_file_is_named(tmp_path, capsys, damage):
    _made(tmp_path / "in" / "rankings.parquet").write_bytes(damage)
    assert run(f"archive://{tmp_path / 'in'}", tmp_path / "out") == 3
    assert "rankings.parquet cannot be read" in capsys.readouterr().err


def test_without_the_package_the_error_names_the_extra(tmp_path, capsys, monkeypatch):
    write(tmp_path / "in" / "rankings.parquet", value=([b"a"], pa.binary()))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    arguments = ["--source", f"archive://{tmp_path / 'in'}", "--out", str(tmp_path / "out")]
    assert main(["replay", *arguments]) == 3
    assert "Install the extra parquet" in capsys.readouterr().err
