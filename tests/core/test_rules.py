"""The rules of the join: one table for both paths."""

import numpy as np

from evaluator.core.event_time.clock import MAX_TIMESTAMP_MS
from evaluator.core.join.rules import OUTCOMES, Age, Identity, JoinRules, is_later, ranking_outcome

RULES = JoinRules(
    retention_ms=1_000,
    maturity_ms=100,
    early_ms=10,
    remember_ms=50,
    out_of_orderness_ms=0,
    window_ms=200,
    max_judgments=3,
    max_candidates=5,
)
AGES = {
    Age.NEGATIVE: (-MAX_TIMESTAMP_MS, -11),
    Age.OPEN: (-10, 0, 100, 101, 1_000),
    Age.REMEMBERED: (1_001, 1_050),
    Age.PAST: (1_051, MAX_TIMESTAMP_MS),
}


def test_the_table_has_an_outcome_for_every_age_and_identity():
    assert list(OUTCOMES) == list(Age)
    assert all(len(row) == len(Identity) for row in OUTCOMES.values())


def test_the_outcome_follows_from_age_and_identity():
    for age, examples in AGES.items():
        for age_ms in examples:
            found = tuple(RULES.outcome(age_ms, identity) for identity in Identity)
            assert found == OUTCOMES[age]


def test_the_mask_of_the_fast_path_equals_the_table_of_the_slow_path():
    ages = np.array([ms for each in AGES.values() for ms in each], np.int64)
    for seen in (False, True):
        mask = RULES.applies(ages, np.full(len(ages), seen)).tolist()
        identities = (Identity.EQUAL, Identity.DIFFERENT) if seen else (Identity.NEW,)
        for identity in identities:
            outcomes = [RULES.outcome(age_ms, identity) for age_ms in ages.tolist()]
            assert mask == [outcome == "applied" for outcome in outcomes]


def test_durations_beyond_all_timestamps_have_no_effect():
    endless = JoinRules(
        retention_ms=10**30,
        maturity_ms=10**30,
        early_ms=10**30,
        remember_ms=10**30,
        out_of_orderness_ms=0,
        window_ms=1,
    )
    for rules in (endless, endless.clamped()):
        ages = np.array([-MAX_TIMESTAMP_MS, 0, MAX_TIMESTAMP_MS])
        assert rules.applies(ages, np.zeros(3, bool)).all()
        assert [rules.outcome(age) for age in ages.tolist()] == ["applied"] * 3


def test_limits_are_exceeded_by_one_more_judgment_or_candidate():
    assert RULES.over_limit(np.array([2, 3]), np.array([5, 5])).tolist() == [False, True]
    assert RULES.over_limit(np.array([0, 0]), np.array([5, 6])).tolist() == [False, True]
    assert not RULES.over_limit(2, 5)
    assert RULES.over_limit(3, 0)


def test_a_key_is_reserved_for_retention_remember_and_early():
    assert RULES.key_reserved_ms == 1_000 + 50 + 10
    assert RULES.reserved(1_060)
    assert not RULES.reserved(1_061)
    limits = {"settle": 5_000 - 100, "expire": 5_000 - 1_000, "release": 5_000 - 1_060}
    assert RULES.timer_limits(5_000) == limits


def test_a_ranking_of_a_reserved_key_is_a_duplicate_if_its_bytes_are_equal():
    assert ranking_outcome(equal=True) == "duplicate"
    assert ranking_outcome(equal=False) == "conflicting"


def test_the_later_timestamp_wins_and_of_equal_ones_the_later_offset():
    assert is_later(2, 0, 1, 9)
    assert not is_later(1, 9, 2, 0)
    assert is_later(1, 2, 1, 1)
    assert not is_later(1, 1, 1, 1)
    times, offsets = np.array([2, 1, 1]), np.array([0, 2, 1])
    assert is_later(times, offsets, np.array([1, 1, 1]), np.ones(3)).tolist() == [True, True, False]
