"""Clients of the HTTP server that are too many, too slow, or do not speak HTTP."""

import asyncio
import random
import socket
import ssl
import time
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from evaluator.adapters.http import Access, HttpServer
from evaluator.adapters.http.connections import Connections, Timeouts, busy_during_request
from tests.adapters.synthetic import FixedViews
from tests.adapters.test_access import write_pair
from tests.repeats import sized
from tests.waiting import PATIENCE_SECONDS, patience

GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
SOON = Timeouts(head=0.1, busy=0.1, idle=0.1)
LATE = Timeouts(*[10 * PATIENCE_SECONDS] * 3)


@asynccontextmanager
async def serving(views=None, *, most=64, timeouts=LATE, access=None):
    server = HttpServer(
        views or FixedViews(),
        host="127.0.0.1",
        port=0,
        access=access,
        max_connections=most,
        timeouts=timeouts,
    )
    await server.start()
    try:
        async with patience():
            yield server
    finally:
        await server.stop()


@asynccontextmanager
async def connected(server, first=b"", **options):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, **options)
    writer.write(first)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def is_served(server, **options):
    async with connected(server, GET, **options) as (reader, _):
        return (await first_line(reader)).startswith(b"HTTP/1.1 200 ")


async def first_line(reader):
    try:
        return await reader.readline()
    except ConnectionResetError:
        return b""


async def eventually_served(server):
    """For tests in which a client that pauses for a moment would lose its connection."""
    while not await is_served(server):
        pass


