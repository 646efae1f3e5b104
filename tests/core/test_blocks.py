"""Blocks of event time: their bets, and the sample of counted traces."""

from base64 import b64encode
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.core.promotion.blocks import (
    MOST_HASHES,
    WARM_UP_BLOCKS,
    BlockBets,
    OpenBlock,
    Sample,
    hash_of,
)
from evaluator.core.promotion.e_process import FRACTIONS
from evaluator.core.promotion.gate import (
    Difference,
    Experiment,
    GateRules,
    Observation,
    decided,
    verdict,
)
from tests.repeats import examples

ONE = 1 << 40
DAY_MS = 86_400_000


def bets_after(*values):
    bets = BlockBets.of_one()
    for value in values:
        bets = bets.after(np.array(float(value)), 1_000)
    return bets


def evidence_of(*bets):
    return sum(np.prod([1 + fraction * bet for bet in bets]) for fraction in FRACTIONS) / 6


def traces(*times_and_differences):
    return [
        Observation(ms, 1, {"m": Difference(round(each * ONE), ONE)})
        for ms, each in times_and_differences
    ]


def test_warm_up_blocks_are_not_bet_on():
    for n in range(WARM_UP_BLOCKS + 1):
        assert bets_after(*[0.5] * n).gain.evidence() == 1
    assert bets_after(*[0.5] * (WARM_UP_BLOCKS + 1)).gain.evidence() > 1


def test_a_bet_is_in_units_of_three_deviations_of_the_earlier_blocks():
    # -0.1, 0, 0.1 have the deviation 0.1, so a bet on 0.15 is 0.15 / 0.3
    bets = bets_after(-0.1, 0, 0.1, 0.15)
    assert bets.gain.evidence() == pytest.approx(evidence_of(0.5))
    assert bets.loss.evidence() == pytest.approx(evidence_of(-0.5))
    then = np.std([-0.1, 0, 0.1, 0.15], ddof=1)
    assert bets_after(-0.1, 0, 0.1, 0.15, -0.2).gain.evidence() == pytest.approx(
        evidence_of(0.5, -0.2 / (3 * then))
    )


@pytest.mark.parametrize(("value", "bet"), [(0.4, 1), (-7, -1), (0, 0)])
def test_a_bet_is_at_most_the_whole_fraction(value, bet):
    assert bets_after(-0.1, 0, 0.1, value).gain.evidence() == pytest.approx(evidence_of(bet))


@pytest.mark.parametrize(("value", "bet"), [(0.4, 1), (0.1, 1), (-0.1, -1), (0, 0)])
def test_without_spread_a_bet_is_the_sign_of_the_difference(value, bet):
    assert bets_after(0.1, 0.1, 0.1, value).gain.evidence() == pytest.approx(evidence_of(bet))


def test_small_wins_are_no_evidence_against_a_rare_loss_that_no_block_has_had_yet():
    """One trace in a hundred loses 0.99 and the others win 0.01: 300 traces often lack a loss."""
    bets = BlockBets.of_one()
    for _ in range(30):
        bets = bets.after(np.array(0.01), 10)
    assert bets.gain.evidence() < 20


@settings(max_examples=examples(50))
@given(st.lists(st.floats(-1, 1), max_size=12))
def test_runs_computed_together_equal_runs_computed_alone(values):
    many = BlockBets.of_one(2)
    for value in values:
        many = many.after(np.array([value, -value]), 1_000)
    for row, one in enumerate((bets_after(*values), bets_after(*(-each for each in values)))):
        assert many.gain.evidence()[row] == one.gain.evidence()
        assert many.squares[row] == one.squares


def test_a_block_ends_with_the_first_trace_of_a_later_one_or_with_the_interval():
    rules = GateRules("m", block_ms=1_000)
    some = traces((0, 0.5), (999, 0.25), (400, 0.0))
    within, _ = decided(Experiment(0, 0), some, rules, until_ms=999)
    assert (within.block, within.bets.n) == (OpenBlock(0, 3, 3 * ONE // 4), 0)
    ended, _ = decided(Experiment(0, 0), some, rules, until_ms=1_000)
    assert (ended.block, ended.bets.n, float(ended.bets.mean)) == (None, 1, 0.25)
    by_trace, _ = decided(within, traces((1_000, 0.0)), rules)
    assert (by_trace.block, by_trace.bets) == (OpenBlock(1, 1, 0), ended.bets)
    late, _ = decided(by_trace, traces((900, 0.5)), rules)
    assert late.block == OpenBlock(1, 2, ONE // 2)


def test_a_promotion_after_a_day_needs_more_winning_days_than_losing_ones():
    """Hours win and most days lose, because a few hours of each day have most traces."""
    rules = GateRules("m", block_ms=3_600_000, min_traces=0, min_age_ms=DAY_MS)
    lacking = []
    for by_night in (-0.6, 0.01):
        some = []
        for day in range(5):
            for hour in range(24):
                n, gain = (60, by_night) if hour < 2 else (1, 0.3)
                some += traces(*[(day * DAY_MS + hour * 3_600_000, gain)] * n)
        experiment = Experiment(0, 0)
        for trace in some:  # without a decision on the way
            experiment, _ = decided(experiment, [trace], rules, until_ms=0)
            if verdict(experiment, rules).status != "undecided":
                break
        lacking.append(verdict(experiment, rules).lacking)
    assert "days" in lacking[0]
    assert lacking[1] == ()


def test_hashes_are_admitted_once():
    sample = Sample()
    assert sample.admits(7)
    sample.add(7)
    assert not sample.admits(7)
    assert sample.admits(8)


def test_a_full_sample_keeps_the_smaller_hashes_and_admits_no_others():
    sample, random = Sample(), Random(1)
    offered = [random.getrandbits(48) for _ in range(40_000)]
    for each in offered:
        if sample.admits(each):
            sample.add(each)
    assert MOST_HASHES / 2 * 0.9 < len(sample.hashes) <= MOST_HASHES
    limit = 1 << (48 - sample.halvings)
    assert sample.hashes == {each for each in offered if each < limit}
    assert not sample.admits(limit)
    assert Sample.load(sample.state()) == sample
    assert len(sample.state()[1]) <= MOST_HASHES * 8


def test_hash_admission_does_not_depend_on_order():
    random = Random(2)
    offered, kept = [random.getrandbits(48) for _ in range(9_000)], []
    for _ in range(2):
        sample = Sample()
        for each in offered:
            if sample.admits(each):
                sample.add(each)
        kept.append(sample.state())
        random.shuffle(offered)
    assert kept[0] == kept[1]


def test_hashes_are_portable_and_distinguish_their_parts():
    assert hash_of(b"t-81") == 0xA758AC0A7764
    assert hash_of(b"ab", b"c") != hash_of(b"a", b"bc")
    assert hash_of(b"") != hash_of()


@pytest.mark.parametrize(
    "tampered",
    [
        [0, "AAAA"],  # half a hash
        [0, "AAAAAAAB" * 2],  # the same twice
        [0, "AAAAAAACAAAAAAAB"],  # in another order
        [48, "AAAAAAAB"],  # not among the smallest
        [-1, ""],
        [49, ""],
        [0, "=" * 8],
        [0, "AAAAAAAB\n"],
    ],
)
def test_a_tampered_sample_is_refused(tampered):
    with pytest.raises(ValueError, match=r".+"):
        Sample.load(tampered)


def test_a_sample_beyond_its_limit_is_refused():
    whole = b"".join(n.to_bytes(6, "big") for n in range(MOST_HASHES + 1))
    with pytest.raises(ValueError, match="too large"):
        Sample.load([0, b64encode(whole).decode()])
