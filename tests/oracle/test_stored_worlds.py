"""The same worlds with a store: queries are evicted and loaded, and the process is killed.

Whatever was put disk_tier, and wherever a run was cut and taken up again from its last commit, all
that is said and counted is what the oracle says of the prefix.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import count
from random import Random
from unittest.mock import patch

import numpy as np
import pytest

from evaluator.adapters.memory.state import MemoryStateStore
from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.core.columns.table import RaggedColumns
from evaluator.core.engine import expiry
from evaluator.core.engine.engine import Engine
from evaluator.core.event_time.timers import Timers
from evaluator.core.store import tiering
from evaluator.core.types.records import LOGS
from evaluator.ports import StateStore
from evaluator.wire.state.checkpoint import decode_checkpoint, encode_checkpoint
from evaluator.worker.task_state import TaskState
from tests.oracle.checks import (
    check_clocks,
    check_evaluations,
    check_positions,
    check_state,
    check_windows,
)
from tests.oracle.messages import Raw
from tests.oracle.oracle import Task
from tests.oracle.run import Run, expected_settled, new_engine
from tests.oracle.test_decoded_worlds import DecodingReader
from tests.oracle.worlds import World, seeded_world
from tests.repeats import repeated, sized

FIRST_SEED = 5_000_000
WORLDS_PER_PART = sized(8, quick=6)


def begin(
    world: World, store: StateStore, max_bytes: int, committed_run: Run | None
) -> tuple[Run, TaskState]:
    """A process that continues from the store; *committed_run* has the outputs up to the commit."""
    state = TaskState(store, task=0)
    made = new_engine(world.settings, disk_tier=state, max_bytes=max_bytes)
    stored = state.load()
    if stored is not None:
        made.load(stored)
    run = (
        Run(world.settings, made)
        if committed_run is None
        else replace(deepcopy_of(committed_run), engine=made)
    )
    return run, state


def begin_cold(
    world: World,
    store: StateStore,
    max_bytes: int,
    committed_run: Run,
    checkpoint: bytes,
    random: Random,
) -> tuple[Run, TaskState]:
    """A process without a disk, which has the inputs and a checkpoint record."""
    run, state = begin(world, store, max_bytes, committed_run)
    taken = decode_checkpoint(checkpoint)
    reader = DecodingReader(world)
    logs = {"rankings": world.rankings, "judgments": world.judgments}
    read = [index_of(logs[log], taken.restore_offsets[log]) for log in LOGS]
    goal = [index_of(logs[log], taken.head.positions[log]) for log in LOGS]
    while read != goal:
        step = [min(random.randint(0, 6), end - at) for at, end in zip(read, goal, strict=True)]
        run.engine.receive(*reader.batch(tuple(read), tuple(step)))
        read = [at + n for at, n in zip(read, step, strict=True)]
        if random.random() < 0.2:
            state.commit(run.engine, complete=False)
    run.engine.positions.update(taken.head.positions)
    assert run.engine.take_over(taken) is None
    state.commit(run.engine)
    return run, state


def index_of(raws: Sequence[Raw], offset: int) -> int:
    return sum(raw.offset < offset for raw in raws)


def deepcopy_of(run: Run) -> Run:
    engine_, run.engine = run.engine, None
    copied = deepcopy(run)
    run.engine = engine_
    return copied


def check(run: Run, task: Task) -> None:
    check_state(run, task)
    check_clocks(run, task)
    check_evaluations(run, task)
    check_windows(run, task)
    assert run.settled == [expected_settled(query) for query in task.settled]
    letters = [(letter.log, letter.offset, letter.reason) for letter in run.dead_letters]
    assert len(letters) == len(set(letters))
    assert set(letters) == task.dead_letters


def check_memory(engine: Engine) -> None:
    """Entries count as memory in use if, and only if, a query that is open has them."""
    queries, applied = engine._queries, engine._join._applied.values()
    assert engine.memory_tier_bytes - queries.n_bytes == sum(each.n_bytes for each in applied)
    compacted = deepcopy(queries)
    with patch.object(RaggedColumns, "wasteful", True):
        compacted.tidy()
    assert queries.n_bytes == compacted.n_bytes


def check_eviction(engine: Engine, max_bytes: int) -> None:
    """After a commit, loaded queries stay only if there is room, or several are of one key."""
    if engine._queries.n_bytes > max_bytes:
        loaded = np.array([*engine._tiering._row_by_offset.values()], np.int64)
        assert not engine._tiering._keys.alone(loaded).any()


def live(world: World, random: Random, new_store: Callable[[], StateStore]) -> None:
    """Runs a task with batches and commits, and with kills before and after commits."""
    store, reader = new_store(), DecodingReader(world)
    max_bytes = random.choice((0, 0, 3_000, 1 << 40))
    run, state = begin(world, store, max_bytes, None)
    read = committed = (0, 0)
    committed_run, checkpoint = deepcopy_of(run), b""
    total = len(world.rankings), len(world.judgments)
    while read != total:
        step = tuple(min(random.randint(0, 6), n - at) for at, n in zip(read, total, strict=True))
        run.add_outputs(run.engine.receive(*reader.batch(read, step)))
        read = (read[0] + step[0], read[1] + step[1])
        check_positions(run, world, read)
        check(run, reader.judged(read))
        check_memory(run.engine)
        if random.random() < 0.4:
            state.commit(run.engine)
            check_eviction(run.engine, max_bytes)
            committed, committed_run = read, deepcopy_of(run)
            checkpoint = encode_checkpoint(run.engine.checkpoint())
            check(run, reader.judged(read))
        if random.random() < 0.15 and any(committed):
            read = committed
            if random.random() < 0.5:
                run, state = begin(world, store, max_bytes, committed_run)
            else:
                store.close()
                store = new_store()
                run, state = begin_cold(world, store, max_bytes, committed_run, checkpoint, random)
            check(run, reader.judged(read))
    store.close()


@pytest.mark.parametrize("part", repeated(12, quick=1))
def test_eviction_and_crashes_do_not_change_results(monkeypatch, part):
    monkeypatch.setattr(Timers, "RUN", 3)
    monkeypatch.setattr(tiering, "_PART", 2)
    monkeypatch.setattr(expiry, "_CHUNK", 2)
    first = FIRST_SEED + part * WORLDS_PER_PART
    for seed in range(first, first + WORLDS_PER_PART):
        try:
            live(seeded_world(seed), Random(seed), MemoryStateStore)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("part", repeated(4, quick=0))
def test_eviction_and_crashes_do_not_change_results_with_rocksdb(monkeypatch, tmp_path, part):
    monkeypatch.setattr(Timers, "RUN", 3)
    monkeypatch.setattr(tiering, "_PART", 2)
    for seed in range(FIRST_SEED + part, FIRST_SEED + 12, 4):
        tasks = count()
        directory = RocksStateDirectory(tmp_path / str(seed))
        live(seeded_world(seed), Random(seed), lambda: directory.open(next(tasks)))  # noqa: B023
