"""Foreign topics on a real broker: created, tried, replayed and evaluated live."""

import asyncio
import json
import re

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import NewTopic

from evaluator.adapters.kafka import PARTITIONERS
from evaluator.cli import main
from tests.contract.backends import admin, visible
from tests.kafka.page import output_of
from tests.kafka.process import Worker
from tests.tidy.tree import ROOT
from tests.waiting import finished

pytestmark = pytest.mark.kafka

NOW_MS = 1_769_846_400_000
MAPPING = """
[rankings]
topic = "{prefix}impressions"
where = {{ "header:kind" = ["impression"] }}
trace_id = ["session", "key:"]
node_id = "query_id"
timestamp_ms = "at"
[rankings.rows]
candidate_id = "skus"
[judgments]
topic = "{prefix}clicks"
trace_id = "key:"
timestamp_ms = "at"
source = {{ const = "click" }}
[judgments.rows]
each = "clicks"
node_id = "query_id"
candidate_id = "sku"
grade = {{ path = "action", table = {{ click = 1, buy = 3 }} }}
"""


async def produce(bootstrap, prefix):
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()

    async def send(topic, value, number, *, kind=b"impression"):
        value = value if isinstance(value, bytes) else json.dumps(value).encode()
        await producer.send_and_wait(
            prefix + topic, value, key=b"s-%d" % number, partition=number % 2,
            headers=[("kind", kind)], timestamp_ms=NOW_MS + 400_000,
        )  # fmt: skip

    for number in range(40):
        query = {"query_id": number, "at": NOW_MS + number, "skus": [1, 2, 3]}
        await send("impressions", query, number)
        await send("impressions", {"at": NOW_MS + number}, number, kind=b"banner")
        clicks = [
            {"query_id": number, "sku": 2, "action": "click"},
            {"query_id": number, "sku": 3, "action": "buy"},
            {"query_id": number, "sku": 1, "action": "zoom"},
            {"query_id": 1_000 + number, "sku": 1, "action": "buy"},  # of no ranking
        ]
        await send("clicks", {"at": NOW_MS + 50 + number, "clicks": clicks}, number)
    large = {"query_id": 99, "at": NOW_MS, "skus": [1], "text": "x" * 400_000}
    await send("impressions", large, 0)
    await send("impressions", b"{", 0)
    later = {"at": NOW_MS + 600_000, "clicks": [{"query_id": 0, "sku": 1, "action": "buy"}]}
    for number in (0, 1):
        await send("impressions", {"at": NOW_MS + 600_000}, number, kind=b"banner")
        await send("clicks", later, number)
    await producer.stop()


async def dead_letters(bootstrap, topic, n):
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    found = [await finished(consumer.getone()) for _ in range(n)]
    await consumer.stop()
    return found


def test_live_evaluation_and_replay_of_foreign_topics_agree(
    kafka_bootstrap, topic_prefix, tmp_path, capsys
):
    (tmp_path / "m.toml").write_text(MAPPING.format(prefix=topic_prefix))
    mapping, source = tmp_path / "m.toml", f"--source=kafka://{kafka_bootstrap}"
    of_test = [f"--set=topic_prefix={topic_prefix}", f"--set=mapping={mapping}"]
    of_test.append("--set=retention_ms=3600000")
    assert main(["topics", "create", source, *of_test]) == 3
    missing = f"do not exist: {topic_prefix}impressions, {topic_prefix}clicks."
    assert missing in capsys.readouterr().err
    assert main(["topics", "create", source, "--partitions=2", *of_test]) == 0
    assert f"created {topic_prefix}impressions" in capsys.readouterr().out
    asyncio.run(produce(kafka_bootstrap, topic_prefix))

    mapped = [source, f"--mapping={mapping}", of_test[0]]
    assert main(["mapping", "try", *mapped, "--sample=10"]) == 5  # one record is no JSON
    out = capsys.readouterr().out
    assert "left out  where: header:kind is" in out
    assert "refused   decode: not JSON" in out
    useless = tmp_path / "useless.toml"
    useless.write_text(
        mapping.read_text().replace("buy = 3", "Buy = 3").replace("click =", "Click =")
    )
    assert main(["check", source, of_test[0], f"--set=mapping={useless}"]) == 5
    assert f"sampled records of {topic_prefix}clicks 0 are messages" in capsys.readouterr().out

    worker = Worker(
        tmp_path, kafka_bootstrap, topic_prefix, "--until-end",
        mapping=mapping, retention_ms=3_600_000, group_id=topic_prefix,
    )  # fmt: skip
    assert worker.wait() == 0, worker.err
    assert main(["totals", source, *of_test, f"--set=group_id={topic_prefix}"]) == 0
    live = json.loads(capsys.readouterr().out)
    replay = ["replay", source, *of_test, f"--out={tmp_path / 'out'}", "--at-end=hold"]
    assert main(replay) == 0
    replayed = json.loads((tmp_path / "out" / "totals.json").read_text())
    assert live["ledger"] == replayed["ledger"]
    assert live["totals"] == replayed["totals"] != []
    assert live["ledger"]["rankings"] == {
        "read": 84, "malformed": 1, "heartbeat": 0, "duplicate": 0, "conflicting": 0,
        "left_out": 42, "open": 41, "expired": 0,
    }  # fmt: skip
    assert live["ledger"]["judgments"]["applied"] == 80 + 1
    assert live["ledger"]["judgments"]["orphan"] == 40
    assert live["ledger"]["judgments"]["early"] == 1
    letters = asyncio.run(dead_letters(kafka_bootstrap, f"{topic_prefix}dead-letters", 41))
    by_reason = {dict(each.headers)["reason"].decode(): each for each in letters}
    assert by_reason["decode"].value == b"{"
    assert by_reason["decode"].key == b"s-0"
    assert dict(by_reason["decode"].headers)["kind"] == b"impression"
    orphan = dict(by_reason["orphan"].headers)
    assert (orphan["index"], orphan["topic"]) == (b"2", f"{topic_prefix}clicks".encode())
    of_none = json.loads(by_reason["orphan"].value)
    assert of_none["node_id"].startswith("10")
    capsys.readouterr()
    assert main(["inspect", of_none["trace_id"], of_none["node_id"], source, *of_test]) == 0
    assert " orphan " in capsys.readouterr().out


