"""A broker that creates topics on request creates none for the evaluator."""

import asyncio
import re

import pytest
from msgspec.structs import replace

from evaluator.adapters.kafka import Connection, KafkaSink, sink
from evaluator.adapters.kafka.administration import topic_names
from evaluator.adapters.kafka.clients import equal_partitions, existing_counts, requests
from evaluator.cli import main
from evaluator.ports import SourceUnusable
from evaluator.wire.records import OutputRecord
from tests.contract.backends import admin
from tests.kafka.process import Worker
from tests.kafka.test_admin import make
from tests.kafka.world import World
from tests.waiting import patience
from tests.worker.traffic import traffic

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("brokers")]


@pytest.fixture
def connection(secured):
    return Connection(secured.bootstrap)


@pytest.fixture
def existing_topics(connection, topic_prefix):
    """The topics that exist now, with their partition counts."""

    async def existing_topics():
        async with requests(connection) as asking:
            counts = await asking.partition_counts(list(topic_names(topic_prefix).values()))
        return {name.removeprefix(topic_prefix): n for name, n in counts.items() if n is not None}

    return existing_topics


async def delete(connection, topic):
    async with admin(connection) as client:
        await client.delete_topics([topic])
    async with patience(), requests(connection) as asking:
        while (await asking.partition_counts([topic]))[topic] is not None:
            pass


INPUTS = {"rankings": 2, "judgments": 2}
OUTPUTS = dict.fromkeys(("evaluations", "settled", "windows", "dead-letters", "checkpoints"), 2)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({}, "rankings, .*checkpoints not found. Create missing topics with `evaluator"),
        (
            INPUTS,
            "Topics .*evaluations, .*settled, .*dead-letters, .*checkpoints not found",
        ),
        (INPUTS | OUTPUTS | {"windows": 1}, "windows has 1 partitions, the inputs have 2"),
    ],
)
def test_missing_and_small_topics_are_refused_and_not_created(
    counts, message, secured, connection, topic_prefix, existing_topics, capsys
):
    if counts:
        asyncio.run(make(connection, topic_prefix, counts))
    settings = {"topic_prefix": topic_prefix, "group_id": topic_prefix, "http_port": 0}
    settings["alarms"] = "off"  # the leader has topics of its own
    flags = [f"--set={name}={value}" for name, value in settings.items()]
    assert main(["run", f"--source=kafka://{secured.bootstrap}", *flags]) == 3
    (line,) = [each for each in capsys.readouterr().err.splitlines() if not each.startswith("{")]
    assert re.search(message, line), line
    assert asyncio.run(existing_topics()) == counts


def test_a_deleted_input_ends_a_worker_and_is_not_recreated(
    secured, connection, topic_prefix, existing_topics, tmp_path
):
    world = World(connection, topic_prefix)
    world.append({0: traffic(1, n_queries=20)})
    worker = Worker(tmp_path, secured.bootstrap, topic_prefix)
    try:
        worker.until_read(world.ends())
        asyncio.run(delete(connection, f"{topic_prefix}rankings"))
        assert worker.wait() == 3
    finally:
        worker.end()
    assert worker.err.splitlines()[-1] == (
        f"evaluator: Topic {topic_prefix}rankings no longer exists. Create missing topics with "
        "`evaluator topics create`, and start again."
    )
    assert "rankings" not in asyncio.run(existing_topics())


async def test_a_deleted_output_ends_the_sink_and_is_not_recreated(
    connection, topic_prefix, existing_topics, monkeypatch
):
    monkeypatch.setattr(sink, "REQUEST_TIMEOUT_MS", 1_000)
    await make(connection, topic_prefix, {"rankings": 2, "judgments": 2} | OUTPUTS)
    writing = KafkaSink(connection, topic_prefix=topic_prefix)
    await writing.start()
    lane = ("settled", 1)
    try:
        await (await writing.emit({lane: [OutputRecord(b"k", b"v")]}))
        await delete(connection, f"{topic_prefix}settled")
        with pytest.raises(SourceUnusable, match="settled not found"):
            await (await writing.emit({lane: [OutputRecord(b"k", b"v")]}))
    finally:
        await writing.stop()
    assert "settled" not in await existing_topics()


async def test_missing_topics_of_a_mapping_are_created_with_it(connection, topic_prefix):
    names = {log: f"{topic_prefix}shop-{log}" for log in ("rankings", "judgments")}
    mapped = replace(connection, inputs=tuple(names.items()), mapped=frozenset(names))
    with pytest.raises(SourceUnusable, match="create --mapping FILE`, or check"):
        await equal_partitions(mapped, names)
    with pytest.raises(SourceUnusable, match=r"Create missing topics with other programs\.$"):
        await existing_counts(mapped, list(names.values()), advice="other programs")
