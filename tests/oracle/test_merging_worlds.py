"""Grades that merge by source, in the small worlds: with every prefix, stores and crashes."""

from dataclasses import replace
from random import Random

import pytest

from evaluator.adapters.memory.state import MemoryStateStore
from evaluator.core.engine import expiry
from evaluator.core.event_time.timers import Timers
from evaluator.core.store import tiering
from tests.oracle.checks import read_checking_every_prefix
from tests.oracle.test_decoded_worlds import DecodingReader
from tests.oracle.test_stored_worlds import live
from tests.oracle.worlds import World, seeded_world
from tests.repeats import repeated, sized

FIRST_SEED = 8_000_000
WORLDS_PER_PART = sized(7, quick=5)
RULES = [
    ("max", ()),
    ("max", (("human", "last"),)),
    ("last", (("click", "max"),)),
    ("last", (("", "max"), ("human", "max"))),
]


def merging(seed: int) -> World:
    """The world of a seed, with one of the rules."""
    world, (rule, by_source) = seeded_world(seed), RULES[seed % len(RULES)]
    settings = replace(world.settings, grades_merge=rule, grades_merge_by_source=by_source)
    return replace(world, settings=settings)


@pytest.mark.parametrize("part", repeated(8, quick=1))
def test_the_law_holds_for_every_rule_of_merging(part):
    for seed in range(
        FIRST_SEED + part * WORLDS_PER_PART, FIRST_SEED + (part + 1) * WORLDS_PER_PART
    ):
        try:
            read_checking_every_prefix(merging(seed), Random(seed), reads=DecodingReader)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("part", repeated(8, quick=0))
def test_eviction_and_crashes_do_not_change_merged_grades(monkeypatch, part):
    monkeypatch.setattr(Timers, "RUN", 3)
    monkeypatch.setattr(tiering, "_PART", 2)
    monkeypatch.setattr(expiry, "_CHUNK", 2)
    for seed in range(
        FIRST_SEED + part * WORLDS_PER_PART, FIRST_SEED + (part + 1) * WORLDS_PER_PART
    ):
        try:
            live(merging(seed), Random(seed), MemoryStateStore)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
