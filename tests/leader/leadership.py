"""A broker in memory with the settled records of workers, and leaders on it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from evaluator.adapters.memory import MemoryLeadership
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.online.rules import Rules
from evaluator.core.types.records import WatermarkRecord
from evaluator.leader import Leader
from evaluator.ports import Leadership
from evaluator.wire.outputs.encoding import encode_watermark
from evaluator.wire.records import FINGERPRINT_HEADER, GENERATION_HEADER, OutputRecord
from evaluator.wire.weights.leader_state import STATE_KEY, RecordWriter, model_of
from tests.core.learned import N_TASKS, Record, interleaved, rules
from tests.faulty_broker import FaultyBroker
from tests.waiting import eventually, finished

FINGERPRINT = "workers"


def settled_value(query: SettledQuery) -> bytes:
    """A settled record as a worker writes it."""
    document = {
        "n": query.n,
        "task": query.task,
        "trace_id": query.trace_id,
        "node_id": query.node_id,
        "event_time_ms": query.event_time_ms,
        "settled_time_ms": query.settled_time_ms,
        "model": query.model,
        "grades": query.grades,
        "values": {
            ranker: {m: u / UNITS_PER_ONE for m, u in units.items()}
            for ranker, units in query.units.items()
        },
        "variant": query.variant,
        "segments": dict(query.segments),
        "sources": query.sources,
        "candidate_ids": query.candidate_ids,
        "feature_names": query.feature_names,
        "features": query.features.tolist(),
    }
    return json.dumps(document).encode()


@dataclass
class LeaderHarness:
    """The shared topics of leaders."""

    broker: FaultyBroker = field(default_factory=lambda: FaultyBroker(N_TASKS))

    def settle(
        self, records: Iterable[Record], *, fingerprint: str = FINGERPRINT, generation: str = "g"
    ) -> None:
        """Appends queries and watermark records to the partitions of their tasks."""
        headers = (
            (FINGERPRINT_HEADER, fingerprint.encode()),
            (GENERATION_HEADER, generation.encode()),
        )
        for record in records:
            if isinstance(record, SettledQuery):
                task, value = record.task, settled_value(record)
            else:
                task, watermark = record
                value = encode_watermark(watermark, task=task).value
            self.broker.write(("settled", task), [OutputRecord(b"k", value, headers)])

    def settle_all(self, queries: Sequence[SettledQuery], seed: int = 0, **how: str) -> None:
        for batch in interleaved(queries, Random(seed)):
            self.settle(batch, **how)

    def end(self, queries: Sequence[SettledQuery]) -> list[Record]:
        """Watermark records of every task that are beyond these queries."""
        beyond_ms = queries[-1].settled_time_ms + 1
        ns = [sum(query.task == task for query in queries) for task in range(N_TASKS)]
        return [(task, WatermarkRecord(beyond_ms, n)) for task, n in enumerate(ns)]

    def leader(
        self,
        leadership: Leadership | None = None,
        *,
        fingerprint: str = FINGERPRINT,
        made: Rules | None = None,
        rules_fingerprint: str = "rules",
    ) -> Leader:
        record_writer = RecordWriter(rules_fingerprint, {"loss": "softmax"}, fingerprint)
        learned = made or rules()
        return Leader(
            leadership or MemoryLeadership(self.broker),
            measures=learned.offline_ranking.measures,
            rules=learned,
            record_writer=record_writer,
        )

    @contextlib.asynccontextmanager
    async def working(self, leader: Leader) -> AsyncIterator[Leader]:
        """Runs the leader, and stops it at the end."""
        running = asyncio.create_task(leader.run())
        try:
            yield leader
        finally:
            leader.stop()
            await finished(running)

    async def until(self, holds: Callable[[], Any]) -> None:
        """Waits for a condition, checked at short intervals."""
        await eventually(holds, every=0.001)

    async def until_taken(self, leader: Leader, n_queries: int) -> None:
        """Waits until the leader has processed this many queries."""
        await self.until(
            lambda: (
                leader.view.counts.get(("records", "query"), 0) >= n_queries
                and leader.view.is_leader
            )
        )

    async def until_read_back(self, leader: Leader, model: str) -> bytes:
        """Waits until the leader serves the last record of a model; returns it."""
        await self.until(lambda: any(model_of(each.key) == model for each in self.weights))
        last = [each.value for each in self.weights if model_of(each.key) == model][-1]
        await self.until(lambda: leader.live.get(model) == last)
        return last

    @property
    def weights(self) -> list[OutputRecord]:
        return self.broker.leader.written["weights"]

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(each.value) for each in self.broker.leader.written["weights-log"]]

    @property
    def states(self) -> list[dict[str, Any]]:
        return [json.loads(each.value) for each in self.weights if each.key == STATE_KEY]
