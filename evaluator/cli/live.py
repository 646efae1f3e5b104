"""`run` and `leader`: a worker and a leader with their adapters and HTTP server."""

import argparse
import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import structlog
from msgspec.structs import replace

from evaluator.adapters.claims import StoreClaims
from evaluator.adapters.http import limited, status_document
from evaluator.adapters.kafka import (
    Connection,
    InputRetention,
    KafkaLeadership,
    KafkaSink,
    KafkaSource,
)
from evaluator.adapters.linux import free_bytes, memory_limit_bytes, resident_bytes
from evaluator.adapters.prometheus import EvaluatorCollector, exposition, registry_of
from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.cli.exits import UsageError
from evaluator.cli.reloading import hang_up
from evaluator.cli.wiring import (
    compare_schemas,
    connection_of,
    fingerprint_of,
    from_settings,
    group_of,
    histograms_of,
    http_server,
    meaning_of,
    needed_input_ms,
    new_engine,
    prepare_of,
    require_room_for_series,
    schemas_of,
    segment_rules_of,
    skips_of,
    stages_of,
    topic_names,
)
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.online.views import LeaderView
from evaluator.core.types.records import LOGS
from evaluator.core.types.skips import Skips
from evaluator.core.types.tally import Tally
from evaluator.exposition.snapshot import Resources, Snapshot
from evaluator.ports import InputHealth, Sink, Source, StateDirectory
from evaluator.version import __version__
from evaluator.wire.messages.staged import Stages
from evaluator.wire.native import library as wire_library
from evaluator.wire.outputs.encoding import totals_document
from evaluator.wire.outputs.sizes import OVERSIZE_OUTPUT
from evaluator.wire.records import LEADER_OUTPUTS, SCHEMAS, WRITTEN
from evaluator.worker import StoreSnapshots, Wire, Worker, WorkerSettings

if TYPE_CHECKING:
    from evaluator.leader import Leader

log = structlog.get_logger(__name__)


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
    worker: Worker, views: "ProcessViews", leader_of: "Callable[[], Leader] | None"
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
    views: "ProcessViews",
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
    gc.set_threshold(200_000, 50, 50)
    sys.setswitchinterval(0.001)


class ProcessViews:
    """The views of a process for its HTTP server: of its worker, its leader, or both."""

    def __init__(
        self,
        worker: Worker | None,
        settings: Settings,
        *,
        health: Callable[[], InputHealth] | None = None,
        leader: "Leader | None" = None,
        source: str | None = None,
    ) -> None:
        self._worker = worker
        self.process_leader = leader
        self._settings = settings
        self._measures = measure_set(settings)
        self._identity = {
            "meaning": meaning_of(settings),
            "fingerprint": fingerprint_of(settings),
            "source": source,
        }
        self._collector = EvaluatorCollector(
            self.snapshot,
            ready=lambda: not self.readiness(),
            version=__version__,
            histograms=histograms_of(settings),
            segments=segment_rules_of(settings),
            health=health or (lambda: InputHealth(needed_input_ms(settings))),
            leader=self.leader,
            resources=self.resources,
            links=(settings.runbook_url or "", (settings.dashboard_url or "").rstrip("/")),
        )
        self._registry = registry_of(self._collector)
        self._scrapes = ThreadPoolExecutor(1, "scrape")  # one at a time: they share their sums

    def snapshot(self) -> Snapshot:
        """All tasks as of their last commit."""
        return Snapshot() if self._worker is None else self._worker.snapshot

    def readiness(self) -> list[str]:
        """Reasons why the worker, or else the leader, is not ready."""
        process = self._worker or self.process_leader
        return [] if process is None else process.readiness()

    def alive(self) -> bool:
        """Whether the loop makes progress."""
        return self._worker is None or self._worker.alive()

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Body and content type of a scrape. A thread writes the text, which takes long."""
        loop, figures = asyncio.get_running_loop(), self._collector.read()
        return await loop.run_in_executor(self._scrapes, self._written, figures, accept)

    def _written(self, figures: Mapping[str, Any], accept: str) -> tuple[bytes, str]:
        self._collector.figures = figures
        return exposition(self._registry, accept)

    def status(self) -> Mapping[str, Any]:
        """The document of /status."""
        place = None if self._worker is None else self._worker.place
        return status_document(
            self.snapshot(),
            version=__version__,
            reasons=self.readiness(),
            now_ms=time.time_ns() // 1_000_000,
            settings=self._settings.as_shown(),
            identity={**self._identity, "place": place and place.as_document()},
            max_future_skew_ms=self._settings.max_future_skew_ms,
            leader=self.leader(),
        )

    def weights(self) -> Mapping[str, bytes] | None:
        """The live weights record of each model; None without learning."""
        live = {} if self.process_leader is None else self.process_leader.live
        return live if self._settings.learns else None

    def leader(self) -> LeaderView | None:
        """The state of learning and alarms; None if there is no leader and none will be loaded."""
        not_loaded = LeaderView() if self._worker and self._settings.leads else None
        return not_loaded if self.process_leader is None else self.process_leader.view

    def resources(self) -> Resources:
        """Use and limits of memory and disk; the disk is that of a worker."""
        settings, has_disk = self._settings, self._worker is not None
        return Resources(
            memory_limit_bytes(),
            free_bytes(Path(settings.state_dir)) if has_disk else None,
            settings.max_store_bytes or None if has_disk else None,
            resident_bytes(),
        )

    def totals(self) -> Mapping[str, Any]:
        """The document of /totals."""
        snapshot = self.snapshot()
        tally: Tally = {}
        for view in snapshot:
            add_tally(tally, view.tally)
        oversize = ("dead_letters", OVERSIZE_OUTPUT)  # counted by process, not by task
        tally[oversize] = snapshot.counters.get(oversize, 0)
        segments, n_rows = segment_rules_of(self._settings), len(self._measures.spellings)
        shown, n_pairs, n_levels = limited(segments.fold(tally), rows_per_ranker=n_rows)
        return {
            **totals_document(shown, self._measures, segments),
            **({"pairs_left_out": n_pairs} if n_pairs else {}),
            **({"levels_left_out": n_levels} if n_levels else {}),
            "tasks": [view.task for view in snapshot],
            "positions": {
                f"{log}-{view.task}": view.positions[log] for log in LOGS for view in snapshot
            },
        }
