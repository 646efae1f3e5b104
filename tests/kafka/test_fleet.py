"""Workers with names: restarts that move no task, two processes of one name, and removal."""

import signal
from functools import partial

import pytest

from evaluator.cli.main import main
from tests.kafka.test_worker_again import append_part, until_shared
from tests.worker.truth import merged

pytestmark = pytest.mark.kafka

LONG_MS = 600_000
"""A session that no test outlasts: what happens before its end happens without it."""


def named(start, world, name, **settings):
    """A worker with a name; heartbeats do not change the ends of the logs."""
    settings = {"session_timeout_ms": LONG_MS, "heartbeats": "off", **settings}
    return start(world, group_instance_id=name, **settings)


def test_a_rolling_restart_moves_no_task_and_reads_nothing_twice(make_world, start):
    world = make_world(6)
    workers = {}
    for name in ("pod-0", "pod-1", "pod-2"):
        workers[name] = named(start, world, name)
        workers[name].until_ready()
    until_shared(world, *workers.values())
    append_part(world, 0, 0.4, n_queries=60)
    until_shared(world, *workers.values())
    stopped = []
    for name, worker in list(workers.items()):
        others = [each for each in workers.values() if each is not worker]
        before = [len(each.events("tasks_assigned")) for each in others]
        had = worker.tasks
        assert worker.stop() == 0
        stopped.append(worker)
        append_part(world, 0.4 + len(stopped) / 10, 0.5 + len(stopped) / 10, n_queries=60)
        again = partial(named, start, world, name)
        workers[name] = again(port=worker.port, state_dir=worker.settings["state_dir"])
        workers[name].until_ready()
        assert workers[name].tasks == had
        until_shared(world, *workers.values())
        assert [len(each.events("tasks_assigned")) for each in others] == before
    truth = world.truth()
    assert merged([each.totals for each in workers.values()]) == truth.totals
    assert not any(worker.stop() for worker in workers.values())
    read = [each.events("worker_stopped")[0]["records"] for each in (*stopped, *workers.values())]
    assert sum(read) == sum(world.ends().values())  # 1.00 times
    truth.check_outputs(world.outputs(), once=True)


def test_of_two_processes_with_one_name_the_older_ends_and_a_removed_member_leaves_its_tasks(
    make_world, start, capsys
):
    world = make_world(2)
    older = named(start, world, "pod-0")
    append_part(world, 0, 0.5, n_queries=40)
    older.until_read(world.ends())
    newer = named(start, world, "pod-0")
    assert older.wait() == 3
    assert "Another process runs as pod-0" in older.err
    newer.until_read(world.ends())
    other = named(start, world, "pod-1", session_timeout_ms=2_000)
    until_shared(world, newer, other)
    check_thawed_member(world, newer, other)
    assert newer.stop() == 0
    append_part(world, 0.5, 1, n_queries=40)
    other.eventually(lambda: len(other.tasks) == 1)
    remove = ["group", "remove", "pod-0", "--source", f"kafka://{world.bootstrap}"]
    remove += ["--set", f"group_id={other.settings['group_id']}"]
    assert main(remove) == 0
    other.until_read(world.ends())
    assert merged([other.totals]) == world.truth().totals
    assert main(remove) == 3
    assert "has no member pod-0" in capsys.readouterr().err


def check_thawed_member(world, first, second):
    """A member whose session has ended while it was frozen joins again."""
    second.freeze()
    first.eventually(lambda: first.tasks == [0, 1])
    second.signal(signal.SIGCONT)
    until_shared(world, first, second)
