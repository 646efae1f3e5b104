"""Topics: the expected ones, their creation, and the findings of `evaluator check`."""

import time

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic
from aiokafka.errors import InvalidTimestampError
from msgspec.structs import replace

from evaluator.adapters.kafka import Connection, create_topics, inspect, plan_topics
from evaluator.adapters.kafka.administration import described
from evaluator.ports import SourceUnusable
from tests.contract.backends import admin, visible

pytestmark = pytest.mark.kafka

LEADER_NAMES = ("weights", "weights-log", "alarms", "alarm-commands")
OUTPUT_NAMES = ("evaluations", "settled", "windows", "dead-letters", "checkpoints")


async def make(connection, prefix, counts, **configs):
    async with admin(connection) as client:
        await client.create_topics(
            [NewTopic(f"{prefix}{n}", c, 1, topic_configs=configs) for n, c in counts.items()]
        )
    await visible(connection, [f"{prefix}{name}" for name in counts])


def errors(findings):
    return [finding.what for finding in findings if finding.severity == "error"]


async def test_a_plan_without_topics_needs_a_count_and_is_created_as_planned(kafka, topic_prefix):
    with pytest.raises(SourceUnusable, match="--partitions N"):
        await plan_topics(kafka, topic_prefix=topic_prefix)
    plan = await plan_topics(kafka, topic_prefix=topic_prefix, partitions=3)
    assert [topic.name for topic in plan] == [
        f"{topic_prefix}{name}" for name in ("rankings", "judgments", *OUTPUT_NAMES, *LEADER_NAMES)
    ]
    assert all(topic.missing for topic in plan)
    assert [topic.partitions for topic in plan] == [3] * 7 + [1] * 4
    assert await create_topics(kafka, plan) == [topic.name for topic in plan]
    again = await plan_topics(kafka, topic_prefix=topic_prefix, partitions=99)
    assert [topic.exists for topic in again] == [3] * 7 + [1] * 4
    assert await create_topics(kafka, again) == []
    for leads in (False, True):
        findings = await inspect(
            kafka, topic_prefix=topic_prefix, needed_ms=1, group_id="some", leads=leads
        )
        assert {finding.severity for finding in findings} == {"ok"}


async def test_records_of_the_leader_never_expire(kafka, topic_prefix):
    plan = await plan_topics(kafka, topic_prefix=topic_prefix, partitions=1)
    await create_topics(kafka, plan)
    names = [f"{topic_prefix}{name}" for name in LEADER_NAMES]
    found = await described(kafka, names)
    weights, weights_log, *_ = (found[name] for name in names)
    assert weights["cleanup.policy"] == "compact"
    assert (weights["max.message.bytes"], weights["segment.bytes"]) == ("16777216", "67108864")
    assert weights_log["cleanup.policy"] == "delete"
    assert (weights_log["retention.ms"], weights_log["retention.bytes"]) == ("-1", "-1")


async def test_checkpoints_are_compacted_within_bounded_time(kafka, topic_prefix):
    plan = await plan_topics(kafka, topic_prefix=topic_prefix, partitions=1)
    await create_topics(kafka, plan)
    name = f"{topic_prefix}checkpoints"
    found = (await described(kafka, [name]))[name]
    assert (found["segment.bytes"], found["segment.ms"]) == ("16777216", "3600000")
    assert found["message.timestamp.type"] == "LogAppendTime"


BOUND = "message.timestamp.after.max.ms"
DEFAULTS = {"topic_prefix": "", "max_future_skew_ms": 300_000, "needed_ms": 1}


