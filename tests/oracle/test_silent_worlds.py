"""Silence as grade 0, in the small worlds: with every prefix, stores and crashes."""

import json
from collections import Counter
from dataclasses import replace
from hashlib import blake2b
from random import Random

import pytest

from evaluator.adapters.memory.state import MemoryStateStore
from evaluator.core.engine import expiry
from evaluator.core.event_time.timers import Timers
from evaluator.core.store import tiering
from tests.oracle.checks import read_checking_every_prefix
from tests.oracle.measures import ONE
from tests.oracle.messages import Raw
from tests.oracle.test_decoded_worlds import DecodingReader
from tests.oracle.test_stored_worlds import live
from tests.oracle.worlds import MALFORMED, World, seeded_world
from tests.repeats import repeated, sized

FIRST_SEED = 9_000_000
WORLDS_PER_PART = sized(7, quick=5)


def exposing(raw: Raw) -> Raw:
    """The same ranking, perhaps with exposure that follows from its bytes."""
    if raw.value is None or raw.value in MALFORMED["rankings"]:
        return raw
    message, random = json.loads(raw.value), Random(blake2b(raw.value).digest())
    listed = message.get("candidate_ids") or message.get("candidates") or ()
    if random.random() < 0.2:
        message["candidate_ids"], message["scores"], listed = [], [], []
        for name in ("candidates", "ranks", "scorers", "subtopics", "published_ms"):
            message.pop(name, None)
    if random.random() < 0.5:
        message["exposed"] = [random.random() < 0.6 for _ in listed]
    elif random.random() < 0.6:
        message["exposed_top"] = random.randrange(4)
    if message.get("candidate_ids") is not None and random.random() < 0.9:
        message["propensities"] = [random.choice((1, 0.3, 0.07, 1e-9)) for _ in listed]
    return replace(raw, value=json.dumps(message, ensure_ascii=False).encode())


def silent_world(seed: int) -> World:
    """The world of a seed: silence is 0, and grades merge by one of two rules."""
    world = seeded_world(seed)
    rule = ("last", "max")[seed % 2]
    measures = (*world.settings.measures, *("ctr@1", "abandoned", "ctr@3")[: seed % 4])
    measures += (("ips_dcg@2", "ips_clicks"), ("ips_dcg@1",), ("ips_clicks",))[seed % 3]
    changes = {"silence": "zero", "empty": "zero", "grades_merge": rule, "measures": measures}
    changes["ips_clip"] = (20.0, 1_000.0, 3.5)[seed % 3]
    settings = replace(world.settings, **changes)
    rankings = tuple(map(exposing, world.rankings))
    # Fewer judgments than there are, so that some of them are missed.
    judgments = tuple(
        raw if raw.value is None or seed % 3 or raw.offset % 2 else replace(raw, value=None)
        for raw in world.judgments
    )
    return replace(world, settings=settings, rankings=rankings, judgments=judgments)


@pytest.mark.parametrize("part", repeated(8, quick=1))
def test_the_law_holds_with_silence_as_grade_0(part):
    for seed in range(
        FIRST_SEED + part * WORLDS_PER_PART, FIRST_SEED + (part + 1) * WORLDS_PER_PART
    ):
        try:
            read_checking_every_prefix(silent_world(seed), Random(seed), reads=DecodingReader)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("part", repeated(8, quick=0))
def test_eviction_and_crashes_do_not_change_silent_queries(monkeypatch, part):
    monkeypatch.setattr(Timers, "RUN", 3)
    monkeypatch.setattr(tiering, "_PART", 2)
    monkeypatch.setattr(expiry, "_CHUNK", 2)
    for seed in range(
        FIRST_SEED + part * WORLDS_PER_PART, FIRST_SEED + (part + 1) * WORLDS_PER_PART
    ):
        try:
            live(silent_world(seed), Random(seed), MemoryStateStore)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.slow(alone=False)
def test_the_worlds_have_silent_unjudged_and_judged_queries():
    found = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + 160):
        for query in silent_world(seed).judge().settled:
            empty = not query.ranking.candidate_ids
            found["silent", empty] += query.silent
            found["judged", bool(query.zero)] += bool(query.in_time)
            found["unjudged"] += not (query.silent or query.in_time)
            weighted = max(query.click_units.values(), default=0)
            found["weighted"] += weighted > 0
            found["above one"] += weighted > ONE
            found["clicked rank"] += any("clicks" in each for each in query.seen)
    assert min(found.values()) >= 5
    assert len(found) == 8
