"""A worker in this process, on the broker in memory: a test controls its loop directly."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evaluator.adapters.files.snapshots import SnapshotFolder
from evaluator.adapters.memory import MemorySink, MemorySource, MemoryStateDirectory
from evaluator.core.engine.engine import Engine
from evaluator.core.join.changes import DiskTier
from evaluator.core.measures import MeasureSet
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.types.records import LOGS, Log
from evaluator.core.types.tally import Tally
from evaluator.exposition.snapshot import Snapshot
from evaluator.ports import Committed, Partition, Sink, Source, StateDirectory
from evaluator.wire.messages.staged import Stages
from evaluator.wire.outputs.encoding import totals_document
from evaluator.wire.records import OUTPUTS, Records
from evaluator.worker import StoreSnapshots, Wire, Worker, WorkerSettings
from evaluator.worker.settings import Emission
from tests.engines import engine_of
from tests.faulty_broker import FaultyBroker
from tests.oracle.messages import Raw
from tests.oracle.oracle import Settings
from tests.oracle.run import segment_rules
from tests.oracle.totals import comparable
from tests.waiting import PATIENCE_SECONDS, eventually, finished
from tests.worker.traffic import SETTINGS, Traffic
from tests.worker.truth import Outputs, Truth

GROUP = "group"


@dataclass
class WorkerHarness:
    """A broker with its inputs, and workers on it."""

    n_tasks: int = 2
    settings: Settings = SETTINGS
    release_timeout_seconds: float = PATIENCE_SECONDS
    learns: bool = False
    stages: Stages = field(default_factory=dict)
    broker: FaultyBroker = field(init=False)

    def __post_init__(self) -> None:
        self.broker = FaultyBroker(
            self.n_tasks, release_timeout_seconds=self.release_timeout_seconds
        )

    def append(self, traffic: Mapping[int, Traffic]) -> None:
        for task, part in traffic.items():
            for log in LOGS:
                self.produce(log, task, part.of(log))

    def produce(self, log: Log, task: int, raws: Iterable[Raw]) -> None:
        for raw in raws:
            self.broker.append(log, task, raw.key, raw.value, raw.timestamp_ms or 0)

    def source(self) -> MemorySource:
        return MemorySource(self.broker, group_id=GROUP)

    def sink(self) -> MemorySink:
        return MemorySink(self.broker)

    def worker(
        self,
        source: Source | None = None,
        sink: Sink | None = None,
        states: StateDirectory | None = None,
        **settings: Any,
    ) -> Worker:
        """A worker, without a disk unless *states* are given.

        *settings* are `measures`, `memory_tier_bytes` and the numbers of the loop; `snapshot_url`
        needs *states* on a disk.
        """
        max_bytes = settings.pop("memory_tier_bytes", 1 << 40)
        measures = MeasureSet.parse(settings.pop("measures", self.settings.measures))
        fingerprint = hashlib.sha256(repr(measures.spellings).encode()).hexdigest()[:16]
        snapshots = None
        if url := settings.pop("snapshot_url", None):
            interval_ms = settings.pop("snapshot_interval_ms", 0)
            snapshots = StoreSnapshots(
                *(SnapshotFolder(url), states),
                interval_ms=interval_ms,
                fingerprint=fingerprint,
            )
        loop = {
            "max_poll_records": 50,
            "max_lead_ms": 60_000,
            "idle_ms": 10_000,
            "heartbeats": False,
            "heartbeat_max_gap_ms": 86_400_000,
            "heartbeat_outage_wait_ms": 600_000,
            "checkpoint_interval_ms": 0,
            "max_store_bytes": 0,
            **settings,
        }
        return Worker(
            source or self.source(),
            sink or self.sink(),
            states or MemoryStateDirectory(),
            new_engine=lambda task, disk_tier: self.engine(task, measures, disk_tier, max_bytes),
            wire=Wire(
                measures=measures,
                max_future_skew_ms=300_000,
                maturity_ms=self.settings.maturity_ms,
                window_ms=self.settings.window_ms,
                emit_query=True,
                topic_names={log: log for log in LOGS},
                fingerprint=fingerprint,
                features=self.learns,
                segments=self.settings.segments,
                segment_measures=self.settings.segment_measures,
                stages=self.stages,
            ),
            settings=WorkerSettings(**loop),
            snapshots=snapshots,
        )

    def engine(
        self, task: int, measures: MeasureSet, disk_tier: DiskTier, max_bytes: int
    ) -> Engine:
        s = self.settings
        return engine_of(
            measures,
            task=task,
            retention_ms=s.retention_ms,
            maturity_ms=s.maturity_ms,
            early_ms=s.early_ms,
            remember_ms=s.remember_ms,
            out_of_orderness_ms=s.out_of_orderness_ms,
            window_ms=s.window_ms,
            empty=s.empty,
            offers=self.learns,
            segments=segment_rules(s),
            disk_tier=disk_tier,
            max_bytes=max_bytes,
        )

    @contextlib.asynccontextmanager
    async def working(self, worker: Worker, **how: Any) -> AsyncIterator[Worker]:
        """Runs the worker, and stops it at the end."""
        running = asyncio.create_task(worker.run(**how))
        try:
            yield worker
        finally:
            worker.stop()
            await running

    async def until_end(self, **settings: Any) -> Worker:
        """Runs a worker until the end of the logs."""
        worker = self.worker(**settings)
        await finished(worker.run(until_end=True))
        return worker

    def ends(self) -> dict[tuple[Log, int], int]:
        return {
            (log, task): self.broker.end_of(log, task)
            for task in range(self.n_tasks)
            for log in LOGS
        }

    def committed(self) -> dict[tuple[Log, int], int]:
        committed_offsets = {each: self.broker.committed(GROUP, each) for each in self.ends()}
        return {
            each: commit.offset for each, commit in committed_offsets.items() if commit is not None
        }

    def outputs(self) -> Outputs:
        return {(o, t): self.broker.output(o, t) for o in OUTPUTS for t in range(self.n_tasks)}

    def truth(self, settings: Settings | None = None) -> Truth:
        inputs = {task: tuple(self.raws(log, task) for log in LOGS) for task in range(self.n_tasks)}
        return Truth(inputs, settings or self.settings)  # type: ignore[arg-type]

    def raws(self, log: Log, task: int) -> list[Raw]:
        kept = self.broker.logs[log, task]
        columns = zip(kept.offsets, kept.timestamps_ms, kept.values, kept.keys, strict=True)
        return [Raw(*row) for row in columns]


class StalledSink(MemorySink):
    """Accepts every record, and acknowledges none until `flows` is set."""

    def __init__(self, broker: FaultyBroker) -> None:
        super().__init__(broker)
        self.flows = asyncio.Event()
        self.emitted = 0

    async def emit(self, records: Emission) -> Awaitable[None]:
        self.emitted += 1
        acknowledged = await super().emit(records)

        async def later() -> None:
            await self.flows.wait()
            await acknowledged

        return asyncio.create_task(later())


class RoundCountingSource(MemorySource):
    """Counts the rounds of the worker's loop."""

    def __init__(self, broker: FaultyBroker) -> None:
        super().__init__(broker, group_id=GROUP)
        self.n_rounds = 0

    def stay_in_group(self) -> None:
        self.n_rounds += 1
        super().stay_in_group()

    async def poll(self, partitions: Sequence[Partition], **how: Any) -> list[Records]:
        self.n_rounds += 1
        return await super().poll(partitions, **how)

    async def wait_for_rounds(self, times: int = 10) -> None:
        """Waits for more rounds of the loop, after which any pending action would be done."""
        enough = self.n_rounds + times
        await eventually(lambda: self.n_rounds >= enough)


def positions(*workers: Worker) -> dict[tuple[Log, int], int]:
    """Next offsets as of the last commit of each worker."""
    return {
        (log, view.task): view.positions[log]
        for worker in workers
        for view in worker.snapshot
        for log in LOGS
    }


def totals(settings: Settings, *workers: Worker) -> dict[str, Any]:
    """The merged totals of workers that share the tasks, in the form of `comparable`."""
    tally: Tally = {}
    seen: list[int] = []
    for worker in workers:
        for view in worker.snapshot:
            add_tally(tally, view.tally)
            seen.append(view.task)
    assert len(seen) == len(set(seen)), seen
    rules, measures = segment_rules(settings), MeasureSet.parse(list(settings.measures))
    return comparable(totals_document(rules.fold(tally), measures, rules))


def counted(snapshot: Snapshot, log: Log) -> int:
    """Records of one input that this process has counted."""
    return snapshot.counters.get((log, "read"), 0)


def offsets_of(commits: Mapping[Partition, Committed]) -> dict[Partition, int]:
    """The committed offsets, without their metadata."""
    return {partition: commit.offset for partition, commit in commits.items()}
