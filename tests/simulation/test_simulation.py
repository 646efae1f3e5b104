"""96 worlds with faults: all outputs and counts equal those of the oracle."""

import os
import subprocess
import sys

import pytest

from tests.repeats import IS_QUICK, repeated
from tests.simulation.world import Simulation, digest

FIRST_SEED = 1
WORLDS_PER_PART = 8
FINDING = (1, 2, 3, 7)
"""Of the first part, the seeds that find broken protections first (tests/README.md)."""


def finished_world(seed):
    """A finished world; failures have its seed and its last steps."""
    world = Simulation(seed)
    try:
        world.live()
    except BaseException as error:
        steps = "\n".join(map(str, world.steps[-30:]))
        raise AssertionError(
            f"the world of seed {seed}; all of it: python -m tests.simulation {seed}\n{steps}"
        ) from error
    return world


@pytest.mark.parametrize("part", repeated(12, quick=1))
def test_no_fault_changes_outputs_or_counts(part):
    first = FIRST_SEED + part * WORLDS_PER_PART
    for seed in FINDING if IS_QUICK else range(first, first + WORLDS_PER_PART):
        finished_world(seed)


@pytest.mark.slow
def test_a_seed_makes_the_same_world_in_another_process():
    seed = 12
    replayed = subprocess.run(
        [sys.executable, "-m", "tests.simulation", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"digest {digest(finished_world(seed))}" in replayed.stdout