async def ended(reader):
    """Waits until the other side has closed; returns the received bytes."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def until(condition):
    while not condition():  # noqa: ASYNC110  # nothing reports it
        await asyncio.sleep(0.02)


async def send_forever(writer, piece):
    try:
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)
    except ConnectionError:
        return


# Slow ones


@pytest.mark.parametrize("first", [b"", b"G", HALF])
async def test_a_connection_without_a_complete_head_is_closed(first):
    async with serving(timeouts=Timeouts(head=0.1)) as server, connected(server, first) as (r, _):
        assert await ended(r) == b""


async def test_a_head_that_arrives_byte_by_byte_does_not_extend_its_timeout():
    timeouts = Timeouts(head=0.1)
    async with serving(timeouts=timeouts) as server, connected(server, HALF) as (reader, writer):
        await asyncio.gather(send_forever(writer, b"a"), ended(reader))


@pytest.mark.slow(alone=False)
async def test_a_stalled_event_loop_closes_no_connection_whose_head_has_arrived():
    async with serving(timeouts=Timeouts(head=0.1)) as server:
        client = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", server.port))
        with client:
            client.sendall(GET)
            client.setblocking(False)
            response = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(client, 100))
            while not response.done():
                time.sleep(0.12)  # noqa: ASYNC251  # each turn is longer than the timeout
                await asyncio.sleep(0)
            assert (await response).startswith(b"HTTP/1.1 200 ")


async def test_an_idle_connection_is_closed_after_its_response():
    timeouts = Timeouts(LATE.head, LATE.busy, idle=0.1)
    async with serving(timeouts=timeouts) as server, connected(server, GET) as (reader, _):
        assert (await ended(reader)).endswith(b'{"alive":true}')


async def test_the_second_head_has_no_more_time_than_the_first():
    answered = False
    async with serving(timeouts=Timeouts(0.1, LATE.busy, LATE.idle)) as server:
        while not answered:  # the first head is not always in time either
            async with connected(server, GET) as (reader, writer):
                if answered := b"200 OK" in await first_line(reader):
                    await reader.readuntil(b"}")
                    writer.write(HALF)
                    assert await ended(reader) == b""


async def test_an_endless_body_does_not_hold_the_connection():
    head = b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n"
    async with serving(timeouts=SOON) as server, connected(server, head) as (reader, writer):
        await asyncio.gather(send_forever(writer, b"a"), ended(reader))


async def test_a_client_that_does_not_read_is_disconnected():
    class Large(FixedViews):
        async def metrics(self, accept):
            return b"x" * 50_000_000, "text/plain"

    ask = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serving(Large(), most=1, timeouts=SOON) as server:
        async with connected(server, ask * 3, limit=1000) as (reader, _):
            await reader.readline()
            await until(lambda: not server._connections._open)  # that of this client
        await eventually_served(server)


async def test_a_connection_without_a_tls_handshake_is_closed(tmp_path):
    certfile, keyfile = write_pair(tmp_path)
    access = Access(certfile=str(certfile), keyfile=str(keyfile))
    async with (
        serving(access=access, most=1, timeouts=Timeouts(head=0.1)) as server,
        connected(server) as (reader, _),
    ):
        assert await ended(reader) == b""


# Too many


async def test_more_connections_than_the_limit_do_not_stay_open():
    async with serving(most=4) as server:
        clients = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(12)]
        await asyncio.gather(*(ended(reader) for reader, _ in clients[:8]))
        assert len(server._connections._open) == 4
        for _, writer in clients:
            writer.transport.abort()


@pytest.mark.parametrize("first", [b"", HALF])
async def test_a_request_is_served_while_other_clients_hold_all_connections(first):
    async with serving(most=8) as server:
        connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(8)]
        for _, writer in connections:
            writer.write(first)
        assert await is_served(server)
        for _, writer in connections:
            writer.transport.abort()


async def test_a_half_open_connection_is_closed_before_an_idle_one():
    async with serving(most=2) as server, connected(server, GET) as (idle, writer):
        await idle.readuntil(b"}")
        async with connected(server, HALF) as (half_open, _):
            assert await is_served(server)
            assert await ended(half_open) == b""
        writer.write(GET)
        assert await idle.readuntil(b"}")


async def test_a_connection_waiting_in_a_handshake_is_replaced(tmp_path):
    certfile, keyfile = write_pair(tmp_path)
    access = Access(certfile=str(certfile), keyfile=str(keyfile))
    context = ssl.create_default_context(cafile=str(certfile))
    context.check_hostname = False
    async with serving(access=access, most=1) as server, connected(server) as (reader, _):
        assert await is_served(server, ssl=context)
        assert await ended(reader) == b""


async def test_a_new_connection_is_closed_at_once_while_all_are_busy():
    begun, may_respond = asyncio.Event(), asyncio.Event()

    async def response(request):
        begun.set()
        await may_respond.wait()
        return web.Response(text="done")

    async def handler(request):
        return await busy_during_request(request, response)

    connections = Connections(most=1, timeouts=LATE)
    await connections.start(web.Server(handler), "127.0.0.1", 0, None)
    port = connections.addresses[0][1]
    async with patience():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await begun.wait()
        other, other_writer = await asyncio.open_connection("127.0.0.1", port)
        assert await ended(other) == b""
        may_respond.set()
        assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 ")
    writer.transport.abort()
    other_writer.transport.abort()
    await connections.stop_listening()
    await connections.close()


# No HTTP

TLS_HELLO = bytes.fromhex("16030100f8010000f40303") + bytes(range(200))
GARBAGE = [
    TLS_HELLO,
    b"\x00" * 5_000,
    b"\r\n" * 5_000,
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: \xff\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nrest",
    b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\xff\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


async def test_invalid_http_logs_one_line_and_the_server_keeps_serving(caplog):
    noise = [random.Random(seed).randbytes(300) + b"\r\n\r\n" for seed in range(sized(50, quick=8))]
    with capture_logs() as logged:
        async with serving(timeouts=Timeouts(head=0.5, idle=0.1)) as server:
            for garbage in GARBAGE + noise:
                async with connected(server, garbage) as (reader, _):
                    await ended(reader)
            await eventually_served(server)
            server._connections.report()
            server._connections.report()
    events = [entry["event"] for entry in logged]
    assert events.count("http_connections_closed") == 1
    assert set(events) <= {"http_connections_closed"}
    assert caplog.records == []


async def test_plain_bytes_to_a_tls_port_are_only_counted(tmp_path, caplog):
    certfile, keyfile = write_pair(tmp_path)
    access = Access(certfile=str(certfile), keyfile=str(keyfile))
    async with serving(access=access) as server:
        for garbage in (GET, b"\x00" * 100, b"\x16\x03\x01\x00\x05hello"):
            async with connected(server, garbage) as (reader, _):
                await ended(reader)
        await until(lambda: server._connections._closed["unreadable"] == 3)
    assert caplog.records == []
