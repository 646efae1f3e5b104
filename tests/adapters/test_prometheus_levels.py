"""Series by level: declared and large levels, the folded others, and a budget."""

from random import Random

import pytest

from evaluator.adapters.prometheus.levels import LEAST_QUERIES, LevelSeries
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.types.records import OTHER, SERVED
from evaluator.core.types.segments import SegmentRules
from evaluator.core.types.tally import GroupedTally
from evaluator.exposition.label_limits import LabelLimits
from evaluator.exposition.snapshot import Snapshot

PAIR = ("m", "v")
RULES = SegmentRules(("locale",), {"locale": frozenset(("de",))})


def tally(levels, *, pairs=(PAIR,), rankers=(SERVED,)):
    """Counters of queries by level, each of value 0.5, all of them judged."""
    found = {}
    for pair in pairs:
        for level, n in levels.items():
            group = (*pair, "locale", level)
            for ranker in rankers:
                path = ("segment_settled", *group, ranker, "mrr")
                found |= {(*path, "queries"): n, (*path, "sum_units"): n * UNITS_PER_ONE // 2}
            found |= {("segment_settled_queries", *group, "yes"): n}
            found |= {("segment_settled_queries", *group, "no"): 0}
    return Snapshot(counters=GroupedTally.of(found))


def new(**options):
    limits = LabelLimits()
    limits.admit({PAIR: [SERVED, "bm25"], ("m", "w"): [SERVED]}, series_per_block=4)
    return LevelSeries(limits, RULES, **options)


def queries_of(series):
    return {labels[5]: n for labels, n in series["segment_queries"] if labels[0] == "m"}


def test_declared_levels_have_series_and_small_ones_are_folded():
    series = new().series(tally({"de": 1, "fr": LEAST_QUERIES, "it": 99, OTHER: 3}))
    assert queries_of(series) == {"de": 1, "fr": LEAST_QUERIES, OTHER: 99 + 3}
    values = {labels[5]: value for labels, value in series["segment_value"]}
    assert values["fr"] == LEAST_QUERIES / 2
    judged = dict(series["segment_queries_settled"])
    assert (judged[*PAIR, "locale", "fr", "yes"], judged[*PAIR, "locale", "fr", "no"]) == (100, 0)


def test_a_level_below_a_hundredth_of_its_segment_is_folded():
    assert queries_of(new().series(tally({"fr": 200, "it": 100_000}))) == {
        OTHER: 200,
        "it": 100_000,
    }


def test_a_growing_level_leaves_its_past_in_other_and_no_counter_decreases():
    kept = new()
    before = queries_of(kept.series(tally({"fr": 60})))
    after = queries_of(kept.series(tally({"fr": 160})))
    assert (before, after) == ({OTHER: 60}, {OTHER: 60, "fr": 100})


@pytest.mark.slow(alone=False)
def test_series_stay_within_their_budget_and_lose_no_query():
    kept, random, levels = new(max_series=40), Random(1), {}
    pairs, rankers = (PAIR, ("m", "w"), ("x", "y")), (SERVED, "bm25")
    last = {}
    for _ in range(50):
        for _ in range(5):
            level = f"level-{random.randrange(30)}"
            levels[level] = levels.get(level, 0) + random.randrange(300)
        series = kept.series(tally(levels, pairs=pairs, rankers=rankers))
        counts = dict(series["segment_queries"])
        assert all(counts[labels] >= n for labels, n in last.items())
        assert sum(counts.values()) == sum(levels.values()) * len(pairs) * len(rankers)
        last = counts
    n_series = sum(len(samples) for samples in series.values())
    assert n_series <= 40
    assert any(labels[5] != OTHER for labels in last)
