"""Archives and snapshots on Google Cloud Storage and on Azure: gcsfs and adlfs, with emulators."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from base64 import b64encode
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch
from urllib.parse import quote

import pytest

from tests.kafka.broker import cache_directory, free_ports, locked
from tests.replay.test_archives import objects_of, reads_a_store, write_expected
from tests.s3 import SECRET
from tests.waiting import until
from tests.worker.snapshots import keeps_snapshots

pytestmark = pytest.mark.ecosystem

AZURITE = "3.35.0"


@contextmanager
def google_storage(bucket, objects):
    """A bucket with these objects; yields the environment of programs that use it.

    They do not ask the machine they run on for credentials, nor Google's own servers whether the
    bucket has hierarchical folders.
    """
    from gcp_storage_emulator import server as emulator

    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket=bucket)
    server.start()
    read = emulator._read_raw_data
    try:
        with patch.object(emulator, "_read_raw_data", lambda of: ended_by_crlf(read(of))):
            for name, text in objects.items():
                upload = f"{url}/upload/storage/v1/b/{bucket}/o"
                upload += f"?uploadType=media&name={quote(name, '')}"
                with urllib.request.urlopen(urllib.request.Request(upload, text), timeout=60):
                    pass
            yield {
                **os.environ,
                "STORAGE_EMULATOR_HOST": url,
                "NO_GCE_CHECK": "true",
                "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            }
    finally:
        server.stop()


def ended_by_crlf(body):
    """The multipart body of an upload by gcsfs, with CR LF before the last boundary.

    gcsfs writes LF there, and the emulator then takes a CR at the end of a file for a part of the
    line break: one in 256 binary files loses its last byte.
    """
    last = b"\n--==0==--"
    return body.removesuffix(last) + b"\r" + last if body and body.endswith(last) else body


def azurite():
    """The program, which npm installs on first use."""
    directory = cache_directory().parent / f"azurite-{AZURITE}"
    if not directory.is_dir():
        if shutil.which("npm") is None:
            pytest.skip("npm installs Azurite")
        directory.parent.mkdir(parents=True, exist_ok=True)
        with locked(directory.parent / "lock"):
            if not directory.is_dir():
                _install(directory)
    return directory / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


def _install(directory):
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix="resolving-") as scratch:
        installed = Path(scratch, "installed")
        command = ["npm", "install", "--prefix", str(installed), "--ignore-scripts", "--silent"]
        subprocess.run([*command, f"azurite@{AZURITE}"], check=True)
        installed.rename(directory)


@contextmanager
def azure(bucket, objects, directory):
    """A container with these objects in Azurite, which logs there; yields its environment."""
    from azure.storage.blob import ContainerClient

    (port,) = free_ports(1)
    key = b64encode(SECRET.encode()).decode()
    flags = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
    with (directory / "azurite.log").open("wb") as log:
        running = subprocess.Popen(
            ["node", str(azurite()), *flags, "--blobPort", str(port)],
            cwd=directory,
            env={**os.environ, "AZURITE_ACCOUNTS": f"test:{key}"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def answers():
        assert running.poll() is None, (directory / "azurite.log").read_text()
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(answers)
        address = (
            f"DefaultEndpointsProtocol=http;AccountName=test;AccountKey={key};"
            f"BlobEndpoint=http://127.0.0.1:{port}/test;"
        )
        with ContainerClient.from_connection_string(address, bucket) as client:
            client.create_container()
            for name, text in objects.items():
                client.upload_blob(name, text)
        yield {**os.environ, "AZURE_STORAGE_CONNECTION_STRING": address}
    finally:
        running.terminate()
        running.wait()


@pytest.fixture(params=["gs", "abfs"])
def store(request, tmp_path):
    """The scheme of a store, and its server: a context of a bucket and objects."""
    servers = {"gs": google_storage, "abfs": lambda *of: azure(*of, tmp_path)}
    return request.param, servers[request.param]


def test_an_archive_in_an_object_store_is_read(store, tmp_path):
    scheme, server = store
    (tmp_path / "archived").mkdir()
    root = write_expected(tmp_path / "archived")
    with server("archive", dict(objects_of(root / "logs", repeated=1))) as environment:
        reads_a_store(root, tmp_path, scheme, environment)


def test_the_emulator_keeps_every_last_byte():
    """Its own parser does not; snapshots with such files were incomplete."""
    content = [b"a" + bytes([each]) for each in range(256)] + [b"\r\n", b"\n\r"]
    script = (
        "import ast, fsspec, sys\n"
        "files = fsspec.filesystem('gs')\n"
        "for each in ast.literal_eval(sys.stdin.read()):\n"
        "    files.pipe_file('last-bytes/object', each)\n"
        "    assert files.cat_file('last-bytes/object') == each, each\n"
    )
    with google_storage("last-bytes", {}) as environment:
        subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            input=repr(content),
            text=True,
            check=True,
        )


def test_an_object_store_keeps_snapshots(store, tmp_path):
    scheme, server = store
    (tmp_path / "stores").mkdir()
    with server("snapshots", {}) as environment:
        printed = keeps_snapshots(tmp_path / "stores", scheme, environment, "FileNotFoundError")
    assert SECRET not in printed
