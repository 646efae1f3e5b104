"""Garbage collection and threads of a command."""

import gc
import os

import pytest

from evaluator.cli import execution, main


def test_garbage_is_collected_while_a_command_runs_and_not_while_it_loads(monkeypatch):
    seen = []

    def command_of(*_):
        seen.append(gc.isenabled())
        return lambda *_: seen.append(gc.isenabled()) or 0

    monkeypatch.setattr(execution, "command_of", command_of)
    assert main(["weights", "show", "--source=kafka://localhost:9092"]) == 0
    assert seen == [False, True]
    assert gc.isenabled()


@pytest.mark.parametrize("arguments", [["weights", "show"], ["no-such-command"]])
def test_garbage_is_collected_after_an_error_of_usage(arguments):
    assert main(arguments) == 2
    assert gc.isenabled()


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("4", "4")])
def test_linear_algebra_has_one_thread_unless_the_environment_has_a_number(
    given, expected, monkeypatch
):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", given or "")
    if given is None:
        monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    assert main(["no-such-command"]) == 2
    assert os.environ["OPENBLAS_NUM_THREADS"] == expected
