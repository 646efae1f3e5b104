"""Responses read in place equal those of aiokafka, for any boundaries of chunks."""

import asyncio
import contextlib
import inspect
import random
import ssl
import struct
import weakref

import numpy as np
import pytest
from aiokafka import conn
from aiokafka.consumer import fetcher
from aiokafka.errors import CorrelationIdError, KafkaConnectionError
from aiokafka.protocol.fetch import FetchRequest, FetchResponse_v4
from aiokafka.record.memory_records import MemoryRecords

from evaluator.adapters.kafka import aiokafka_frames as frames
from evaluator.adapters.kafka.aiokafka_fetches import _MemoryRecords
from evaluator.adapters.kafka.aiokafka_frames import MAX_FRAME_BYTES, MIN_FRAME_BYTES
from evaluator.adapters.kafka.aiokafka_internals import _Connection
from evaluator.adapters.kafka.source import FETCH_BYTES
from tests.kafka.authority import Authority
from tests.waiting import finished
from tests.wire.record_batches import Row, batch

SEED = 20251123
EDGES = (0, 4, MIN_FRAME_BYTES - 1, MIN_FRAME_BYTES, MIN_FRAME_BYTES + 1, 3 * MIN_FRAME_BYTES)


class Received:
    """The protocol of a connection with a reader, without a socket."""

    def __init__(self):
        loop = asyncio.get_running_loop()
        self.reader = asyncio.StreamReader(loop=loop)
        self.protocol = frames.FrameProtocol(loop.create_future(), self.reader, loop=loop)

    def receive(self, data, most):
        """As a transport does: one chunk of at most *most* bytes; returns the rest."""
        at = self.protocol.get_buffer(-1)
        n_bytes = min(len(at), len(data), most)
        at[:n_bytes] = data[:n_bytes]
        self.protocol.buffer_updated(n_bytes)
        return data[n_bytes:]


@pytest.mark.parametrize("seed", range(12))
async def test_parts_of_any_size_are_read_completely_and_in_order_from_any_chunks(seed):
    rng = random.Random(SEED + seed)
    sizes = rng.choices(EDGES, k=8)
    data = rng.randbytes(sum(sizes))
    received, parts = Received(), []

    async def read():
        parts.extend([await received.reader.readexactly(size) for size in sizes])

    reading, left = asyncio.ensure_future(read()), memoryview(data)
    while left:
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        left = received.receive(left, rng.choice((1, 100, MIN_FRAME_BYTES, 1 << 30)))
    await finished(reading)
    assert b"".join(map(bytes, parts)) == data
    long = [size >= MIN_FRAME_BYTES for size in sizes]
    assert [isinstance(part, memoryview) for part in parts] == long


async def test_a_frame_is_freed_after_it_was_read():
    received = Received()
    reading = asyncio.ensure_future(received.reader.readexactly(MIN_FRAME_BYTES))
    await asyncio.sleep(0)
    received.receive(bytes(MIN_FRAME_BYTES), MIN_FRAME_BYTES)
    frame = weakref.ref((await finished(reading)).obj)
    del reading
    await asyncio.sleep(0)  # the loop has the task until its next turn
    assert frame() is None


@pytest.mark.parametrize(("n_bytes", "is_kept"), [(8 << 10, False), (96 << 10, True)])
def test_a_short_part_of_a_frame_does_not_keep_the_frame_in_memory(n_bytes, is_kept):
    frame = np.zeros(512 << 10, np.uint8)
    part = frames._Stream(frame.data).read(n_bytes)
    kept, size = weakref.ref(frame), len(part)
    del frame
    assert size == n_bytes
    assert (kept() is not None) is is_kept


async def test_a_size_beyond_the_limit_allocates_no_memory_before_its_bytes_arrive():
    received = Received()
    reading = asyncio.ensure_future(received.reader.readexactly(MAX_FRAME_BYTES + 1))
    await asyncio.sleep(0)
    assert len(received.protocol.get_buffer(-1)) == MIN_FRAME_BYTES
    received.protocol.eof_received()
    with pytest.raises(asyncio.IncompleteReadError):
        await finished(reading)


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda protocol: protocol.eof_received(), asyncio.IncompleteReadError),
        (lambda protocol: protocol.connection_lost(None), asyncio.IncompleteReadError),
        (lambda protocol: protocol.connection_lost(ConnectionResetError()), ConnectionResetError),
    ],
)
@pytest.mark.parametrize("n_bytes", [0, 1, MIN_FRAME_BYTES - 1])
async def test_a_connection_that_ends_within_a_frame_ends_the_read(end, error, n_bytes):
    received = Received()
    reading = asyncio.ensure_future(received.reader.readexactly(MIN_FRAME_BYTES))
    await asyncio.sleep(0)
    if n_bytes:
        received.receive(bytes(n_bytes), n_bytes)
    end(received.protocol)
    with pytest.raises(error):
        await finished(reading)


def test_a_fetch_of_the_inputs_fits_into_a_frame():
    assert FETCH_BYTES <= MAX_FRAME_BYTES - MIN_FRAME_BYTES


# Connections

