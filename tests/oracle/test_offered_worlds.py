"""The training data of settled queries, in the small worlds: with a store, and with crashes.

The rankings of a world are given features that follow from their bytes, so that equal rankings
stay equal; what must be offered is read from the same bytes without the code under test.
"""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from random import Random
from typing import Any

import numpy as np
import pytest

from evaluator.adapters.memory.state import MemoryStateStore
from evaluator.core.columns.table import RaggedColumns
from evaluator.core.engine import expiry
from evaluator.core.engine.engine import Engine
from evaluator.core.event_time.timers import Timers
from evaluator.core.join.stated import Stated
from evaluator.core.join.training_data import Offered
from evaluator.core.types.records import Outputs, RankingColumns, SettledColumns, WatermarkRecord
from evaluator.core.types.segments import SegmentRules
from evaluator.wire.messages.codec import decode_rankings
from evaluator.wire.state.checkpoint import decode_checkpoint, encode_checkpoint
from evaluator.worker.task_state import TaskState
from tests.oracle.columns import raw_records
from tests.oracle.measures import order
from tests.oracle.messages import RankingsRecord, Raw
from tests.oracle.oracle import MINUS_INFINITY, Task
from tests.oracle.rules import Query, Settings
from tests.oracle.run import new_engine
from tests.oracle.test_decoded_worlds import DecodingReader
from tests.oracle.test_stored_worlds import index_of
from tests.oracle.worlds import MALFORMED, World, seeded_world
from tests.repeats import repeated, sized

FIRST_SEED = 7_000_000
WORLDS_PER_PART = sized(7, quick=5)
SEGMENTS = ("device", "locale")


# -- worlds with features ------------------------------------------------------------------------


def with_features(world: World) -> World:
    return replace(world, rankings=tuple(map(featured, world.rankings)))


def featured(raw: Raw) -> Raw:
    """The same record, perhaps with features and propensities that follow from its bytes."""
    if raw.value is None or raw.value in MALFORMED["rankings"]:
        return raw
    message, random = json.loads(raw.value), Random(blake2b(raw.value).digest())
    if random.random() < 0.7:
        message["segments"] = {"locale": random.choice(("de", "ä", "", None)), "other": "x"}
    listed = message.get("candidate_ids") or message.get("candidates") or ()
    if random.random() < 0.4:
        message["exposed"] = [random.random() < 0.5 for _ in listed]
    elif random.random() < 0.4:
        message["exposed_top"] = random.randrange(4)
    raw = replace(raw, value=json.dumps(message, ensure_ascii=False).encode())
    n = len(message.get("candidate_ids") or message.get("candidates") or ())
    n_features = random.choice((0, 1, 2, 3, "tools", "graphs"))
    if message.get("candidate_ids") is None or not n_features:
        return raw
    if n_features == "tools":
        message |= random.choice(
            ({"candidate_kind": "tool"}, {"descriptions": ["\u00e4", "b"] * n})
        )
        message |= (
            {"descriptions": message["descriptions"][:n]} if "descriptions" in message else {}
        )
    elif n_features == "graphs":
        graphs = [
            {"type": random.choice("ab"), "nodes": [0] * random.randrange(3)} for _ in range(n)
        ]
        message["graphs"] = graphs
    else:
        row = [random.choice((0, 1, -2.5, 1e300)) for _ in range(n_features)]
        message["features"] = [row] * n
        if random.random() < 0.5:
            message["feature_names"] = [f"phi_{i}" for i in range(n_features)]
    if n and random.random() < 0.3:
        message["propensities"] = [random.choice((1, 0.25)) for _ in range(n)]
    return replace(raw, value=json.dumps(message, ensure_ascii=False).encode())


class FeaturesReader(DecodingReader):
    """The same, with the features of the rankings."""

    def ranking_batch(
        self, records: Sequence[RankingsRecord], raws: Sequence[Raw], next_offset: int
    ) -> RankingColumns:
        return decode_rankings(
            raw_records("rankings", raws, next_offset),
            max_future_skew_ms=self.world.max_future_skew_ms,
            features=True,
            segments=SEGMENTS,
        )


