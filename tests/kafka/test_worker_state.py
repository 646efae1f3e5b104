"""Real processes with a state directory: killed, damaged, contended, and on a full disk."""

import contextlib
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.kafka.process import Process
from tests.oracle.totals import comparable
from tests.worker.traffic import traffic

pytestmark = pytest.mark.kafka


def append_part(world, begin, end):
    world.append({task: traffic(task).part(begin, end) for task in range(world.n_tasks)})


def flip_in(pattern: str, store: Path) -> None:
    """One bit in the middle of each of these files."""
    files = list(store.glob(pattern))
    assert files
    for file in files:
        data = bytearray(file.read_bytes())
        data[len(data) // 3] ^= 1
        file.write_bytes(data)


def test_a_worker_killed_with_a_locked_then_damaged_store_recovers_the_same_totals(
    world, start, tmp_path
):
    append_part(world, 0, 0.5)
    state = tmp_path / "state"
    killed = start(world, state_dir=state, max_poll_records=40)
    killed.until_read(world.ends())
    refused = start(world, state_dir=state)
    assert refused.wait() == 4
    (line,) = refused.err.strip().splitlines()
    assert f"{state} is in use by process {killed._popen.pid}" in line
    assert "--set state_dir=" in line
    killed.signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL

    # at once, on the same port and directory; the disk is not read again
    append_part(world, 0.5, 0.8)
    second = start(world, state_dir=state, http_port=killed.port)
    second.port = killed.port
    second.until_read(world.ends())
    assert comparable(second.totals) == world.truth().totals
    assert {event["task"] for event in second.events("state_loaded")} == {0, 1}
    assert not second.events("store_quarantined")
    assert second.samples()['evaluator_quarantined_stores_total{task="0"}'] == 0
    assert second.stop() == 0

    flip_in("*.sst", state / "task-0")
    append_part(world, 0.8, 1)
    third = start(world, state_dir=state)
    third.until_read(world.ends())
    third.until_ready()
    assert comparable(third.totals) == world.truth().totals
    (event,) = third.events("store_quarantined")
    assert event["task"] == 0
    assert "orruption" in event["reason"]
    assert event["place"] == str(state / "task-0-quarantine")
    third.eventually(lambda: third.samples()['evaluator_quarantined_stores_total{task="0"}'] == 1)
    assert third.samples()['evaluator_state_bytes{task="0"}'] > 0
    assert third.stop() == 0
    world.truth().check_outputs(world.outputs(), once=False)
    assert "Traceback" not in killed.err + second.err + third.err


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
from evaluator.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk_ends_a_worker_with_one_line_and_no_wrong_total(world, start, tmp_path):
    append_part(world, 0, 1)
    state = tmp_path / "state"
    limited = start(
        world,
        "--until-end",
        python=(sys.executable, "-c", LIMITED),
        state_dir=state,
        max_poll_records=40,
    )
    assert limited.wait() == 4
    (line,) = [line for line in limited.err.splitlines() if not line.startswith("{")]
    assert "full" in line
    after = start(world, state_dir=state)
    after.until_read(world.ends())
    assert comparable(after.totals) == world.truth().totals
    assert not after.events("store_quarantined")
    assert after.stop() == 0


def test_a_directory_that_cannot_be_created_is_refused_first(tmp_path):
    (tmp_path / "file").write_text("")
    setting = f"state_dir={tmp_path / 'file' / 'state'}"
    process = Process(tmp_path, "run", "--source", "kafka://127.0.0.1:1", "--set", setting)
    assert process.wait() == 4
    (line,) = process.err.strip().splitlines()
    assert "cannot be written" in line


def test_a_worker_names_the_limit_of_open_files_and_continues_with_a_higher_one(make_world, start):
    world = make_world(8)
    append_part(world, 0, 0.5)
    few = ("/bin/sh", "-c", 'ulimit -n 96; exec "$@"', "sh", sys.executable, "-m", "evaluator")
    ended = start(world, python=few)
    assert ended.wait() == 4
    (line,) = [line for line in ended.err.splitlines() if not line.startswith("{")]
    assert "Too many open files" in line
    assert "Raise the limit of open files" in line
    assert "is full" not in line

    enough = start(world, state_dir=ended.settings["state_dir"])
    enough.until_read(world.ends())
    assert comparable(enough.totals) == world.truth().totals
    assert not enough.events("store_quarantined")


def test_half_open_connections_do_not_block_a_worker(world, start):
    append_part(world, 0, 0.5)
    files = ("/bin/sh", "-c", 'ulimit -n 1024; exec "$@"', "sh", sys.executable, "-m", "evaluator")
    worker = start(world, python=files)
    worker.eventually(lambda: worker.get("/livez"))
    with contextlib.ExitStack() as held:
        for _ in range(300):
            client = socket.create_connection(("127.0.0.1", worker.port), 60)
            held.enter_context(client).sendall(b"GET /livez HTTP/1.1\r\n")
        append_part(world, 0.5, 1)
        worker.until_read(world.ends())
        assert comparable(worker.totals) == world.truth().totals
        assert worker.get("/livez")[0] == 200
    assert worker.stop() == 0
    assert "Traceback" not in worker.err
