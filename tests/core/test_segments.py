"""The levels that are kept; merges of folded tallies depend neither on order nor on parts."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.types.records import OTHER
from evaluator.core.types.segments import SegmentRules, newly_folded
from evaluator.core.types.tally import GroupedTally, group_of

SEGMENTS = ("locale", "device")
RULES = SegmentRules(SEGMENTS, {"locale": frozenset(("declared",))}, max_levels=2)


def path(segment, level):
    return ("segment_settled", "m", "v", segment, level, "served", "mrr", "sum_units")


def by_hash(levels):
    return sorted(levels, key=lambda level: hashlib.sha256(level.encode()).digest())


def test_declared_levels_and_those_of_the_smallest_hashes_are_kept():
    levels = ["declared", *(f"level-{n}" for n in range(9))]
    smallest = by_hash(levels[1:])[:2]
    kept = RULES.kept(("locale", level) for level in levels)
    assert kept == {("locale", level) for level in ("declared", *smallest)}
    assert RULES.kept(("device", level) for level in [OTHER, *levels]) == {
        ("device", level) for level in by_hash(levels)[:2]
    }


def test_evicted_levels_fold_into_other():
    levels = [f"level-{n}" for n in range(9)]
    tally = {path("locale", level): 1 for level in levels} | {path("locale", OTHER): 5}
    assert RULES.fold(tally) is tally
    kept = {path("locale", level): 1 for level in by_hash(levels)[:2]}
    assert tally == {**kept, path("locale", OTHER): 5 + 7}


def test_without_segments_a_tally_is_unchanged():
    tally = {("settled", "m", "v", "served", "mrr", "queries"): 1}
    assert SegmentRules().fold(dict(tally)) == tally


additions = st.lists(
    st.tuples(
        st.sampled_from(SEGMENTS),
        st.sampled_from(("declared", OTHER, *(f"level-{n}" for n in range(8)))),
        st.integers(-3, 1 << 70),
    )
)


@given(parts=st.lists(additions, min_size=1, max_size=6), order=st.randoms())
def test_merges_are_exact_associative_and_independent_of_order(parts, order):
    def tally_of(part):
        tally = {}
        for segment, level, n in part:
            add_tally(tally, {path(segment, level): n})
        return tally

    whole = RULES.fold(tally_of([each for part in parts for each in part]))
    tallies = [RULES.fold(tally_of(part)) for part in parts]
    while len(tallies) > 1:
        one = tallies.pop(order.randrange(len(tallies)))
        other = tallies.pop(order.randrange(len(tallies)))
        tallies.append(RULES.fold(add_tally(one, other)))
    assert tallies[0] == whole


def test_newly_folded_sums_are_the_difference_of_two_tallies():
    before = {path("locale", "a"): 3, path("locale", "b"): 4, path("locale", OTHER): 1}
    now = {path("locale", "b"): 5, path("locale", OTHER): 6}
    found = newly_folded(GroupedTally.of(before), GroupedTally.of(now))
    assert found == {path("locale", OTHER): 3}
    assert group_of(path("locale", "a")) == ("m", "v", "locale", "a")
