"""The sink when the broker, or the library, refuses a batch."""

import asyncio
import os

import pytest
from aiokafka import errors as kafka_errors
from aiokafka.admin import NewTopic

from evaluator.adapters.kafka import KafkaSink
from evaluator.ports import SourceUnusable
from evaluator.wire.records import WRITTEN, OutputRecord
from tests.contract.backends import KafkaBackend, admin, visible

pytestmark = pytest.mark.kafka


@pytest.fixture
async def narrow(kafka, topic_prefix):
    """Topics that take no batch of more than 100,000 bytes."""
    limits = {"max.message.bytes": "100000"}
    names = [f"{topic_prefix}{name}" for name in ("rankings", "judgments", *WRITTEN)]
    async with admin(kafka) as client:
        await client.create_topics([NewTopic(each, 1, 1, topic_configs=limits) for each in names])
    await visible(kafka, names)
    backend = KafkaBackend(kafka, topic_prefix)
    yield backend
    await backend.close()


async def started(backend) -> KafkaSink:
    sink = backend.sink()
    await sink.start()
    return sink


def failing(sink: KafkaSink, error: Exception, *, after_writing: bool, every: int = 3) -> list[int]:
    """Makes every n-th batch of this sink fail, for all its producers; returns the count."""
    failed = [0]
    sent = [0]
    make = sink._new_producer

    async def new_producer():
        producer = await make()
        send_batch = producer.client.send_batch

        async def send_or_fail(batch, topic, *, partition):
            sent[0] += 1
            if sent[0] % every:
                return await send_batch(batch, topic, partition=partition)
            failed[0] += 1
            if after_writing:
                await (await send_batch(batch, topic, partition=partition))
            refused = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

        producer.client.send_batch = send_or_fail
        return producer

    sink._new_producer = new_producer
    return failed


@pytest.mark.parametrize("after_writing", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize(
    "error",
    [
        kafka_errors.OutOfOrderSequenceNumber(),
        kafka_errors.ProducerFenced(),
        kafka_errors.RequestTimedOutError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_failed_batch_is_sent_again_before_any_later_one(backend, error, after_writing):
    sink = backend.sink()
    failed = failing(sink, error, after_writing=after_writing)
    await sink.start()
    waiting = [
        await sink.emit({("settled", 0): [OutputRecord(b"k", b"%d" % n)]}) for n in range(12)
    ]
    await asyncio.gather(*waiting)
    await sink.stop()
    assert failed[0] >= 4
    seen = [
        record.value
        for record in await backend.output("settled", 0, 12 + after_writing * failed[0])
    ]
    assert list(dict.fromkeys(seen)) == [b"%d" % n for n in range(12)]


async def test_a_batch_that_is_too_large_is_sent_in_pieces_in_order(narrow):
    sink = await started(narrow)
    records = [OutputRecord(b"%d" % n, os.urandom(20_000)) for n in range(20)]
    await (await sink.emit({("settled", 0): records}))
    await sink.stop()
    assert await narrow.output("settled", 0, 20) == records


async def test_emit_waits_while_too_much_is_not_acknowledged(backend, monkeypatch):
    monkeypatch.setattr("evaluator.adapters.kafka.sink.MAX_PENDING_BYTES", 50_000)
    sink = await started(backend)
    big = [OutputRecord(b"k", os.urandom(40_000))]
    for _ in range(20):
        await sink.emit({("settled", 0): big})
        assert sink._pending_bytes <= 50_000 + 41_000
    await sink.stop()
    assert len(await backend.output("settled", 0, 20)) == 20


async def test_too_few_output_partitions_are_refused(kafka, topic_prefix):
    counts = {"rankings": 2, "judgments": 2} | dict.fromkeys(WRITTEN, 2) | {"windows": 1}
    async with admin(kafka) as client:
        await client.create_topics(
            [NewTopic(f"{topic_prefix}{name}", count, 1) for name, count in counts.items()]
        )
    await visible(kafka, [f"{topic_prefix}{name}" for name in counts])
    with pytest.raises(SourceUnusable, match=r"windows has 1 partitions, the inputs have 2"):
        await KafkaSink(kafka, topic_prefix=topic_prefix).start()
