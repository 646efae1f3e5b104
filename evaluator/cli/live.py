"""`run` and `leader`: a worker and a leader with their adapters and HTTP server."""

import argparse
import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from evaluator.adapters.claims import StoreClaims
from evaluator.adapters.kafka import (
    Connection,
    InputRetention,
    KafkaLeadership,
    KafkaSink,
    KafkaSource,
)
from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.cli.exits import UsageError
from evaluator.cli.reloading import hang_up
from evaluator.cli.views import ProcessViews
from evaluator.cli.wiring import (
    compare_schemas,
    connection_of,
    fingerprint_of,
    from_settings,
    group_of,
    histograms_of,
    http_server,
    needed_input_ms,
    new_engine,
    prepare_of,
    require_room_for_series,
    schemas_of,
    skips_of,
    stages_of,
    topic_names,
)
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.types.skips import Skips
from evaluator.ports import InputHealth, Sink, Source, StateDirectory
from evaluator.wire.messages.staged import Stages
from evaluator.wire.native import library as wire_library
from evaluator.wire.records import LEADER_OUTPUTS, SCHEMAS, WRITTEN
from evaluator.worker import StoreSnapshots, Wire, Worker, WorkerSettings

if TYPE_CHECKING:
    from evaluator.leader import Leader

log = structlog.get_logger(__name__)

