"""Files of Protobuf as text to serialized descriptors, by protoc in a process with limits."""

import re
import signal
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from evaluator.tables import printable
from evaluator.version import how_to_install

CPU_SECONDS: Final = 2
MEMORY_BYTES: Final = 1 << 30
OUTPUT_BYTES: Final = 4 << 20
"""Limits of the process; a schema that needs more is refused."""
WAIT_SECONDS: Final = 60.0
"""Time of the process, on a machine that is busy."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_./-]{1,200}")
_LOGGED: Final = re.compile(r"WARNING: |[IWE][0-9]{4} |.*: warning: ")  # of protoc, no error
_NO_ROOM: Final = re.compile("No space left on device|Disk quota exceeded|Input/output error")
_BEYOND: Final = {-signal.SIGXCPU, -signal.SIGABRT, -signal.SIGSEGV}
_REFUSED: Final = 3
_PROGRAM: Final = f"""
import importlib.resources, resource, sys
from grpc_tools import protoc
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_SECONDS}, {CPU_SECONDS + 1}))
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}))
resource.setrlimit(resource.RLIMIT_FSIZE, ({OUTPUT_BYTES}, {OUTPUT_BYTES}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
types = importlib.resources.files("grpc_tools") / "_proto"
sys.exit({_REFUSED} if protoc.main([*sys.argv, f"-I{{types}}"]) else 0)
"""


class NotCompiled(Exception):
    """A schema that protoc refuses; the text has the reason."""


class ProtocUnavailable(Exception):
    """protoc cannot be run; the text has the reason."""


def descriptors(text: str, imports: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The names and descriptors, in base64, of a file and of all its imports, the file last.

    Args:
        text: the file.
        imports: names and texts that it may import, besides the types of Google's package.

    Raises:
        NotCompiled: the files cannot be compiled within the limits.
        ProtocUnavailable: protoc is not installed, has no place for its files, or was ended.
    """
    if find_spec("grpc_tools") is None:
        raise ProtocUnavailable(
            f"the package grpcio-tools is missing. {how_to_install('protobuf')}"
        )
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415 - an extra

    files = dict(imports)
    name = "schema.proto"
    while name in files:
        name = f"_{name}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            root, out, errors = (Path(folder, each) for each in ("files", "out", "errors"))
            _write(root, {**files, name: text})
            _run(root, [f"--descriptor_set_out={out}", "--include_imports", name], errors)
            found = FileDescriptorSet.FromString(out.read_bytes()).file
    except OSError as error:  # no place for temporary files
        raise ProtocUnavailable(str(error)) from None
    return [(each.name, b64encode(each.SerializeToString()).decode()) for each in found]


def _write(root: Path, files: dict[str, str]) -> None:
    """Writes files below a directory. Raises NotCompiled for names that are not paths in it."""
    root.mkdir()
    for name, text in files.items():
        if not _PLAIN.fullmatch(name) or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise NotCompiled(
                f"has an import with the name {name!r:.100}, which is not a plain path"
            )
        try:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, "utf-8")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise NotCompiled(f"has an import {name} below another import") from None


def _run(root: Path, arguments: list[str], errors: Path) -> None:
    """Runs protoc on files below a directory. Raises NotCompiled, ProtocUnavailable."""
    program = [sys.executable, "-P", "-c", _PROGRAM, f"-I{root}", *arguments]
    with errors.open("wb") as stderr:
        try:
            ended = subprocess.run(  # noqa: S603 - names of files are arguments of protoc
                program,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                timeout=WAIT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ProtocUnavailable(f"it has not ended after {WAIT_SECONDS:.0f} s") from None
    if ended.returncode in _BEYOND:
        raise NotCompiled(f"needs more than {CPU_SECONDS} s or {MEMORY_BYTES >> 20} MiB of protoc")
    if ended.returncode:
        text = errors.read_text("utf-8", "replace").replace(f"{root}/", "")
        lines = [line for line in text.splitlines() if not _LOGGED.match(line)] or [""]
        if ended.returncode != _REFUSED or _NO_ROOM.search(text):
            raise ProtocUnavailable(
                f"it ended with {ended.returncode}: {printable(lines[-1][:200])}"
            )
        raise NotCompiled(f"is refused by protoc: {printable(lines[0][:200])}")
