"""Programs that validate a document by a JSON Schema, without an import of three seconds.

The package `jsonschema` imports a parser of IRIs if there is one, which builds its grammar each
time. No schema of Kubernetes or of Compose has an IRI.
"""

import subprocess
import sys
from pathlib import Path

WITHOUT_IRIS = """
import runpy, sys
sys.modules["rfc3987_syntax"] = None
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_program(
    name: str, *arguments: str | Path, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program of the environment of the tests."""
    program = Path(sys.executable).with_name(name)
    command = [sys.executable, "-c", WITHOUT_IRIS, program, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