# -- expected training data ----------------------------------------------------------------------


def expected(query: Query) -> dict[str, Any]:
    message = json.loads(query.ranking.value)
    sources: dict[str, int] = {}
    for judgment in query.in_time:
        sources[judgment.source] = sources.get(judgment.source, 0) + 1
    features = message.get("features")
    offered = {
        "offset": query.ranking.offset,
        "sources": dict(sorted(sources.items())),
        **stated(query),
    }
    described_members = {"candidate_kind", "descriptions", "graphs"} & message.keys()
    if described_members and "features" not in message:
        graphs = message.get("graphs")
        return {
            **offered,
            "kind": "tool" if graphs is None else "graph",
            "query": message.get("query") or "",
            "candidate_ids": message["candidate_ids"],
            "descriptions": message.get("descriptions") or [],
            "graphs": [(graph["type"], len(graph["nodes"])) for graph in graphs or ()],
            "propensities": message.get("propensities"),
        }
    if not features:
        return offered
    names = message.get("feature_names") or [f"f{i}" for i in range(len(features[0]))]
    return {
        **offered,
        "names": tuple(names),
        "candidate_ids": message["candidate_ids"],
        "features": features,
        "propensities": message.get("propensities"),
    }


def stated(query: Query) -> dict[str, Any]:
    """Levels, exposure and propensities, from the message and the served order."""
    message = json.loads(query.ranking.value)
    levels = message.get("segments") or {}
    members: dict[str, Any] = {
        "levels": {name: levels[name] for name in SEGMENTS if levels.get(name)}
    }
    kept = order(query.ranking, "served")  # positions of the kept mentions
    exposed, propensities = message.get("exposed"), message.get("propensities")
    if "exposed_top" in message:
        exposed = [position in kept[: message["exposed_top"]] for position in range(len(kept) + 99)]
    if exposed is not None:
        members["exposed"] = [rank for rank, position in enumerate(kept, 1) if exposed[position]]
    if exposed is not None or propensities is not None:
        ranks = {query.ranking.candidate_ids[at]: rank for rank, at in enumerate(kept, 1)}
        members["logged"] = {
            name: (ranks[name], propensities and propensities[kept[ranks[name] - 1]])
            for name in query.settled_evaluation.grades
            if name in ranks
        }
    return members


def stated_in(part: SettledColumns, b: int) -> dict[str, Any]:
    members: dict[str, Any] = {"levels": dict(part.levels.values(b, b + 1)[0])}
    logged = part.logged and part.logged[b]
    if logged:
        if logged.exposed is not None:
            members["exposed"] = [i + 1 for i in range(1_000) if logged.exposed >> i & 1]
        members["logged"] = dict(logged.candidates)
    return members


def offered_in(part: SettledColumns) -> dict[int, dict[str, Any]]:
    rows = {}
    for b, n in enumerate(part.ns):
        offered = part.offered
        rows[n] = {
            "offset": part.offsets[b],
            "sources": offered.sources[b],
            **stated_in(part, b),
        }
        features, described = offered.features[b].tolist(), offered.described[b]
        propensities = offered.propensities[b]
        if described is not None:
            assert offered.names[b] is None
            rows[n] |= {
                "kind": described.kind,
                "query": described.query,
                "candidate_ids": list(described.candidate_ids),
                "descriptions": list(described.descriptions),
                "graphs": [(graph.type, graph.n_nodes) for graph in described.graphs],
                "propensities": None if propensities is None else list(propensities),
            }
        elif features:
            rows[n] |= {
                "names": offered.names[b],
                "candidate_ids": offered.candidate_ids[b],
                "features": features,
                "propensities": None if propensities is None else list(propensities),
            }
        else:
            assert not offered.candidate_ids[b]
    return rows


