"""`evaluator replay`: its report, and its refusals before it begins."""

import json
import os

import pytest

from evaluator.cli import main
from tests.replay.running import judgment, put, ranking


@pytest.fixture
def logs(tmp_path):
    rankings = [ranking("t", 1_000), ranking("u", 2_000), ranking("v", 3_000), b"no message"]
    put(tmp_path / "logs", "rankings.ndjson", rankings)
    return put(tmp_path / "logs", "judgments.ndjson", [judgment("t", 1_500), judgment("u", 2_500)])


@pytest.fixture
def replay(logs, tmp_path, capsys):
    """Exit code, stdout and stderr of a replay of *logs* into `out`."""

    def run(*arguments):
        code = main(["replay", f"--source=file://{logs}", f"--out={tmp_path / 'out'}", *arguments])
        return code, *capsys.readouterr()

    return run


def test_one_line_reports_input_findings_and_output_directory(replay, tmp_path):
    code, out, err = replay()
    assert (code, err) == (0, "")
    assert out == (
        "read 4 rankings and 2 judgments; 3 queries settled (2 judged), 2 evaluations, "
        f"1 dead letters (decode 1); files in {tmp_path / 'out'}\n"
    )


def test_an_empty_range_is_warned_of(replay):
    code, out, err = replay("--from", "1970-01-02")
    assert code == 0
    assert out.startswith("read 0 rankings and 0 judgments; 0 queries settled (0 judged)")
    assert err == "evaluator: warning: the range has no records, so the results are empty.\n"


@pytest.mark.parametrize("end", ["2000", "1970-01-01T00:00:01Z"])
def test_a_range_that_ends_before_it_begins_is_refused(replay, tmp_path, end):
    code, out, err = replay("--from", "1970-01-01T00:00:02Z", "--to", end)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"--from 1970-01-01T00:00:02Z is not before --to {end}" in err
    assert not (tmp_path / "out").exists()


# --- for Prometheus ---------------------------------------------------------------------------


def test_a_file_for_prometheus_is_reported_with_its_range(replay, tmp_path):
    file = tmp_path / "new" / "history.om"
    code, out, err = replay("--openmetrics", str(file), "--openmetrics-label", "job=shop")
    assert (code, err) == (0, "")
    # From the minute of the first ranking to that of the last settling, an hour later: 62 samples
    # each of five measures' three sums, three outcomes, and queries with nothing relevant.
    assert out.splitlines()[1] == (
        f"{62 * 19:,} samples from 1970-01-01T00:00:00Z to 1970-01-01T01:01:00Z in {file}"
    )
    assert file.read_text().count('job="shop",') + file.read_text().count('job="shop"}') == 62 * 19
    assert sorted(path.name for path in file.parent.iterdir()) == ["history.om"]


def test_an_existing_file_for_prometheus_is_replaced_with_force_only(replay, tmp_path):
    file = tmp_path / "history.om"
    file.write_text("earlier")
    code, out, err = replay("--openmetrics", str(file))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "exists already. Name another file, or replace it with --force" in err
    assert file.read_text() == "earlier"
    assert not (tmp_path / "out").exists()
    assert replay("--openmetrics", str(file), "--force")[0] == 0
    assert file.read_text().endswith("# EOF\n")


def test_a_link_for_prometheus_is_followed_and_a_special_file_is_kept(replay, tmp_path):
    pipe, link, target = (tmp_path / name for name in ("pipe", "link", "target.om"))
    os.mkfifo(pipe)
    link.symlink_to(target)
    code, _, err = replay("--openmetrics", str(pipe), "--force")
    assert (code, pipe.is_fifo()) == (2, True)
    assert "is a device or a pipe. Name a file." in err
    assert replay("--openmetrics", str(link))[0] == 0
    assert link.is_symlink()
    assert target.read_text().endswith("# EOF\n")


