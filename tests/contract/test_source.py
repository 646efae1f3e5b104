"""The contract of every Source (evaluator.ports.Source)."""

import asyncio
import random
import time

import pytest

from evaluator.ports import Committed, SourceUnusable
from evaluator.wire.records import KEPT_BYTES, MAX_MESSAGE_BYTES, OutputRecord
from evaluator.wire.state.checkpoint import checkpoint_key, checkpoint_records
from tests.contract.backends import owned, read, values
from tests.repeats import sized
from tests.waiting import eventually, finished, patience

R0, J0, R1, J1 = ("rankings", 0), ("judgments", 0), ("rankings", 1), ("judgments", 1)


@pytest.fixture
async def started(backend):
    """A source that owns task 0, sought to the beginning of both logs."""
    source = backend.source()
    await source.start()
    await owned(source, {0})
    source.seek(R0, 0)
    source.seek(J0, 0)
    yield source
    await source.stop()


async def test_records_are_delivered_in_log_order_with_all_their_parts(backend, started):
    await backend.append("rankings", 0, [b"a", b"b", b"c"])
    batches = await read(started, [R0], 3)
    assert [offset for batch in batches for offset in batch.offsets] == [0, 1, 2]
    assert [value for batch in batches for value in batch.values] == [b"a", b"b", b"c"]
    assert [key for batch in batches for key in batch.keys] == [b"k"] * 3
    assert [at for batch in batches for at in batch.timestamps_ms] == [1000, 1001, 1002]
    assert batches[-1].next_offset == 3


async def test_an_oversize_value_is_delivered_as_its_beginning_and_length(backend, started):
    large, largest = b"x" * (MAX_MESSAGE_BYTES + 1), b"y" * MAX_MESSAGE_BYTES
    await backend.append("rankings", 0, [b"a", large, largest, large + b"z"])
    batches = await read(started, [R0], 4)
    values = [value for batch in batches for value in batch.values]
    assert values == [b"a", large[:KEPT_BYTES], largest, large[:KEPT_BYTES]]
    lengths = [each for batch in batches for each in sorted(batch.oversize.items())]
    assert lengths == [(1, len(large)), (3, len(large) + 1)]


async def test_skipped_offsets_are_not_delivered_and_do_not_block(backend, started):
    await backend.append("rankings", 0, [b"a", b"b", b"c", b"d", b"e", b"f"])
    started.skip(R0, [(1, 2), (4, 5)])
    batches = await read(started, [R0], 2)
    assert [value for batch in batches for value in batch.values] == [b"a", b"d"]
    while batches[-1].next_offset < 6:
        batches += await started.poll([R0], max_records=100, timeout_ms=100)
    assert [offset for batch in batches for offset in batch.offsets] == [0, 3]


async def test_an_assignment_is_unknown_until_the_group_has_assigned(backend):
    source = backend.source()
    assert source.assignment is None
    await source.start()
    assert await owned(source, {0}) == 1
    await source.stop()


async def test_nothing_is_delivered_before_a_seek(backend):
    await backend.append("rankings", 0, [b"a"])
    source = backend.source()
    await source.start()
    await owned(source, {0})
    assert await source.poll([R0, J0], max_records=10, timeout_ms=200) == []
    source.seek(R0, 0)
    assert values(await read(source, [R0, J0], 1), *R0) == [b"a"]
    await source.stop()


async def test_only_requested_partitions_are_delivered(backend, started):
    await backend.append("rankings", 0, [b"r"] * 3)
    await backend.append("judgments", 0, [b"j"] * 3)
    batches = await read(started, [J0], 3)
    assert {batch.log for batch in batches} == {"judgments"}
    batches = await read(started, [R0], 3)
    assert {batch.log for batch in batches} == {"rankings"}


async def test_a_seek_may_go_backward_and_forward(backend, started):
    await backend.append("rankings", 0, [b"%d" % n for n in range(10)])
    await read(started, [R0], 10)
    started.seek(R0, 4)
    assert values(await read(started, [R0], 6), *R0)[0] == b"4"
    started.seek(R0, 9)
    assert values(await read(started, [R0], 1), *R0) == [b"9"]


async def test_a_poll_returns_at_most_max_records_over_all_partitions(backend, started):
    await backend.append("rankings", 0, [b"r"] * 10)
    await backend.append("judgments", 0, [b"j"] * 10)
    batches = []
    async with patience():
        while sum(map(len, batches)) < 20:
            got = await started.poll([R0, J0], max_records=7, timeout_ms=1000)
            assert sum(map(len, got)) <= 7
            batches += got
    assert len(values(batches, *R0)) == len(values(batches, *J0)) == 10


