"""What every Office promises (evaluator.ports.Office)."""

import asyncio

import pytest

from evaluator.ports import Deposed, SourceAway
from evaluator.wire.records import LINEAGE_HEADER, OutputRecord
from tests.waiting import STOP_SECONDS, eventually, finished, patience


def said(topic, number):
    return topic, OutputRecord(b"key-%d" % number, b"value-%d" % number)


def keys(records):
    return [record.key for record in records]


async def in_office(backend):
    """An office that was elected and has been entered, with nothing left to follow."""
    office = backend.office()
    await office.start()
    await eventually(lambda: office.elected)
    await office.enter()
    return office


async def followed(office, count):
    """Follows until *count* records have come."""
    found = []
    async with patience():
        while len(found) < count:
            found += await office.follow(timeout_ms=100)
    return found


async def settle(backend, task, values, headers=()):
    """Appends values to a partition of `settled`."""
    sink = backend.sink()
    await sink.start()
    records = [OutputRecord(b"k", value, headers) for value in values]
    await (await sink.emit({("settled", task): records}))
    await sink.stop()


async def read(office, tasks, count, *, max_records=1000):
    """Reads until *count* records have come: task, offset, value and lineage of each."""
    found = []
    async with patience():
        while len(found) < count:
            batches = await office.read(tasks, max_records=max_records, timeout_ms=100)
            assert sum(map(len, batches)) <= max_records
            for batch in batches:
                assert len(batch) == len(batch.values) == len(batch.lineages) > 0
                assert batch.next_offset > batch.offsets[-1]
                found += [
                    (batch.task, *each)
                    for each in zip(batch.offsets, batch.values, batch.lineages, strict=True)
                ]
    return found


# Election


async def test_start_says_how_many_tasks_there_are(two_tasks):
    office = two_tasks.office()
    assert await office.start() == 2
    await office.stop()


async def test_nobody_is_elected_before_it_stands(backend):
    assert not backend.office().elected


async def test_exactly_one_of_three_is_elected_and_the_office_is_handed_on(backend):
    offices = [backend.office() for _ in range(3)]
    for office in offices:
        await office.start()
    while offices:
        await one_elected(offices)
        leaving = next(office for office in offices if office.elected)
        await leaving.stop()
        assert not leaving.elected
        offices.remove(leaving)


async def one_elected(offices):
    """Until all agree on one for a while, following meanwhile."""
    async with patience():
        unchanged, before = 0, None
        while unchanged < 10:
            for office in offices:
                await office.follow(timeout_ms=10)
            now = [office.elected for office in offices]
            unchanged = unchanged + 1 if sum(now) == 1 and now == before else 0
            before = now


WAITING = {
    "follow": lambda office: office.follow(timeout_ms=60_000),
    "read": lambda office: office.read([0], max_records=10, timeout_ms=60_000),
}


@pytest.mark.parametrize("what", WAITING)
async def test_waiting_ends_early_when_the_election_changes(backend, what):
    first, second = await in_office(backend), backend.office()
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


# What was published


async def test_all_follow_from_the_beginning_and_in_order(backend):
    leader = await in_office(backend)
    await leader.publish([said("weights", 1), said("weights-log", 1), said("weights", 2)])
    await leader.publish([said("weights", 3)])
    follower = backend.office()
    await follower.start()
    assert keys(await followed(follower, 3)) == [b"key-1", b"key-2", b"key-3"]
    assert await follower.follow(timeout_ms=0) == []
    await leader.publish([("weights", OutputRecord(b"key-1", b"x", (("name", b"of a header"),)))])
    assert await followed(follower, 1) == [
        OutputRecord(b"key-1", b"x", (("name", b"of a header"),))
    ]
    assert keys(await followed(leader, 4)) == [b"key-1", b"key-2", b"key-3", b"key-1"]
    for office in (leader, follower):
        await office.stop()


async def test_what_was_deleted_is_followed_as_empty(backend):
    leader = await in_office(backend)
    await leader.publish([said("weights", 1), ("weights", OutputRecord(b"key-1", b""))])
    assert [record.value for record in await followed(leader, 2)] == [b"value-1", b""]
    await leader.stop()


