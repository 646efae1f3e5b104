"""The contract of every Sink (evaluator.ports.Sink)."""

import asyncio
import random

import pytest

from evaluator.ports import SourceUnavailable
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


async def test_a_record_of_700_kilobytes_is_accepted(two_tasks, sink):
    big = OutputRecord(b"k", bytes(range(256)) * 2800)
    await (await sink.emit({("settled", 0): [*numbered(2), big, *numbered(1)]}))
    assert await two_tasks.output("settled", 0, 4) == [*numbered(2), big, *numbered(1)]


async def test_an_empty_emission_is_acknowledged(sink):
    await (await sink.emit({}))
    await (await sink.emit({("settled", 0): []}))


async def test_stop_waits_for_emitted_records(two_tasks):
    sink = two_tasks.sink()
    await sink.start()
    done = await sink.emit({("settled", 0): numbered(100)})
    await sink.stop()
    await done
    assert await two_tasks.output("settled", 0, 100) == numbered(100)


async def test_emit_is_refused_after_stop_and_stopping_twice_is_allowed(two_tasks):
    sink = two_tasks.sink()
    await sink.start()
    await sink.stop()
    await sink.stop()
    with pytest.raises(SourceUnavailable):
        await sink.emit({("settled", 0): numbered(1)})
    await two_tasks.sink().stop()


@pytest.fixture
async def make_narrow(make_backend):
    """Makes a medium whose outputs have little room, and a sink on it."""
    sinks = []

    async def make(room):
        backend = await make_backend(2, 2, room)
        sinks.append(backend.sink())
        await sinks[-1].start()
        return backend, sinks[-1]

    yield make
    for sink in sinks:
        await sink.stop()


def incompressible(n_bytes):
    return random.Random(n_bytes).randbytes(n_bytes)


@pytest.mark.parametrize("output", ["evaluations", "settled", "windows", "checkpoints"])
async def test_a_record_that_its_output_refuses_becomes_a_dead_letter_with_its_key(
    make_narrow, output
):
    narrow, sink = await make_narrow({output: 20_000})
    rows = numbered(10)
    for n, size in ((3, 30_000), (7, 100_000)):
        rows[n] = OutputRecord(b"large %d" % n, incompressible(size))
    await (await sink.emit({(output, 1): rows}))
    await (await sink.emit({(output, 1): numbered(3, prefix=b"next ")}))
    assert sink.refused == 2
    fitting = [row for row in rows if len(row.value) < 20_000]
    expected = [*fitting, *numbered(3, prefix=b"next ")]
    assert await narrow.output(output, 1, len(expected)) == expected
    letters = await narrow.output("dead-letters", 1, 2)
    assert [letter.key for letter in letters] == [b"large 3", b"large 7"]
    for letter, size in zip(letters, (30_000, 100_000), strict=True):
        headers = dict(letter.headers)
        assert letter.value == b""
        assert headers["reason"] == b"oversize_output"
        assert headers["topic"].decode().endswith(output)
        assert headers["partition"] == b"1"
        assert f"{size} bytes" in headers["detail"].decode()


async def test_a_dead_letter_that_is_refused_is_cut_until_it_fits(make_narrow):
    narrow, sink = await make_narrow({"dead-letters": 70_000})
    reason = ("reason", b"late")
    key, value = incompressible(80_000), incompressible(300_000)
    letters = [
        OutputRecord(b"a", value, (reason,)),
        OutputRecord(key[:60_000], value, (reason,)),
        OutputRecord(key, value, (reason,)),
        OutputRecord(b"z", b"small", (reason,)),
    ]
    await (await sink.emit({("dead-letters", 0): letters}))
    cut, without_value, bare, small = await narrow.output("dead-letters", 0, 4)
    assert cut == OutputRecord(b"a", value[: 64 * 1024], (reason, ("truncated", b"300000")))
    assert without_value == OutputRecord(key[:60_000], b"", (reason, ("truncated", b"300000")))
    expected = (reason, ("truncated", b"300000"), ("key_truncated", b"80000"))
    assert bare == OutputRecord(None, b"", expected)
    assert small == letters[3]
    assert sink.refused == 0, "each is present"


async def test_a_dead_letter_that_never_fits_is_counted_and_blocks_no_other_record(make_narrow):
    narrow, sink = await make_narrow({"dead-letters": 30, "settled": 20_000})
    large = OutputRecord(b"k" * 500, incompressible(30_000), (("reason", b"late"),))
    await (await sink.emit({("settled", 0): [large], ("dead-letters", 0): [large]}))
    await (await sink.emit({("settled", 0): numbered(3)}))
    assert await narrow.output("settled", 0, 3) == numbered(3)
    assert sink.refused >= 2
