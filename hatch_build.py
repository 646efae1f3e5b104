"""Builds the compiled part into the package; without a C compiler the package goes without.

Used by `pip install`, editable or not, and `python -m build`. CC and CFLAGS are obeyed.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("evaluator/wire/native")
FLAGS = "-std=c11 -O3 -fPIC -shared -fvisibility=hidden -fstack-protector-strong".split()
FLAGS += ["-ffp-contract=off"]  # what is computed is the same wherever it is


class BuildHook(BuildHookInterface[Any]):
    """Compiles `native.c` to `native.so` beside it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # hatchling's signature
        """Called before the files are collected; *version* is "standard" or "editable"."""
        if self.target_name != "wheel":
            return
        folder = Path(self.root) / NATIVE
        library = folder / "native.so"
        if compiled(folder / "native.c", library):
            build_data["tag"] = f"py3-none-{platform_of(library)}"
            build_data["pure_python"] = False
            build_data["artifacts"].append(f"{NATIVE}/native.so")


def platform_of(library: Path) -> str:
    """The platform tag of a wheel with *library*, which needs no other library than that of C.

    With glibc it names the oldest version that has all symbols of the library, 2.17 or later
    (PEP 600): memcpy is of 2.14.
    """
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    versions = re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())
    if not versions or not platform.startswith("linux_"):
        return platform
    return f"manylinux_2_{max(17, *map(int, versions))}_{platform.removeprefix('linux_')}"


def compiled(source: Path, library: Path) -> bool:
    """Whether *library* could be built; prints the reason if not."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        return _left_out(f"no C compiler ({compiler[0]}) was found")
    flags = [*FLAGS, *shlex.split(os.environ.get("CFLAGS", ""))]
    command = [*compiler, *flags, "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # from this file and CC
    if done.returncode == 0:
        return True
    library.unlink(missing_ok=True)  # it is of other sources
    return _left_out(done.stderr.strip())


def _left_out(reason: str) -> bool:
    print(
        f"evaluator: built without a compiled part, so it is slower: {reason}",
        file=sys.stderr,
    )
    return False
