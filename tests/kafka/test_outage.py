"""A broker that becomes unavailable and returns, while records are read and written."""

import asyncio
import contextlib
import time

import pytest
from aiokafka.protocol.group import SyncGroupRequest

from evaluator.adapters.kafka import Connection, GroupSettings, KafkaRange, KafkaSink, KafkaSource
from evaluator.ports import Committed, SourceUnavailable, SourceUnusable
from evaluator.wire.records import OutputRecord
from tests.contract.backends import KafkaBackend, admin, owned, read, values
from tests.kafka.process import LONG_MS
from tests.waiting import STOP_SECONDS, eventually, patience

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("brokers")]

R0, J0 = ("rankings", 0), ("judgments", 0)
UNREACHABLE = Connection("127.0.0.1:9")  # the discard port, without a listener


@pytest.fixture
async def backend(own_broker, topic_prefix):
    connection = Connection(own_broker.bootstrap)
    backend = await KafkaBackend.open(connection, topic_prefix, {"rankings": 1, "judgments": 1})
    yield backend
    await backend.close()


async def poll_until_unavailable(source: KafkaSource) -> list[bytes | None]:
    """Polls until the source reports that the broker is unavailable; returns the last records."""
    got = []
    with contextlib.suppress(SourceUnavailable):
        async with patience():
            while True:
                got += values(await source.poll([R0], max_records=10, timeout_ms=100), *R0)
    return got


async def test_a_broker_killed_while_the_group_assigns_fences_no_member(own_broker, backend):
    """The broker forgets the latest member id of a member, and knows an earlier one."""
    first = backend.source(group_instance_id="a", session_timeout_ms=LONG_MS)
    times = {"session_timeout_ms": LONG_MS, "heartbeat_interval_ms": LONG_MS}
    second = backend.source(group_instance_id="b", **times)
    async with asyncio.TaskGroup() as group:
        done = asyncio.Event()
        for source in (first, second):  # the first to join leads the group
            await source.start()
            group.create_task(keep_polling(source, done))
            await eventually(lambda source=source: source.assignment)
        leader, member = (each._consumer._coordinator for each in (first, second))
        send, may_assign, given = leader._send_req, asyncio.Event(), member.member_id

        async def send_held(request):
            if isinstance(request, SyncGroupRequest):
                await may_assign.wait()
            return await send(request)

        leader._send_req = send_held
        leader.request_rejoin()
        async with patience(), admin(backend.connection) as asking:
            while await state_of(asking, member.group_id) != "PreparingRebalance":
                pass
        member.reset_generation()  # as by an answer to a heartbeat of an earlier generation
        await eventually(lambda: member.member_id not in {"", given})
        await asyncio.to_thread(own_broker.kill)
        may_assign.set()
        before = [each.assignment.generation for each in (first, second)]
        own_broker.launch()
        await asyncio.to_thread(own_broker.wait_until_ready)
        for source, generation in zip((first, second), before, strict=True):
            await eventually(lambda a=source, n=generation: a.assignment.generation > n)
        done.set()


async def keep_polling(source, done):
    while not done.is_set():
        if source.revoking:
            source.release()
        with contextlib.suppress(SourceUnavailable):
            await source.poll([], max_records=1, timeout_ms=20)


