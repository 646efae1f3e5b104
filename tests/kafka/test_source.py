"""Details of a group member beyond the contract."""

import asyncio
import contextlib
import time
from itertools import pairwise

import pytest
from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.admin import NewPartitions

from evaluator.adapters.kafka import source as of_kafka
from evaluator.adapters.kafka.clients import Requests
from evaluator.ports import Committed, SourceUnavailable, SourceUnusable
from tests.contract.backends import admin, owned, read, values
from tests.waiting import patience

pytestmark = pytest.mark.kafka

R0, J0 = ("rankings", 0), ("judgments", 0)
SILENCE_MS = 5_000
FETCH = 1  # https://kafka.apache.org/protocol#protocol_api_keys


@pytest.fixture
async def source(backend):
    source = backend.source()
    await source.start()
    await owned(source, {0})
    source.seek(R0, 0)
    source.seek(J0, 0)
    yield source
    await source.stop()


async def poll_until_raised(source, error, match):
    with pytest.raises(error, match=match):
        await poll_forever(source)


async def poll_forever(source):
    async with patience():
        while True:
            source._consumer._client.force_metadata_update()  # every five minutes otherwise
            if source.revoking:
                source.release()
            await source.poll([R0], max_records=1, timeout_ms=50)


async def test_the_next_records_are_requested_before_the_caller_has_these(backend, source):
    """Not when the caller next waits: a broker may collect records for a while."""
    for n in range(5):
        await backend.append("rankings", 0, [b"%d" % n])
        assert await read(source, [R0], 1)
        connections = source._consumer._client._conns.values()
        waiting = [request for each in connections for _, request, _ in each._requests]
        assert any(request.API_KEY == FETCH for request in waiting)


async def test_an_error_in_a_callback_of_the_group_reaches_the_owner(backend, monkeypatch):
    source = backend.source()

    def broken(*_):
        raise ValueError("in the callback")

    monkeypatch.setattr(source._member, "_adopt", broken)
    await source.start()
    await poll_until_raised(source, ValueError, "in the callback")
    await source.stop()


async def test_a_group_error_reaches_an_owner_without_tasks(backend):
    source = backend.source()
    await source.start()
    source._consumer._coordinator._pending_exception = kafka_errors.GroupAuthorizationFailedError()
    await poll_until_raised(source, SourceUnusable, "No right for joining group")
    await source.stop()


async def test_a_broken_consumer_is_replaced_and_no_record_is_lost(backend, source):
    await backend.append("rankings", 0, [b"%d" % n for n in range(40)])
    got = values(await read(source, [R0], 15, max_records=15), *R0)
    first = source._consumer
    dead = asyncio.get_running_loop().create_future()
    dead.set_exception(kafka_errors.KafkaError("Unexpected error during coordination"))
    first._coordinator._coordination_task.cancel()
    first._coordinator._coordination_task = dead
    await poll_until_raised(source, SourceUnavailable, "Unexpected error")
    async with patience():
        while len(got) < 40:
            with contextlib.suppress(SourceUnavailable):
                got += values(await source.poll([R0], max_records=15, timeout_ms=100), *R0)
            await asyncio.sleep(0.01)  # it returns at once until the group is joined again
    assert got == [b"%d" % n for n in range(40)]
    assert source._consumer is not first
    assert source.assignment.generation == 2


async def test_a_worker_of_another_meaning_that_joins_during_assignment_gets_no_task(
    backend, monkeypatch
):
    """Then the brokers return no subscriptions; once they do, the others get its tasks."""
    blue, green = backend.source(fingerprint="blue"), backend.source(fingerprint="green")
    await blue.start()
    await owned(blue, {0})
    ask, asked = Requests.members, []

    async def members(self, group):
        asked.append(group)
        if len(asked) == 3:
            raise SourceUnavailable("at this moment")
        found = await ask(self, group)
        return [(name, b"") for name, _ in found] if len(asked) <= 2 else found

    monkeypatch.setattr(Requests, "members", members)
    await green.start()
    assert len(asked) == 1
    n_unavailable = 0

    async def both_polled():
        nonlocal n_unavailable
        async with patience():
            while True:
                if blue.revoking:
                    blue.release()
                await blue.poll([], max_records=1, timeout_ms=20)
                try:
                    await green.poll([R0], max_records=1, timeout_ms=20)
                except SourceUnavailable:
                    n_unavailable += 1
                assert green.assignment is None

    with pytest.raises(SourceUnusable, match=r"has a worker with the fingerprint 'blue'"):
        await both_polled()
    assert (len(asked), n_unavailable) == (4, 1)
    generation = blue.assignment.generation
    await green.stop()
    await owned(blue, {0}, after_generation=generation)


