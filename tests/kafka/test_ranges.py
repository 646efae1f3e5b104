"""Ranges of the input logs, read without a group."""

import asyncio
import json

import pytest

from evaluator.adapters.kafka import KafkaRange
from evaluator.cli import main
from evaluator.ports import SourceUnusable
from tests.contract.backends import KafkaBackend
from tests.replay.running import contents, judgment, ranking
from tests.replay.test_exposition import samples, world, written
from tests.waiting import patience

pytestmark = pytest.mark.kafka


@pytest.fixture
async def backend(kafka, topic_prefix):
    backend = await KafkaBackend.open(kafka, topic_prefix, {"rankings": 2, "judgments": 2})
    yield backend
    await backend.close()


@pytest.fixture
async def make_range(backend):
    made = []

    async def make():
        made.append(KafkaRange(backend.connection, topic_prefix=backend.prefix))
        assert await made[-1].open() == 2
        return made[-1]

    yield make
    for each in made:
        await each.close()
        await each.close()


async def collected(iterator):
    return [batch async for batch in iterator]


async def test_a_range_yields_its_records_in_batches_up_to_its_end(backend, make_range):
    await backend.append("rankings", 1, [b"%d" % n for n in range(50)])
    batches = await collected((await make_range()).read("rankings", 1, 10, 45, max_records=8))
    assert [offset for batch in batches for offset in batch.offsets] == list(range(10, 45))
    assert batches[0].values[0] == b"10"
    assert max(map(len, batches)) <= 8
    assert batches[-1].next_offset == 45
    assert {(batch.log, batch.partition) for batch in batches} == {("rankings", 1)}


async def test_a_range_has_the_place_of_its_topics(backend, make_range):
    place = (await make_range()).place
    assert place.partitions == 2
    assert place.cluster
    assert place.as_document().keys() == {"cluster", "topic_ids", "partitions"}
    ids = place.as_document()["topic_ids"]
    assert len(set(ids.values()) - {None}) == 2
    assert ids == (await make_range()).place.as_document()["topic_ids"]


async def test_pinned_ends_stay_fixed_while_the_log_grows(backend):
    await backend.append("rankings", 1, [b"%d" % n for n in range(10)])
    bounds = {("rankings", 1): (2, 7)}
    pinned = KafkaRange(backend.connection, topic_prefix=backend.prefix, bounds=bounds)
    await pinned.open()
    assert await pinned.bounds("rankings", 1) == (2, 7)
    batches = await collected(pinned.read("rankings", 1, 2, 7, max_records=100))
    assert [offset for batch in batches for offset in batch.offsets] == [2, 3, 4, 5, 6]
    await pinned.close()


async def test_several_processes_write_the_files_of_one(backend, tmp_path):
    for partition in range(2):
        lines = [ranking(f"t-{partition}-{n}", n) for n in range(20)]
        await backend.append("rankings", partition, lines)
        await backend.append("judgments", partition, [judgment(f"t-{partition}-1", 5)])
    source = ["--source", f"kafka://{backend.connection.bootstrap}"]
    source += ["--set", f"topic_prefix={backend.prefix}"]
    for n in ("1", "2"):
        out = ["--out", str(tmp_path / n), "--processes", n, "--at-end", "settle"]
        assert await asyncio.to_thread(main, ["replay", *source, *out]) == 0
    assert contents(tmp_path / "2") == contents(tmp_path / "1")
    manifest = json.loads(contents(tmp_path / "2")["manifest.json"])
    assert manifest["counts"]["rankings_read"] == 40
    assert manifest["place"]["partitions"] == 2


async def test_an_empty_range_yields_nothing(make_range):
    assert await collected((await make_range()).read("rankings", 0, 0, 0, max_records=8)) == []


async def test_bounds_are_pinned_when_the_range_opens(backend, make_range):
    await backend.append("rankings", 0, [b"r"] * 5)
    await backend.expire("rankings", 0, 2)
    opened = await make_range()
    await backend.append("rankings", 0, [b"later"])
    assert await opened.bounds("rankings", 0) == (2, 5)
    assert await opened.bounds("judgments", 1) == (0, 0)
    assert sum(map(len, await collected(opened.read("rankings", 0, 2, 5, max_records=8)))) == 3


