"""Single requests to brokers that cannot be reached: the reason, and the time to find it."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from evaluator.adapters.kafka import Connection, clients, connection
from evaluator.adapters.kafka.clients import requests
from evaluator.ports import SourceUnavailable


@asynccontextmanager
async def broker(answer):
    """A server that answers each connection by *answer*; its port and the connections so far."""
    accepted = []

    async def on_connect(reader, writer):
        accepted.append(writer)
        await answer(writer)

    server = await asyncio.start_server(on_connect, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], accepted
    finally:
        server.close()
        for writer in accepted:
            writer.close()


async def silence(writer):
    """Accepts, and never answers."""


async def hang_up(writer):
    writer.close()


async def reason_at(port):
    with pytest.raises(SourceUnavailable) as failure:
        async with requests(Connection(f"127.0.0.1:{port}")):
            pass
    return str(failure.value)


async def test_the_reason_of_a_refused_connection_is_found(unused_tcp_port):
    reason = await reason_at(unused_tcp_port)
    assert reason.startswith("No broker answers. connecting to 127.0.0.1:")
    assert "Connect call failed" in reason


async def test_a_broker_that_hangs_up_is_tried_once_and_probed():
    async with broker(hang_up) as (port, accepted):
        reason = await reason_at(port)
        assert reason.startswith(f"No broker answers. connecting to 127.0.0.1:{port} failed")
        assert len(accepted) == 1 + connection.CLOSED_ATTEMPTS


async def test_a_broker_that_answers_the_probe_is_tried_again(monkeypatch):
    async def answered(_):
        pass

    monkeypatch.setattr(clients, "probe", answered)
    async with broker(hang_up) as (port, accepted):
        await reason_at(port)
        assert len(accepted) == 2


async def test_a_silent_broker_is_probed_while_the_request_waits(monkeypatch):
    monkeypatch.setattr(clients, "SILENCE_MS", 50)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_MS", 100)
    async with broker(silence) as (port, accepted):
        reason = await reason_at(port)
        assert "did not answer in time (connecting to 127.0.0.1:" in reason
        assert len(accepted) == 2
