"""Runs the tests that need only Python, with the oldest and the newest accepted dependencies.

usage: check_bounds.py [--python PYTHON] [oldest|newest ...]
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
RESOLUTIONS: Final = {"oldest": "lowest-direct", "newest": "highest"}
TOOLS: Final = (
    "hypothesis",
    "pytest<9.2",
    "pytest-asyncio",
    "pytest-xdist",
    "polars",
    "cryptography",
)
TESTS: Final = (
    *("tests/comparison", "tests/library/test_library.py", "tests/replay/test_replay.py"),
    *("tests/library/test_curves.py", "tests/library/test_forms.py", "tests/library/test_names.py"),
    *("tests/library/test_kernel.py", "tests/wire/test_codec.py", "tests/wire/test_outputs.py"),
    *("tests/wire/test_state.py", "tests/worker/test_loop.py", "tests/core/test_measures.py"),
    *("tests/core/test_accumulators.py", "tests/core/test_learner.py", "tests/core/test_losses.py"),
    *("tests/core/test_settling.py", "tests/core/test_gate.py", "tests/core/test_table.py"),
    *("tests/adapters/test_http.py", "tests/adapters/test_prometheus.py", "tests/config"),
    *("tests/cli/test_fit.py", "tests/cli/test_output.py", "tests/wire/test_soundness.py"),
)
WITHOUT: Final = ("scipy", "scikit", "trec_eval", "ir_measures", "pandas", "minilm")
"""Parts of the names of tests that need a development package, which may need another numpy."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if all tests pass with both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", nargs="*", default=[], metavar="oldest|newest")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args(arguments)
    which = options.which or list(RESOLUTIONS)
    if unknown := set(which) - set(RESOLUTIONS):
        parser.error(f"{', '.join(sorted(unknown))}: expected oldest or newest")
    with tempfile.TemporaryDirectory() as folder:
        codes = [_tested(name, Path(folder) / name, options.python) for name in which]
    return max(codes)


def _tested(name: str, venv: Path, python: str) -> int:
    uv = [str(Path(sys.executable).with_name("uv"))]
    environment = {**os.environ, "VIRTUAL_ENV": str(venv)}
    subprocess.run([*uv, "venv", "--quiet", "--python", python, str(venv)], check=True)
    install = [*uv, "pip", "install", "--quiet"]
    resolution = f"--resolution={RESOLUTIONS[name]}"
    needs = [resolution, "--requirements=pyproject.toml", "--extra=avro", "--extra=protobuf"]
    subprocess.run([*install, *needs], check=True, cwd=ROOT, env=environment)
    subprocess.run([*install, *TOOLS], check=True, cwd=ROOT, env=environment)
    show = "import numpy, sys; print(f'numpy {numpy.__version__}, Python {sys.version.split()[0]}')"
    subprocess.run([venv / "bin" / "python", "-c", show], check=True)
    without = f"not ({' or '.join(WITHOUT)})"
    command = ["-m", "pytest", "-q", "-m", "not slow and not kafka", "-k", without, "-Wdefault"]
    tested = subprocess.run([venv / "bin" / "python", *command, *TESTS], cwd=ROOT, check=False)
    return tested.returncode


if __name__ == "__main__":
    sys.exit(main())
