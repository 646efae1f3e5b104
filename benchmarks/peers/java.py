"""Builds the Kafka Streams job with Maven, and gives the command that runs it."""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.kafka.broker import cache_directory, locked

HERE: Final = Path(__file__).parent / "streams"
FLAGS: Final = ("-XX:+UseSerialGC", "-Xms1g", "-Xmx1g", "-XX:+AlwaysPreTouch")
"""For one core, a serial collector costs the least; the heap is touched before the first record."""
COMPRESSION: Final = "lz4"
"""Of results and changelog: took the least CPU time of none, lz4, zstd and snappy."""


def classes() -> Path:
    """The directory of the jars, built on first use and after every change of the sources."""
    sources = [HERE / "pom.xml", *sorted(HERE.rglob("*.java"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    built = cache_directory().parent / f"streams-{digest}"
    built.parent.mkdir(parents=True, exist_ok=True)
    with locked(built.parent / "lock"):
        if not built.is_dir():
            _build(built)
    return built


def _build(built: Path) -> None:
    with tempfile.TemporaryDirectory(dir=built.parent, prefix="building-") as scratch:
        goals = ["package", "dependency:copy-dependencies"]
        command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), f"-DbuildDirectory={scratch}"]
        command += [*goals, f"-DoutputDirectory={scratch}/jars", "-DincludeScope=runtime"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"Maven could not build the Kafka Streams job:\n{done.stdout}{done.stderr}")
        jars = Path(scratch) / "jars"
        (package,) = Path(scratch).glob("*.jar")
        package.rename(jars / package.name)
        jars.rename(built)


def command(
    *, bootstrap: str, prefix: str, group: str, pairs: int, report: Path, state_dir: Path
) -> list[str]:
    """The words that run the job until both inputs are read."""
    words = [bootstrap, prefix, group, str(2 * pairs), str(report), str(state_dir), COMPRESSION]
    log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return ["java", *FLAGS, log, "-cp", f"{classes()}/*", "peers.Peer", *words]