GC_THRESHOLD: Final = (200_000, 50, 50)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator run`."""
    require_room_for_series(settings, "/metrics", "`evaluator replay` has no such limit")
    prefix = settings.written_prefix
    connection = connection_of(options.source, settings)
    connection = replace(connection, needed=_topics_of(connection, settings))
    schemas = schemas_of(settings, connection, writes=True)
    group = group_of(settings)
    claims = StoreClaims(
        Path(settings.state_dir), fingerprint_of(settings), lambda: worker.snapshot
    )
    source = KafkaSource(connection, group, prepare=prepare_of(schemas), claims=claims.of)
    sink = KafkaSink(connection, topic_prefix=prefix)
    retention = InputRetention(connection, topic_prefix=prefix, needed_ms=needed_input_ms(settings))

    def health() -> InputHealth:
        return InputHealth(
            needed_ms=retention.needed_ms,
            retention_ms=dict(retention.known),
            outside=dict(source.bounds.counts),
            lost=dict(source.bounds.lost),
        )

    states = RocksStateDirectory(Path(settings.state_dir))
    states.hold()
    try:
        worker = new_worker(
            *(source, sink, states, settings),
            stages=stages_of(settings, schemas, watched=True),
            accept_loss=options.accept_loss,
            skips=skips_of(options, settings),
            snapshots=_snapshots_of(states, settings),
        )
        leader_of = partial(_leader_of, connection, settings) if settings.leads else None
        leader = leader_of() if leader_of and settings.learns else None  # settings may be refused
        views = ProcessViews(worker, settings, health=health, leader=leader, source=options.source)

        async def work() -> None:
            if wire_library.BUILT is None:
                log.warning("native_part_not_built")
            tune_interpreter()
            await compare_schemas(settings)
            watching = retention.watching(worker.polled)
            async with claims.kept(), watching, leading(worker, views, leader_of):
                await worker.run(until_end=options.until_end)

        def stop() -> None:
            worker.stop()
            if views.process_leader is not None:
                views.process_leader.stop()

        return asyncio.run(serve(work, stop, views, settings, options))
    finally:
        states.release()


def _snapshots_of(states: RocksStateDirectory, settings: Settings) -> StoreSnapshots | None:
    """The snapshots of the stores; None if they are off. Raises SourceUnusable."""
    if settings.snapshot_url is None:
        return None
    from evaluator.adapters.files.snapshots import SnapshotFolder  # noqa: PLC0415 - an extra

    return StoreSnapshots(
        SnapshotFolder(settings.snapshot_url, max_store_bytes=settings.max_store_bytes),
        states,
        interval_ms=settings.snapshot_interval_ms,
        fingerprint=fingerprint_of(settings),
    )


def leader(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator leader`: a leader without a worker."""
    if not settings.leads:
        raise UsageError(
            "alarms and learning are off, so a leader has no work. Set alarms to on, or learning "
            "to propose or auto, for the workers too."
        )
    leader = _leader_of(connection_of(options.source, settings), settings)
    views = ProcessViews(None, settings, leader=leader)
    tune_interpreter()
    return asyncio.run(serve(leader.run, leader.stop, views, settings, options))


def _topics_of(connection: Connection, settings: Settings) -> tuple[str, ...]:
    """All topics of a worker, with its leader if it has one."""
    outputs: tuple[str, ...] = (*WRITTEN, *(LEADER_OUTPUTS if settings.leads else ()))
    outputs += (SCHEMAS,) if connection.has_schemas else ()
    names = dict(connection.inputs).values()
    return (*names, *(f"{settings.written_prefix}{output}" for output in outputs))


def _leader_of(connection: Connection, settings: Settings) -> "Leader":
    from evaluator.cli.leader import leader_of  # noqa: PLC0415 - a worker with alarms and learning off needs none

    return leader_of(KafkaLeadership(connection, group_of(settings)), settings)


@asynccontextmanager
async def leading(
    worker: Worker, views: ProcessViews, leader_of: "Callable[[], Leader] | None"
) -> AsyncIterator[None]:
    """Runs the leader of *views*, or a new one, in the background after the first poll.

    If it ends by itself, stops the worker and raises its error.
    """
    if leader_of is None:
        yield
        return

    async def lead() -> None:
        await worker.polled.wait()
        views.process_leader = views.process_leader or leader_of()
        await views.process_leader.run()

    running = asyncio.create_task(lead(), name="leader")
    running.add_done_callback(lambda _: worker.stop())
    try:
        yield
    finally:
        if views.process_leader is None or not worker.polled.is_set():
            running.cancel()
        else:
            views.process_leader.stop()
        await asyncio.wait({running})
        if not running.cancelled():
            running.result()


async def serve(
    work: Callable[[], Awaitable[None]],
    stop: Callable[[], None],
    views: ProcessViews,
    settings: Settings,
    options: argparse.Namespace,
) -> int:
    """Serves HTTP during the work, which a signal stops; SIGHUP reloads some settings."""
    server = http_server(views, settings)
    stop_on_signals(stop)
    await server.start()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, hang_up, options, settings, server)
    log.info("http_started", host=settings.http_host, port=server.port)
    try:
        await work()
    finally:
        await server.stop()
    return 0


def new_worker(
    source: Source,
    sink: Sink,
    states: StateDirectory,
    settings: Settings,
    *,
    stages: Stages | None = None,
    accept_loss: bool = False,
    skips: Skips = MappingProxyType({}),
    snapshots: StoreSnapshots | None = None,
) -> Worker:
    """The worker of these settings."""
    measures, fingerprint = measure_set(settings), fingerprint_of(settings)
    wire = from_settings(
        Wire,
        settings,
        measures=measures,
        topic_names=topic_names(settings),
        stages=stages_of(settings) if stages is None else stages,
        fingerprint=fingerprint,
        features=settings.learns,
    )
    worker_settings = from_settings(
        WorkerSettings,
        settings,
        accept_loss=accept_loss,
        skips=skips,
        histogram_measures=histograms_of(settings),
        counts_positions=settings.silence == "zero",
    )
    make = partial(new_engine, settings, measures, max_bytes=settings.memory_tier_bytes)
    return Worker(
        *(source, sink, states),
        new_engine=make,
        wire=wire,
        settings=worker_settings,
        snapshots=snapshots,
    )


def stop_on_signals(stop: Callable[[], None]) -> None:
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


def tune_interpreter() -> None:
    """Collects garbage less often, as batches create no cycles.

    Other threads, which write the text of scrapes, give way to the loop after a millisecond.
    """
    gc.set_threshold(*GC_THRESHOLD)
    sys.setswitchinterval(0.001)
