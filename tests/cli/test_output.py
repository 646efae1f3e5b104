"""The output of a command, and outputs that cannot be written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evaluator.cli import main

FULL = Path("/dev/full")
COMMANDS = {
    "schema": ["schema", "ranking"],
    "list": ["schema"],
    "help": ["--help"],
    "subcommand help": ["replay", "--help"],
    "health": ["health", "--set=http_port=9"],
}


def run(command, stdout, *, unbuffered=""):
    return subprocess.run(
        [sys.executable, "-m", "evaluator", *command],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )


@pytest.mark.slow
def test_a_closed_pipe_ends_a_command_silently():
    for command in COMMANDS.values():
        reading, writing = os.pipe()
        os.close(reading)
        try:
            ended = run(command, writing)
        finally:
            os.close(writing)
        assert (ended.returncode, ended.stderr) == (141, ""), command


@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_device_is_one_line_and_exit_code_4(unbuffered):
    for command in COMMANDS.values():
        if unbuffered and "--help" in command:
            continue  # argparse drops text that it cannot print
        with FULL.open("w") as full:
            ended = run(command, full, unbuffered=unbuffered)
        assert ended.returncode == 4, command
        (line,) = ended.stderr.splitlines()
        assert line.startswith("evaluator: the output cannot be written: No space left on device.")


def test_unreachable_brokers_are_reported_with_what_to_check(capsys):
    for command in (["totals"], ["topics", "plan"], ["weights", "show"]):
        assert main([*command, "--source=kafka://127.0.0.1:9"]) == 3
        (line,) = capsys.readouterr().err.splitlines()
        assert "No broker answers." in line
        assert line.endswith("Check --source, the network and security_protocol.")