@dataclass
class SettledOutputs:
    """All records of settled queries by n, and the watermark records."""

    settled: dict[int, dict[str, Any]] = field(default_factory=dict)
    watermark_records: list[WatermarkRecord] = field(default_factory=list)

    def add_outputs(self, outputs: Outputs) -> None:
        for part in outputs.settled:
            rows = offered_in(part)
            assert not rows.keys() & self.settled.keys()
            self.settled |= rows
        if outputs.watermark_record is not None:
            self.watermark_records.append(outputs.watermark_record)

    def check(self, task: Task) -> None:
        assert [self.settled[n] for n in range(len(self.settled))] == [
            expected(query) for query in task.settled
        ]

    def check_watermark_records(self, task: Task) -> None:
        """Its n is the number of queries of the whole log that settle before its watermark."""
        for mark in self.watermark_records:
            assert task.watermark != MINUS_INFINITY
            assert mark.watermark_ms <= task.watermark
            before = [q for q in task.queries if q.settled_time_ms < mark.watermark_ms]
            assert len(before) == mark.n


def check_kept(engine: Engine) -> None:
    """Only open queries that have not settled have something to offer."""
    offered, table = engine._queries.offered, engine._queries.table
    with_some = {*np.flatnonzero(table["schema"]).tolist(), *offered._sources}
    with_some |= offered._propensities.keys() | offered._described.keys()
    with_some |= engine._queries.stated.served.keys()
    of_described = sum(one.n_bytes for one in offered._described.values())
    assert offered._described_bytes == of_described
    assert all(table["open"][slot] and not table["settled"][slot] for slot in with_some)


def engine_of(world: World, **more: Any) -> Engine:
    return new_engine(world.settings, offers=True, segments=SegmentRules(SEGMENTS), **more)


# -- the law -------------------------------------------------------------------------------------


def live(world: World, random: Random, new_store: Callable[[], Any]) -> int:
    """Runs a task with commits, warm and cold starts; returns its number of watermark records."""
    reader = FeaturesReader(world)
    max_bytes = random.choice((0, 0, 3_000, 1 << 40))

    def begin() -> tuple[TaskState, Engine]:
        state = TaskState(store, task=0, features=True)
        engine = engine_of(world, disk_tier=state, max_bytes=max_bytes)
        stored = state.load()
        if stored is not None:
            engine.load(stored)
        return state, engine

    store, outputs_so_far = new_store(), SettledOutputs()
    state, engine = begin()
    read = committed = (0, 0)
    committed_outputs, checkpoint = SettledOutputs(), b""
    total = len(world.rankings), len(world.judgments)
    while read != total:
        step = tuple(min(random.randint(0, 6), n - at) for at, n in zip(read, total, strict=True))
        outputs_so_far.add_outputs(engine.receive(*reader.batch(read, step)))
        read = (read[0] + step[0], read[1] + step[1])
        outputs_so_far.check(reader.judged(read))
        check_kept(engine)
        if random.random() < 0.4:
            state.commit(engine)
            committed, committed_outputs = read, deepcopy(outputs_so_far)
            checkpoint = encode_checkpoint(engine.checkpoint())
        if random.random() < 0.15 and any(committed):
            read, outputs_so_far = committed, deepcopy(committed_outputs)
            if random.random() < 0.5:
                state, engine = begin()
            else:
                store = new_store()
                state, engine = begin()
                rebuild(world, engine, checkpoint, random)
                state.commit(engine)
    outputs_so_far.check_watermark_records(world.judge())
    return len(outputs_so_far.watermark_records)


def rebuild(world: World, engine: Engine, record: bytes, random: Random) -> None:
    """A task rebuilt from the inputs and a checkpoint, without intermediate outputs."""
    checkpoint, reader = decode_checkpoint(record), FeaturesReader(world)
    logs = {"rankings": world.rankings, "judgments": world.judgments}
    read = [index_of(raws, checkpoint.restore_offsets[log]) for log, raws in logs.items()]
    goal = [index_of(raws, checkpoint.head.positions[log]) for log, raws in logs.items()]
    while read != goal:
        step = [min(random.randint(0, 6), end - at) for at, end in zip(read, goal, strict=True)]
        engine.receive(*reader.batch(tuple(read), tuple(step)))
        read = [at + n for at, n in zip(read, step, strict=True)]
    engine.positions.update(checkpoint.head.positions)
    assert engine.take_over(checkpoint) is None


