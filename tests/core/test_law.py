"""The law: the state of a task is a function of its two prefixes, and of nothing else.

The engine reads small nasty worlds in any interleaving and any batches; a batch oracle that
shares no code with it says what must come out. `EVALUATOR_LAW_WORLDS` sets how many seeded
worlds are read, `EVALUATOR_LAW_SEED` the first seed. `make check` reads the first parts of them.
"""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from evaluator.core.columns.table import RaggedColumns
from evaluator.core.engine import engine, expiry
from evaluator.core.event_time import timers
from evaluator.core.join import join, open_queries
from evaluator.core.measures import align
from tests.oracle.checks import (
    check_end,
    check_outputs,
    check_same,
    check_state,
    check_world,
    read_checking_every_prefix,
    read_whole,
)
from tests.oracle.messages import Raw
from tests.oracle.oracle import PLUS_INFINITY, Settings
from tests.oracle.pieces import described, shrunk
from tests.oracle.run import Reader, feed, new_run
from tests.oracle.worlds import World, crowd, seeded_world, worlds
from tests.repeats import examples, repeated, sized

N_WORLDS = int(os.environ.get("EVALUATOR_LAW_WORLDS", sized(160, quick=120)))
FIRST_SEED = int(os.environ.get("EVALUATOR_LAW_SEED", "0"))

SLOW = pytest.mark.slow

any_order = st.randoms(use_true_random=False)
examples = hypothesis_settings(
    max_examples=examples(24),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # seeded worlds shrink faster, below
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,  # even the smallest world has some records
    ],
)


# -- Hypothesis ----------------------------------------------------------------------------------


@pytest.mark.slow(alone=False)
@examples
@given(worlds(), any_order)
def test_the_engine_equals_the_oracle_after_every_batch(world, random):
    read_checking_every_prefix(world, random)


@examples
@given(worlds(), any_order, any_order)
def test_interleaving_and_batching_do_not_change_results(world, random, other_random):
    check_same(read_whole(world, random), read_whole(world, other_random))


@pytest.mark.slow(alone=False)
@examples
@given(worlds(), any_order)
def test_expiry_changes_no_output(world, random):
    check_same(read_whole(world, random), read_whole(world, random, expire=False))


@pytest.mark.slow(alone=False)
@examples
@given(worlds(), any_order)
def test_a_replay_ends_with_all_queries_settled_and_expired_and_all_windows_final(world, random):
    check_end(read_whole(world, random), world.judge(at_end=True))


# -- many seeded worlds --------------------------------------------------------------------------


def fails(check: Callable[[World], None]) -> Callable[[World], bool]:
    """Whether a world breaks the law; any exception counts."""

    def failing(world: World) -> bool:
        try:
            check(world)
        except Exception:  # noqa: BLE001 - the engine's own errors are failures too
            return True
        return False

    return failing


def check_shrinking(world: World, seed: int) -> None:
    """Fails with the seed and the smallest world that still fails."""
    try:
        check_world(world, seed)
    except Exception as error:
        small = shrunk(world, fails(lambda made: check_world(made, seed)))
        try:
            check_world(small, seed)
        except Exception as small_error:
            raise AssertionError(f"seed {seed}:\n{described(small)}") from small_error
        raise AssertionError(f"seed {seed}:\n{described(world)}") from error


@pytest.mark.parametrize("part", repeated(20, quick=1))
def test_seeded_worlds(part):
    first = FIRST_SEED + part * max(1, N_WORLDS // 20)
    for seed in range(first, first + max(1, N_WORLDS // 20)):
        check_shrinking(seeded_world(seed), seed)


@pytest.mark.parametrize("part", repeated(1, quick=0))
def test_full_batches_of_many_queries(part):
    check_crowd(FIRST_SEED + part)


def check_crowd(seed: int, n_queries: int = 300) -> None:
    """All of the law for one world of many queries, between runs and against the oracle."""
    world = crowd(Random(seed), n_queries)
    runs = [read_whole(world, Random(10 * seed + n), expire=n != 2) for n in range(3)]
    for task in (world.judge(), world.judge(at_end=True)):
        for run in runs:
            if task.watermark == PLUS_INFINITY:
                for outputs in run.engine.finish():
                    run.add_outputs(outputs)
            check_state(run, task)
            check_outputs(run, task)
            check_same(runs[0], run)


@pytest.mark.parametrize("part", repeated(8, quick=1))
def test_buffer_sizes_do_not_change_results(monkeypatch, part):
    """Small buffers are always full: they are compacted, cleaned and cut into chunks."""
    monkeypatch.setattr(align, "_CHUNK", 4)
    monkeypatch.setattr(RaggedColumns, "_SMALLEST", 3)
    monkeypatch.setattr(timers.Timers, "RUN", 3)
    monkeypatch.setattr(expiry, "_CHUNK", 2)
    monkeypatch.setattr(engine, "_FEW", 2)
    monkeypatch.setattr(open_queries.OpenQueries, "_CODES_BEFORE_CLEANING", 3)
    monkeypatch.setattr(join.Join, "_MIN_TURN", 1)
    monkeypatch.setattr(join.Join, "_MOST_IN_COLUMNS", 2)
    first = FIRST_SEED + 2_000_000 + part * max(1, N_WORLDS // 40)
    for seed in range(first, first + max(1, N_WORLDS // 40)):
        check_shrinking(seeded_world(seed), seed)
    if part == 1:
        check_crowd(FIRST_SEED + 100, 100)


# -- a world too large for the rest --------------------------------------------------------------


def judged_often(n_judgments: int) -> World:
    """One query with many judgments; the first one is repeated and changed after the limit."""
    ranking = {
        "schema_version": 1, "trace_id": "t", "node_id": "n", "timestamp_ms": 1_000,
        "candidate_ids": ["a", "b"], "scores": [2.0, 1.0],
    }  # fmt: skip
    judgments = [
        {
            "schema_version": 1, "trace_id": "t", "node_id": "n", "timestamp_ms": 1_000 + i,
            "judgment_id": f"j-{i}", "grades": {"a": i % 3, "b": 1},
        }
        for i in range(n_judgments)
    ]  # fmt: skip
    judgments += [judgments[0], {**judgments[0], "source": "click"}, judgments[-1]]
    values = [json.dumps(judgment).encode() for judgment in judgments]
    return World(
        settings=replace(Settings(), measures=("mrr", "ndcg")),
        rankings=(Raw(0, 1_000, json.dumps(ranking).encode()),),
        judgments=tuple(Raw(offset, 1_000, value) for offset, value in enumerate(values)),
    )


@pytest.mark.parametrize("batch", [400, *(pytest.param(n, marks=SLOW) for n in (1, 7, 5_000))])
def test_a_query_applies_at_most_a_thousand_judgments(batch):
    world = judged_often(1_003)
    n_left = len(world.judgments)
    whole = [(0, 900)] if batch < 10 else []  # small ones around the limit only
    sizes = [(0, batch)] * ((n_left - 900 * len(whole)) // batch + 1)
    run = new_run(world.settings)
    for _ in feed(run, Reader(world), [*sizes[:2], (1, 0), *whole, *sizes]):
        pass
    task = world.judge()
    check_state(run, task)
    check_outputs(run, task)
    tally = run.engine.tally()
    assert tally["judgments", "applied"] == 1_000
    assert tally["judgments", "over_limit"] == 3 + 1  # the last one is repeated, never applied
    assert tally["judgments", "duplicate"] == 1
    assert tally["judgments", "conflicting"] == 1
