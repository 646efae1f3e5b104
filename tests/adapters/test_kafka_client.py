"""The end of a client: no connection stays open, and no caller waits for it."""

import asyncio

import pytest
from aiokafka import AIOKafkaProducer

from evaluator.adapters.kafka import Connection
from evaluator.adapters.kafka.clients import close
from evaluator.adapters.kafka.sink import Batch, Emission, KafkaSink, _Producer
from evaluator.ports import SourceUnavailable
from evaluator.wire.records import OutputRecord
from tests.waiting import finished


class Opened:
    """A connection of a client."""

    closed = False

    def close(self, **_) -> "asyncio.Future[None]":
        self.closed = True
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


async def test_a_connection_that_a_task_opens_while_its_client_is_closed_is_closed_too():
    producer, opened = AIOKafkaProducer(), Opened()

    async def send_without_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            producer.client._conns["late"] = opened

    producer.stop = asyncio.Event().wait  # as without brokers
    producer._sender._sender_task = asyncio.ensure_future(send_without_end())
    await asyncio.sleep(0)
    await close(producer, timeout_seconds=0.01)
    assert producer._sender.sender_task.done()
    producer._closed = True  # `stop` was replaced
    assert opened.closed


async def test_a_batch_that_waits_for_metadata_fails_when_its_producer_is_closed():
    connection = Connection("127.0.0.1:9")
    sink, client = KafkaSink(connection), AIOKafkaProducer()
    client.send_batch = lambda *_, **__: asyncio.Event().wait()  # as without metadata
    producer = sink._producer = _Producer(client, connection.secrets())
    batch = Batch(
        [OutputRecord(b"k", b"v")], 2, Emission(asyncio.get_running_loop().create_future(), 1)
    )
    sending = asyncio.ensure_future(sink._send(("windows", 0), batch))
    await asyncio.sleep(0)
    await sink._replace(producer)  # another batch was refused
    with pytest.raises(SourceUnavailable, match="ProducerClosed"):
        await finished(sending)
