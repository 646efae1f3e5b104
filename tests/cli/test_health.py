"""`evaluator health`: the health check of a container for the worker."""

import asyncio
import socket

import pytest

from evaluator.adapters.http import HttpServer
from evaluator.cli import main
from tests.adapters.synthetic import FixedViews


def asked(views, *arguments, **settings):
    """Exit code of `evaluator health` beside a server of these views."""

    async def ask():
        server = HttpServer(views, host="127.0.0.1", port=0)
        await server.start()
        given = {"http_host": "0.0.0.0", "http_port": server.port, **settings}
        flags = [f"--set={name}={value}" for name, value in given.items()]
        try:
            return await asyncio.to_thread(main, ["health", *arguments, *flags])
        finally:
            await server.stop()

    return asyncio.run(ask())


def test_a_worker_that_lives_is_well_though_its_broker_is_away(capsys):
    views = FixedViews(reasons=["broker unavailable"])
    assert asked(views) == 0
    assert asked(views, "--ready") == 5
    assert "broker unavailable" in capsys.readouterr().out


def test_a_worker_whose_loop_stands_still_is_not_well():
    views = FixedViews()
    views.is_alive = False
    assert asked(views) == 5
    assert asked(views, "--ready") == 0


def test_a_worker_that_is_not_there_cannot_be_asked(capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert main(["health", f"--set=http_port={port}"]) == 3
    out = capsys.readouterr().out
    assert f"127.0.0.1:{port} is unreachable" in out
    assert "Start it, or give the port with --set http_port=" in out


def test_a_port_that_nobody_knows_is_refused(capsys):
    assert main(["health", "--set=http_port=0"]) == 2
    assert "Set a port" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1"])
def test_a_worker_on_every_address_is_asked_on_loopback(address):
    assert asked(FixedViews(), http_host=address) == 0