@pytest.mark.parametrize("part", repeated(8, quick=1))
def test_offered_training_data_survive_eviction_and_crashes(monkeypatch, part):
    monkeypatch.setattr(Timers, "RUN", 3)
    monkeypatch.setattr(expiry, "_CHUNK", 2)
    monkeypatch.setattr(expiry, "WATERMARK_RECORD_EVERY_MS", 1)
    monkeypatch.setattr(RaggedColumns, "_SMALLEST", 3)
    monkeypatch.setattr(Offered, "_SCHEMAS_BEFORE_CLEANING", 2)
    monkeypatch.setattr(Stated, "_LEVELS_BEFORE_CLEANING", 1)
    first, n_watermark_records = FIRST_SEED + part * WORLDS_PER_PART, 0
    for seed in range(first, first + WORLDS_PER_PART):
        try:
            n_watermark_records += live(
                with_features(seeded_world(seed)), Random(seed), MemoryStateStore
            )
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert n_watermark_records


@pytest.mark.slow(alone=False)
def test_training_data_of_a_query_are_dropped_once_it_has_settled():
    for seed in range(FIRST_SEED, FIRST_SEED + 20):
        world = with_features(seeded_world(seed))
        engine, reader = engine_of(world), FeaturesReader(world)
        engine.receive(*reader.batch((0, 0), (len(world.rankings), len(world.judgments))))
        for _ in engine.finish():
            pass
        offered = engine._queries.offered
        assert offered.n_bytes == 0
        assert not offered._propensities
        assert not offered._described
        assert not offered._sources
        stated = engine._queries.stated
        assert (stated.n_bytes, stated.served) == (0, {})


def test_without_learning_only_watermark_records_are_written(monkeypatch):
    monkeypatch.setattr(expiry, "WATERMARK_RECORD_EVERY_MS", 1)
    n_watermark_records = 0
    for seed in range(FIRST_SEED, FIRST_SEED + 5):
        world = with_features(seeded_world(seed))
        engine, reader = new_engine(world.settings), DecodingReader(world)
        outputs = engine.receive(*reader.batch((0, 0), (len(world.rankings), len(world.judgments))))
        parts = [*outputs.settled, *(part for each in engine.finish() for part in each.settled)]
        assert parts
        assert all(part.offered is None for part in parts)
        assert all(part.levels is None for part in parts)
        n_watermark_records += outputs.watermark_record is not None
    assert n_watermark_records


def test_an_early_judgment_keeps_its_source_over_a_restart():
    common = {"schema_version": 1, "trace_id": "t", "node_id": "n", "timestamp_ms": 1_000}
    ranking = {**common, "candidate_ids": ["a"], "scores": [1.0]}
    judgment = {**common, "source": "human", "grades": {"a": 1}}
    world = World(
        settings=Settings(),
        rankings=(Raw(0, 1_000, json.dumps(ranking).encode()),),
        judgments=(Raw(0, 1_000, json.dumps(judgment).encode()),),
    )
    store, reader, outputs_so_far = MemoryStateStore(), FeaturesReader(world), SettledOutputs()
    state = TaskState(store, task=0, features=True)
    engine = engine_of(world, disk_tier=state)
    outputs_so_far.add_outputs(engine.receive(*reader.batch((0, 0), (0, 1))))
    state.commit(engine)
    state = TaskState(store, task=0, features=True)
    engine = engine_of(world, disk_tier=state)
    engine.load(state.load())
    outputs_so_far.add_outputs(engine.receive(*reader.batch((0, 1), (1, 0))))
    for outputs in engine.finish():
        outputs_so_far.add_outputs(outputs)
    assert outputs_so_far.settled == {0: {"offset": 0, "sources": {"human": 1}, "levels": {}}}
