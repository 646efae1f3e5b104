"""What every Sink promises (evaluator.ports.Sink)."""

import asyncio

import pytest

from evaluator.ports import SourceAway
from evaluator.wire.records import OutputRecord


@pytest.fixture
async def sink(two_tasks):
    sink = two_tasks.sink()
    await sink.start()
    yield sink
    await sink.stop()


def numbered(count, *, prefix=b"", size=0):
    return [OutputRecord(b"k%d" % n, prefix + b"%d" % n + b"." * size) for n in range(count)]


async def test_acknowledged_records_are_visible_with_key_value_and_headers(two_tasks, sink):
    record = OutputRecord(b"key", b"value", (("reason", b"late"), ("offset", b"3")))
    bare = OutputRecord(None, b"\x00\xff")
    await (await sink.emit({("dead-letters", 0): [record, bare]}))
    assert await two_tasks.output("dead-letters", 0, 2) == [record, bare]


async def test_each_record_goes_to_its_own_output_and_partition(two_tasks, sink):
    lanes = [(output, p) for output in ("evaluations", "settled", "windows") for p in (0, 1)]
    emitted = {lane: [OutputRecord(b"k", repr(lane).encode())] for lane in lanes}
    await (await sink.emit(emitted))
    for lane in lanes:
        assert await two_tasks.output(*lane, 1) == emitted[lane]


async def test_records_become_visible_in_the_order_of_emit(two_tasks, sink):
    waiting = [
        await sink.emit({("settled", 0): numbered(20, prefix=b"%d/" % n)}) for n in range(50)
    ]
    await asyncio.gather(*waiting)
    seen = [record.value for record in await two_tasks.output("settled", 0, 1000)]
    assert seen == [b"%d/%d" % (n, m) for n in range(50) for m in range(20)]


async def test_an_emission_larger_than_a_batch_arrives_whole_and_in_order(two_tasks, sink):
    records = numbered(3000, size=500)
    await (await sink.emit({("evaluations", 1): records}))
    assert await two_tasks.output("evaluations", 1, 3000) == records


async def test_a_record_of_700_kilobytes_passes(two_tasks, sink):
    big = OutputRecord(b"k", bytes(range(256)) * 2800)
    await (await sink.emit({("settled", 0): [*numbered(2), big, *numbered(1)]}))
    assert await two_tasks.output("settled", 0, 4) == [*numbered(2), big, *numbered(1)]


async def test_an_empty_emission_is_acknowledged(sink):
    await (await sink.emit({}))
    await (await sink.emit({("settled", 0): []}))


async def test_stop_waits_for_what_was_emitted(two_tasks):
    sink = two_tasks.sink()
    await sink.start()
    done = await sink.emit({("settled", 0): numbered(100)})
    await sink.stop()
    await done
    assert await two_tasks.output("settled", 0, 100) == numbered(100)


async def test_after_stop_nothing_is_taken_and_stopping_again_is_fine(two_tasks):
    sink = two_tasks.sink()
    await sink.start()
    await sink.stop()
    await sink.stop()
    with pytest.raises(SourceAway):
        await sink.emit({("settled", 0): numbered(1)})
    await two_tasks.sink().stop()
