"""The contract of every Leadership (evaluator.ports.Leadership)."""

import asyncio

import pytest

from evaluator.ports import Fenced, SourceUnavailable
from evaluator.wire.records import FINGERPRINT_HEADER, OutputRecord
from tests.repeats import first_quick
from tests.waiting import STOP_SECONDS, eventually, finished, patience


def output_record(topic, number):
    return topic, OutputRecord(b"key-%d" % number, b"value-%d" % number)


def keys(records):
    return [record.key for record in records]


async def elected_leader(backend):
    """An elected leadership with its own epoch, and nothing left to follow."""
    leadership = backend.leadership()
    await leadership.start()
    await eventually(lambda: leadership.elected)
    await leadership.begin_epoch()
    return leadership


async def followed(leadership, count):
    """Follows until *count* records have come."""
    found = []
    async with patience():
        while len(found) < count:
            found += await leadership.follow(timeout_ms=100)
    return found


async def settle(backend, task, values, headers=()):
    """Appends values to a partition of `settled`."""
    sink = backend.sink()
    await sink.start()
    records = [OutputRecord(b"k", value, headers) for value in values]
    await (await sink.emit({("settled", task): records}))
    await sink.stop()


async def read(leadership, tasks, count, *, max_records=1000):
    """Reads until *count* records have come: task, offset, value and fingerprint of each."""
    found = []
    async with patience():
        while len(found) < count:
            batches = await leadership.read(tasks, max_records=max_records, timeout_ms=100)
            assert sum(map(len, batches)) <= max_records
            for batch in batches:
                assert len(batch) == len(batch.values) > 0
                found += [
                    (batch.task, *each, batch.fingerprint)
                    for each in zip(batch.offsets.tolist(), batch.values, strict=True)
                ]
    return found


# Election


async def test_start_returns_the_number_of_tasks(two_tasks):
    leadership = two_tasks.leadership()
    assert await leadership.start() == 2
    await leadership.stop()


async def test_a_leadership_is_not_elected_before_its_start(backend):
    assert not backend.leadership().elected


@pytest.mark.slow(alone=False)
async def test_exactly_one_of_three_is_elected_and_another_after_it_stops(backend):
    leaderships = [backend.leadership() for _ in range(3)]
    for leadership in leaderships:
        await leadership.start()
    while leaderships:
        await one_elected(leaderships)
        leaving = next(leadership for leadership in leaderships if leadership.elected)
        await leaving.stop()
        assert not leaving.elected
        leaderships.remove(leaving)


async def one_elected(leaderships):
    """Until all agree on one for a while, following meanwhile."""
    async with patience():
        unchanged, before = 0, None
        while unchanged < 10:
            for leadership in leaderships:
                await leadership.follow(timeout_ms=10)
            now = [leadership.elected for leadership in leaderships]
            unchanged = unchanged + 1 if sum(now) == 1 and now == before else 0
            before = now


WAITING = {
    "follow": lambda leadership: leadership.follow(timeout_ms=60_000),
    "read": lambda leadership: leadership.read([0], max_records=10, timeout_ms=60_000),
}


@pytest.mark.parametrize("what", first_quick(*WAITING))
async def test_waiting_ends_early_when_the_election_changes(backend, what):
    first, second = await elected_leader(backend), backend.leadership()
    await second.start()
    await one_elected([first, second])
    leaving, staying = (first, second) if first.elected else (second, first)
    await staying.seek(0, 0)
    waiting = asyncio.ensure_future(WAITING[what](staying))
    await asyncio.sleep(0)
    await leaving.stop()
    assert await finished(waiting) == []
    assert staying.elected
    await staying.stop()


# Published records


async def test_all_processes_follow_from_the_beginning_in_order(backend):
    leader = await elected_leader(backend)
    await leader.publish(
        [output_record("weights", 1), output_record("weights-log", 1), output_record("weights", 2)]
    )
    await leader.publish([output_record("weights", 3)])
    follower = backend.leadership()
    await follower.start()
    assert keys(await followed(follower, 3)) == [b"key-1", b"key-2", b"key-3"]
    assert await follower.follow(timeout_ms=0) == []
    await leader.publish([("weights", OutputRecord(b"key-1", b"x", (("name", b"of a header"),)))])
    assert await followed(follower, 1) == [
        OutputRecord(b"key-1", b"x", (("name", b"of a header"),))
    ]
    assert keys(await followed(leader, 4)) == [b"key-1", b"key-2", b"key-3", b"key-1"]
    for leadership in (leader, follower):
        await leadership.stop()


