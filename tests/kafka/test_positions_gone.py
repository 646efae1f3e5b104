"""Positions that are no longer in their log, and inputs with too short a retention."""

import asyncio
import shlex
import subprocess

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from evaluator.adapters.kafka.administration import described
from evaluator.cli import main
from tests.contract.backends import admin
from tests.kafka.broker import Broker, jars
from tests.kafka.test_admin import make
from tests.kafka.test_topics_stay_ours import delete
from tests.waiting import patience
from tests.worker.traffic import traffic

pytestmark = pytest.mark.kafka

LOST = 7
NEEDED_MS = 180_120_000
"""With the default settings: 2 x (a day + an hour + a minute)."""


@pytest.fixture
def world(make_world):
    return make_world(1)


async def expire_unseen(world, log):
    """Expires records of an open transaction; the log continues behind them."""
    topic = f"{world.prefix}{log}"
    arguments = world.connection.arguments()
    async with AIOKafkaProducer(**arguments, transactional_id=f"{topic}-open") as producer:
        await producer.begin_transaction()
        for _ in range(LOST):
            sent = await producer.send_and_wait(topic, b"unseen", b"k", 0)
        async with admin(world.connection) as client:
            named = TopicPartition(topic, 0)
            await client.delete_records({named: RecordsToDelete(before_offset=sent.offset + 1)})
        await producer.commit_transaction()


def exit_code_and_last_line(worker):
    """Exit code and last line."""
    return worker.wait(), worker.err.splitlines()[-1]


def test_records_expired_unread_end_a_worker_and_the_next_one_counts_them(world, start, tmp_path):
    world.append({0: traffic(1, n_queries=20)})
    first, ends = start(world, state_dir=tmp_path / "state"), world.ends()
    first.until_read(ends)
    asyncio.run(expire_unseen(world, "rankings"))
    code, line = exit_code_and_last_line(first)
    assert code == 3
    at = ends["rankings-0"]
    assert line.startswith(
        f"evaluator: Offset {at} of {world.prefix}rankings-0 is the next to read, but not in its "
        f"log, which holds {at + LOST} to "
    )
    assert f": {LOST} records have expired before they were read. Restart to continue" in line
    world.append({0: traffic(2, n_queries=20)})
    second = start(world, state_dir=tmp_path / "state")
    second.until_read(world.ends())
    (lost,) = second.events("input_lost")
    assert (lost["log"], lost["partition"], lost["records"]) == ("rankings", 0, LOST)
    samples = second.samples()
    outside = "evaluator_input_positions_outside_total"
    assert samples['evaluator_input_records_lost_total{topic="rankings"}'] == LOST
    assert samples['evaluator_input_records_lost_total{topic="judgments"}'] == 0
    assert samples[f'{outside}{{side="before",topic="rankings"}}'] == 1
    assert samples[f'{outside}{{side="beyond",topic="rankings"}}'] == 0
    assert second.stop() == 0
    assert world.committed() == world.ends()


async def recreate(world, log):
    await delete(world.connection, f"{world.prefix}{log}")
    await make(world.connection, world.prefix, {log: 1})


def test_a_recreated_log_is_never_read_from_the_middle(world, start):
    world.append({0: traffic(1, n_queries=20)})
    first = start(world)
    first.until_read(world.ends())
    asyncio.run(recreate(world, "judgments"))
    code, line = exit_code_and_last_line(first)  # the worker finds the topic missing or recreated
    assert code == 3
    assert "no longer exists" in line or "the topic was recreated" in line
    world.append({0: traffic(1, n_queries=5)})
    second = start(world)
    second.until_read(world.ends())
    assert second.totals["ledger"]["judgments"]["read"] == len(world.inputs()[0][1])
    assert second.stop() == 0


async def commit_beyond(world, log):
    """A commit that was made before the log lost its end."""
    group = {"group_id": f"{world.prefix}group", "enable_auto_commit": False}
    async with AIOKafkaConsumer(**world.connection.arguments(), **group) as consumer:
        named = TopicPartition(f"{world.prefix}{log}", 0)
        consumer.assign([named])
        ends = await consumer.end_offsets([named])
        await consumer.commit({named: (ends[named] + 1, "")})


def test_a_position_beyond_a_log_is_logged_and_counted_and_the_log_read_again(world, start):
    world.append({0: traffic(1, n_queries=20)})
    asyncio.run(commit_beyond(world, "judgments"))
    worker, ends = start(world), world.ends()
    worker.until_read(ends)
    assert len(worker.events("commit_beyond_end")) == 1
    outside = "evaluator_input_positions_outside_total"
    assert worker.samples()[f'{outside}{{side="beyond",topic="judgments"}}'] == 1
    assert worker.totals["ledger"]["judgments"]["read"] == len(world.inputs()[0][1])
    assert worker.stop() == 0
    assert world.committed() == ends


async def keep(world, log, milliseconds):
    topic = f"{world.prefix}{log}"
    values = {"retention.ms": str(milliseconds), "retention.bytes": "-1"}
    async with admin(world.connection) as client:
        await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, values)])
    await until_retention(world, log, lambda kept_ms: kept_ms == milliseconds)


async def until_retention(world, log, holds):
    """Waits until the broker reports the new retention: it acknowledges the change before that."""
    topic = f"{world.prefix}{log}"
    async with patience():
        while not holds(int((await described(world.connection, [topic]))[topic]["retention.ms"])):
            pass


def execute(directory, command):
    """The effect of kafka-configs, with the jars of the tests."""
    tool, *arguments = shlex.split(command)
    assert tool == "kafka-configs.sh"
    java = Broker(directory)._java(jars())
    done = subprocess.run(
        [*java, "kafka.admin.ConfigCommand", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_too_short_retention_is_reported_and_the_command_fixes_it(world, start, capsys, tmp_path):
    asyncio.run(keep(world, "rankings", NEEDED_MS))
    check = ["check", f"--source=kafka://{world.bootstrap}", f"--set=topic_prefix={world.prefix}"]
    assert main(check) == 5
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("error"))
    assert f"keeps records for {NEEDED_MS} ms, more than {NEEDED_MS} ms are needed" in lines[at]
    command = lines[at + 1].removeprefix("        -> ").partition(" (")[0]
    # The settings of `world` are smaller; these are the default ones.
    defaults = {"retention_ms": 86_400_000, "maturity_ms": 3_600_000, "early_ms": 60_000}
    defaults |= {"remember_ms": 3_600_000, "window_ms": 60_000}
    worker = start(world, **defaults)
    worker.until_ready()
    (short,) = worker.eventually(lambda: worker.events("input_retention_short"))
    assert short["topic"] == f"{world.prefix}rankings"
    assert (short["retention_ms"], short["needed_ms"]) == (NEEDED_MS, NEEDED_MS)
    assert short["command"] == command
    retention = "evaluator_input_retention_seconds"
    worker.eventually(lambda: f'{retention}{{topic="rankings"}}' in worker.samples())
    samples = worker.samples()
    assert samples["evaluator_input_retention_needed_seconds"] == NEEDED_MS / 1000
    assert samples['evaluator_input_retention_seconds{topic="rankings"}'] == NEEDED_MS / 1000
    assert samples['evaluator_input_retention_seconds{topic="judgments"}'] == float("inf")
    assert worker.stop() == 0
    execute(tmp_path, command)
    asyncio.run(until_retention(world, "rankings", lambda kept_ms: kept_ms > NEEDED_MS))
    assert main(check) == 0