async def test_a_range_that_ends_with_an_aborted_transaction_ends(backend, make_range):
    await backend.append("rankings", 0, [b"a"])
    await backend.gap("rankings", 0)
    await backend.append("rankings", 0, [b"b"])
    await backend.gap("rankings", 0)
    opened = await make_range()
    first, end = await opened.bounds("rankings", 0)
    async with patience():
        batches = await collected(opened.read("rankings", 0, first, end, max_records=8))
    assert [value for batch in batches for value in batch.values] == [b"a", b"b"]
    assert batches[-1].next_offset == end == 8


async def test_a_range_within_an_aborted_transaction_is_empty_and_ends(backend, make_range):
    await backend.append("rankings", 0, [b"a"])
    await backend.gap("rankings", 0)
    await backend.append("rankings", 0, [b"b"])
    async with patience():
        batches = await collected((await make_range()).read("rankings", 0, 1, 3, max_records=8))
    assert sum(map(len, batches)) == 0
    assert batches[-1].next_offset == 3


async def test_two_logs_may_be_read_alternately(backend, make_range):
    for log in ("rankings", "judgments"):
        await backend.append(log, 0, [b"%s%d" % (log[:1].encode(), n) for n in range(30)])
    opened = await make_range()
    rankings = opened.read("rankings", 0, 0, 30, max_records=4)
    judgments = opened.read("judgments", 0, 0, 30, max_records=9)
    got = {"rankings": [], "judgments": []}
    for turn in (rankings, judgments, judgments, rankings) * 2:
        batch = await anext(turn)
        got[batch.log] += batch.values
    for rest in (rankings, judgments):
        for batch in await collected(rest):
            got[batch.log] += batch.values
    for log, values in got.items():
        assert values == [b"%s%d" % (log[:1].encode(), n) for n in range(30)]


async def test_a_hint_is_the_first_offset_at_or_after_a_record_timestamp(backend, make_range):
    await backend.append("rankings", 0, [b"r"] * 10)  # stamped 1000, 1001 ...
    opened = await make_range()
    assert await opened.seek_hint("rankings", 0, 1004) == 4
    assert await opened.seek_hint("rankings", 0, 0) == 0
    assert await opened.seek_hint("rankings", 0, -5) == 0
    assert await opened.seek_hint("rankings", 0, 1010) == 10
    assert await opened.seek_hint("rankings", 0, 2**70) == 10
    assert await opened.seek_hint("judgments", 1, 1) == 0


async def test_records_that_expired_meanwhile_are_reported(backend, make_range):
    await backend.append("rankings", 0, [b"r"] * 5)
    opened = await make_range()
    await backend.expire("rankings", 0, 3)
    with pytest.raises(SourceUnusable, match="expired while"):
        await collected(opened.read("rankings", 0, 0, 5, max_records=8))


async def test_an_iterator_that_is_closed_early_closes_its_connection(backend, make_range):
    await backend.append("rankings", 0, [b"r"] * 5)
    reading = (await make_range()).read("rankings", 0, 0, 5, max_records=1)
    assert len(await anext(reading)) == 1
    await reading.aclose()


@pytest.mark.parametrize("at_end", ["hold", "settle"])
async def test_the_prometheus_history_equals_that_of_the_same_records_in_files(
    backend, tmp_path, at_end
):
    logs = world(tmp_path / "logs")
    for partition in range(2):
        for log in ("rankings", "judgments"):
            lines = (logs / f"{log}-{partition}.ndjson").read_bytes().splitlines()
            await backend.append(log, partition, lines)
    settings = {"at_end": at_end, "max_future_skew_ms": 1 << 62}  # the records are of 1970
    how = {"settings": settings, "histograms": ["mrr"]}
    source = KafkaRange(backend.connection, topic_prefix=backend.prefix)
    text = await written(source, tmp_path / "kafka", **how)
    assert text == await written(logs, tmp_path / "files", **how)
    assert samples(text)
