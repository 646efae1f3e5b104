"""Programs of the compiled part with the sanitizers of addresses and undefined behaviour."""

import subprocess
from pathlib import Path
from typing import Final

_FLAGS: Final = (
    *("-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)


def built(source: Path, folder: Path) -> Path:
    """The program of a file in C."""
    program = folder / "harness"
    subprocess.run(["cc", *_FLAGS, "-o", program, source], check=True)
    return program


def printed(program: Path, sent: bytes) -> bytes:
    """What the program prints for this input; a sanitizer that finds something fails the test."""
    done = subprocess.run([program], input=sent, capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
