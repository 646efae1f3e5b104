"""The end of a client: every connection is closed, and no caller waits for it."""

import asyncio
import struct

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.conn import create_conn
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

from evaluator.adapters.kafka import Connection
from evaluator.adapters.kafka.clients import close, start_producer
from evaluator.adapters.kafka.sink import Emission, KafkaSink, OutputBatch, _Producer
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


async def test_a_connection_opened_while_its_client_is_closed_is_closed_too():
    producer, opened = AIOKafkaProducer(), Opened()

    async def send_endlessly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            producer.client._conns["late"] = opened

    producer.stop = asyncio.Event().wait  # as without brokers
    producer._sender._sender_task = asyncio.ensure_future(send_endlessly())
    await asyncio.sleep(0)
    await close(producer, timeout_seconds=0.01)
    assert producer._sender.sender_task.done()
    producer._closed = True  # `stop` was replaced
    assert opened.closed


class Deaf(asyncio.Protocol):
    """A broker that has one kind of request, and reads only the first one, or answers only it."""

    def __init__(self, *, reads=False):
        self.reads = reads
        self.requested, self.lost = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport

    def connection_lost(self, error):
        self.lost.set()

    def data_received(self, data):
        if self.requested.is_set():
            return
        versions = struct.pack(">hi3h", 0, 1, MetadataRequest.API_KEY, 0, 5)
        self.transport.write(struct.pack(">i", 4 + len(versions)) + data[8:12] + versions)
        if not self.reads:
            self.transport.pause_reading()
        self.requested.set()


async def test_a_closed_client_keeps_no_connection_to_a_broker_that_does_not_read():
    deaf, producer = Deaf(), AIOKafkaProducer()
    async with await asyncio.get_running_loop().create_server(lambda: deaf, "127.0.0.1", 0) as at:
        connection = await create_conn(*at.sockets[0].getsockname())
        producer.client._conns[0] = connection
        transport = connection._writer.transport
        lost = connection.send(MetadataRequest(["x" * 30_000] * 1_000))
        assert transport.get_write_buffer_size() > 0, "more than the sockets hold"
        await finished(close(producer, timeout_seconds=0.1))
        with pytest.raises(KafkaConnectionError):
            await lost
        assert transport.get_extra_info("socket").fileno() == -1
        deaf.transport.abort()


@pytest.mark.parametrize("n_steps", range(1, 8))
async def test_a_cancelled_start_ends_at_once_and_leaves_no_connection(n_steps):
    deaf = Deaf(reads=True)
    async with await asyncio.get_running_loop().create_server(lambda: deaf, "127.0.0.1", 0) as at:
        host, port = at.sockets[0].getsockname()
        starting = asyncio.ensure_future(start_producer(Connection(f"{host}:{port}")))
        await finished(deaf.requested.wait())
        for _ in range(n_steps):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await finished(starting)
        await finished(deaf.lost.wait())


async def test_a_batch_waiting_for_metadata_fails_when_its_producer_is_closed():
    connection = Connection("127.0.0.1:9")
    sink, client = KafkaSink(connection), AIOKafkaProducer()
    client.send_batch = lambda *_, **__: asyncio.Event().wait()  # as without metadata
    producer = sink._producer = _Producer(client, connection.secrets())
    batch = OutputBatch(
        [OutputRecord(b"k", b"v")], 2, Emission(asyncio.get_running_loop().create_future(), 1)
    )
    sending = asyncio.ensure_future(sink._send(("windows", 0), batch))
    await asyncio.sleep(0)
    await sink._replace(producer)  # another batch was refused
    with pytest.raises(SourceUnavailable, match="ProducerClosed"):
        await finished(sending)
