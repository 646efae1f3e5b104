"""docs/history.md as written: its commands, executed one after the other."""

import os
import re
import subprocess
import sys

import pytest

from tests.replay.test_archives import objects_of, put
from tests.replay.test_merging import write_logs
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "history.md"


def test_the_commands_of_the_page_succeed(tmp_path):
    put(tmp_path / "archived", objects_of(write_logs(tmp_path / "logs"), repeated=2))
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 2
    (tmp_path / "evaluator").write_text(f'#!/bin/sh\nexec {sys.executable} -m evaluator "$@"\n')
    (tmp_path / "evaluator").chmod(0o755)
    path = f"{tmp_path}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"  # noqa: PTH120  # not resolved
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(blocks)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "diff" not in done.stdout
