"""`run`, `leader` and `demo`: a worker and a leader with their adapters and HTTP server."""

import argparse
import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import structlog

from evaluator.adapters.http import HttpServer, HttpUnusable, limited, status_document
from evaluator.adapters.kafka import GroupSettings, InputRetention, KafkaSink, KafkaSource
from evaluator.adapters.linux import free_bytes, memory_limit_bytes
from evaluator.adapters.log import configure_log
from evaluator.adapters.memory import (
    MemoryBroker,
    MemoryLeadership,
    MemorySink,
    MemorySource,
    MemoryStateDirectory,
)
from evaluator.adapters.prometheus import EvaluatorCollector, Resources, exposition, registry_of
from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.cli.leader import (
    kafka_leadership,
    leadership_of,
    leading,
    require_learning,
)
from evaluator.cli.ranges import skips_of
from evaluator.cli.wiring import (
    connection_of,
    fingerprint_of,
    from_settings,
    histograms_of,
    http_server,
    needed_input_ms,
    new_engine,
    require_room_for_series,
    topic_names,
)
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.online.online_learner import LeaderView
from evaluator.core.types.records import LOGS
from evaluator.core.types.skips import Skips
from evaluator.core.types.tally import Tally
from evaluator.demo import SETTINGS as DEMO_SETTINGS
from evaluator.demo import DemoWorld, Learning, RunningWorker, run_demo
from evaluator.exposition.snapshot import Snapshot
from evaluator.leader import Leader
from evaluator.ports import InputHealth, Sink, Source, StateDirectory
from evaluator.version import __version__
from evaluator.wire.native import library as wire_library
from evaluator.wire.outputs.encoding import totals_document
from evaluator.wire.outputs.sizes import OVERSIZE_OUTPUT
from evaluator.wire.records import Output, OutputRecord
from evaluator.worker import Wire, Worker, WorkerSettings

DEMO_PARTITIONS: Final = 2

log = structlog.get_logger(__name__)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator run`."""
    require_room_for_series(settings, "/metrics", "`evaluator replay` has no such limit")
    connection, prefix = connection_of(options.source, settings), settings.topic_prefix
    source = KafkaSource(connection, from_settings(GroupSettings, settings))
    sink = KafkaSink(connection, topic_prefix=prefix)
    needed_ms = needed_input_ms(settings)
    retention = InputRetention(connection, topic_prefix=prefix, needed_ms=needed_ms)

    def health() -> InputHealth:
        return InputHealth(
            needed_ms=retention.needed_ms,
            retention_ms=retention.known,
            outside=source.bounds.counts,
            lost=source.bounds.lost,
        )

    states = RocksStateDirectory(Path(settings.state_dir))
    states.hold()
    try:
        skips = skips_of(options, settings)
        worker = _worker(
            source, sink, states, settings, accept_loss=options.accept_loss, skips=skips
        )
        leader = None
        if settings.learns:
            leader = leadership_of(kafka_leadership(options.source, settings), settings)
        views = ProcessViews(worker, settings, health=health, leader=leader)

        async def work() -> None:
            if wire_library.BUILT is None:
                log.warning("native_part_not_built")
            _reduce_garbage_collections()
            async with retention.watching(), leading(leader, worker.stop):
                await worker.run(until_end=options.until_end)

        return asyncio.run(_serve(work, worker.stop, views, settings))
    finally:
        states.release()


def leader(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator leader`: a leader without a worker."""
    require_learning(settings)
    leader = leadership_of(kafka_leadership(options.source, settings), settings)
    views = ProcessViews(None, settings, leader=leader)
    return asyncio.run(_serve(leader.run, leader.stop, views, settings))


async def _serve(
    work: Callable[[], Awaitable[None]],
    stop: Callable[[], None],
    views: "ProcessViews",
    settings: Settings,
) -> int:
    """Serves HTTP during the work, which a signal stops."""
    server = http_server(views, settings)
    _stop_on_signals(stop)
    await server.start()
    log.info("http_started", host=settings.http_host, port=server.port)
    try:
        await work()
    finally:
        await server.stop()
    return 0


def _worker(
    source: Source,
    sink: Sink,
    states: StateDirectory,
    settings: Settings,
    *,
    accept_loss: bool = False,
    skips: Skips = MappingProxyType({}),
) -> Worker:
    measures, fingerprint = measure_set(settings), fingerprint_of(settings)
    wire = from_settings(
        Wire,
        settings,
        measures=measures,
        topic_names=topic_names(settings),
        fingerprint=fingerprint,
        features=settings.learns,
    )
    worker_settings = from_settings(
        WorkerSettings,
        settings,
        accept_loss=accept_loss,
        skips=skips,
        histogram_measures=histograms_of(settings),
    )
    make = partial(new_engine, settings, measures, max_bytes=settings.memory_tier_bytes)
    return Worker(source, sink, states, new_engine=make, wire=wire, settings=worker_settings)


def _stop_on_signals(stop: Callable[[], None]) -> None:
    """The first signal stops the work in order, the second one exits at once."""
    seen: list[int] = []

    def on_signal(number: int) -> None:
        if seen:
            os._exit(128 + number)
        seen.append(number)
        stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def _reduce_garbage_collections() -> None:
    """Freezes existing objects and collects less often, as batches make no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 50)