async def test_a_poll_without_records_ends_after_its_timeout(started):
    assert await started.poll([R0], max_records=1, timeout_ms=1) == []
    assert await started.poll([R0], max_records=1, timeout_ms=0) == []
    assert await started.poll([], max_records=1, timeout_ms=1) == []


async def test_a_cancelled_poll_loses_nothing(backend, started):
    await read_one_and_cancel(started)
    await backend.append("rankings", 0, [b"%d" % n for n in range(50)])
    got = []
    async with patience():
        while len(got) < 50:
            polling = asyncio.ensure_future(started.poll([R0], max_records=3, timeout_ms=1000))
            await asyncio.sleep(0)
            if len(got) % 2 == 0 and polling.cancel():
                assert (await asyncio.gather(polling, return_exceptions=True))[0] is not None
                if polling.cancelled():
                    polling = asyncio.ensure_future(
                        started.poll([R0], max_records=1, timeout_ms=1000)
                    )
            got += values(await polling, *R0)
    assert got == [b"%d" % n for n in range(50)]


async def read_one_and_cancel(source):
    polling = asyncio.ensure_future(source.poll([R0], max_records=1, timeout_ms=10_000))
    await asyncio.sleep(0.05)
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling


async def test_the_identity_names_the_cluster_and_both_topics(make_backend):
    one, other = await make_backend(), await make_backend()
    sources = [one.source(), one.source(), other.source()]
    for source in sources:
        await source.start()
    mine, same, another = [(await source.place()).identity() for source in sources]
    assert mine.keys() == {"cluster", "rankings", "judgments"}
    assert all(mine.values())
    assert mine["rankings"] != mine["judgments"]
    assert mine == same != another
    for source in sources:
        await source.stop()


async def test_ends_and_beginnings(backend, started):
    await backend.append("rankings", 0, [b"r"] * 3)
    assert await started.end([R0, J0]) == {R0: 3, J0: 0}
    await backend.expire("rankings", 0, 2)
    assert await started.beginning([R0, J0]) == {R0: 2, J0: 0}


async def test_the_known_end_is_that_of_the_last_fetch(backend, started):
    await backend.append("rankings", 0, [b"r"] * 3)
    await read(started, [R0], 3)
    assert started.known_end(R0) == 3
    assert started.known_end(("rankings", 7)) is None


async def test_an_expired_position_raises_and_is_not_skipped(backend, started):
    await backend.append("rankings", 0, [b"%d" % n for n in range(5)])
    await backend.expire("rankings", 0, 3)
    with pytest.raises(SourceUnusable, match="not in its log"):
        await read(started, [R0], 1)
    started.seek(R0, 3)
    assert values(await read(started, [R0], 2), *R0) == [b"3", b"4"]


async def test_offsets_without_a_record_are_skipped(backend, started):
    await backend.append("rankings", 0, [b"a"])
    await backend.gap("rankings", 0)
    await backend.append("rankings", 0, [b"b"])
    await backend.gap("rankings", 0)
    end = (await started.end([R0]))[R0]
    batches = []
    async with patience():
        while not batches or batches[-1].next_offset < end:
            batches += await started.poll([R0], max_records=10, timeout_ms=200)
    assert values(batches, *R0) == [b"a", b"b"]
    assert [offset for batch in batches for offset in batch.offsets] == [0, 4]
    assert batches[-1].next_offset == end == 8


async def test_a_heartbeat_is_a_record_without_key_and_value_on_that_partition(two_tasks):
    source = two_tasks.source()
    await source.start()
    await owned(source, {0, 1})
    for partition in (R0, R1):
        source.seek(partition, 0)
    await source.append_heartbeat(R1, 123_456)
    await source.append_heartbeat(R1, 123_457)
    batches = await read(source, [R0, R1], 2)
    assert {batch.partition for batch in batches} == {1}
    assert [key for batch in batches for key in batch.keys] == [None, None]
    assert values(batches, *R1) == [None, None]
    assert [at for batch in batches for at in batch.timestamps_ms] == [123_456, 123_457]
    await source.stop()


async def test_a_heartbeat_too_far_ahead_of_the_broker_is_refused(backend, started):
    await backend.bound_timestamps(3_600_000)
    hour_ahead_ms = time.time_ns() // 1_000_000 + 3_600_000
    async with patience():
        while await started.append_heartbeat(R0, hour_ahead_ms + 3_600_000):
            pass  # a broker takes such a setting a moment later
    end = (await started.end([R0]))[R0]
    assert await started.append_heartbeat(R0, hour_ahead_ms - 3_600_000)
    assert (await started.end([R0]))[R0] == end + 1


