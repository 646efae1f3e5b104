"""Measures of clicks, each divided by the propensity of its position."""

from fractions import Fraction
from math import log2
from random import Random

import numpy as np
import pytest

from evaluator import evaluate
from evaluator.config import ConfigError, Settings
from evaluator.config.measures import measure_set
from evaluator.core.columns.table import Groups
from evaluator.core.measures import MISSING, UNITS_PER_ONE, MeasureSet
from evaluator.core.measures.exact_sums import StratumTotals, Sums, squares_of, sums_of_columns
from evaluator.core.online.offline_ranking import OfflineRanking, Ranked
from evaluator.wire.outputs.encoding import encode_settled
from evaluator.wire.outputs.settled import decode_settled
from evaluator.wire.state.task_rows import totals_document, totals_from
from tests.core.build import Task, judgment, ranking, units

SHOWN = ranking("a b c d", propensities=[1, 0.5, 0.25, 0.01], scorers={"x": [1, 4, 2, 3]})
"""The scorer x has b, d, c, a."""
MEASURES = "ips_dcg@2,ips_dcg@10,ips_clicks"


def settled(shown, *judgments, measures=MEASURES, scales=None, **settings):
    """The task and its only query, which matures at 100, after these judgments."""
    task = Task(measures, scales=scales, **settings)
    task.read([shown], judgments)
    task.beat(2_000)
    (query,) = task.settled
    return task, query


def test_every_ranker_counts_the_same_clicks_at_its_own_ranks():
    # Clicks on b and d, of which 1/p is 2 and 100; ips_clip is 20.
    task, query = settled(SHOWN, judgment({"b": 1, "d": 3, "c": 0, "z": 1}, at=20))
    served = 2 / log2(3), 2 / log2(3) + 20 / log2(5), 2 + 20, 1 / 2
    scorer = 2 / log2(2) + 20 / log2(3), 2 / log2(2) + 20 / log2(3), 2 + 20, 1 / 2
    assert query.units == pytest.approx(units(*served, *scorer), abs=1)
    assert query.units[2] == 22 * UNITS_PER_ONE  # the last of each is ips_clipped
    assert task.total("settled", "ips_clicks") == (1, 22)
    assert task.total("running", "ips_clicks") == (0, 0)
    square = task.engine.tally()["settled", "m", "v", "served", "ips_clicks", "square_units"]
    assert square == 22 * 22 * UNITS_PER_ONE


def test_clip_bounds_the_weight_of_a_click():
    clicks = judgment({"a": 1, "d": 1}, at=20)
    _, query = settled(SHOWN, clicks, measures="ips_clicks", scales={"ips_clip": 150.0})
    assert query.units == [*units(1 + 100, 0)] * 2
    _, query = settled(SHOWN, clicks, measures="ips_clicks", scales={"ips_clip": 1.0})
    assert query.units == [*units(1 + 1, 1 / 2)] * 2


def test_a_query_without_a_click_adds_nothing_and_one_without_propensities_has_no_value():
    _, query = settled(SHOWN, judgment({"a": 0}, at=20))
    assert query.units == [*units(0, 0, 0), MISSING] * 2
    _, query = settled(ranking("a b"), judgment({"a": 1}, at=20))
    assert query.units == [MISSING] * 4
    late = judgment({"a": 1}, at=20), judgment({"b": 1}, at=101)
    _, query = settled(SHOWN, *late, measures="ips_clicks")
    assert query.units == [*units(1, 0)] * 2


def test_propensity_of_a_repeated_candidate_is_that_of_its_best_rank():
    shown = ranking("a b a", scores=[1, 2, 3], propensities=[0.5, 1, 0.125])
    _, query = settled(shown, judgment({"a": 1}, at=20), measures="ips_dcg@1,ips_clicks")
    assert query.units == units(8, 8, 0)


