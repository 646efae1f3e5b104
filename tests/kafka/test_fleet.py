"""Groups of workers: two with one name, removal, stores, and all of them at the end."""

import asyncio
import signal
from functools import partial

import pytest
from aiokafka.admin import NewPartitions

from evaluator.adapters.kafka import group_members
from evaluator.adapters.kafka.clients import requests
from evaluator.cli.main import main
from evaluator.core.types.records import LOGS
from evaluator.ports import Committed, SourceUnusable
from evaluator.wire.records import WRITTEN
from tests.contract.backends import admin
from tests.kafka.process import LONG_MS, checkpoint_totals
from tests.kafka.test_worker_again import append_part, until_shared
from tests.kafka.world import answered
from tests.oracle.totals import comparable
from tests.waiting import patience
from tests.worker.traffic import traffic
from tests.worker.truth import merged

pytestmark = pytest.mark.kafka


def named(start, world, name, **settings):
    """A worker with a name; heartbeats do not change the ends of the logs."""
    settings = {"session_timeout_ms": LONG_MS, "heartbeats": "off", **settings}
    return start(world, group_instance_id=name, **settings)


def remove(world, worker, name):
    """`evaluator group remove`."""
    command = ["group", "remove", name, "--source", f"kafka://{world.bootstrap}"]
    return main([*command, "--set", f"group_id={worker.settings['group_id']}"])