SETS = [
    b"",
    batch(0, [Row(0, b"k", b"v")]),
    b"".join(batch(9 * n, [Row(i, b"k", b"v" * 10_000) for i in range(9)]) for n in range(2)),
]


def response_to(correlation_id, sets):
    partitions = [(n, 0, 99, 99, [], data) for n, data in enumerate(sets)]
    payload = FetchResponse_v4(7, [("t", partitions)]).encode()
    return struct.pack(">ii", 4 + len(payload), correlation_id) + payload


class Broker:
    """Supports only fetches, and responds in pieces; *shift* is added to correlation ids."""

    def __init__(self, sets, seed, *, shift=0, cut=None):
        self.sets, self.shift, self.cut, self.rng = sets, shift, cut, random.Random(seed)
        self.ended = asyncio.Event()

    async def serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size, key, _, number = struct.unpack(">ihhi", await reader.readexactly(12))
                await reader.readexactly(size - 8)
                if key == 18:
                    body = struct.pack(">hi3h", 0, 1, FetchRequest.API_KEY, 4, 4)
                    writer.write(struct.pack(">ii", 4 + len(body), number) + body)
                    continue
                left = response_to(number + self.shift, self.sets)[: self.cut]
                while left:
                    n_bytes = self.rng.choice((3, 10_000, 70_000, 1 << 20))
                    writer.write(left[:n_bytes])
                    left = left[n_bytes:]
                    await asyncio.sleep(0)
                if self.cut is not None:
                    break
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
        self.ended.set()


@contextlib.asynccontextmanager
async def connected(broker, monkeypatch, *, authority=None):
    """A connection to *broker*, by TLS with an authority."""
    monkeypatch.setattr(conn, "AIOKafkaProtocol", frames.FrameProtocol)
    context = options = None
    if authority is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.issue("broker", hosts=["127.0.0.1"]))
        options = ssl.create_default_context(cafile=str(authority.cafile))
    secure = {} if options is None else {"security_protocol": "SSL", "ssl_context": options}
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0, ssl=context)
    async with server:
        at = server.sockets[0].getsockname()
        connection = _Connection(*at, on_close=lambda *_: None, **secure)
        await finished(connection.connect())
        try:
            yield connection
        finally:
            connection.close()
            await finished(broker.ended.wait())


def ask(connection):
    return connection.send(FetchRequest(100, 1, 1 << 20, 1, [("t", [(0, 0, 1 << 20)])]))


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_record_sets_have_the_bytes_of_the_broker(secure, seed, monkeypatch, tmp_path):
    authority = Authority(tmp_path) if secure else None
    async with connected(Broker(SETS, seed), monkeypatch, authority=authority) as connection:
        responses = await finished(asyncio.gather(*(ask(connection) for _ in range(4))))
    for response in responses:
        ((topic, partitions),) = response.topics
        assert (response.throttle_time_ms, topic) == (7, "t")
        assert [row[:5] for row in partitions] == [(n, 0, 99, 99, []) for n in range(len(SETS))]
        assert [bytes(row[5]) for row in partitions] == SETS
        assert isinstance(partitions[-1][5], memoryview)  # not copied


async def test_a_response_to_another_request_closes_the_connection(monkeypatch):
    async with connected(Broker(SETS, SEED, shift=1), monkeypatch) as connection:
        with pytest.raises(CorrelationIdError):
            await finished(ask(connection))
        assert not connection.connected()


async def test_a_broker_that_ends_within_a_response_closes_the_connection(monkeypatch):
    async with connected(Broker(SETS, SEED, cut=MIN_FRAME_BYTES), monkeypatch) as connection:
        with pytest.raises(KafkaConnectionError):
            await finished(ask(connection))
        assert not connection.connected()


async def test_a_response_to_a_cancelled_request_is_ignored(monkeypatch):
    async with connected(Broker(SETS, SEED), monkeypatch) as connection:
        first, second = (
            asyncio.ensure_future(ask(connection)),
            asyncio.ensure_future(ask(connection)),
        )
        await asyncio.sleep(0)
        first.cancel()
        assert len((await finished(second)).topics) == 1


@pytest.mark.parametrize("n_bytes", [0, 7, 8, 11, 12, 60, -1])
def test_a_record_set_begins_with_a_complete_batch_if_aiokafka_finds_one(n_bytes):
    data = SETS[1][:n_bytes] if n_bytes >= 0 else SETS[1]
    theirs = MemoryRecords(data)
    ours = _MemoryRecords(memoryview(data))
    assert (ours.has_next(), ours.size_in_bytes()) == (theirs.has_next(), theirs.size_in_bytes())


def test_aiokafka_still_uses_the_parts_that_are_replaced_as_expected():
    connection = conn.AIOKafkaConnection
    assert "AIOKafkaProtocol(self._closed_fut, reader, loop=loop)" in inspect.getsource(
        connection.connect
    )
    assert "self._handle_frame(resp)" in inspect.getsource(connection._read)
    handling = inspect.getsource(connection._handle_frame)
    for part in ("self._requests[0]", "self._last_action = ", "self._requests.popleft()"):
        assert part in handling
    assert "MemoryRecords(part_data[-1])" in inspect.getsource(fetcher.Fetcher)
