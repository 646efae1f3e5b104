"""Inputs that are deleted and created again, and grow beyond the old positions of the worker."""

import asyncio
import json

import pytest

from evaluator.cli import main
from evaluator.core.types.records import LOGS
from tests.contract.backends import recreate_topic
from tests.oracle.totals import comparable
from tests.waiting import until
from tests.worker.traffic import traffic

pytestmark = pytest.mark.kafka

OLD, NEW = traffic(1, n_queries=20), traffic(2, n_queries=60)


@pytest.fixture
def world(make_world):
    return make_world(1)


def recreate_and_grow(world, *logs):
    """Recreates topics, and lets them grow beyond the positions in the old ones."""
    before = world.ends()
    for log in logs:
        asyncio.run(recreate_topic(world.connection, f"{world.prefix}{log}", 1))
    world.produce({(log, 0): NEW.of(log) for log in logs})
    now = world.ends()
    assert all(now[f"{log}-0"] > before[f"{log}-0"] for log in logs)


def read_to_the_end(world, worker):
    """Checks that its totals are those of the current records."""
    worker.until_read(world.ends())
    worker.until_ready()
    assert comparable(worker.totals) == world.truth().totals


@pytest.mark.parametrize("disk", ["the old disk", "no disk", "no disk, accept loss"])
@pytest.mark.parametrize("logs", [LOGS, LOGS[1:]], ids=["both", "judgments"])
def test_totals_are_those_of_the_recreated_topics(world, start, tmp_path, disk, logs, capsys):
    world.append({0: OLD})
    first = start(world, state_dir=tmp_path / "state")
    read_to_the_end(world, first)
    assert first.stop() == 0
    recreate_and_grow(world, *logs)
    flags = ["--accept-loss"] if disk.endswith("accept loss") else []
    states = tmp_path / ("state" if disk == "the old disk" else "other")
    second = start(world, *flags, state_dir=states)
    read_to_the_end(world, second)
    (line,) = second.events("checkpoint_of_other_logs")
    assert f"topic {logs[0]} was recreated: its id is " in line["reason"]
    aside = second.events("store_quarantined")
    assert len(aside) == (disk == "the old disk")
    assert all("was recreated" in line["reason"] for line in aside)
    counted = second.samples()['evaluator_quarantined_stores_total{task="0"}']
    assert counted == 1 + len(aside)
    assert second.stop() == 0
    arguments = ["totals", f"--source=kafka://{world.bootstrap}"]
    arguments += [f"--set={name}={value}" for name, value in second.settings.items()]
    assert main(arguments) == 0
    assert comparable(json.loads(capsys.readouterr().out)) == world.truth().totals
    records = world.outputs()["settled", 0]
    generations = dict.fromkeys(dict(record.headers)["generation"] for record in records)
    numbers = {name: [] for name in generations}
    for record in records:
        numbers[dict(record.headers)["generation"]].append(json.loads(record.value)["n"])
    assert len(generations) == 2
    assert all(found[0] == 0 for found in numbers.values())


def test_recreated_topics_end_a_worker_that_reads_them(world, start, tmp_path):
    world.append({0: OLD})
    first = start(world, state_dir=tmp_path / "state")
    first.until_read(world.ends())
    recreate_and_grow(world, *LOGS)
    assert first.wait() == 3
    line = first.err.splitlines()[-1]
    ways = ("was recreated while it was read", "no longer exists", "the topic was recreated")
    assert any(way in line for way in ways)
    second = start(world, state_dir=tmp_path / "state")
    read_to_the_end(world, second)
    assert second.stop() == 0


def test_a_worker_that_missed_the_deletion_detects_another_topic_id(world, start, tmp_path):
    """The worker is stopped meanwhile, so that it can only detect the new id."""
    import signal

    world.append({0: OLD})
    first = start(world, state_dir=tmp_path / "state")
    first.until_read(world.ends())
    first.signal(signal.SIGSTOP)
    recreate_and_grow(world, *LOGS)
    first.signal(signal.SIGCONT)
    assert first.wait() == 3
    second = start(world, state_dir=tmp_path / "state")
    read_to_the_end(world, second)
    assert second.stop() == 0


def test_an_added_partition_ends_a_worker_with_the_remedy(world, start, capsys):
    from tests.contract.backends import admin, visible

    async def add(log):
        from aiokafka.admin import NewPartitions

        async with admin(world.connection) as client:
            await client.create_partitions({f"{world.prefix}{log}": NewPartitions(2)})
        await visible(world.connection, [f"{world.prefix}{log}"])

    world.append({0: OLD})
    worker = start(world)
    worker.until_read(world.ends())
    asyncio.run(add("rankings"))
    assert worker.wait() == 3  # within WATCH_SECONDS (tests/worker/test_origins.py)
    line = worker.err.splitlines()[-1]
    assert f"Topic {world.prefix}rankings had 1 partitions at the start and has 2 now" in line
    assert "`evaluator check` prints the commands" in line
    check = ["check", f"--source=kafka://{world.bootstrap}", f"--set=topic_prefix={world.prefix}"]
    until(lambda: main(check) == 5)
    printed = capsys.readouterr().out
    tool = f"kafka-topics.sh --bootstrap-server {world.bootstrap} --alter --topic {world.prefix}"
    assert f"{tool}judgments --partitions 2" in printed
    assert f"{tool}settled --partitions 2" in printed
