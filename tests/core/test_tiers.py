"""The tier of a query: legal transitions change it, all others raise."""

import numpy as np
import pytest

from evaluator.core.join.tiers import TRANSITIONS, Tier, after
from evaluator.core.types.transitions import IllegalTransition
from tests.core.build import Task, judgment, ranking


def test_a_transition_outside_the_table_raises():
    for event, by_tier in TRANSITIONS.items():
        for tier in Tier:
            tiers = np.array([tier, tier], np.uint8)
            if tier in by_tier:
                assert after(event, tiers).tolist() == [by_tier[tier]] * 2
            else:
                with pytest.raises(IllegalTransition, match=f"{event} of a .* {tier.name}"):
                    after(event, tiers)


def test_one_illegal_transition_of_many_raises():
    with pytest.raises(IllegalTransition):
        after("evict", np.array([Tier.MEMORY, Tier.DISK], np.uint8))


def test_every_tier_is_reached_and_left():
    reached = {tier for by_tier in TRANSITIONS.values() for tier in by_tier.values()}
    left = {tier for by_tier in TRANSITIONS.values() for tier in by_tier}
    assert reached == left == set(Tier)


def test_rows_are_in_memory_from_start_to_release():
    task = Task("mrr")
    task.rank(ranking("a b", at=0))
    task.judge(judgment({"a": 1}, at=0))
    queries = task.engine._queries
    (row,) = np.flatnonzero(queries.table["tier"]).tolist()
    assert queries.table["tier"][row] == Tier.MEMORY
    task.beat(10_000)  # past retention, and past the reservation of the key
    assert not queries.table["tier"].any()
    with pytest.raises(IllegalTransition, match="release of a query whose tier is GONE"):
        queries.free(np.array([row]), "release")