async def create(connection, counts):
    async with admin(connection) as client:
        await client.create_topics([NewTopic(name, n, 1) for name, n in counts.items()])
    await visible(connection, list(counts))


async def send_all(bootstrap, records):
    """Sends (topic, partition, key, value); without a partition the key has that of aiokafka."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    for topic, partition, key, value in records:
        await producer.send_and_wait(topic, json.dumps(value).encode(), key, partition=partition)
    await producer.stop()


def test_the_commands_of_the_readme_produce_a_value(kafka, topic_prefix, tmp_path):
    _, _, section = (ROOT / "README.md").read_text().partition("## With your existing topics\n")
    section, _, _ = section.partition("\n## ")
    records, commands = re.findall(r"```(?:json|sh)\n(.*?)```", section, re.DOTALL)
    impression, click = map(json.loads, re.split(r"\n(?=\{)", records.strip()))
    (answer,) = re.findall(r"`(evaluator_running\S+ \S+)`", section.replace("\n", " "))
    sent = [(f"{topic_prefix}impressions", impression), (f"{topic_prefix}clicks", click)]
    key = impression["session_id"].encode()
    asyncio.run(create(kafka, {topic: 1 for topic, _ in sent}))
    asyncio.run(send_all(kafka.bootstrap, [(topic, None, key, value) for topic, value in sent]))

    first, _, rest = commands.partition("\n")
    ours = f'sed -i \'s/= "\\(impressions\\|clicks\\)"/= "{topic_prefix}\\1"/\' mapping.toml'
    output = output_of(f"{first}\n{ours}\n{rest}", kafka, topic_prefix, tmp_path)
    assert output.endswith(f"{answer}\n")
    assert "ok      Both topics have one partition, so all traces meet." in output


def test_check_finds_traces_in_different_partitions(
    kafka_bootstrap, topic_prefix, tmp_path, capsys
):
    (tmp_path / "m.toml").write_text(MAPPING.format(prefix=topic_prefix))
    source = f"--source=kafka://{kafka_bootstrap}"
    of_test = [f"--mapping={tmp_path / 'm.toml'}", f"--set=topic_prefix={topic_prefix}"]
    assert main(["check", source, *of_test]) == 5
    out = capsys.readouterr().out
    assert f"Topic {topic_prefix}impressions not found" in out
    assert "for heartbeats" not in out

    assert main(["topics", "create", source, "--partitions=4", *of_test]) == 0
    impressions, clicks = f"{topic_prefix}impressions", f"{topic_prefix}clicks"
    records = []
    for number in range(12):
        key = b"s-%d" % number
        records.append(
            (
                impressions,
                None,
                key,
                {"query_id": 1, "at": NOW_MS, "session": key.decode(), "skus": [1]},
            )
        )
        click = {"query_id": 1, "sku": 1, "action": "click"}
        records.append(
            (clicks, PARTITIONERS["crc32"](key, 4), key, {"at": NOW_MS, "clicks": [click]})
        )
    text = MAPPING.format(prefix=topic_prefix).replace(
        '"header:kind" = ["impression"]', "query_id = [1]"
    )
    (tmp_path / "all.toml").write_text(text)
    of_test[0] = f"--mapping={tmp_path / 'all.toml'}"
    asyncio.run(send_all(kafka_bootstrap, records))
    capsys.readouterr()
    assert main(["check", source, *of_test]) == 5
    found = capsys.readouterr().out
    assert " of 12 traces are in partitions of different numbers" in found
    assert f"12 of 12 messages of {impressions} are keyed by trace_id" in found
    assert "its keys are placed by crc32" in found
    assert "its keys are placed by murmur2" in found


def test_mapping_try_works_on_topics_with_unequal_partition_counts(
    kafka, topic_prefix, tmp_path, capsys
):
    (tmp_path / "m.toml").write_text(MAPPING.format(prefix=topic_prefix))
    asyncio.run(create(kafka, {f"{topic_prefix}impressions": 3, f"{topic_prefix}clicks": 2}))
    source = f"--source=kafka://{kafka.bootstrap}"
    of_test = [f"--mapping={tmp_path / 'm.toml'}", f"--set=topic_prefix={topic_prefix}"]
    assert main(["mapping", "try", source, *of_test]) == 5
    assert "impressions has 3 partitions and " in capsys.readouterr().out
    assert main(["replay", source, *of_test, f"--out={tmp_path / 'out'}"]) == 3
    assert main(["topics", "create", source, *of_test]) == 3
    refused = capsys.readouterr().err
    assert refused.count("or copy both with `evaluator map --mapping FILE ") == 2
    assert main(["check", source, *of_test]) == 5
    found = capsys.readouterr().out
    assert found.count("or copy them with `evaluator map --mapping FILE ") == 1
    assert "--partitions" not in found  # topics of others
