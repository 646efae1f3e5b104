"""`evaluator replay`: what it says once it is done, and what it refuses before it begins."""

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


def test_one_line_says_what_was_read_and_found_and_where_it_is(replay, tmp_path):
    code, out, err = replay()
    assert (code, err) == (0, "")
    assert out == (
        "read 4 rankings and 2 judgments; 3 queries settled (2 judged), 2 evaluations, "
        f"1 dead letters; files in {tmp_path / 'out'}\n"
    )


def test_a_range_with_nothing_in_it_is_warned_of(replay):
    code, out, err = replay("--from", "1970-01-02")
    assert code == 0
    assert out.startswith("read 0 rankings and 0 judgments; 0 queries settled (0 judged)")
    assert err == "evaluator: warning: nothing was in the range, the results are empty.\n"


@pytest.mark.parametrize("end", ["2000", "1970-01-01T00:00:01Z"])
def test_a_range_that_ends_before_it_begins_is_refused(replay, tmp_path, end):
    code, out, err = replay("--from", "1970-01-01T00:00:02Z", "--to", end)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"--from 1970-01-01T00:00:02Z is not before --to {end}" in err
    assert not (tmp_path / "out").exists()
