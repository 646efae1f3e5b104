"""Replays in several processes: the files of one process, even if processes die."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from evaluator.cli import main, parallel
from evaluator.cli.arguments import new_parser
from evaluator.cli.parallel import MIN_BYTES, evaluate_shard, plan_of
from evaluator.cli.processes import MAX_STARTS, in_processes
from evaluator.cli.ranges import read_rules_of
from evaluator.config import Settings
from evaluator.ports import RequestRefused, SourceUnusable
from tests.replay.running import contents
from tests.replay.test_merging import SETTINGS, write_logs

pytestmark = pytest.mark.slow  # processes are started


class Job(NamedTuple):
    """Reports 3; dies so many times, raises an error, and appends its name to a file."""

    name: str
    directory: Path
    deaths: int = 0
    error: type[Exception] | None = None


class UnpicklableError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def execute(job, report):
    starts = job.directory / f"{job.name}.starts"
    with starts.open("a") as file:
        file.write("x")
    report(3)
    if starts.stat().st_size <= job.deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    if job.error is not None:
        raise job.error("gone", *[1] * (job.error is UnpicklableError))
    if job.name == "endless":
        signal.pause()
    report(4)


def replay_and_die_once(job, report):
    """Replays, and is killed once after the first batch of each shard."""
    mark = job.out.parent.parent.parent / f"died-{job.tasks[0]}"

    def reported(n):
        report(n)
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    evaluate_shard(job, reported)


def run(jobs, n_processes=2):
    progress = []
    in_processes(jobs, execute, n_processes=n_processes, on_progress=progress.append)
    return progress


def test_every_job_is_executed_once(tmp_path):
    jobs = [Job(f"j{n}", tmp_path) for n in range(5)]
    assert sorted(run(jobs)) == [3] * 5 + [4] * 5
    assert {path.name for path in tmp_path.iterdir()} == {f"j{n}.starts" for n in range(5)}
    assert {path.read_text() for path in tmp_path.iterdir()} == {"x"}


def test_a_dead_process_is_restarted_and_its_progress_subtracted(tmp_path, capsys):
    progress = run([Job("a", tmp_path, deaths=MAX_STARTS - 1), Job("b", tmp_path)])
    assert sorted(progress) == [-3] * (MAX_STARTS - 1) + [3] * (MAX_STARTS + 1) + [4, 4]
    assert capsys.readouterr().err.count("died by signal 9, and is started again") == 2


def test_a_job_whose_process_dies_repeatedly_ends_all(tmp_path):
    with pytest.raises(RequestRefused, match=r"died 3 times, last by signal 9.*--processes"):
        run([Job("a", tmp_path, deaths=MAX_STARTS), Job("endless", tmp_path)])
    assert not multiprocessing.active_children()


def test_an_error_of_a_job_is_raised_in_the_parent_and_ends_the_others(tmp_path):
    for error, expected in (
        (SourceUnusable, pytest.raises(SourceUnusable, match="gone")),
        (UnpicklableError, pytest.raises(RuntimeError, match="UnpicklableError: gone 1")),
        (EOFError, pytest.raises(EOFError, match="gone")),
    ):
        with expected:
            run([Job("endless", tmp_path), Job("a", tmp_path, error=error)])
        assert not multiprocessing.active_children()


# --- replays -----------------------------------------------------------------------------------


def replay(logs, out, *more, settings=SETTINGS):
    chosen = [each for setting in settings for each in ("--set", setting)]
    return main(["replay", "--source", f"file://{logs}", "--out", str(out), *chosen, *more])


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return write_logs(tmp_path_factory.mktemp("world") / "logs")


@pytest.mark.parametrize("at_end", ["settle", "hold"])
def test_several_processes_write_the_files_of_one(logs, tmp_path, at_end):
    settings = (*SETTINGS, "learning=propose")
    for n in (1, 3):
        more = ("--at-end", at_end, "--processes", str(n))
        assert replay(logs, tmp_path / str(n), *more, settings=settings) == 0
    assert contents(tmp_path / "3") == contents(tmp_path / "1")
    assert "weights.ndjson" in contents(tmp_path / "3")


def test_killed_processes_change_no_output(logs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(parallel, "evaluate_shard", replay_and_die_once)
    assert replay(logs, tmp_path / "killed", "--processes", "2") == 0
    assert capsys.readouterr().err.count("died by signal 9") == 4
    assert replay(logs, tmp_path / "one", "--processes", "1") == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "one")


def test_an_unreadable_input_leaves_no_output_files(tmp_path, capsys):
    logs = write_logs(tmp_path / "logs")
    (logs / "rankings-2.ndjson").rename(logs / "rankings-2.ndjson.gz")
    assert replay(logs, tmp_path / "out", "--processes", "2") == 3
    assert "rankings-2.ndjson.gz is not compressed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def plan(logs, *more):
    options = new_parser().parse_args(["replay", "--source", f"file://{logs}", "--out", "o", *more])
    settings = Settings()
    return plan_of(options, settings, read_rules_of(options, settings))


def test_the_default_is_one_process_per_core_if_the_input_is_large_enough(
    logs, monkeypatch, tmp_path
):
    assert plan(logs) is None
    total = sum(path.stat().st_size for path in logs.iterdir())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)))
    for least, expected in ((total // 4, 3), (total // 2, 2), (total, None), (total + 1, None)):
        monkeypatch.setattr(parallel, "MIN_BYTES", least)
        found = plan(logs)
        assert (found and found.n_processes) == expected
    assert total < MIN_BYTES
    [*shards] = [next(iter(bounds))[1] for bounds in plan(logs, "--processes", "9").shards]
    assert shards == [3, 2, 1, 0]  # the one with the most to read is the first
    assert plan(logs, "--tasks", "1", "--processes", "9") is None


def test_tasks_share_the_directories_of_a_merge_beyond_their_limit(logs, monkeypatch, tmp_path):
    monkeypatch.setattr(parallel, "MAX_SHARDS", 2)
    shards = plan(logs, "--processes", "2").shards
    assert [sorted({task for _, task in bounds}) for bounds in shards] == [[1, 3], [0, 2]]


def test_options_that_need_all_queries_in_one_process_are_refused(logs, tmp_path, capsys):
    for more, expected in (
        (("--openmetrics", str(tmp_path / "o.om")), "--openmetrics is evaluated by one process"),
        (("--scorer", "x=json:dumps"), "--scorer is evaluated by one process"),
    ):
        assert replay(logs, tmp_path / "out", "--processes", "2", *more) == 2
        assert expected in capsys.readouterr().err
    assert replay(logs, tmp_path / "out", "--processes", "0") == 2
    assert "--processes 0: give 1 or more" in capsys.readouterr().err
