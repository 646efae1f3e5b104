"""Champion and challenger, applied to the candidates of settled queries."""

from random import Random

import numpy as np

from evaluator.core.measures import MISSING, MeasureSet
from evaluator.core.online.offline_ranking import OfflineRanking, Ranked
from tests.core.learned import (
    NAMES,
    TRUTH,
    rules,
    settled_query,
    units_of,
    world,
)

WORLD = world(1, 700)
ONE = 1 << 40


def test_orders_measured_together_equal_orders_measured_alone():
    random = Random(5)
    asked = [query for query in WORLD[:60] if query.grades]
    offline_ranking, orders, expected = rules().offline_ranking, [], []
    for n in range(12):  # more than are measured at once
        places = [place for place in range(len(asked)) if random.random() < n / 11]
        weights = [random.choice((0.0, 1.0, -2.0, 1e308)) for _ in NAMES]
        features = [asked[place].features * random.choice((1.0, 1e10)) for place in places]
        orders.append(Ranked(places, features, weights))
        alone = np.full((len(asked), 2), MISSING)
        for place, of_query in zip(places, features, strict=True):
            query = asked[place]._replace(features=of_query)
            alone[place] = units_of(offline_ranking, [query], weights)[0]
        expected.append(alone.tolist())
    assert offline_ranking.units_of(asked, orders).tolist() == expected
    assert any(MISSING in of_query for of_query in expected[-1])
    assert offline_ranking.units_of([], orders[:1]).shape == (1, 0, 2)


def test_weights_are_measured_as_an_order_that_was_served():
    """c0 has the score 1, c1 2 and c2 2; the tie is for the greater id: c2, c1, c0."""
    query = settled_query(0, Random(0))._replace(
        candidate_ids=["c0", "c1", "c2"],
        features=np.array([[1.0, 0, 0], [2.0, 0, 0], [1.0, 1.0, 0]]),
        grades={"c1": 1.0, "elsewhere": 1.0},
    )
    offline_ranking = OfflineRanking(MeasureSet.parse(["mrr", "r@2"]))
    assert units_of(offline_ranking, [query], (1.0, 1.0, 0.0)).tolist() == [[ONE // 2, ONE // 2]]


def test_with_empty_skip_a_query_without_relevant_candidates_has_no_value():
    query = settled_query(0, Random(0))._replace(grades={"c0": 0.0})
    measures = MeasureSet.parse(["mrr"])
    assert units_of(OfflineRanking(measures), [query], TRUTH).tolist() == [[0]]
    assert units_of(OfflineRanking(measures, empty="skip"), [query], TRUTH).tolist() == [[MISSING]]


def test_an_overflowing_score_gives_no_value():
    fine = settled_query(0, Random(0))
    wild = fine._replace(features=fine.features * 1e300)
    units = units_of(rules().offline_ranking, [fine, wild, fine], (1e10, 0.0, 0.0))
    assert units[1].tolist() == [MISSING, MISSING]
    assert (
        units[0].tolist()
        == units[2].tolist()
        == units_of(rules().offline_ranking, [fine], (1, 0, 0))[0].tolist()
    )


def test_a_measure_whose_data_are_not_in_settled_has_no_value():
    offline_ranking = OfflineRanking(MeasureSet.parse(["alpha_ndcg@10", "mrr"]))
    units = units_of(offline_ranking, WORLD[:2], TRUTH)
    assert units[:, 0].tolist() == [MISSING, MISSING]
    assert (units[:, 1] > 0).all()


def test_an_empty_ranking_between_others_has_value_0():
    nothing = WORLD[1]._replace(candidate_ids=[], features=np.zeros((0, len(NAMES))))
    offline_ranking = rules().offline_ranking
    units = units_of(offline_ranking, [WORLD[0], nothing, WORLD[2]], TRUTH)
    assert units[1].tolist() == [0, 0]
    assert units[[0, 2]].tolist() == units_of(offline_ranking, [WORLD[0], WORLD[2]], TRUTH).tolist()
