"""The tutorial: every command on the page is executed, and prints the output below it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT
from tests.waiting import PATIENCE_SECONDS

PAGE = (ROOT / "docs" / "tutorial.md").read_text("utf-8")


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def steps():
    """Each command with the output below it."""
    for block in blocks("console"):
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = command.partition("\n")
            yield line, output


def test_the_page_has_commands_for_all_its_steps():
    commands = [line.split()[1] for line, _ in steps() if line.startswith("evaluator ")]
    assert commands == [
        "mapping",
        "replay",
        "fit",
        "replay",
        "compare",
        "compare",
        "report",
        "replay",
    ]


@pytest.mark.slow
def test_every_command_prints_what_the_page_shows(tmp_path):
    (script,), (mapping,) = blocks("python"), blocks("toml")
    (tmp_path / "make_logs.py").write_text(script)
    (tmp_path / "mapping.toml").write_text(mapping)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command, expected in steps():
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True,
            timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout == expected, command
    assert "promoted" in done.stdout.split()
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
