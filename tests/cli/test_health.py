"""`evaluator health`: the health check of a container for the worker."""

import asyncio
import socket

import pytest

from evaluator.adapters.http import HttpServer
from evaluator.cli import main
from tests.adapters.synthetic import FixedViews


def health_exit_code(views, *arguments, **settings):
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


def test_a_live_worker_is_healthy_while_its_broker_is_unavailable(capsys):
    views = FixedViews(reasons=["broker unavailable"])
    assert health_exit_code(views) == 0
    assert health_exit_code(views, "--ready") == 5
    assert "broker unavailable" in capsys.readouterr().out


def test_a_worker_whose_loop_is_blocked_is_unhealthy():
    views = FixedViews()
    views.is_alive = False
    assert health_exit_code(views) == 5
    assert health_exit_code(views, "--ready") == 0


def test_an_unreachable_worker_is_unhealthy(capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert main(["health", f"--set=http_port={port}"]) == 3
    out = capsys.readouterr().out
    assert f"127.0.0.1:{port} is unreachable" in out
    assert "Start it, or give its settings of HTTP with --config or --set http_port=" in out


def test_an_unknown_port_is_refused(capsys):
    assert main(["health", "--set=http_port=0"]) == 2
    assert "Set a port" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1"])
def test_a_worker_on_all_addresses_is_queried_on_loopback(address):
    assert health_exit_code(FixedViews(), http_host=address) == 0
