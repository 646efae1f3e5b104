"""Workers with and without a disk: warm, stale and cold starts, and their totals."""

import shutil
import signal

import pytest

from tests.kafka.process import checkpoint_totals
from tests.kafka.test_worker_again import append_part
from tests.oracle.totals import comparable

pytestmark = pytest.mark.kafka

SMALL = 1 << 20
"""Bytes of the memory tier: nearly all queries are evicted."""


def run_to_end(world, start, state_dir):
    worker = start(world, "--until-end", state_dir=state_dir, memory_tier_bytes=SMALL)
    assert worker.wait() == 0, worker.err
    return worker


def test_warm_stale_and_cold_starts_reach_the_same_totals(world, start, tmp_path):
    state, old = tmp_path / "state", tmp_path / "old"
    append_part(world, 0, 0.4)
    run_to_end(world, start, state)
    shutil.copytree(state, old)
    assert comparable(checkpoint_totals(world, tmp_path)) == world.truth().totals

    append_part(world, 0.4, 0.7)
    warm = run_to_end(world, start, state)
    assert len(warm.events("state_loaded")) == world.n_tasks
    assert comparable(checkpoint_totals(world, tmp_path)) == world.truth().totals

    append_part(world, 0.7, 0.9)
    stale = run_to_end(world, start, old)
    assert len(stale.events("state_loaded")) == world.n_tasks
    assert comparable(checkpoint_totals(world, tmp_path)) == world.truth().totals

    shutil.rmtree(state)
    append_part(world, 0.9, 1)
    cold = start(world, state_dir=state, memory_tier_bytes=SMALL)
    cold.until_read(world.ends())
    assert not cold.events("state_loaded")
    assert comparable(cold.totals) == world.truth().totals
    cold.signal(signal.SIGKILL)
    cold.wait()
    again = start(world, state_dir=state)  # at once, in the same directory
    again.until_read(world.ends())
    assert comparable(again.totals) == world.truth().totals
    assert again.stop() == 0
    found = checkpoint_totals(world, tmp_path)
    assert comparable(found) == world.truth().totals
    assert found["positions"] == world.ends()
    assert (found["tasks"], found["tasks_missing"]) == ([0, 1], [])
    world.truth().check_outputs(world.outputs())