def test_a_file_for_prometheus_may_be_in_the_result_directory(replay, tmp_path):
    assert replay("--openmetrics", str(tmp_path / "out" / "openmetrics.txt"))[0] == 0
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]
    assert (tmp_path / "out" / "openmetrics.txt").read_text().endswith("# EOF\n")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--openmetrics", "OUT/totals.json"], "is a result file of the replay"),
        (["--openmetrics", "OUT/../out/totals.json"], "is a result file of the replay"),
        (["--openmetrics", "LOGS"], "is a directory. Name a file"),
        (["--openmetrics", "LOGS/rankings.ndjson/x"], "cannot be written to"),
        (["--openmetrics-label", "job=a"], "has no effect without --openmetrics"),
        (["--openmetrics", "x", "--openmetrics-label", "job"], "is not NAME=VALUE"),
        (["--openmetrics", "x", "--openmetrics-label", "a-b=c"], "is not NAME=VALUE"),
        (["--openmetrics", "x", "--openmetrics-label", "__name__=c"], "is not NAME=VALUE"),
        (["--openmetrics", "x", "--openmetrics-label", "model=c"], "is reserved"),
        (["--openmetrics", "x", "--set", "measures=" + ",".join(f"mrr@{n}" for n in range(1, 201))],
         "exceed the series limit of --openmetrics"),
    ],
)  # fmt: skip
def test_an_unwritable_file_for_prometheus_is_refused(
    replay, logs, tmp_path, monkeypatch, arguments, why
):
    monkeypatch.chdir(tmp_path)
    places = {"OUT": str(tmp_path / "out"), "LOGS": str(logs)}
    for name, place in places.items():
        arguments = [argument.replace(name, place) for argument in arguments]
    code, out, err = replay(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert why in err
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "x").exists()


def test_samples_are_refused_with_a_file_for_prometheus(tmp_path, capsys):
    (tmp_path / "samples.ndjson").write_text("")
    arguments = [f"--samples={tmp_path / 'samples.ndjson'}", f"--out={tmp_path / 'out'}"]
    assert main(["replay", *arguments, f"--openmetrics={tmp_path / 'x'}"]) == 2
    assert "samples have no times: leave --openmetrics out." in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_file_that_reaches_into_the_future_is_warned_of(tmp_path, capsys):
    year_2200_ms = 7_258_118_400_000
    put(tmp_path / "logs", "rankings.ndjson", [ranking("t", year_2200_ms)])
    arguments = [f"--source=file://{tmp_path / 'logs'}", f"--out={tmp_path / 'out'}"]
    assert main(["replay", *arguments, f"--openmetrics={tmp_path / 'x'}"]) == 0
    out, err = capsys.readouterr()
    assert "from 2199-12-31T23:59:00Z to 2200-01-01T01:00:00Z" in out
    assert err.startswith("evaluator: warning: ")
    assert "reaches into the future" in err


def test_a_failed_replay_leaves_no_file_for_prometheus(tmp_path, capsys):
    put(tmp_path / "logs", "rankings.ndjson.gz", [b"no archive"])
    file = tmp_path / "new" / "x"
    arguments = [f"--source=file://{tmp_path / 'logs'}", f"--out={tmp_path / 'out'}"]
    assert main(["replay", *arguments, f"--openmetrics={file}"]) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs"]


# --- learning ---------------------------------------------------------------------------------


def test_with_learning_the_weights_of_challengers_are_written(tmp_path, capsys):
    ids, moments = ["a", "b"], range(0, 240_000, 1_000)
    rankings = [
        ranking(f"t-{ms}", ms, ids, features=[[0.0, 1.0], [1.0, ms % 7 + ms / 1e9]], model="m")
        for ms in moments
    ]
    judgments = [judgment(f"t-{ms}", ms, {"b": 1}, source="human") for ms in moments]
    put(tmp_path / "logs", "rankings.ndjson", rankings)
    put(tmp_path / "logs", "judgments.ndjson", judgments)
    arguments = [
        "replay", f"--source=file://{tmp_path / 'logs'}", f"--out={tmp_path / 'out'}",
        "--set=learning=auto", "--set=source_weights=human=1", "--set=learning_interval_ms=60000",
        "--set=gate_min_traces=10", "--set=gate_min_age_ms=0", "--set=gate_block_ms=2000",
        "--set=gate_measure=mrr", "--set=gate_guardrails=top1=0.01", "--set=maturity_ms=0",
        "--set=scale=none",
    ]  # fmt: skip
    assert main(arguments) == 0, capsys.readouterr().err
    records = [
        json.loads(line) for line in (tmp_path / "out/weights.ndjson").read_text().splitlines()
    ]
    assert (records[0]["status"], records[0]["version"], records[0]["model"]) == (
        "challenger",
        1,
        "m",
    )
    assert records[1]["status"] == "promoted"
    assert records[1]["settings"]["gate"]["tolerances"] == {"top1": 0.01}
    assert records[1]["settings"]["source_weights"] == {"human": 1.0}


def test_a_gate_on_a_measure_that_is_not_computed_is_refused(replay):
    code, _, err = replay("--set=learning=propose", "--set=gate_measure=map@3")
    assert code == 2
    assert "gate_measure names 'map@3', which is not in measures" in err