def test_the_older_process_of_one_name_ends_and_a_removed_member_leaves_its_tasks(
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
    assert remove(world, other, "pod-0") == 0
    other.until_read(world.ends())
    assert merged([other.totals]) == world.truth().totals
    assert remove(world, other, "pod-0") == 3
    assert "has no member pod-0" in capsys.readouterr().err


def check_thawed_member(world, first, second):
    """A member whose session has ended while it was frozen joins again."""
    second.freeze()
    first.eventually(lambda: first.tasks == [0, 1])
    second.signal(signal.SIGCONT)
    until_shared(world, first, second)


async def test_the_names_of_a_group_are_those_of_its_members(backend, kafka):
    group_id = ""
    for name in ("pod-0", None):
        source = backend.source(group_instance_id=name, session_timeout_ms=LONG_MS)
        group_id = source._group.group_id
        await source.start()
        async with patience():
            while source.assignment is None:
                await source.poll([], max_records=1, timeout_ms=50)
    assert sorted(await group_members(kafka, group_id)) == ["", "pod-0"]
    assert await group_members(kafka, f"{group_id}-of-nobody") == []


async def test_a_process_that_commits_before_its_next_heartbeat_does_not_replace_the_newer_one(
    backend,
):
    """Commits do not contain the name: the broker only does not recognise the member."""
    times = {"session_timeout_ms": LONG_MS, "heartbeat_interval_ms": LONG_MS}
    older, newer = (backend.source(group_instance_id="pod-0", **times) for _ in "12")
    commits = {("rankings", 0): Committed(0, "")}
    for source in (older, newer):
        await source.start()
        async with patience():
            while source.assignment is None:
                await source.poll([], max_records=1, timeout_ms=50)
        assert await source.commit(commits)
    assert not await older.commit(commits)
    with pytest.raises(SourceUnusable, match="Another process runs as pod-0"):
        await older.poll([], max_records=1, timeout_ms=0)
    await older.stop()
    assert await newer.commit(commits)


def test_a_member_that_stops_while_its_group_waits_for_a_dead_one_leaves_the_group(
    make_world, start, capsys
):
    world = make_world(2)
    settings = {"session_timeout_ms": LONG_MS, "heartbeats": "off"}
    first = start(world, **settings)
    dead = named(start, world, "pod-1")
    until_shared(world, first, dead)
    append_part(world, 0, 0.5, n_queries=40)
    first.eventually(lambda: merged([first.totals, dead.totals]) == world.truth().totals)
    dead.end()
    n_before = len(first.events("tasks_handed_over"))
    other = start(world, **settings)
    first.eventually(lambda: len(first.events("tasks_handed_over")) > n_before)
    assert first.stop() == 0
    append_part(world, 0.5, 1, n_queries=40)
    remove(world, other, "pod-1")  # the broker has removed it if two rebalance timeouts are over
    other.until_read(world.ends())  # if the other one were still a member: half of the tasks
    assert comparable(other.totals) == world.truth().totals
    assert other.stop() == 0


def read_by(*workers):
    """Records that each has read, of those that have ended."""
    return [each.events("worker_stopped")[0]["records"] for each in workers]


def test_workers_until_end_share_the_input_and_a_later_one_rebuilds_their_tasks(
    make_world, start, kafka, tmp_path
):
    """A paused member blocks the assignment of the group until both have joined."""
    world = make_world(2)
    gate = named(start, world, "gate")
    until_shared(world, gate)
    gate.freeze()
    append_part(world, 0, 1)
    ends = world.ends()
    settings = {"heartbeats": "off", "session_timeout_ms": LONG_MS}
    until_end = partial(start, world, "--until-end", **settings)
    together = [until_end(max_poll_records=n) for n in (1, 100)]
    group = gate.settings["group_id"]
    together[0].eventually(lambda: len(answered(lambda: group_members(kafka, group))) == 3)
    gate.end()
    remove(world, gate, "gate")  # the broker has removed it if two rebalance timeouts are over
    assert [worker.wait() for worker in together] == [0, 0]
    read = read_by(*together)
    assert sum(read) == sum(ends.values())
    assert all(read), "one has read all"
    check_totals(world, tmp_path)
    world.truth().check_outputs(outputs := world.outputs(), once=True)
    late = until_end()
    assert late.wait() == 0
    assert sorted(each["task"] for each in late.events("task_restored")) == [0, 1]
    assert 0 < sum(read_by(late)) < sum(ends.values()), "from the restore offsets of checkpoints"
    check_totals(world, tmp_path)
    assert world.outputs() == outputs


def check_totals(world, tmp_path):
    """Those of the checkpoints, up to the ends that the group has committed."""
    assert comparable(checkpoint_totals(world, tmp_path)) == world.truth().totals
    assert world.committed() == world.ends()


def append_unequal(world, begin, end):
    """More to the two tasks in the middle, so that stores of these reach further."""
    sizes = (40, 120, 120, 40)
    world.append({n: traffic(n, n_queries=size).part(begin, end) for n, size in enumerate(sizes)})


def test_a_returning_member_gets_the_tasks_of_its_stores(make_world, start):
    """By range these would be the first or the last two tasks."""
    world = make_world(4)
    begin = partial(start, world, heartbeats="off")
    first = begin()
    append_unequal(world, 0, 0.5)
    first.until_read(world.ends())
    second = begin()
    second.eventually(lambda: (first.tasks, second.tasks) == ([1, 2], [0, 3]))
    until_shared(world, first, second)
    assert second.stop() == 0
    append_unequal(world, 0.5, 1)
    first.until_read(world.ends())
    second = begin(state_dir=second.settings["state_dir"])
    second.eventually(lambda: (first.tasks, second.tasks) == ([1, 2], [0, 3]))
    until_shared(world, first, second)
    assert [each["task"] for each in second.events("state_loaded")] == [0, 3]
    assert merged([first.totals, second.totals]) == world.truth().totals


def test_a_static_member_gets_partitions_that_were_added_while_it_was_down(
    make_world, start, capsys
):
    world = make_world(1)
    worker = named(start, world, "pod-0")
    append_part(world, 0, 0.5, n_queries=20)
    worker.until_read(world.ends())
    assert worker.stop() == 0
    check = ["check", "--source", f"kafka://{world.bootstrap}"]
    check += [
        part
        for name, each in worker.settings.items()
        if name not in {"http_port", "state_dir"}
        for part in ("--set", f"{name}={each}")
    ]
    added = "The checkpoints are of tasks up to 0, and the inputs have 2 partitions"
    assert main(check) == 0
    assert added not in capsys.readouterr().out
    asyncio.run(grow(world, 2))
    assert main(check) == 0
    assert added in capsys.readouterr().out
    append_part(world, 0.5, 1, n_queries=20)
    again = named(start, world, "pod-0", state_dir=worker.settings["state_dir"])
    again.until_read(world.ends())
    assert again.tasks == [0, 1]


async def grow(world, partitions):
    """Gives all topics of the workers more partitions."""
    names = [f"{world.prefix}{name}" for name in (*LOGS, *WRITTEN)]
    async with admin(world.connection) as client:
        await client.create_partitions({name: NewPartitions(partitions) for name in names})
    async with patience(), requests(world.connection) as asking:
        while set((await asking.partition_counts(names)).values()) != {partitions}:
            pass
    world.n_tasks = partitions