class ProcessViews:
    """The views of a process for its HTTP server: of its worker, its leader, or both."""

    def __init__(
        self,
        worker: Worker | None,
        settings: Settings,
        *,
        health: Callable[[], InputHealth] | None = None,
        leader: Leader | None = None,
    ) -> None:
        self._worker = worker
        self._leader = leader
        self._settings = settings
        self._measures = measure_set(settings)
        self._registry = registry_of(
            EvaluatorCollector(
                self.snapshot,
                ready=lambda: not self.readiness(),
                version=__version__,
                histograms=histograms_of(settings),
                health=health or (lambda: InputHealth(needed_input_ms(settings))),
                leader=self.leader,
                resources=self.resources,
            )
        )

    def snapshot(self) -> Snapshot:
        """All tasks as of their last commit."""
        return Snapshot() if self._worker is None else self._worker.snapshot

    def readiness(self) -> list[str]:
        """Reasons why the worker, or else the leader, is not ready."""
        process = self._worker or self._leader
        return [] if process is None else process.readiness()

    def alive(self) -> bool:
        """Whether the loop makes progress."""
        return self._worker is None or self._worker.alive()

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Body and content type of a scrape."""
        return exposition(self._registry, accept)

    def status(self) -> Mapping[str, Any]:
        """The document of /status."""
        return status_document(
            self.snapshot(),
            version=__version__,
            reasons=self.readiness(),
            now_ms=time.time_ns() // 1_000_000,
            settings=self._settings.as_shown(),
            max_future_skew_ms=self._settings.max_future_skew_ms,
            leader=self.leader(),
        )

    def weights(self) -> Mapping[str, bytes]:
        """The live weights record of each model."""
        return {} if self._leader is None else self._leader.live

    def leader(self) -> LeaderView | None:
        """The state of learning; None without a leader."""
        return None if self._leader is None else self._leader.view

    def resources(self) -> Resources:
        """Limits of memory and disk; the disk is that of a worker."""
        settings, has_disk = self._settings, self._worker is not None
        return Resources(
            memory_limit_bytes(),
            free_bytes(Path(settings.state_dir)) if has_disk else None,
            settings.max_store_bytes or None if has_disk else None,
        )

    def totals(self) -> Mapping[str, Any]:
        """The document of /totals."""
        snapshot = self.snapshot()
        tally: Tally = {}
        for view in snapshot:
            add_tally(tally, view.tally)
        oversize = ("dead_letters", OVERSIZE_OUTPUT)  # counted by process, not by task
        tally[oversize] = snapshot.counters.get(oversize, 0)
        shown, n_left_out = limited(tally, rows_per_ranker=len(self._measures.spellings))
        return {
            **totals_document(shown, self._measures),
            **({"pairs_left_out": n_left_out} if n_left_out else {}),
            "tasks": [view.task for view in snapshot],
            "positions": {
                f"{log}-{view.task}": view.positions[log] for log in LOGS for view in snapshot
            },
        }


def demo(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator demo`, with few log lines, because they break the progress bar."""
    configure_log(log_format=settings.log_format, log_level="warning")
    settings = replace(settings, **dict[str, Any](DEMO_SETTINGS))
    return asyncio.run(_demo(settings, seed=options.seed, keep=options.keep))


async def _demo(settings: Settings, *, seed: int, keep: bool) -> int:
    broker = MemoryBroker(DEMO_PARTITIONS, keep_read=False)
    worker = _worker(MemorySource(broker), MemorySink(broker), MemoryStateDirectory(), settings)
    leader = leadership_of(MemoryLeadership(broker), settings)
    views = ProcessViews(worker, settings, leader=leader)
    server = await _server_on_any_port(views, settings)
    stopped = asyncio.Event()
    _stop_on_signals(stopped.set)
    scheme = "http" if settings.http_tls_certfile is None else "https"
    page = f"{scheme}://{settings.http_host}:{server.port}/"
    print(f"The page of the worker: {page}", file=sys.stderr)
    running = asyncio.create_task(worker.run())
    learning = asyncio.create_task(leader.run())
    feeding = asyncio.create_task(
        run_demo(
            DemoWorld(seed),
            worker=RunningWorker(
                task=running,
                append=broker.append,
                produced=lambda output: _produced(broker, output),
                snapshot=lambda: worker.snapshot,
                n_partitions=DEMO_PARTITIONS,
            ),
            places=[
                ("live page", page),
                ("metrics", f"{page}metrics"),
                ("totals", f"{page}totals"),
                ("live weights", f"{page}weights?model=tool-ranker"),
                ("a run against a real Kafka", "README.md"),
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
            print(f"\nThe page remains at {page} until Ctrl-C.", file=sys.stderr)
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


def _produced(broker: MemoryBroker, output: Output) -> Iterable[OutputRecord]:
    return chain.from_iterable(broker.output(output, task) for task in range(DEMO_PARTITIONS))