async def test_a_worker_of_the_same_meaning_retries_and_gets_its_task(backend, monkeypatch):
    ask, asked = Requests.members, []

    async def members(self, group):
        asked.append(group)
        return await ask(self, group)

    monkeypatch.setattr(Requests, "members", members)
    source = backend.source(fingerprint="blue")
    await source.start()
    await owned(source, {0})
    await poll_without_tasks(source, 0.2)
    assert len(asked) == 2


async def test_a_changed_partition_count_is_refused(backend, source):
    async with admin(backend.connection) as client:
        await client.create_partitions({f"{backend.prefix}rankings": NewPartitions(2)})
    await poll_until_raised(source, SourceUnusable, r"had 1 partitions at the start and has 2 now")


async def test_a_partition_at_its_end_that_is_not_requested_is_not_fetched(backend, source):
    """A fetch of such partitions alone would keep the broker's only fetch busy."""
    await backend.append("rankings", 0, [b"."] * 10)
    await read(source, [R0], 10, max_records=3)
    judgments = TopicPartition(f"{backend.prefix}judgments", 0)
    assert source._consumer.paused() == {judgments}
    await backend.append("judgments", 0, [b"j"] * 10)
    await read(source, [J0], 3, max_records=3)
    await source.poll([R0], max_records=1, timeout_ms=0)
    assert source._consumer.paused() == set()  # more of the judgments is fetched ahead


# Silence


@pytest.fixture
def short_silence(monkeypatch):
    """A member that is silent for five seconds leaves the group."""
    monkeypatch.setattr(of_kafka, "MAX_POLL_INTERVAL_MS", SILENCE_MS)


async def stay_busy(source, milliseconds):
    """Stays in the group without a poll; the longest pause in milliseconds."""
    times = [time.monotonic()]
    while 1000 * (times[-1] - times[0]) < milliseconds:
        await asyncio.sleep(0.1)
        source.stay_in_group()
        times.append(time.monotonic())
    return 1000 * max(later - earlier for earlier, later in pairwise(times))


async def poll_without_tasks(source, seconds):
    """Polls like a member without tasks."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                if source.revoking:
                    source.release()
                await source.poll([], max_records=1, timeout_ms=100)


@pytest.mark.usefixtures("short_silence")
async def test_a_member_without_tasks_stays_in_the_group_and_takes_tasks_over(backend):
    members = [backend.source(), backend.source()]
    for member in members:
        await member.start()
    seconds = 7.0
    async with patience():  # of a group that is not just being rebalanced
        while seconds == 7.0 or sum(bool(each.assignment.tasks) for each in members) != 1:
            await asyncio.gather(*(poll_without_tasks(each, seconds) for each in members))
            seconds = 0.5
    (owner,) = [member for member in members if member.assignment.tasks]
    (idle,) = [member for member in members if not member.assignment.tasks]
    await owner.stop()
    await owned(idle, {0})
    await idle.stop()


@pytest.mark.usefixtures("short_silence")
async def test_a_silent_member_leaves_and_rejoins_and_a_busy_member_stays(backend):
    source = backend.source()
    await source.start()
    pause = SILENCE_MS
    async with patience():
        while pause >= SILENCE_MS / 2:  # a paused process is silent itself
            generation = await owned(source, {0})
            source.seek(R0, 0)
            source.seek(J0, 0)
            pause, began = await stay_busy(source, 7_000), time.monotonic()
            stays = source.assignment.generation == generation
            stays = stays and await source.commit({R0: Committed(0, "")})
            pause = max(pause, 1000 * (time.monotonic() - began))
    assert stays
    async with patience():
        while await source.commit({R0: Committed(0, "")}):
            pass
    await owned(source, {0}, after_generation=generation)
    await source.stop()
