"""Leaderships on Kafka beyond the contract: zombies, topics, limits."""

import asyncio
import gc
import logging
import os
import signal
import sys
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from structlog.testing import capture_logs

from evaluator.adapters.kafka import Connection, GroupSettings, KafkaLeadership, election
from evaluator.adapters.kafka.administration import transactional_id
from evaluator.ports import Fenced, SourceUnavailable, SourceUnusable
from evaluator.wire.records import OutputRecord
from tests.contract.backends import KafkaBackend
from tests.contract.test_leadership import (
    elected_leader,
    followed,
    keys,
    one_elected,
    output_record,
    read,
    repeat_until_error,
)
from tests.kafka.leader import elected, leadership_of
from tests.kafka.process import Process
from tests.kafka.test_admin import make
from tests.kafka.test_topics_stay_ours import delete
from tests.waiting import STOP_SECONDS, eventually, finished, patience

pytestmark = pytest.mark.kafka

LEADER = (sys.executable, "-m", "tests.kafka.leader")
LOGS = {"weights-log": 1, "alarms": 1, "alarm-commands": 1}
TOPICS = {"rankings": 1, "settled": 1, "weights": 1, **LOGS}
COMPACT = {"cleanup.policy": "compact"}


@pytest.fixture(autouse=True)
def _event_loop_logs_no_error(caplog):
    """No pending task and no unretrieved error of the library."""
    with caplog.at_level(logging.ERROR, logger="asyncio"):
        yield
        gc.collect()  # futures report it on deletion
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


# Zombies


async def test_a_frozen_leader_cannot_publish_after_its_successor_began_an_epoch(
    backend, kafka, tmp_path
):
    first = Process(tmp_path, kafka.bootstrap, backend.prefix, python=LEADER)
    second = leadership_of(kafka.bootstrap, backend.prefix)
    try:
        await eventually(lambda: first.out.count("\n") > 20)
        first.freeze()
        n_known = first.out.count("\n")
        await second.start()
        async with patience():
            before = await elected(second)
        before += await second.begin_epoch()
        await second.publish([output_record("weights", 0), output_record("weights-log", 0)])
        first.signal(signal.SIGCONT)
        assert await asyncio.to_thread(first.wait) == 0, first.err
        *_, last = first.out.splitlines()
    finally:
        first.end()
        await second.stop()
    refused, was_elected = last.split()
    assert refused in {
        "Fenced",
        "SourceUnavailable",
    }  # the latter if frozen while it was ending one
    assert was_elected == "False"
    assert len(before) in {n_known, n_known + 1}  # one that it had published without knowing
    log = await backend.published("weights-log", len(before) + 1)
    assert keys(log) == [*(b"%d" % n for n in range(len(before))), b"key-0"]
    follower = backend.leadership()
    await follower.start()
    assert keys(await followed(follower, len(log))) == keys(log)
    assert await follower.follow(timeout_ms=500) == []


async def test_a_leader_fenced_during_its_commit_publishes_nothing(backend, monkeypatch):
    first, second = await elected_leader(backend), backend.leadership()
    producer = first._publisher._producer
    may_continue, commit_reached = asyncio.Event(), asyncio.Event()
    commit = producer.commit_transaction

    async def commit_later():
        commit_reached.set()
        await may_continue.wait()
        await commit()

    monkeypatch.setattr(producer, "commit_transaction", commit_later)
    publishing = asyncio.ensure_future(
        first.publish([output_record("weights", 1), output_record("weights-log", 1)])
    )
    await commit_reached.wait()
    await second.start()
    assert await second.begin_epoch() == []
    may_continue.set()
    with pytest.raises(SourceUnavailable, match="Fenced while"):
        await publishing
    await second.publish([output_record("weights", 2)])
    assert keys(await followed(second, 1)) == [b"key-2"]
    with pytest.raises(Fenced):
        await first.publish([output_record("weights", 3)])


async def test_the_open_transaction_of_a_dead_leader_is_aborted_at_once(backend, kafka):
    """The broker itself would wait until the transaction has lasted too long."""
    dead = AIOKafkaProducer(
        **kafka.arguments(),
        transactional_id=transactional_id(backend.prefix, f"{backend.prefix}evaluator"),
    )
    await dead.start()
    await dead.begin_transaction()
    await dead.send_and_wait(f"{backend.prefix}weights", b"never", b"seen", 0)
    leadership = await finished(elected_leader(backend), seconds=STOP_SECONDS)
    await leadership.publish([output_record("weights", 1)])
    assert keys(await followed(leadership, 1)) == [b"key-1"]
    await dead.stop()


async def test_a_silent_leader_is_expelled_and_may_be_elected_again(backend, monkeypatch):
    monkeypatch.setattr(election, "MAX_POLL_INTERVAL_MS", 5_000)
    leadership = await elected_leader(backend)
    n_followed = 0
    while n_followed < 60:
        began = time.monotonic()
        await leadership.follow(timeout_ms=100)
        if time.monotonic() - began > 1.0:  # the machine stood still, and it was silent
            async with patience():
                await elected(leadership)
            n_followed = 0
            continue
        assert leadership.elected
        n_followed += 1
    other = backend.leadership()
    await other.start()
    async with patience():
        await elected(other)
    await eventually(lambda: not leadership.elected)  # it notices a moment later
    await other.stop()
    async with patience():
        await elected(leadership)


