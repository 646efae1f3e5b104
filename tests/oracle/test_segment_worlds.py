"""Sums by level in the small worlds: with a store, with crashes, and merged over tasks."""

import json
from dataclasses import replace
from hashlib import blake2b
from random import Random

import pytest

from evaluator.adapters.memory.state import MemoryStateStore
from evaluator.core.engine import expiry
from evaluator.core.event_time.timers import Timers
from evaluator.core.join.stated import Stated
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.store import tiering
from tests.oracle.checks import check_end, read_checking_every_prefix
from tests.oracle.messages import Raw
from tests.oracle.oracle import OTHER, fold
from tests.oracle.run import EXACT_SECTIONS, counted, new_engine, segment_rules
from tests.oracle.test_decoded_worlds import DecodingReader
from tests.oracle.test_stored_worlds import live
from tests.oracle.worlds import MALFORMED, World, seeded_world
from tests.repeats import repeated, sized

FIRST_SEED = 9_000_000
WORLDS_PER_PART = sized(7, quick=5)
LEVELS = ("de", "fr", "\u00e4", "x", "y", OTHER, "", None)


def with_levels(world: World, seed: int) -> World:
    """The same world with levels that follow from the bytes of rankings, and few that are kept."""
    random = Random(seed)
    settings = replace(
        world.settings,
        segments=random.choice((("locale",), ("device", "locale"))),
        segment_levels=random.choice(((), (("locale", "de"),))),
        segment_measures=random.choice(((), world.settings.measures[:1])),
        max_levels=random.choice((1, 2, 2, 1_000)),
    )
    return replace(world, settings=settings, rankings=tuple(map(levelled, world.rankings)))


def levelled(raw: Raw) -> Raw:
    if raw.value is None or raw.value in MALFORMED["rankings"]:
        return raw
    message, random = json.loads(raw.value), Random(blake2b(raw.value).digest())
    if random.random() < 0.9:
        message["segments"] = {
            name: random.choice(LEVELS) for name in ("locale", "device", "other")
        }
    return replace(raw, value=json.dumps(message, ensure_ascii=False).encode())


def levelled_world(seed: int) -> World:
    return with_levels(seeded_world(seed), seed)


@pytest.mark.parametrize("part", repeated(8, quick=1))
def test_sums_by_level_equal_the_oracle_at_every_prefix(part):
    n_folded = 0
    for seed in range(FIRST_SEED + part, FIRST_SEED + 8 * WORLDS_PER_PART, 8):
        world = levelled_world(seed)
        run = read_checking_every_prefix(world, Random(seed), reads=DecodingReader)
        n_folded += any(path[4:5] == (OTHER,) and n for path, n in run.engine.tally().items())
        check_end(run, world.judge(at_end=True))
    assert n_folded, "no level was folded"


@pytest.mark.parametrize("part", repeated(8, quick=1))
def test_sums_by_level_survive_eviction_and_crashes(monkeypatch, part):
    monkeypatch.setattr(Timers, "RUN", 3)
    monkeypatch.setattr(tiering, "_PART", 2)
    monkeypatch.setattr(expiry, "_CHUNK", 2)
    monkeypatch.setattr(Stated, "_LEVELS_BEFORE_CLEANING", 1)
    for seed in range(FIRST_SEED + part, FIRST_SEED + 8 * WORLDS_PER_PART, 8):
        try:
            live(levelled_world(seed), Random(seed), MemoryStateStore)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("part", repeated(4, quick=1))
def test_tallies_of_tasks_merge_in_any_order_and_any_parts(part):
    """Union, cut and fold give the sums of all tasks, as if no task had folded anything."""
    for seed in range(FIRST_SEED + 3 * part, FIRST_SEED + sized(192, quick=48), 12):
        worlds = [levelled_world(seed + n) for n in range(3)]
        settings = replace(worlds[0].settings, measures=("mrr",), segment_measures=())
        worlds = [replace(world, settings=settings) for world in worlds]
        rules, whole = segment_rules(settings), {}
        for world in worlds:
            add_tally(whole, world.judge(at_end=True).level_totals())
        tallies = [tally_at_end(world) for world in worlds]
        expected = counted(fold(whole, settings))
        for a, b, c in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
            left = rules.fold(add_tally(dict(tallies[a]), tallies[b]))
            left = rules.fold(add_tally(left, tallies[c]))
            right = rules.fold(add_tally(dict(tallies[b]), tallies[c]))
            right = rules.fold(add_tally(right, tallies[a]))
            assert counted(left) == counted(right) == expected, seed


def tally_at_end(world: World) -> dict[tuple[str, ...], int]:
    engine, reader = new_engine(world.settings), DecodingReader(world)
    engine.receive(*reader.batch((0, 0), (len(world.rankings), len(world.judgments))))
    for _ in engine.finish():
        pass
    return {
        path: n
        for path, n in engine.tally().items()
        if path[0] in EXACT_SECTIONS and path[0].startswith("segment_")
    }