async def test_the_broker_clock_is_read_without_a_trace_in_checkpoints(backend, started):
    sink = backend.sink()
    await sink.start()
    record = OutputRecord(b"0+fingerprint", b"checkpoint")
    for _ in range(2):
        broker_ms = await started.broker_time_ms()
        assert abs(broker_ms - time.time_ns() // 1_000_000) < 60_000
        await (await sink.emit({("checkpoints", 0): [record]}))
        assert await started.checkpoints([0]) == {0: {b"0+fingerprint": b"checkpoint"}}
    await sink.stop()


async def test_the_broker_clock_is_unknown_if_topics_have_producer_timestamps(backend, started):
    await backend.hide_clock()
    async with patience():
        while await started.broker_time_ms() is not None:
            pass
    assert await started.checkpoints([0]) == {0: {}}


async def test_committed_offsets_are_read_by_the_next_member(backend, started):
    assert await started.committed([R0, J0]) == {}
    assert await started.commit({R0: Committed(5, "x y"), J0: Committed(7, "")})
    await started.stop()
    second = backend.source()
    await second.start()
    await owned(second, {0})
    found = await second.committed([R0, J0])
    assert {partition: mark.offset for partition, mark in found.items()} == {R0: 5, J0: 7}
    assert {partition: mark.metadata for partition, mark in found.items()} == {R0: "x y", J0: ""}
    await second.stop()


async def test_a_single_record_is_read_by_its_offset_or_is_not_there(backend, started):
    await backend.append("rankings", 0, [b"a", b"b", b"c"])
    await backend.gap("rankings", 0)
    await backend.append("rankings", 0, [b"after the gap"])
    await backend.append("judgments", 0, [b"j"])
    await backend.expire("rankings", 0, 1)
    places = [(R0, 0), (R0, 1), (R0, 2), (R0, 3), (J0, 0)]
    found = await started.records_at(places)
    assert {place: list(records.values) for place, records in found.items()} == {
        (R0, 1): [b"b"],
        (R0, 2): [b"c"],
        (J0, 0): [b"j"],
    }
    record = found[R0, 2]
    columns = record.offsets, record.keys, record.timestamps_ms
    assert [list(column) for column in columns] == [[2], [b"k"], [1002]]
    assert await started.records_at([]) == {}


async def test_a_skipped_single_record_is_unknown(backend, started):
    await backend.append("rankings", 0, [b"a", b"b", b"c"])
    started.skip(R0, [(1, 1)])
    found = await started.records_at([(R0, 0), (R0, 1)])
    assert list(found[R0, 0].values) == [b"a"]
    assert found[R0, 1] is None


async def test_a_recreated_topic_has_another_id(backend, started):
    before = await started.topic_ids()
    assert before == await started.topic_ids()
    assert len(set(before.values())) == len(before) == 2
    await started.stop()
    await backend.recreate("judgments")
    again = backend.source()
    await again.start()
    now = await again.topic_ids()
    assert now["rankings"] == before["rankings"]
    assert now["judgments"] not in before.values()
    await again.stop()


async def test_added_partitions_are_noticed_when_ids_are_read(backend, started):
    await backend.grow("judgments", 3)

    async def read_topic_ids():
        async with patience():  # a broker has them a moment later
            while await started.topic_ids():
                pass

    with pytest.raises(SourceUnusable, match=r"had 1 partitions .* and has 3 now"):
        await read_topic_ids()


async def test_a_commit_for_a_partition_of_another_member_is_refused(two_tasks):
    first, second = await two_members(two_tasks)
    (lost,) = {0, 1} - first.assignment.tasks
    assert not await first.commit({("rankings", lost): Committed(1, "")})
    assert await second.commit({("rankings", lost): Committed(1, "")})
    await first.stop()
    await second.stop()


async def two_members(backend):
    """Two sources that share two tasks, one each."""
    first, second = backend.source(), backend.source()
    await first.start()
    generation = await owned(first, {0, 1})
    for partition in (R0, J0, R1, J1):
        first.seek(partition, 0)
    await second.start()
    await eventually_owning(first, 1, generation)
    await eventually_owning(second, 1, 0)
    return first, second


async def eventually_owning(source, n_tasks, after_generation):
    async def step():
        if source.revoking:
            source.release()
        await source.poll([], max_records=1, timeout_ms=20)

    async with patience():
        while True:
            now = source.assignment
            if now and now.generation > after_generation and len(now.tasks) == n_tasks:
                return
            await step()


async def eventually_owning_together(sources, n_tasks):
    """Waits until all members together own this many tasks."""
    async with patience():
        while True:
            for source in sources:
                if source.revoking:
                    source.release()
                await source.poll([], max_records=1, timeout_ms=10)
            now = [source.assignment for source in sources]
            if sorted(len(each.tasks) if each else -1 for each in now) == n_tasks:
                return


async def test_a_second_member_takes_its_share_and_gives_it_back(two_tasks):
    first, second = await two_members(two_tasks)
    assert first.assignment.tasks | second.assignment.tasks == {0, 1}
    generation = first.assignment.generation
    await second.stop()
    await owned(first, {0, 1}, after_generation=generation)
    await first.stop()


async def test_the_owner_is_asked_to_release_a_task_and_may_commit_until_it_does(two_tasks):
    first, second = two_tasks.source(), two_tasks.source()
    await first.start()
    await owned(first, {0, 1})
    for partition in (R0, J0, R1, J1):
        first.seek(partition, 0)
    await second.start()
    await eventually(lambda: first.revoking)
    assert second.assignment is None
    assert await first.poll([R0], max_records=1, timeout_ms=10_000) == []
    assert await first.commit({each: Committed(0, "bye") for each in (R0, R1)})
    first.release()
    await eventually_owning(second, 1, 0)
    (mine,) = second.assignment.tasks
    found = await second.committed([("rankings", mine)])
    assert found[("rankings", mine)].metadata == "bye"
    await first.stop()
    await second.stop()


async def test_a_waiting_poll_returns_when_a_handover_begins(two_tasks):
    first, second = two_tasks.source(), two_tasks.source()
    await first.start()
    await owned(first, {0, 1})
    first.seek(R0, 0)
    polling = asyncio.ensure_future(first.poll([R0], max_records=1, timeout_ms=60_000))
    await second.start()
    assert await finished(polling) == []
    assert first.revoking
    await first.stop()
    await second.stop()


async def test_an_owner_that_never_releases_a_task_does_not_block_the_group(two_tasks):
    stuck, second = (two_tasks.source(release_timeout_ms=sized(500, quick=50)) for _ in "12")
    await stuck.start()
    await owned(stuck, {0, 1})
    await second.start()
    await eventually_owning(second, 1, 0)
    (gone,) = second.assignment.tasks
    assert not await stuck.commit({("rankings", gone): Committed(1, "")})
    await second.stop()
    await stuck.stop()


async def test_a_retained_task_continues_at_its_position(two_tasks):
    for task in (0, 1):
        await two_tasks.append("rankings", task, [b"%d" % n for n in range(10)])
    first, second = two_tasks.source(), two_tasks.source()
    await first.start()
    generation = await owned(first, {0, 1})
    first.seek(R0, 0)
    first.seek(R1, 0)
    got = {
        task: values(
            await first.poll([("rankings", task)], max_records=4, timeout_ms=5000), "rankings", task
        )
        for task in (0, 1)
    }
    await second.start()
    await eventually_owning(first, 1, generation)
    (kept,) = first.assignment.tasks
    batches = await read(first, [R0, R1], 10 - len(got[kept]))
    assert got[kept] + values(batches, "rankings", kept) == [b"%d" % n for n in range(10)]
    assert values(batches, "rankings", 1 - kept) == []
    await first.stop()
    await second.stop()


async def test_a_task_that_is_assigned_again_requires_a_seek(two_tasks):
    for task in (0, 1):
        await two_tasks.append("rankings", task, [b"r"] * 3)
    first, second = await two_members(two_tasks)
    generation, (lost,) = first.assignment.generation, {0, 1} - first.assignment.tasks
    await second.stop()
    await owned(first, {0, 1}, after_generation=generation)
    assert await first.poll([("rankings", lost)], max_records=5, timeout_ms=200) == []
    first.seek(("rankings", lost), 1)
    assert len(values(await read(first, [("rankings", lost)], 2), "rankings", lost)) == 2
    await first.stop()


async def test_with_more_members_than_tasks_one_has_none(backend):
    first, second = backend.source(), backend.source()
    await first.start()
    await owned(first, {0})
    await second.start()
    await eventually_owning_together([first, second], [0, 1])
    await first.stop()
    await second.stop()


async def test_unequal_partition_counts_are_refused_with_both_counts(make_backend):
    backend = await make_backend(2, 3)
    source = backend.source()
    with pytest.raises(SourceUnusable, match=r"rankings has 2 .*judgments has 3"):
        await source.start()
    await source.stop()


async def test_stopping_twice_or_before_the_start_is_allowed(backend, started):
    await started.stop()
    await started.stop()
    await backend.source().stop()


async def test_the_latest_complete_checkpoint_of_any_size_is_read(backend, started):
    large, small = random.Random(1).randbytes(3_000_000), b"{}"
    sink = backend.sink()
    await sink.start()
    for value in (small, large):
        for fingerprint in ("ab", "cd"):
            records = checkpoint_records(0, fingerprint, value)
            await (await sink.emit({("checkpoints", 0): records}))
    cut_off = checkpoint_records(0, "cd", large[::-1])[:-1]
    await (await sink.emit({("checkpoints", 0): cut_off}))
    await sink.stop()
    found = await started.checkpoints([0])
    assert found == {0: {checkpoint_key(0, "ab"): large, checkpoint_key(0, "cd"): large}}
