"""Programs of the compiled part with sanitizers for addresses and undefined behaviour."""

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from evaluator.wire.native import library
from tests.kafka.broker import cache_directory, locked

_FLAGS: Final = (
    *("-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)
_INCLUDED: Final = (Path(library.__file__).parent, Path(__file__).parent)
"""Folders of the files that programs include."""


def built(source: Path, folder: Path) -> Path:
    """The program of a C file."""
    program = folder / "harness"
    build(["cc", *_FLAGS], source, program)
    return program


def build(command: Sequence[str], source: Path, program: Path) -> None:
    """Compiles a C file, unless it was compiled before with the same command, compiler and files.

    A compilation takes three seconds or more. The last program of each file is kept between runs.
    """
    kept = cache_directory().parent / "sanitized"
    kept.mkdir(parents=True, exist_ok=True)
    made = kept / f"{source.stem}-{_checksum(command, source)}"
    with locked(kept / f"{source.stem}.lock"):
        if not made.exists():
            with TemporaryDirectory(dir=kept, prefix="compiling-") as scratch:
                new = Path(scratch) / made.name
                subprocess.run([*command, "-o", new, source], check=True)
                for old in kept.glob(f"{source.stem}-*"):
                    old.unlink()
                new.rename(made)
        shutil.copy2(made, program)


def _checksum(command: Sequence[str], source: Path) -> str:
    """Of all that determines a program."""
    compiler = subprocess.run([command[0], "--version"], capture_output=True, check=True).stdout
    folders = (source.parent, *_INCLUDED)
    files = sorted({each for of in folders for each in of.iterdir() if each.suffix in {".c", ".h"}})
    parts = [compiler, str(command).encode(), source.name.encode()]
    parts += [part for each in files for part in (each.name.encode(), each.read_bytes())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def printed(program: Path, sent: bytes) -> bytes:
    """The output of the program for this input; a finding of a sanitizer fails the test."""
    done = subprocess.run([program], input=sent, capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
