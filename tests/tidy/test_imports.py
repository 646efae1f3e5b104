"""The import contracts bite: each is broken once in a copy of the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import PACKAGE, ROOT

pytestmark = pytest.mark.slow  # lint itself is in the quick set

LINT = Path(sys.executable).parent / "lint-imports"


@pytest.fixture
def copy(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "evaluator", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(tree):
    return subprocess.run(
        [LINT, "--no-cache", "--no-logo"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_package_keeps_its_contracts(copy):
    done = lint(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("utils.py", "", "utils"),
        ("core/noon.py", "import time", "no clock"),
        ("core/noon.py", "from os import path", "no clock"),
        ("core/noon.py", "import evaluator.wire.records", "One way down"),
        ("core/join/noon.py", "import evaluator.core.engine.engine", "Rooms of the core"),
        ("core/noon.py", "", "Rooms of the core"),
        ("wire/noon.py", "import evaluator.ports", "One way down"),
        ("wire/noon.py", "", "Rooms of wire"),
        ("wire/messages/noon.py", "import evaluator.wire.state.origin", "Rooms of wire"),
        ("wire/weights/noon.py", "import evaluator.wire.state.origin", "Rooms of wire"),
        ("wire/noon.py", "import evaluator.exposition.series", "One way down"),
        ("exposition/noon.py", "import evaluator.ports", "One way down"),
        ("worker/noon.py", "import evaluator.adapters.memory", "One way down"),
        ("replay/noon.py", "import evaluator.worker", "One way down"),
        ("mapping/noon.py", "import evaluator.replay", "One way down"),
        ("comparison/noon.py", "import evaluator.replay", "One way down"),
        ("replay/noon.py", "import evaluator.library", "One way down"),
        ("library/noon.py", "import evaluator.cli", "One way down"),
        ("adapters/noon.py", "import evaluator.adapters.memory", "never meet"),
    ],
)
def test_a_broken_contract_is_named(copy, module, line, contract):
    with (copy / "evaluator" / module).open("a") as file:
        file.write(f"\n{line}\n")
    done = lint(copy)
    assert done.returncode == 1
    assert contract in done.stdout