async def test_the_log_has_all_that_was_published_in_order(backend):
    leader = await in_office(backend)
    await leader.publish([said("weights-log", n) for n in range(50)])
    await leader.publish([said("weights-log", n) for n in range(50, 100)])
    log = await backend.published("weights-log", 100)
    assert keys(log) == [b"key-%d" % n for n in range(100)]
    await leader.stop()


async def test_following_ends_after_its_timeout(backend):
    office = await in_office(backend)
    assert await office.follow(timeout_ms=0) == []
    assert await office.follow(timeout_ms=1) == []
    await office.stop()


# Office


async def test_entering_returns_what_was_not_followed_yet(backend):
    first = await in_office(backend)
    await first.publish([said("weights", n) for n in range(5)])
    second = backend.office()
    await second.start()
    assert keys(await second.enter()) == [b"key-%d" % n for n in range(5)]
    assert await second.enter() == []
    await second.publish([said("weights", 5)])
    assert keys(await second.enter()) == [b"key-5"]
    assert await second.follow(timeout_ms=100) == []
    for office in (first, second):
        await office.stop()


async def test_whoever_enters_deposes_who_was_in_office_and_nothing_of_it_shows(backend):
    first, second = await in_office(backend), backend.office()
    await first.publish([said("weights", 1)])
    await second.start()
    await second.enter()
    with pytest.raises(Deposed):
        await first.publish([said("weights", 2), said("weights-log", 2)])
    with pytest.raises(Deposed):  # until it enters again
        await first.publish([said("weights", 3)])
    await second.publish([said("weights", 4), said("weights-log", 4)])
    assert keys(await first.enter()) == [b"key-1", b"key-4"]
    with pytest.raises(Deposed):
        await second.publish([said("weights", 5)])
    await first.publish([said("weights", 6), said("weights-log", 6)])
    assert keys(await followed(first, 1)) == [b"key-6"]
    assert keys(await backend.published("weights-log", 2)) == [b"key-4", b"key-6"]
    for office in (first, second):
        await office.stop()


async def test_nobody_publishes_who_has_not_entered(backend):
    office = backend.office()
    await office.start()
    with pytest.raises(Deposed):
        await office.publish([said("weights", 1)])
    assert await office.follow(timeout_ms=100) == []
    await office.stop()


# What has settled


async def test_records_come_in_order_with_their_lineage_from_where_was_sought(two_tasks):
    await settle(two_tasks, 0, [b"a", b"b"], ((LINEAGE_HEADER, b"abc"),))
    await settle(two_tasks, 0, [b"c"])
    await settle(two_tasks, 1, [b"d", b"e"])
    office = await in_office(two_tasks)
    await office.seek(0, 0)
    await office.seek(1, 1)
    found = await read(office, [0, 1], 4)
    assert [row for row in found if row[0] == 0] == [
        *((0, 0, b"a", b"abc"), (0, 1, b"b", b"abc"), (0, 2, b"c", b""))
    ]
    assert [row for row in found if row[0] == 1] == [(1, 1, b"e", b"")]
    await office.seek(0, 1)
    assert [row[2] for row in await read(office, [0, 1], 2)] == [b"b", b"c"]
    await settle(two_tasks, 1, [b"f"])
    assert [row[:3] for row in await read(office, [0, 1], 1)] == [(1, 2, b"f")]
    await office.stop()


async def test_only_given_tasks_are_read_and_only_those_that_were_sought(two_tasks):
    await settle(two_tasks, 0, [b"a"] * 3)
    await settle(two_tasks, 1, [b"b"] * 3)
    office = await in_office(two_tasks)
    assert await office.read([0, 1], max_records=10, timeout_ms=100) == []
    await office.seek(1, 0)
    assert {row[0] for row in await read(office, [0, 1], 3)} == {1}
    await office.seek(1, 0)
    await office.seek(0, 0)
    assert {row[0] for row in await read(office, [0], 3)} == {0}
    assert await office.read([0], max_records=10, timeout_ms=100) == []
    assert {row[0] for row in await read(office, [1], 3)} == {1}
    assert await office.read([], max_records=10, timeout_ms=1) == []
    await office.stop()