async def test_the_leader_stays_the_leader_when_members_join_or_leave(backend):
    """By their ids one of five newcomers would be elected in its place, five times out of six."""
    first, others = await elected_leader(backend), []
    for _ in range(5):
        others.append(backend.leadership())
        await others[-1].start()
        await one_elected([first, *others])
        assert first.elected
    await others.pop(0).stop()
    await one_elected([first, *others])
    assert first.elected
    await first.publish(
        [output_record("weights", 1), output_record("weights-log", 1)]
    )  # no other leader has entered
    await first.stop()
    await one_elected(others)


async def test_every_answered_heartbeat_confirms_the_election(backend):
    leadership = await elected_leader(backend)
    for _ in range(3):
        before = leadership._election._confirmed_at
        await eventually(lambda before=before: leadership._election._confirmed_at > before)


async def test_a_leader_without_confirmation_for_a_session_is_not_elected(backend, monkeypatch):
    leadership = await elected_leader(backend)
    confirmed_at = leadership._election._confirmed_at
    monkeypatch.setattr(election.time, "monotonic", lambda: confirmed_at + 9)
    assert leadership.elected
    monkeypatch.setattr(election.time, "monotonic", lambda: confirmed_at + 11)
    assert not leadership.elected


# Following


async def test_begin_epoch_returns_only_the_latest_record_of_each_key(backend):
    first = await elected_leader(backend)
    await first.publish([output_record("weights", n % 3) for n in range(10)])
    await first.publish([("weights", OutputRecord(b"key-1", b""))])
    second = backend.leadership()
    await second.start()
    found = await second.begin_epoch()
    assert [(record.key, record.value) for record in found] == [
        *((b"key-2", b"value-2"), (b"key-0", b"value-0"), (b"key-1", b""))
    ]


async def test_records_read_before_begin_epoch_failed_are_not_lost(backend, monkeypatch):
    first = await elected_leader(backend)
    await first.publish([output_record("weights", 1)])
    second = backend.leadership()
    await second.start()
    more = second._weights.more

    async def more_then_fail(*arguments, **options):
        await more(*arguments, **options)
        raise SourceUnavailable("as if")

    found = []

    async def once(*arguments, **options):
        found.append(await more(*arguments, **options))
        monkeypatch.setattr(second._weights, "more", more_then_fail)
        return found[-1]

    bounds = second._weights._bounds

    async def later_ends(ask, partitions):
        found = await bounds(ask, partitions)
        return found if ask is AIOKafkaConsumer.beginning_offsets else {0: 10}

    monkeypatch.setattr(second._weights, "_bounds", later_ends)
    monkeypatch.setattr(second._weights, "more", once)
    with pytest.raises(SourceUnavailable, match="as if"):
        await second.begin_epoch()
    monkeypatch.undo()
    assert keys(await second.follow(timeout_ms=0)) == [b"key-1"]


# Settled records


async def test_tombstones_and_transaction_markers_are_skipped(backend):
    await backend.append("settled", 0, [b"a", None, b"b"])
    await backend.gap("settled", 0)
    await backend.append("settled", 0, [None, b"c"])
    leadership = await elected_leader(backend)
    await leadership.seek(0, 0)
    assert [row[1:3] for row in await read(leadership, [0], 3)] == [(0, b"a"), (2, b"b"), (7, b"c")]


async def test_a_position_beyond_the_end_restarts_at_the_first_offset(backend):
    await backend.append("settled", 0, [b"a", b"b"])
    leadership = await elected_leader(backend)
    await leadership.seek(0, 100)
    with capture_logs() as logs:
        assert [row[1] for row in await read(leadership, [0], 2)] == [0, 1]
    assert [{**line, "topic": None} for line in logs] == [
        {
            "event": "position_gone",
            "log_level": "warning",
            "topic": None,
            "task": 0,
            "offset": 100,
            "first": 0,
        }
    ]


# Topics


async def test_all_missing_topics_are_named_in_one_line(kafka, topic_prefix):
    await make(kafka, topic_prefix, {"rankings": 1})
    leadership = KafkaLeadership(kafka, GroupSettings(topic_prefix, topic_prefix))
    with pytest.raises(SourceUnusable) as refused:
        await leadership.start()
    assert str(refused.value) == (
        f"Topics {topic_prefix}settled, {topic_prefix}weights, {topic_prefix}weights-log, "
        f"{topic_prefix}alarms, {topic_prefix}alarm-commands not found. Create missing topics "
        "with `evaluator topics create`, or check topic_prefix and mapping."
    )
    await make(kafka, topic_prefix, {"settled": 1, **LOGS})
    await make(kafka, topic_prefix, {"weights": 1}, **COMPACT)
    assert await leadership.start() == 1
    await eventually(lambda: leadership.elected)
    await leadership.stop()


