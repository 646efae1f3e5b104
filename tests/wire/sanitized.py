"""Programs of the compiled part with sanitizers for addresses and undefined behaviour."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

_FLAGS: Final = (
    *("-std=c11", "-g1", "-O1", "-Wall", "-Wextra", "-Werror"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)


@cache
def built(source: Path, folder: Path) -> Path:
    """Builds the program of a C file in a folder, once in a process; its traces name lines."""
    program = folder / "harness"
    subprocess.run(["cc", *_FLAGS, "-o", program, source], check=True)
    return program


def printed(program: Path, sent: bytes) -> bytes:
    """The output of the program for this input; a finding of a sanitizer fails the test."""
    done = subprocess.run([program], input=sent, capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