def test_sums_do_not_wrap_around():
    values = np.array([[1 << 39, 10**6 << 40]] * 20)
    sums, squares = sums_of_columns(values, Groups.of(np.array([5, 4] * 10)))
    assert sums == [[10 << 39, 10 * 10**6 << 40]] * 2
    assert squares == [[10 << 38, 10 * 10**12 << 40]] * 2
    one = int(squares_of(np.array([(1 << 45) + 3], object))[0])
    assert one == round(Fraction((1 << 45) + 3) ** 2 / UNITS_PER_ONE)
    # The same as a checkpoint has it, up to a hundred years of a million queries a second.
    totals = StratumTotals.zero(1, 1)
    totals.settled_squares = Sums(1 << 52, [1 << 150], [])
    assert totals_from(totals_document(totals)) == totals


@pytest.mark.slow(alone=False)
def test_weights_have_the_values_of_an_equal_scorer():
    random = Random(3)
    measures = MeasureSet.parse(["mrr", "ips_dcg@2", "ips_clicks"])
    compared = 0
    for _ in range(60):
        ids = [f"c{n}" for n in range(random.randrange(1, 6))]
        scores = [random.choice((0.0, 1.0, 2.0)) for _ in ids]
        propensities = [random.choice((1, 0.3, 0.01)) for _ in ids]
        shown = ranking(
            ids,
            scores=[random.random() for _ in ids],
            scorers={"weights": scores},
            propensities=propensities,
        )
        graded = {
            name: random.choice((0, 1, 2)) for name in (*ids, "other") if random.random() < 0.6
        }
        if not graded:
            continue
        task = Task("mrr,ips_dcg@2,ips_clicks", silence="unjudged")
        settled_parts = []
        task._collect = lambda outputs, settled_parts=settled_parts: settled_parts.extend(
            outputs.settled
        )
        task.read([shown], [judgment(graded, at=20)])
        task.beat(2_000)
        (record,) = encode_settled(settled_parts, measures, task=0, maturity_ms=100)
        query = decode_settled(record.value, measures)
        query = query._replace(
            candidate_ids=ids,
            features=np.array(scores)[:, None],
            feature_names=("s",),
            propensities=propensities,
        )
        expected = query.units["weights"]
        found = OfflineRanking(measures).units_of([query], [Ranked([0], [query.features], [1.0])])
        names = measures.canonical
        assert dict(zip(names, found[0, 0].tolist(), strict=True)) == {
            name: expected.get(name, MISSING) for name in names
        }
        compared += expected["ips_dcg@2"] != query.units["served"]["ips_dcg@2"]
    assert compared > 10
    # Without propensities there is no value.
    bare = query._replace(logged=None, propensities=None)
    (units_of_bare,) = OfflineRanking(measures).units_of(
        [bare], [Ranked([0], [bare.features], [1.0])]
    )[0]
    assert units_of_bare.tolist()[1:] == [MISSING] * 3


LEARNS = {
    "learning": "propose",
    "label_mode": "sum",
    "implicit_sources": ("click",),
    "gate_measure": "mrr",
}


def test_the_gate_weights_clicks_like_the_learner():
    for changes in (
        {"gate_measure": "ips_dcg@5"},
        {"implicit_sources": ()},
        {"label_mode": "distribution"},
        {"learning": "off"},
    ):
        measure_set(Settings(measures=("mrr", "ips_dcg@5"), **LEARNS | changes))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"histogram_measures": ("ips_clicks",)}, "ips_clicks, whose values may be above 1"),
        ({"learning": "propose", "gate_measure": "ips_clicks"}, "does not compare rankers"),
        ({"ties": "average"}, "ties = average is not defined for ips_dcg@5"),
        (LEARNS, "gate_measure mrr counts all clicks alike, .* Set gate_measure to ips_dcg@10"),
    ],
)
def test_click_measures_are_refused_where_unsupported(settings, message):
    with pytest.raises(ConfigError, match=message):
        measure_set(Settings(measures=("mrr", "ips_dcg@5", "ips_clicks"), **settings))


def test_the_library_has_no_such_measures():
    with pytest.raises(ValueError, match="ips_dcg@5 needs exposure"):
        evaluate({"q": {"a": 1}}, {"q": {"a": 1.0}}, ["ips_dcg@5"])