@pytest.mark.parametrize(
    ("counts", "settings", "message"),
    [
        (TOPICS | {"rankings": 2}, COMPACT, "settled has 1 partitions, the inputs have 2"),
        (TOPICS | {"weights": 2}, COMPACT, "weights has 2 partitions; it needs one"),
        (TOPICS | {"weights-log": 3}, COMPACT, "weights-log has 3 partitions; it needs one"),
        (TOPICS, {}, "cleanup.policy delete, so .* Set cleanup.policy=compact on"),
        (TOPICS, {"cleanup.policy": "compact,delete"}, "cleanup.policy compact,delete, so"),
    ],
)
async def test_topics_with_unusable_settings_are_refused(
    kafka, topic_prefix, counts, settings, message
):
    await make(kafka, topic_prefix, counts, **settings)
    leadership = KafkaLeadership(kafka, GroupSettings(topic_prefix, topic_prefix))
    with pytest.raises(SourceUnusable, match=message):
        await leadership.start()
    await leadership.stop()


async def test_a_deleted_topic_is_reported(backend):
    leadership = await elected_leader(backend)
    await delete(backend.connection, f"{backend.prefix}weights")
    await leadership._election._consumer._client.force_metadata_update()
    with pytest.raises(SourceUnusable, match=r"weights no longer exists\. Create missing"):
        await repeat_until_error(lambda: leadership.follow(timeout_ms=50))


# Limits


async def test_the_error_for_a_rejected_record_has_the_remedy(kafka, topic_prefix):
    await make(kafka, topic_prefix, {**TOPICS, "judgments": 1}, **COMPACT)
    backend = KafkaBackend(kafka, topic_prefix)
    leadership = await elected_leader(backend)
    limit = 1_048_588
    large = OutputRecord(b"large", b"x" * limit)
    with pytest.raises(
        SourceUnavailable
    ) as refused:  # waiting may mend it: the topic is given room
        await leadership.publish(
            [output_record("weights-log", 1), ("weights", large), output_record("weights", 2)]
        )
    assert str(refused.value) == (
        f"A record of {limit + 5} bytes is too large for topic {topic_prefix}weights, which takes "
        f"{limit}. Set its max.message.bytes to at least {2 * limit + 10}."
    )
    assert await leadership.begin_epoch() == []
    await leadership.publish([output_record("weights", 3)])
    assert keys(await followed(leadership, 1)) == [b"key-3"]
    await backend.close()


async def test_topics_created_for_it_take_records_of_16_megabytes(backend):
    leadership = await elected_leader(backend)
    large = OutputRecord(b"large", b"x" * 16_000_000)
    await leadership.publish([("weights", large)])
    assert await followed(leadership, 1) == [large]


async def test_no_task_is_left_running_if_the_broker_fails_while_publishing(
    own_broker, topic_prefix
):
    connection = Connection(own_broker.bootstrap)
    backend = await KafkaBackend.open(connection, topic_prefix, {"rankings": 1, "judgments": 1})
    tasks = asyncio.all_tasks()
    leadership = await elected_leader(backend)
    await leadership.publish([output_record("weights", 1)])
    os.kill(own_broker.pid, signal.SIGSTOP)
    publishing = asyncio.ensure_future(
        leadership.publish([output_record("weights", n) for n in range(2, 5)])
    )
    with pytest.raises(SourceUnavailable):
        await publishing
    own_broker.kill()
    with pytest.raises(Fenced):  # until it enters again
        await leadership.publish([output_record("weights", 5)])
    with pytest.raises(SourceUnavailable):
        await leadership.begin_epoch()
    await leadership.stop()
    await until_only_running(tasks)


async def until_only_running(tasks):
    """Waits until only these tasks run: cancelled tasks need a round of the event loop or more."""
    await eventually(lambda: asyncio.all_tasks() == tasks, seconds=STOP_SECONDS)


async def work(leadership):
    """Performs every operation of a leader once."""
    await leadership.start()
    while not leadership.elected:
        await leadership.follow(timeout_ms=10)
    await leadership.begin_epoch()
    await leadership.seek(0, 0)
    await leadership.publish([output_record("weights", 1)])
    await repeat_until_error(lambda: leadership.read([0], max_records=1, timeout_ms=10))


@pytest.mark.parametrize("after_seconds", [0.0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0])
async def test_no_task_is_left_running_after_a_stop_at_any_time(backend, after_seconds):
    tasks = asyncio.all_tasks()
    leadership = backend.leadership()
    working = asyncio.ensure_future(work(leadership))
    await asyncio.sleep(after_seconds)
    await leadership.stop()
    with pytest.raises((SourceUnavailable, Fenced)):
        await working
    await until_only_running(tasks)
    assert not leadership.elected


async def test_no_task_is_left_running_after_a_stop(backend):
    tasks = asyncio.all_tasks()
    leadership = await elected_leader(backend)
    other = backend.leadership()
    await other.start()
    await other.begin_epoch()
    with pytest.raises(Fenced):
        await leadership.publish([output_record("weights", 1)])
    await leadership.seek(0, 0)
    await leadership.read([0], max_records=1, timeout_ms=10)
    await leadership.stop()
    await other.stop()
    await until_only_running(tasks)
