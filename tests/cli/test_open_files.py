"""`evaluator run` with a limit of open files, and clients that need more of them."""

import contextlib
import resource
import signal
import socket
import sys
import textwrap

import pytest

from tests.kafka.process import Process, Worker

N_CONNECTIONS = 1_100


def limited(soft, hard=None):
    """The start of a command line that gives `evaluator` these limits."""
    shell = f'ulimit -Sn {soft}; ulimit -Hn {hard or soft}; exec "$@"'
    return ("/bin/sh", "-c", shell, "sh", sys.executable, "-m", "evaluator")


@pytest.fixture
def files():
    """Allows this process many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4_096, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def half_open(port):
    with contextlib.ExitStack() as stack:
        for _ in range(N_CONNECTIONS):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            with contextlib.suppress(ConnectionError):
                client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
            yield client


def lines_of(worker):
    return [line for line in worker.err.splitlines() if '"broker_unavailable"' not in line]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "reason"), [(1_024, "too_many"), (40, "no_files")], ids=["1024 files", "40 files"]
)
def test_a_worker_survives_more_half_open_connections_than_its_file_limit(
    tmp_path, files, limit, reason
):
    worker = Worker(tmp_path, "127.0.0.1:9", "x-", python=limited(limit))
    try:
        worker.eventually(lambda: worker.get("/livez"))
        for _ in half_open(worker.port):
            pass
        assert worker.eventually(lambda: worker.get("/livez"))[0] == 200
        worker.eventually(  # the first report may have those alone that were slow
            lambda: any(each.get(reason) for each in worker.events("http_connections_closed"))
        )
        assert worker.get("/readyz")[0] == 503  # the broker is unavailable in any case
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert "Traceback" not in worker.err
        assert len(lines_of(worker)) < 20
    finally:
        worker.end()


@pytest.mark.slow
def test_the_soft_limit_of_files_is_raised_to_the_hard_one(tmp_path):
    worker = Worker(tmp_path, "127.0.0.1:9", "x-", python=limited(100, 500))
    try:
        worker.eventually(lambda: worker.get("/livez"))
        assert resource.prlimit(worker.pid, resource.RLIMIT_NOFILE) == (500, 500)
    finally:
        worker.end()


@pytest.mark.slow
def test_stores_without_file_descriptors_name_the_file_limit_not_the_disk(tmp_path):
    program = f"""
        import resource, sys
        from pathlib import Path
        from evaluator.cli import live, main
        from evaluator.adapters.rocksdb import RocksStateDirectory

        def open_stores(source, settings):
            states = RocksStateDirectory(Path({str(tmp_path / "state")!r}))
            states.hold()
            stores = [states.open(task) for task in range(20)]

        live.connection_of = open_stores  # the first call of `run`
        sys.exit(main(["run", "--source=kafka://127.0.0.1:9"]))
    """
    shell = limited(96)[:4]
    command = [sys.executable, "-c", textwrap.dedent(program)]
    process = Process(tmp_path, *command, python=shell)
    try:
        assert process.wait() == 4
    finally:
        process.end()
    (line,) = process.err.splitlines()
    assert "Too many open files" in line
    assert "Raise the limit of open files" in line
    assert "disk of state_dir is full" not in line
