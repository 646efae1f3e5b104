"""Workers with names and with stores: restarts that move no task, two of one name, removal."""

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
from tests.kafka.test_worker_again import append_part, until_shared
from tests.waiting import patience
from tests.worker.traffic import traffic
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
    stopped, scrapes = [], []
    for name, worker in list(workers.items()):
        others = [each for each in workers.values() if each is not worker]
        before = [len(each.events("tasks_assigned")) for each in others]
        had = worker.tasks
        scrapes.append(worker.samples())
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
    at_the_end = [each.samples() for each in workers.values()]
    require_counted_once([*scrapes, *at_the_end], at_the_end, truth.totals)
    assert not any(worker.stop() for worker in workers.values())
    read = [each.events("worker_stopped")[0]["records"] for each in (*stopped, *workers.values())]
    assert sum(read) == sum(world.ends().values())  # 1.00 times
    truth.check_outputs(world.outputs(), once=True)


def require_counted_once(scrapes, at_the_end, totals):
    """Counters of all processes add up to the totals, and each task is in one process only."""

    def summed(name, some):
        return sum(
            value for each in some for series, value in each.items() if series.startswith(name)
        )

    queries = totals["queries"]["settled"]
    assert summed("evaluator_queries_settled_total{", scrapes) == queries > 0
    values = sum(n for (kind, *_), (n, _) in totals["totals"].items() if kind == "settled")
    assert summed("evaluator_quality_queries_total{", scrapes) == values > 0
    assert summed("evaluator_open_queries", at_the_end) == totals["ledger"]["rankings"]["open"]
    of_tasks = [
        series
        for each in at_the_end
        for series in each
        if series.startswith("evaluator_watermark_timestamp_seconds{")
    ]
    assert len(set(of_tasks)) == len(of_tasks) == 6


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


async def test_the_names_of_a_group_are_those_of_its_members(backend, kafka):
    group_id = ""
    for name in ("pod-0", None):
        source = backend.source(group_instance_id=name)
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


def append_unequal(world, begin, end):
    """More to the two tasks in the middle, so that stores of these reach further."""
    sizes = (40, 120, 120, 40)
    world.append({n: traffic(n, n_queries=size).part(begin, end) for n, size in enumerate(sizes)})


def test_a_member_that_comes_back_gets_the_tasks_of_its_stores(make_world, start):
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


def test_a_worker_with_a_name_gets_the_partitions_that_were_added_while_it_was_away(
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