async def test_a_deleted_record_is_followed_as_an_empty_value(backend):
    leader = await elected_leader(backend)
    await leader.publish([output_record("weights", 1), ("weights", OutputRecord(b"key-1", b""))])
    assert [record.value for record in await followed(leader, 2)] == [b"value-1", b""]
    await leader.stop()


async def test_the_log_has_all_published_records_in_order(backend):
    leader = await elected_leader(backend)
    await leader.publish([output_record("weights-log", n) for n in range(50)])
    await leader.publish([output_record("weights-log", n) for n in range(50, 100)])
    log = await backend.published("weights-log", 100)
    assert keys(log) == [b"key-%d" % n for n in range(100)]
    await leader.stop()


async def test_following_ends_after_its_timeout(backend):
    leadership = await elected_leader(backend)
    assert await leadership.follow(timeout_ms=0) == []
    assert await leadership.follow(timeout_ms=1) == []
    await leadership.stop()


# Leadership


async def test_begin_epoch_returns_records_not_followed_yet(backend):
    first = await elected_leader(backend)
    await first.publish([output_record("weights", n) for n in range(5)])
    second = backend.leadership()
    await second.start()
    assert keys(await second.begin_epoch()) == [b"key-%d" % n for n in range(5)]
    assert await second.begin_epoch() == []
    await second.publish([output_record("weights", 5)])
    assert keys(await second.begin_epoch()) == [b"key-5"]
    assert await second.follow(timeout_ms=100) == []
    for leadership in (first, second):
        await leadership.stop()


async def test_a_new_epoch_fences_the_former_leader_whose_records_stay_invisible(backend):
    first, second = await elected_leader(backend), backend.leadership()
    await first.publish([output_record("weights", 1)])
    await second.start()
    await second.begin_epoch()
    with pytest.raises(Fenced):
        await first.publish([output_record("weights", 2), output_record("weights-log", 2)])
    with pytest.raises(Fenced):  # until it begins an epoch again
        await first.publish([output_record("weights", 3)])
    await second.publish([output_record("weights", 4), output_record("weights-log", 4)])
    assert keys(await first.begin_epoch()) == [b"key-1", b"key-4"]
    with pytest.raises(Fenced):
        await second.publish([output_record("weights", 5)])
    await first.publish([output_record("weights", 6), output_record("weights-log", 6)])
    assert keys(await followed(first, 1)) == [b"key-6"]
    assert keys(await backend.published("weights-log", 2)) == [b"key-4", b"key-6"]
    for leadership in (first, second):
        await leadership.stop()


async def test_publishing_without_an_epoch_is_fenced(backend):
    leadership = backend.leadership()
    await leadership.start()
    with pytest.raises(Fenced):
        await leadership.publish([output_record("weights", 1)])
    assert await leadership.follow(timeout_ms=100) == []
    await leadership.stop()


# Settled records


async def test_records_are_read_in_order_with_their_fingerprint_from_the_sought_offset(two_tasks):
    await settle(two_tasks, 0, [b"a", b"b"], ((FINGERPRINT_HEADER, b"abc"),))
    await settle(two_tasks, 0, [b"c"])
    await settle(two_tasks, 1, [b"d", b"e"])
    leadership = await elected_leader(two_tasks)
    await leadership.seek(0, 0)
    await leadership.seek(1, 1)
    found = await read(leadership, [0, 1], 4)
    assert [row for row in found if row[0] == 0] == [
        *((0, 0, b"a", b"abc"), (0, 1, b"b", b"abc"), (0, 2, b"c", b""))
    ]
    assert [row for row in found if row[0] == 1] == [(1, 1, b"e", b"")]
    await leadership.seek(0, 1)
    assert [row[2] for row in await read(leadership, [0, 1], 2)] == [b"b", b"c"]
    await settle(two_tasks, 1, [b"f"])
    assert [row[:3] for row in await read(leadership, [0, 1], 1)] == [(1, 2, b"f")]
    await leadership.stop()


async def test_only_given_tasks_with_a_sought_offset_are_read(two_tasks):
    await settle(two_tasks, 0, [b"a"] * 3)
    await settle(two_tasks, 1, [b"b"] * 3)
    leadership = await elected_leader(two_tasks)
    assert await leadership.read([0, 1], max_records=10, timeout_ms=100) == []
    await leadership.seek(1, 0)
    assert {row[0] for row in await read(leadership, [0, 1], 3)} == {1}
    await leadership.seek(1, 0)
    await leadership.seek(0, 0)
    assert {row[0] for row in await read(leadership, [0], 3)} == {0}
    assert await leadership.read([0], max_records=10, timeout_ms=100) == []
    assert {row[0] for row in await read(leadership, [1], 3)} == {1}
    assert await leadership.read([], max_records=10, timeout_ms=1) == []
    await leadership.stop()


