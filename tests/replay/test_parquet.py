"""Results in Parquet: the content of the NDJSON, as described on the page."""

import json
import re
import shutil
from collections import Counter

import pytest

from evaluator.cli import main
from evaluator.replay import parquet as writing
from evaluator.replay.results import DERIVED
from tests.repeats import first_quick
from tests.replay.running import contents, put, ranking
from tests.replay.test_merging import write_logs
from tests.tidy.tree import ROOT

pq = pytest.importorskip("pyarrow.parquet", reason="of the group compare")
PAGE = (ROOT / "docs" / "history.md").read_text("utf-8")
SETTINGS = ("--set=segments=locale", "--set=retention_ms=20000", "--set=maturity_ms=5000")
KEY = ("trace_id", "node_id", "event_time_ms", "model", "variant")


def replay(source, out, *more):
    return main(["replay", "--source", f"file://{source}", "--out", str(out), *SETTINGS, *more])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("parquet")
    write_logs(root / "logs")
    assert replay(root / "logs", root / "ndjson") == 0
    assert replay(root / "logs", root / "all", "--format", "parquet") == 0
    return root


def lines(directory, name):
    return [json.loads(line) for line in (directory / name).read_text("utf-8").splitlines()]


@pytest.mark.parametrize("name", ["evaluations", "settled"])
def test_tables_have_the_content_of_the_lines(root, name):
    of_task = ("task", "n") if name == "settled" else ()
    more = ("settled_time_ms", "offset") if name == "settled" else ("query", "revision")
    queries, values = [], []
    for line in lines(root / "all", f"{name}.ndjson"):
        key = {column: line[column] for column in (*of_task, *KEY)}
        lists = {
            "segments": [{"segment": s, "level": level} for s, level in line["segments"].items()],
            "grades": [{"candidate_id": c, "grade": g} for c, g in line["grades"].items()],
        }
        silent = {"silent": False} if name == "settled" else {}
        queries.append({**key, **{each: line[each] for each in more}, **silent, **lists})
        for ranker, of in line["values"].items():
            for measure, value in of.items():
                values.append({**key, "ranker": ranker, "measure": measure, "value": value})
    assert len(values) > len(queries) > 50
    assert pq.read_table(root / "all" / f"{name}.parquet").to_pylist() == queries
    assert pq.read_table(root / "all" / f"{name}-values.parquet").to_pylist() == values


def test_other_files_equal_those_of_a_replay_without_parquet(root):
    found, expected = contents(root / "all"), contents(root / "ndjson")
    assert found.keys() - expected.keys() == set(DERIVED)
    manifest = json.loads(found["manifest.json"])
    assert list(manifest.pop("tables")) == list(DERIVED)
    assert manifest == json.loads(expected.pop("manifest.json"))
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("name", DERIVED)
def test_verify_checks_the_tables(root, tmp_path, capsys, name):
    shutil.copytree(root / "all", tmp_path / "out")
    assert main(["verify", str(tmp_path / "out")]) == 0
    table = tmp_path / "out" / name
    entry = json.loads((root / "all" / "manifest.json").read_bytes())["tables"][name]
    assert entry["rows"] == pq.read_metadata(table).num_rows
    table.write_bytes(table.read_bytes()[:-1] + b"?")
    assert main(["verify", str(tmp_path / "out")]) == 5
    assert f"{name}: other bytes than those of manifest.json" in capsys.readouterr().out
    table.unlink()
    assert main(["verify", str(tmp_path / "out")]) == 5
    assert f"{name}: cannot be read" in capsys.readouterr().out


@pytest.mark.slow
def test_processes_and_a_merge_write_the_same_tables(root, tmp_path):
    expected = contents(root / "all")
    assert replay(root / "logs", tmp_path / "two", "--format=parquet", "--processes=2") == 0
    shutil.copytree(root / "ndjson", tmp_path / "shard")
    merge = ["merge", str(tmp_path / "shard"), "--out", str(tmp_path / "merged")]
    assert main([*merge, "--format", "parquet"]) == 0
    for out in ("two", "merged"):
        found = contents(tmp_path / out)
        assert {name: found[name] for name in DERIVED} == {n: expected[n] for n in DERIVED}


def test_tables_of_an_earlier_replay_are_removed(root, tmp_path):
    shutil.copytree(root / "all", tmp_path / "out")
    assert replay(root / "logs", tmp_path / "out", "--force") == 0
    assert contents(tmp_path / "out") == contents(root / "ndjson")


@pytest.mark.parametrize("limit", first_quick("BATCH_ROWS", "BATCH_BYTES"))
def test_rows_are_written_in_groups(root, tmp_path, monkeypatch, limit):
    monkeypatch.setattr(writing, limit, 100)
    assert replay(root / "logs", tmp_path / "out", "--format", "parquet") == 0
    file = pq.ParquetFile(tmp_path / "out" / "settled-values.parquet")
    assert file.metadata.num_row_groups > 3
    assert file.read().equals(pq.read_table(root / "all" / "settled-values.parquet"))


def test_a_time_that_parquet_cannot_have_is_null(tmp_path):
    times_ms = [2**63 - 1 - 5_000, 2**63 - 5_000]  # and 5,000 until they settle
    put(tmp_path / "logs", "rankings.ndjson", [ranking(str(of), of) for of in times_ms])
    assert replay(tmp_path / "logs", tmp_path / "out", "--format=parquet") == 0
    table = pq.read_table(tmp_path / "out" / "settled.parquet").to_pydict()
    assert table["event_time_ms"] == times_ms
    assert table["settled_time_ms"] == [2**63 - 1, None]


def test_without_the_package_parquet_is_refused_before_reading(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert replay(tmp_path / "nowhere", tmp_path / "out", "--format", "parquet") == 2
    assert "Install the extra parquet" in capsys.readouterr().err


@pytest.mark.slow(alone=False)
def test_the_documented_programs_read_the_tables(root, tmp_path, monkeypatch):
    pytest.importorskip("duckdb", reason="of the group compare")
    section = PAGE.split("\n## Parquet\n", maxsplit=1)[1].split("\n## ", maxsplit=1)[0]
    [program] = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(root)
    found = {}
    exec(compile(program, "docs/history.md", "exec"), found)
    totals = json.loads((root / "all" / "totals.json").read_text())["totals"]
    [mean] = [
        row["mean"]
        for row in totals
        if row["kind"] == "settled"
        and (row["model"], row["ranker"], row["measure"]) == ("m0", "served", "ndcg@10")
    ]
    [by_duckdb] = [of[2] for of in found["means"] if of[:2] == ("m0", "served")]
    assert by_duckdb == pytest.approx(mean, abs=1e-12)
    by_polars = found["per_day"].to_dicts()
    assert sum(row["queries"] for row in by_polars) == sum(
        row["queries"]
        for row in totals
        if (row["kind"], row["ranker"], row["measure"]) == ("settled", "served", "ndcg@10")
    )
    graded = [line["grades"].items() for line in lines(root / "all", "settled.ndjson")]
    counts = Counter(candidate for of in graded for candidate, grade in of if grade > 0)
    assert dict(found["relevant"]) == counts