async def state_of(asking, group_id):
    [described] = await asking.describe_consumer_groups([group_id])
    [(_, _, state, *_)] = described.groups
    return state


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_an_outage_loses_and_repeats_no_input_and_keeps_the_output_order(
    own_broker, backend, end
):
    sent = [b"%d" % n for n in range(200)]
    await backend.append("rankings", 0, sent[:100])
    source, sink = backend.source(), backend.sink()
    await source.start()
    await sink.start()
    await owned(source, {0})
    source.seek(R0, 0)
    got = values(await read(source, [R0], 60, max_records=20), *R0)
    assert await source.commit({R0: Committed(60, "before")})
    early = [await emitted(sink, n) for n in range(100)]

    await asyncio.to_thread(getattr(own_broker, end))
    early += [await emitted(sink, n) for n in range(100, 200)]
    got += await poll_until_unavailable(source)
    with pytest.raises(SourceUnavailable):
        await source.commit({R0: Committed(60, "during")})
    with pytest.raises(SourceUnavailable):
        await source.end([R0])
    with pytest.raises(SourceUnavailable):
        await source.append_heartbeat(J0, 1)
    with pytest.raises(SourceUnavailable):
        await source.broker_time_ms()

    own_broker.launch()
    await asyncio.to_thread(own_broker.wait_until_ready)
    early += [await emitted(sink, n) for n in range(200, 300)]
    await backend.append("rankings", 0, sent[100:])
    async with patience():
        while len(got) < 200:
            if source.revoking:
                source.release()
            with contextlib.suppress(SourceUnavailable):
                got += values(await source.poll([R0], max_records=20, timeout_ms=100), *R0)
    assert got == sent
    await eventually_committed(source, 200)
    await source.append_heartbeat(J0, 77)
    assert (await source.committed([R0]))[R0].metadata == "after"
    await source.stop()

    async with patience():
        await asyncio.gather(*early)
    await sink.stop()
    for output in ("settled", "windows"):
        seen = [record.value for record in await backend.output(output, 0, 300)]
        assert list(dict.fromkeys(seen)) == [b"%d" % n for n in range(300)]


async def emitted(sink: KafkaSink, number: int):
    records = [OutputRecord(b"k", b"%d" % number)]
    await asyncio.sleep(0.001)  # several batches rather than one
    return await sink.emit({("settled", 0): records, ("windows", 0): records})


async def eventually_committed(source: KafkaSource, offset: int) -> None:
    """A member that was disconnected may have to rejoin before it may commit."""
    async with patience():
        while not await source.commit({R0: Committed(offset, "after")}):
            if source.revoking:
                source.release()
            await source.poll([], max_records=1, timeout_ms=50)


async def test_a_client_keeps_retrying_and_stops_in_time_while_the_broker_is_down(
    own_broker, backend
):
    source, sink = backend.source(), backend.sink(stop_timeout_seconds=1.0)
    await source.start()
    await owned(source, {0})
    source.seek(R0, 0)
    await sink.start()
    attempts, began = counted_attempts(source), time.monotonic()
    await asyncio.to_thread(own_broker.stop)  # its last answer has no leader
    lost = await sink.emit({("settled", 0): [OutputRecord(None, b"lost")]})
    # two seconds or more; without a pause thousands of attempts
    await poll_until_unavailable(source)
    assert 0 < attempts[0] < 100 * (time.monotonic() - began)
    async with patience(STOP_SECONDS):
        await asyncio.gather(source.stop(), sink.stop())
    with pytest.raises(SourceUnavailable, match="before the broker had acknowledged"):
        await lost


def counted_attempts(source: KafkaSource) -> list[int]:
    """Counts the attempts of the library to get a connection from now on."""
    client, count = source._consumer._client, [0]
    connect = client._get_conn

    async def connect_and_count(*arguments, **named):
        count[0] += 1
        return await connect(*arguments, **named)

    client._get_conn = connect_and_count
    return count


async def test_an_unreachable_broker_is_reported_at_once_and_start_may_be_repeated():
    for start in 2 * (
        KafkaSource(UNREACHABLE, GroupSettings("g")).start,
        KafkaSink(UNREACHABLE).start,
        KafkaRange(UNREACHABLE).open,
    ):
        async with patience(STOP_SECONDS):
            with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1:9"):
                await start()


async def test_missing_topics_are_named_with_the_remedy(kafka, topic_prefix):
    settings = {"topic_prefix": topic_prefix}
    source = KafkaSource(kafka, GroupSettings(topic_prefix, topic_prefix))
    for start in (
        source.start,
        KafkaSink(kafka, **settings).start,
        KafkaRange(kafka, **settings).open,
    ):
        with pytest.raises(SourceUnusable, match="evaluator topics create"):
            await start()