async def test_no_more_than_max_records_come_at_once_over_all_tasks(two_tasks):
    await settle(two_tasks, 0, [b"%d" % n for n in range(10)])
    await settle(two_tasks, 1, [b"%d" % n for n in range(10)])
    office = await in_office(two_tasks)
    await office.seek(0, 0)
    await office.seek(1, 0)
    found = await read(office, [0, 1], 20, max_records=7)
    for task in (0, 1):
        assert [row[1] for row in found if row[0] == task] == list(range(10))
    await office.stop()


async def test_what_has_expired_is_passed_over(backend):
    await settle(backend, 0, [b"%d" % n for n in range(6)])
    office = await in_office(backend)
    await backend.expire_output("settled", 0, 2)
    await office.seek(0, 0)
    assert [row[1] for row in await read(office, [0], 4)] == [2, 3, 4, 5]
    await backend.expire_output("settled", 0, 4)
    await office.seek(0, 1)
    assert [row[1] for row in await read(office, [0], 2)] == [4, 5]
    await office.stop()


async def test_a_cancelled_read_loses_nothing(backend):
    office = await in_office(backend)
    await office.seek(0, 0)
    offsets = []
    for n in range(20):
        reading = asyncio.ensure_future(office.read([0], max_records=10, timeout_ms=10_000))
        await asyncio.sleep(0.01)
        reading.cancel()
        (batches,) = await asyncio.gather(reading, return_exceptions=True)
        if not reading.cancelled():
            offsets += [offset for batch in batches for offset in batch.offsets]
        if n % 5 == 0:
            await settle(backend, 0, [b"%d" % n])
    offsets += [row[1] for row in await read(office, [0], 4 - len(offsets))]
    assert offsets == [0, 1, 2, 3]
    await office.stop()


async def test_entering_forgets_where_was_sought(backend):
    await settle(backend, 0, [b"a"])
    office = await in_office(backend)
    await office.seek(0, 0)
    await office.enter()
    assert await office.read([0], max_records=10, timeout_ms=100) == []
    await office.seek(0, 0)
    assert len(await read(office, [0], 1)) == 1
    await office.stop()


# Away


async def test_everything_says_that_the_broker_is_away_and_goes_on_afterwards(fleeting):
    await settle(fleeting, 0, [b"a"])
    office = await in_office(fleeting)
    await office.publish([said("weights", 1)])
    await office.seek(0, 0)
    await read(office, [0], 1)
    await fleeting.go_away()
    with pytest.raises(SourceAway):
        await office.publish([said("weights", 2)])
    with pytest.raises(SourceAway):
        await office.enter()
    for ask in (
        lambda: office.follow(timeout_ms=100),
        lambda: office.read([0], max_records=1, timeout_ms=100),
    ):
        with pytest.raises(SourceAway):
            await again_and_again(ask)
    other = fleeting.office()
    with pytest.raises(SourceAway):
        await other.start()
    await fleeting.come_back()
    assert await other.start() == 1
    await one_elected_again([office, other])
    for each in (office, other):
        await each.enter()
        await each.publish([said("weights", 3)])
        await settle(fleeting, 0, [b"b"])
        await each.seek(0, 1)
        assert (await read(each, [0], 1))[0][2] == b"b"
    assert keys(await followed(other, 1))[-1] == b"key-3"
    for each in (office, other):
        await each.stop()


async def again_and_again(ask):
    async with patience():
        while True:
            await ask()


async def one_elected_again(offices):
    """As `one_elected`, where the broker may not be there for all at once."""
    async with patience():
        while True:
            try:
                return await one_elected(offices)
            except SourceAway:
                await asyncio.sleep(0.1)


async def test_stopping_twice_or_before_the_start_is_fine(backend):
    never = backend.office()
    await never.stop()
    office = await in_office(backend)
    await office.stop()
    await office.stop()
    assert not office.elected


async def test_stopping_does_not_wait_for_a_broker_that_is_away(fleeting):
    office = await in_office(fleeting)
    await fleeting.go_away()
    await finished(office.stop(), seconds=STOP_SECONDS)
