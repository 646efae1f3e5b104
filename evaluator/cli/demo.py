"""`demo`: a worker and a leader on generated messages, without a broker."""

import argparse
import asyncio
import sys
from contextlib import suppress
from itertools import chain
from typing import Any, Final
from urllib.parse import urlencode

from msgspec.structs import replace

from evaluator.adapters.http import HttpServer, HttpUnusable
from evaluator.adapters.log import configure_log
from evaluator.adapters.memory import (
    MemoryBroker,
    MemoryLeadership,
    MemorySink,
    MemorySource,
    MemoryStateDirectory,
)
from evaluator.cli.leader import leader_of
from evaluator.cli.live import new_worker, stop_on_signals
from evaluator.cli.views import ProcessViews
from evaluator.cli.wiring import http_server
from evaluator.config import Settings
from evaluator.demo import REGRESSED, DemoWorld, Learning, RunningWorker, run_demo
from evaluator.demo import SETTINGS as DEMO_SETTINGS

DEMO_PARTITIONS: Final = 2


def demo(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator demo`, with few log lines, because they break the progress bar."""
    configure_log(log_format=settings.log_format, log_level="warning")
    settings = replace(settings, **dict[str, Any](DEMO_SETTINGS))
    return asyncio.run(_demo(settings, seed=options.seed, keep=options.keep))


async def _demo(settings: Settings, *, seed: int, keep: bool) -> int:
    broker = MemoryBroker(DEMO_PARTITIONS, keep_read=False)
    worker = new_worker(MemorySource(broker), MemorySink(broker), MemoryStateDirectory(), settings)
    leader = leader_of(MemoryLeadership(broker), settings)
    views = ProcessViews(worker, settings, leader=leader)
    server = await _server_on_any_port(views, settings)
    stopped = asyncio.Event()
    stop_on_signals(stopped.set)
    scheme = "http" if settings.http_tls_certfile is None else "https"
    root = f"{scheme}://{settings.http_host}:{server.port}/"
    page = f"{root}?{urlencode({'model': REGRESSED.model, 'variant': REGRESSED.variant})}"
    print(f"The page of the worker: {page}", file=sys.stderr)
    running = asyncio.create_task(worker.run())
    learning = asyncio.create_task(leader.run())
    feeding = asyncio.create_task(
        run_demo(
            DemoWorld(seed),
            worker=RunningWorker(
                task=running,
                append=broker.append,
                produced=lambda output: chain.from_iterable(
                    broker.output(output, task) for task in range(DEMO_PARTITIONS)
                ),
                snapshot=lambda: worker.snapshot,
                n_partitions=DEMO_PARTITIONS,
            ),
            places=[
                ("live page", page),
                ("metrics", f"{root}metrics"),
                ("totals", f"{root}totals"),
                ("live weights", f"{root}weights?model=tool-ranker"),
                ("a run against a real Kafka", "README.md, Against your Kafka"),
            ],
            learning=Learning(
                learning, lambda: leader.view, lambda: broker.leader.written["weights-log"]
            ),
        )
    )
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait({feeding, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if feeding.done():
        feeding.result()
        if keep and not stopped.is_set():
            print(
                f"\nThe page remains at {page} until Ctrl-C. Its messages are of the past, so it "
                "reports an old watermark in ten minutes.",
                file=sys.stderr,
            )
            await stopping
    for task in (feeding, stopping):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    worker.stop()
    await running
    leader.stop()
    await learning
    await server.stop()
    return 0


async def _server_on_any_port(views: ProcessViews, settings: Settings) -> HttpServer:
    """A server on the configured port, or on any free port if that one is in use."""
    server = http_server(views, settings)
    try:
        await server.start()
    except HttpUnusable:
        server = http_server(views, replace(settings, http_port=0))
        await server.start()
    return server
