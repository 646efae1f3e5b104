"""Fuzzes the compiled part with libFuzzer and sanitizers: `python -m tests.wire.fuzz --seconds 60`.

Needs clang with its runtime (`apt-get install clang libclang-rt-14-dev`). The corpus is
`fuzz_corpus.zip`; `--keep` adds inputs that reached more of the code. A failing input remains in
the working directory, as `crash-...`.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from evaluator.wire.native import library

TARGET = Path(__file__).with_name("native_fuzz.c")
CORPUS = Path(__file__).with_name("fuzz_corpus.zip")
FLAGS = "-std=c11 -g -O1 -Wall -Wextra -Werror -fno-sanitize-recover=all".split()
RECORD_SETS, RANKINGS, JUDGMENTS = range(3)


def seed(kind: int, flags: int, parts: Iterable[bytes]) -> bytes:
    """An input of the target."""
    return bytes((kind, flags)) + (b"" if kind == RECORD_SETS else b"\xff").join(parts)


def build(folder: Path, *how: str) -> tuple[Path, dict[str, str]]:
    """Builds the program; returns it and its environment."""
    powers, program = folder / "powers", folder / "fuzz"
    powers.write_bytes(library.powers_of_five.tobytes())
    subprocess.run([*how, *FLAGS, "-o", program, TARGET], check=True)
    return program, {**os.environ, "POWERS": str(powers)}


def unpack(folder: Path) -> list[Path]:
    """The files of the corpus."""
    with zipfile.ZipFile(CORPUS) as corpus:
        corpus.extractall(folder)
    return sorted(folder.iterdir())


def keep(files: Iterable[Path]) -> None:
    """Replaces the corpus; equal files result in equal bytes."""
    contents = sorted({path.read_bytes() for path in files})
    with zipfile.ZipFile(CORPUS, "w", zipfile.ZIP_DEFLATED) as corpus:
        for content in contents:
            info = zipfile.ZipInfo(hashlib.sha1(content, usedforsecurity=False).hexdigest())
            corpus.writestr(info, content, zipfile.ZIP_DEFLATED)


def main() -> None:
    """Runs libFuzzer."""
    parser = argparse.ArgumentParser(prog="python -m tests.wire.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--keep", action="store_true", help="add what was found to the corpus")
    arguments = parser.parse_args()
    clang = shutil.which("clang") or shutil.which("clang-14")
    if clang is None:
        sys.exit("fuzz: needs clang (apt-get install clang libclang-rt-14-dev).")
    with tempfile.TemporaryDirectory() as name:
        folder, found, least = Path(name), Path(name) / "found", Path(name) / "least"
        for each in (found, least):
            each.mkdir()
        program, env = build(folder, clang, "-fsanitize=fuzzer,address,undefined")
        unpack(found)
        limits = [f"-max_total_time={arguments.seconds}", "-max_len=4096", "-timeout=10"]
        if subprocess.run([program, *limits, found], env=env, check=False).returncode:
            sys.exit("fuzz: an input failed")
        if arguments.keep:
            subprocess.run([program, "-merge=1", least, found], env=env, check=True)
            keep(least.iterdir())


if __name__ == "__main__":
    main()
