"""Commands of a page of the documentation, on the broker of the tests."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from evaluator.adapters.kafka import Connection
from tests.kafka.broker import free_ports
from tests.waiting import PATIENCE_SECONDS


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of code of a page, in order."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def output_of(
    commands: str,
    kafka: Connection,
    topic_prefix: str,
    folder: Path,
    settings: Mapping[str, str] | None = None,
) -> str:
    """The output of the commands in *folder*; a failure of one of them fails the test.

    The addresses of the page become those of the test, and background jobs end with the commands.
    *settings* of the environment replace those of the test.
    """
    (port,) = free_ports(1)
    commands = commands.replace("localhost:9092", kafka.bootstrap)
    commands = commands.replace("localhost:9464", f"127.0.0.1:{port}")
    of_test = {"topic_prefix": topic_prefix, "group_id": topic_prefix, "http_port": str(port)}
    of_test = of_test if settings is None else dict(settings)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment |= {f"EVALUATOR_{name.upper()}": value for name, value in of_test.items()}
    done = subprocess.run(
        ["bash", "-c", f"set -e\ntrap 'kill $(jobs -p) || true' EXIT\n{commands}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
