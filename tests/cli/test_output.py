"""What a command prints, where it cannot be written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_reader_that_closes_the_pipe_ends_a_command_in_silence():
    for command in COMMANDS.values():
        reading, writing = os.pipe()
        os.close(reading)
        try:
            ended = run(command, writing)
        finally:
            os.close(writing)
        assert (ended.returncode, ended.stderr) == (141, ""), command


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_device_is_one_line_and_exit_code_4(unbuffered):
    for command in COMMANDS.values():
        if unbuffered and "--help" in command:
            continue  # argparse drops what it cannot print
        with FULL.open("w") as full:
            ended = run(command, full, unbuffered=unbuffered)
        assert ended.returncode == 4, command
        (line,) = ended.stderr.splitlines()
        assert line.startswith("evaluator: the output cannot be written: No space left on device.")
