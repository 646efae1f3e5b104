"""The import contracts fail when broken in a copy of the package. `make lint` checks them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import PACKAGE, ROOT

pytestmark = pytest.mark.slow  # lint itself is in the quick set

LINT = Path(sys.executable).parent / "lint-imports"
BROKEN = (
    ("core/join", "import time", "The core has no clock"),
    ("core/join", "from os import path", "The core has no clock"),
    ("core/join", "import evaluator.wire.records", "One way down"),
    ("core/join", "import evaluator.core.engine.engine", "Packages of the core"),
    ("wire/messages", "import evaluator.ports", "One way down"),
    ("wire/messages", "import evaluator.wire.state.origin", "Packages of wire"),
    ("wire/weights", "import evaluator.wire.state.origin", "Packages of wire"),
    ("wire/messages", "import evaluator.exposition.series", "One way down"),
    ("exposition", "import evaluator.ports", "One way down"),
    ("worker", "import evaluator.adapters.memory", "One way down"),
    ("replay", "import evaluator.worker", "One way down"),
    ("mapping", "import evaluator.replay", "One way down"),
    ("comparison", "import evaluator.replay", "One way down"),
    ("replay", "import evaluator.library", "One way down"),
    ("library", "import evaluator.cli", "One way down"),
    ("adapters", "import evaluator.adapters.memory", "Adapters never meet"),
)
"""A folder, the imports of a new module there, and the contract that forbids them."""


@pytest.fixture
def copy(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "evaluator", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def broken(tree):
    """The reports on broken contracts by the beginnings of their names."""
    done = subprocess.run(
        [LINT, "--no-cache", "--no-logo"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    _, report = done.stdout.split("Broken contracts\n", 1)
    names = sorted({name for *_, name in BROKEN})
    parts = re.split(rf"^({'|'.join(names)}).*\n-+\n", report, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_import_that_a_contract_forbids_is_named(copy):
    for number, (folder, line, _) in enumerate(BROKEN):
        (copy / "evaluator" / folder / f"noon_{number}.py").write_text(f"{line}\n")
    reports = broken(copy)
    for number, (folder, line, contract) in enumerate(BROKEN):
        module = f"evaluator.{folder.replace('/', '.')}.noon_{number}"
        assert f"{module} -> {line.split()[1]} (l.1)" in reports[contract], line


def test_a_module_without_a_layer_is_named(copy):
    for module in ("utils", "core/noon", "wire/noon"):
        (copy / "evaluator" / f"{module}.py").touch()
    reports = broken(copy)
    assert "- evaluator.utils\n" in reports["One way down"]
    assert "- evaluator.core.noon\n" in reports["Packages of the core"]
    assert "- evaluator.wire.noon\n" in reports["Packages of wire"]