def stamped(*, ahead_ms):
    return {"key": b"k", "partition": 0, "timestamp_ms": time.time_ns() // 1_000_000 + ahead_ms}


async def test_new_inputs_reject_timestamps_too_far_ahead(kafka, topic_prefix):
    """The error for a producer whose clock is ahead; the log has none of its records."""
    plan = await plan_topics(
        kafka, topic_prefix=topic_prefix, partitions=1, timestamp_bound_ms=300_000
    )
    bounded = {each.kind: each.settings.get(BOUND) for each in plan}
    assert [kind for kind, bound in bounded.items() if bound] == ["rankings", "judgments"]
    assert bounded["rankings"] == "300000"
    await create_topics(kafka, plan)
    findings = await inspect(kafka, **{**DEFAULTS, "topic_prefix": topic_prefix})
    assert {finding.severity for finding in findings} == {"ok"}
    async with AIOKafkaProducer(**kafka.arguments()) as producer:
        for log in ("rankings", "judgments"):
            name = f"{topic_prefix}{log}"
            with pytest.raises(InvalidTimestampError):
                await producer.send_and_wait(name, b"{}", **stamped(ahead_ms=3_300_000))
            sent = await producer.send_and_wait(name, b"{}", **stamped(ahead_ms=200_000))
            assert sent.offset == 0


async def test_the_timestamp_bound_is_capped_at_the_largest_long(kafka, topic_prefix):
    plan = await plan_topics(
        kafka, topic_prefix=topic_prefix, partitions=1, timestamp_bound_ms=10**30
    )
    await create_topics(kafka, plan)
    found = await described(kafka, [f"{topic_prefix}rankings"])
    assert found[f"{topic_prefix}rankings"][BOUND] == str(2**63 - 1)


def timestamp_warnings(findings):
    return [
        finding
        for finding in findings
        if finding.severity == "warning" and "message.timestamp." in finding.what
    ]


async def test_the_check_warns_of_timestamps_that_are_not_bounded(kafka, topic_prefix):
    names = {**DEFAULTS, "topic_prefix": topic_prefix}
    await make(kafka, topic_prefix, {"rankings": 1}, **{BOUND: "300001"})
    await make(kafka, topic_prefix, {"judgments": 1}, **{BOUND: str(2**63 - 1)})
    await make(kafka, topic_prefix, {"checkpoints": 1}, **{"cleanup.policy": "compact"})
    command = f"kafka-configs.sh --bootstrap-server {kafka.bootstrap} --alter --entity-type topics"
    command += f" --entity-name {topic_prefix}"
    found = timestamp_warnings(await inspect(kafka, **names))
    assert [finding.what.split(",")[0].split(": ")[0] for finding in found] == [
        f"Topic {topic_prefix}rankings has {BOUND} 300001",
        f"Topic {topic_prefix}judgments has {BOUND} none",
        f"Topic {topic_prefix}checkpoints has message.timestamp.type CreateTime",
    ]
    for finding, log in zip(found, ("rankings", "judgments"), strict=False):
        assert finding.what_to_do.startswith(f"{command}{log} --add-config {BOUND}=300000 (")
        assert "LogAppendTime is a different setting: the broker replaces" in finding.what_to_do
    assert found[2].what_to_do == (
        f"{command}checkpoints --add-config message.timestamp.type=LogAppendTime"
    )
    larger = await inspect(kafka, **{**names, "max_future_skew_ms": 300_001})
    assert [finding.what.split(" has ")[0] for finding in timestamp_warnings(larger)] == [
        f"Topic {topic_prefix}judgments",
        f"Topic {topic_prefix}checkpoints",
    ]
    without = await inspect(kafka, **{**names, "max_future_skew_ms": None})
    assert timestamp_warnings(without) == []


async def test_the_check_warns_of_log_append_time_of_an_input(kafka, topic_prefix):
    await make(kafka, topic_prefix, {"rankings": 1}, **{"message.timestamp.type": "LogAppendTime"})
    (found,) = timestamp_warnings(
        await inspect(kafka, **{**DEFAULTS, "topic_prefix": topic_prefix})
    )
    assert "rankings has message.timestamp.type LogAppendTime: the broker replaces" in found.what
    assert found.what_to_do.endswith("rankings --add-config message.timestamp.type=CreateTime")


async def test_the_check_warns_of_checkpoints_that_are_compacted_late(kafka, topic_prefix):
    settings = {"cleanup.policy": "compact", "segment.bytes": "16777217"}
    await make(kafka, topic_prefix, {"checkpoints": 1}, **settings)
    found = await inspect(kafka, topic_prefix=topic_prefix, needed_ms=1)
    (late,) = [finding for finding in found if "compacted late" in finding.what]
    assert late.severity == "warning"
    assert "checkpoints has segment.bytes 16777217 and segment.ms 604800000, so" in late.what
    assert late.what_to_do == (
        f"kafka-configs.sh --bootstrap-server {kafka.bootstrap} --alter --entity-type topics "
        f"--entity-name {topic_prefix}checkpoints "
        "--add-config segment.bytes=16777216,segment.ms=3600000"
    )


async def test_the_check_covers_the_needs_of_the_leader_if_a_model_is_learned(kafka, topic_prefix):
    logs = "weights-log", "alarm-commands"
    names = dict.fromkeys(("rankings", "judgments", *OUTPUT_NAMES, *logs), 1)
    await make(kafka, topic_prefix, names)
    await make(kafka, topic_prefix, {"alarms": 1}, **{"cleanup.policy": "compact"})
    await make(kafka, topic_prefix, {"weights": 2})
    arguments = {"topic_prefix": topic_prefix, "needed_ms": 1, "group_id": "some"}
    off = await inspect(kafka, **arguments)
    assert not [finding for finding in off if "weights" in finding.what]
    assert not [finding for finding in off if "some-leader" in finding.what]
    on = await inspect(kafka, **arguments, leads=True)
    assert sorted(errors(on)) == sorted(
        [
            *errors(off),
            f"Topic {topic_prefix}weights has 2 partitions; it needs one.",
            f"Topic {topic_prefix}weights has cleanup.policy delete, not compact.",
        ]
    )
    messages = [finding.what for finding in on if finding.severity == "ok"]
    assert "The offsets of group some-leader can be read." in messages
    assert f"Transactional id {topic_prefix}some-leader has a coordinator." in messages


async def test_missing_outputs_get_the_partition_count_of_the_inputs(kafka, topic_prefix):
    await make(kafka, topic_prefix, {"rankings": 2, "judgments": 2, "settled": 5})
    plan = await plan_topics(kafka, topic_prefix=topic_prefix)
    counts = {topic.name.removeprefix(topic_prefix): topic.partitions for topic in plan}
    assert counts == {
        "rankings": 2,
        "judgments": 2,
        "evaluations": 2,
        "settled": 5,
        "windows": 2,
        "dead-letters": 2,
        "checkpoints": 2,
        "weights": 1,
        "weights-log": 1,
        "alarms": 1,
        "alarm-commands": 1,
    }


async def test_a_missing_input_gets_the_partition_count_of_the_other(kafka, topic_prefix):
    await make(kafka, topic_prefix, {"judgments": 4})
    plan = await plan_topics(kafka, topic_prefix=topic_prefix, partitions=1)
    assert plan[0].partitions == 4


async def test_unequal_inputs_cannot_be_planned_for(kafka, topic_prefix):
    await make(kafka, topic_prefix, {"rankings": 2, "judgments": 3})
    with pytest.raises(SourceUnusable, match=r"rankings has 2 .*judgments has 3"):
        await plan_topics(kafka, topic_prefix=topic_prefix)


async def test_an_error_of_the_broker_has_its_reason(kafka, topic_prefix):
    plan = await plan_topics(kafka, topic_prefix=topic_prefix, partitions=1)
    with pytest.raises(SourceUnusable, match=r"(?s)rankings, .*: .*[Rr]eplicat"):
        await create_topics(kafka, plan, replication_factor=7)


async def test_the_check_finds_what_is_missing_or_unequal(kafka, topic_prefix):
    await make(kafka, topic_prefix, {"rankings": 2, "judgments": 3, "settled": 1})
    found = errors(await inspect(kafka, topic_prefix=topic_prefix, needed_ms=1))
    assert len(found) == 6  # four outputs missing, unequal inputs, too few for settled
    assert any("rankings has 2" in what and "judgments has 3" in what for what in found)
    assert any("settled has 1 partitions, the inputs 3" in what for what in found)
    assert sum("not found" in what for what in found) == 4


async def test_the_check_finds_a_retention_that_is_too_short(kafka, topic_prefix):
    plan = await plan_topics(kafka, topic_prefix=topic_prefix, partitions=1)
    kept = [replace(each, settings={"retention.ms": "5000", **each.settings}) for each in plan]
    await create_topics(kafka, kept)
    assert errors(await inspect(kafka, topic_prefix=topic_prefix, needed_ms=4999)) == []
    found = await inspect(kafka, topic_prefix=topic_prefix, needed_ms=5000)
    short = [finding for finding in found if finding.severity == "error"]
    assert len(short) == 2
    assert "keeps records for 5000 ms, more than 5000 ms are needed" in short[0].what
    assert short[0].what_to_do.startswith(
        f"kafka-configs.sh --bootstrap-server {kafka.bootstrap} --alter --entity-type topics "
        f"--entity-name {topic_prefix}rankings --add-config retention.ms=86405000 (a day more"
    )


async def test_the_check_warns_of_a_bound_in_bytes(kafka, topic_prefix):
    names = dict.fromkeys(("rankings", "judgments"), 1)
    await make(kafka, topic_prefix, names, **{"retention.bytes": "1000", "retention.ms": "-1"})
    found = await inspect(kafka, topic_prefix=topic_prefix, needed_ms=5000)
    bounded = [finding for finding in found if "retention.bytes 1000" in finding.what]
    assert [finding.severity for finding in bounded] == ["warning", "warning"]
    assert "--add-config retention.bytes=-1" in bounded[0].what_to_do


async def test_checkpoints_must_not_expire(kafka, topic_prefix):
    await make(kafka, topic_prefix, {"checkpoints": 1}, **{"cleanup.policy": "compact,delete"})
    found = errors(await inspect(kafka, topic_prefix=topic_prefix, needed_ms=1))
    assert any("checkpoints has cleanup.policy compact,delete, not compact" in it for it in found)


async def test_the_check_finds_inputs_that_are_compacted(kafka, topic_prefix):
    names = dict.fromkeys(("rankings", "judgments", *OUTPUT_NAMES), 1)
    await make(kafka, topic_prefix, names, **{"cleanup.policy": "compact"})
    found = errors(await inspect(kafka, topic_prefix=topic_prefix, needed_ms=1))
    assert len(found) == 4  # the inputs, settled and dead-letters
    assert all("cleanup.policy compact" in what for what in found)


async def test_the_check_reports_an_unreachable_broker(kafka):
    findings = await inspect(Connection("127.0.0.1:9"), needed_ms=1)
    assert [finding.severity for finding in findings] == ["error"]
    both = await inspect(Connection(f"127.0.0.1:9,{kafka.bootstrap}"), needed_ms=1)
    assert [finding.severity for finding in both[:2]] == ["error", "ok"]
