"""No command writes to its own inputs, even with permission to replace files."""

import os

import pytest

from evaluator.cli import main
from tests.replay.running import judgment, put, ranking

SAMPLE = (
    b'{"trace_id":"t","node_id":"n","candidate_id":"a","features":[1.0],"label":1}\n'
    b'{"trace_id":"t","node_id":"n","candidate_id":"b","features":[0.0],"label":0}\n'
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with inputs of every kind, and links to them."""
    put(tmp_path / "logs", "rankings.ndjson", [ranking("t", 1_000)])
    put(tmp_path / "logs", "judgments.ndjson", [judgment("t", 1_500)])
    (tmp_path / "samples").mkdir()
    for name in ("evaluations.ndjson", "weights.json"):
        (tmp_path / "samples" / name).write_bytes(SAMPLE)
    (tmp_path / "archive" / "day").mkdir(parents=True)
    (tmp_path / "archive" / "day" / "rankings+0+0.json").write_bytes(SAMPLE)
    (tmp_path / "result").mkdir()
    for name in ("evaluations.ndjson", "settled.ndjson", "manifest.json"):
        (tmp_path / "result" / name).write_bytes(SAMPLE)
    (tmp_path / "object").symlink_to("archive/day/rankings+0+0.json")
    (tmp_path / "config.toml").write_text('empty = "skip"')
    (tmp_path / "folder").symlink_to("logs")
    (tmp_path / "soft").symlink_to("logs/rankings.ndjson")
    os.link(tmp_path / "logs" / "rankings.ndjson", tmp_path / "hard")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "weights.json").write_bytes(SAMPLE)
    (tmp_path / "soft.json").symlink_to("weights.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


FROM_LOGS = ["--source=file://logs", "--force"]
FROM_ARCHIVE = ["--source=archive://archive", "--force"]
FROM_RESULT = ["--settled=result", "--force"]
FROM_SAMPLES = ["--samples=samples/evaluations.ndjson", "--force"]


@pytest.mark.parametrize(
    "command",
    [
        ["replay", *FROM_LOGS, "--out=logs"],
        ["replay", *FROM_LOGS, "--out=folder"],
        ["replay", "--source=file://folder/", "--force", "--out=logs/../logs"],
        ["replay", *FROM_LOGS, "--out=out", "--openmetrics=logs/rankings.ndjson"],
        ["replay", *FROM_LOGS, "--out=out", "--openmetrics=folder/judgments.ndjson"],
        ["replay", *FROM_LOGS, "--out=out", "--openmetrics=soft"],
        ["replay", *FROM_LOGS, "--out=out", "--openmetrics=hard"],
        ["replay", *FROM_LOGS, "--out=out", "--openmetrics=logs/rankings-1.ndjson.gz"],
        ["replay", *FROM_LOGS, "--out=out", "--openmetrics=config.toml", "--config=config.toml"],
        ["replay", *FROM_LOGS, "--out=out", "--openmetrics=hard", "--weights=hard"],
        ["replay", *FROM_SAMPLES, "--out=samples"],
        ["replay", *FROM_SAMPLES, "--out=samples/evaluations.ndjson"],
        ["fit", *FROM_SAMPLES, "--out=samples/evaluations.ndjson"],
        ["fit", *FROM_SAMPLES, "--out=config.toml", "--config=config.toml"],
        ["fit", *FROM_LOGS, "--out=logs/judgments.ndjson"],
        ["fit", *FROM_LOGS, "--out=hard"],
        ["fit", *FROM_LOGS, "--out=folder/judgments-1.ndjson"],
        ["fit", *FROM_LOGS, "--out=soft.json", "--set=initial_weights=weights.json"],
        ["replay", *FROM_ARCHIVE, "--out=out", "--openmetrics=archive/day/rankings+0+0.json"],
        ["replay", *FROM_ARCHIVE, "--out=out", "--openmetrics=object"],
        ["fit", "--source=archive://file://archive", "--force", "--out=object"],
        ["alarms", "backtest", *FROM_LOGS, "--out=logs/rankings.ndjson"],
        ["alarms", "backtest", *FROM_LOGS, "--out=hard"],
        ["alarms", "backtest", *FROM_ARCHIVE, "--out=object"],
        ["alarms", "backtest", *FROM_RESULT, "--out=result/settled.ndjson"],
        ["alarms", "backtest", *FROM_RESULT, "--out=config.toml", "--config=config.toml"],
        ["report", "result", "--out=result/evaluations.ndjson", "--force"],
        ["report", "samples", "file://result", "--out=logs/../result/manifest.json", "--force"],
        ["merge", "samples", "result", "--out=result", "--force"],
    ],
    ids=" ".join,
)
def test_an_output_that_names_an_input_is_refused_even_with_force(place, capsys, command):
    before = contents(place)
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "is an input of this command. Name another place" in err
    assert contents(place) == before


@pytest.mark.parametrize("out", [".", "logs/out"])
def test_results_may_be_in_parents_and_subdirectories_of_the_inputs(place, out):
    before = contents(place)
    assert main(["replay", *FROM_LOGS, f"--out={out}"]) == 0
    assert before.items() <= contents(place).items()
    assert main(["replay", *FROM_LOGS, f"--out={out}"]) == 0, "the same again"


@pytest.mark.parametrize("option", ["--openmetrics", "--out"])
def test_a_dangling_path_is_an_error_of_one_line(place, capsys, option):
    assert main(["replay", *FROM_LOGS, "--out=out", f"{option}=loop/x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