async def test_a_read_returns_at_most_max_records_over_all_tasks(two_tasks):
    await settle(two_tasks, 0, [b"%d" % n for n in range(10)])
    await settle(two_tasks, 1, [b"%d" % n for n in range(10)])
    leadership = await elected_leader(two_tasks)
    await leadership.seek(0, 0)
    await leadership.seek(1, 0)
    found = await read(leadership, [0, 1], 20, max_records=7)
    for task in (0, 1):
        assert [row[1] for row in found if row[0] == task] == list(range(10))
    await leadership.stop()


async def test_expired_records_are_skipped(backend):
    await settle(backend, 0, [b"%d" % n for n in range(6)])
    leadership = await elected_leader(backend)
    await backend.expire_output("settled", 0, 2)
    await leadership.seek(0, 0)
    assert [row[1] for row in await read(leadership, [0], 4)] == [2, 3, 4, 5]
    await backend.expire_output("settled", 0, 4)
    await leadership.seek(0, 1)
    assert [row[1] for row in await read(leadership, [0], 2)] == [4, 5]
    await leadership.stop()


async def test_a_cancelled_read_loses_nothing(backend):
    leadership = await elected_leader(backend)
    await leadership.seek(0, 0)
    offsets = []
    for n in range(20):
        reading = asyncio.ensure_future(leadership.read([0], max_records=10, timeout_ms=10_000))
        await asyncio.sleep(0.01)
        reading.cancel()
        (batches,) = await asyncio.gather(reading, return_exceptions=True)
        if not reading.cancelled():
            offsets += [offset for batch in batches for offset in batch.offsets]
        if n % 5 == 0:
            await settle(backend, 0, [b"%d" % n])
    offsets += [row[1] for row in await read(leadership, [0], 4 - len(offsets))]
    assert offsets == [0, 1, 2, 3]
    await leadership.stop()


async def test_begin_epoch_forgets_sought_offsets(backend):
    await settle(backend, 0, [b"a"])
    leadership = await elected_leader(backend)
    await leadership.seek(0, 0)
    await leadership.begin_epoch()
    assert await leadership.read([0], max_records=10, timeout_ms=100) == []
    await leadership.seek(0, 0)
    assert len(await read(leadership, [0], 1)) == 1
    await leadership.stop()


# Outages


async def test_calls_raise_while_the_broker_is_unavailable_and_work_afterwards(interruptible):
    await settle(interruptible, 0, [b"a"])
    leadership = await elected_leader(interruptible)
    await leadership.publish([output_record("weights", 1)])
    await leadership.seek(0, 0)
    await read(leadership, [0], 1)
    await interruptible.disconnect()
    with pytest.raises(SourceUnavailable):
        await leadership.publish([output_record("weights", 2)])
    with pytest.raises(SourceUnavailable):
        await leadership.begin_epoch()
    for ask in (
        lambda: leadership.follow(timeout_ms=100),
        lambda: leadership.read([0], max_records=1, timeout_ms=100),
    ):
        with pytest.raises(SourceUnavailable):
            await repeat_until_error(ask)
    other = interruptible.leadership()
    with pytest.raises(SourceUnavailable):
        await other.start()
    await interruptible.reconnect()
    assert await other.start() == 1
    await one_elected_after_outage([leadership, other])
    for each in (leadership, other):
        await each.begin_epoch()
        await each.publish([output_record("weights", 3)])
        await settle(interruptible, 0, [b"b"])
        await each.seek(0, 1)
        assert (await read(each, [0], 1))[0][2] == b"b"
    assert keys(await followed(other, 1))[-1] == b"key-3"
    for each in (leadership, other):
        await each.stop()


async def repeat_until_error(ask):
    async with patience():
        while True:
            await ask()


async def one_elected_after_outage(leaderships):
    """As `one_elected`, while some may still be without the broker."""
    async with patience():
        while True:
            try:
                return await one_elected(leaderships)
            except SourceUnavailable:
                await asyncio.sleep(0.1)


async def test_stopping_twice_or_before_the_start_is_allowed(backend):
    never = backend.leadership()
    await never.stop()
    leadership = await elected_leader(backend)
    await leadership.stop()
    await leadership.stop()
    assert not leadership.elected


async def test_stopping_does_not_wait_for_an_unavailable_broker(interruptible):
    leadership = await elected_leader(interruptible)
    await interruptible.disconnect()
    await finished(leadership.stop(), seconds=STOP_SECONDS)
