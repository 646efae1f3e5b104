"""`verify`: hashes of results, and recomputed results."""

import hashlib
import json
import shutil

import pytest

from evaluator.cli import main
from tests.replay.running import ranking
from tests.replay.test_merging import SETTINGS, altered, write_logs


def replay(logs, out, *more, settings=SETTINGS):
    chosen = [each for setting in settings for each in ("--set", setting)]
    assert main(["replay", "--source", f"file://{logs}", "--out", str(out), *chosen, *more]) == 0
    return out


def verify(directory, *more):
    return main(["verify", str(directory), *map(str, more)])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("verified")
    replay(write_logs(root / "logs"), root / "1", "--tasks", "1")
    return root


def test_unchanged_files_of_the_manifest_are_intact(root, capsys):
    assert verify(root / "1") == 0
    chain = json.loads((root / "1" / "manifest.json").read_text())["chain"]
    assert f"has the files of its manifest; chain {chain}" in capsys.readouterr().out


def test_each_file_that_differs_is_named(root, tmp_path, capsys):
    shutil.copytree(root / "1", tmp_path / "1")
    with (tmp_path / "1" / "settled.ndjson").open("r+b") as file:
        file.write(b'{"n":9')
    with (tmp_path / "1" / "windows.ndjson").open("ab") as file:
        file.write(b"\n")
    (tmp_path / "1" / "totals.json").unlink()
    assert verify(tmp_path / "1") == 5
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in out] == [
        "totals.json",
        "settled.ndjson",
        "windows.ndjson",
    ]
    assert "other bytes" in out[1]


def test_a_manifest_that_was_changed_is_refused(root, tmp_path, capsys):
    shutil.copytree(root / "1", tmp_path / "1")
    path = tmp_path / "1" / "manifest.json"
    path.write_text(path.read_text().replace('"mrr"', '"map"', 1))
    assert verify(tmp_path / "1") == 3
    assert "its chain differs" in capsys.readouterr().err


def test_a_table_cannot_replace_the_hash_of_a_file(root, tmp_path, capsys):
    entry = {"rows": 1, "bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    other = altered(root, tmp_path / "1", tables={"totals.json": entry})
    (other / "totals.json").write_bytes(b"{}")
    assert verify(other) == 3
    assert "has changed: 'totals.json' is not a table of results" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ("--at-end", "hold"),
        ("--from", "10000", "--to", "40000", "--set", "emit_query=off"),
        ("--skip", "rankings-1:3-4", "--set", "alarms=off"),
        ("--tasks", "0,2-3", "--processes", "2"),
        ("--set", "learning=propose", "--set", "alarm_tolerance=0.02"),
    ],
)
def test_settings_and_ranges_of_the_manifest_are_recomputed(root, tmp_path, capsys, more):
    replay(root / "logs", tmp_path / "out", *more)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert verify(tmp_path / "out", "--source", f"file://{root / 'logs'}", "--processes", "1") == 0
    assert "with the same bytes" in (out := capsys.readouterr().out)
    assert ("but for weights.ndjson" in out) == ("learning=propose" in more)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.slow
def test_files_that_another_input_changes_are_named(root, tmp_path, capsys):
    shutil.copytree(root / "logs", tmp_path / "logs")
    path = tmp_path / "logs" / "rankings-1.ndjson"
    lines = path.read_bytes().splitlines()
    lines[3] = ranking("t-1-3é", 6_000, model="m7")
    path.write_bytes(b"\n".join(lines))
    assert verify(root / "1", "--source", f"file://{tmp_path / 'logs'}") == 5
    out = capsys.readouterr().out
    assert "totals.json: line" in out
    assert "settled.ndjson: line 4 differs from the recomputed one" in out
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join(lines[:-5]))
    assert verify(root / "1", "--source", f"file://{tmp_path / 'logs'}") == 5


@pytest.mark.slow
def test_results_that_cannot_be_recomputed_are_refused(root, tmp_path, capsys):
    source = ("--source", f"file://{root / 'logs'}")
    other = altered(root, tmp_path / "meaning", meaning="0" * 16)
    assert verify(other, *source) == 2
    assert "has another meaning" in capsys.readouterr().err
    settings = json.loads((root / "1" / "manifest.json").read_text())["settings"]
    other = altered(root, tmp_path / "weights", settings={**settings, "weights": "f" * 64})
    assert verify(other, *source) == 2
    assert "replayed with --weight" in capsys.readouterr().err
    other = altered(root, tmp_path / "version", version="0.0.9")
    assert verify(other, *source) == 5
    assert 'manifest.json: version was "0.0.9", and is' in capsys.readouterr().out
