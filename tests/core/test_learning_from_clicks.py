"""Learning and promotion from clicks, which favour the order that was served."""

from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from evaluator.core.learning.learner import Learner
from evaluator.core.measures import MeasureSet, Terms
from evaluator.core.online.offline_ranking import OfflineRanking
from evaluator.core.types.records import LoggedQuery
from tests.core.learned import NAMES, TRUTH, numbered, releases, rules, run, settled_query

ONE = 1 << 40


def clicked_query(i, random):
    """Eight candidates in random order; a relevant one is clicked if it is examined.

    Rank r is examined with probability r^-1.5.
    """
    features = np.array([[round(random.gauss(0, 1), 3) for _ in NAMES] for _ in range(8)])
    worth = features @ np.array(TRUTH) + [random.gauss(0, 0.3) for _ in range(8)]
    ids = [f"c{k}" for k in range(8)]
    relevant = {ids[k] for k in np.argsort(-worth)[:3].tolist()}
    shown = random.sample(ids, 8)
    p_of = {name: rank**-1.5 for rank, name in enumerate(shown, 1)}
    grades = {name: float(name in relevant and random.random() < p_of[name]) for name in shown}
    clicked = [name for name, grade in grades.items() if grade]
    ranks = np.array([shown.index(name) + 1 for name in clicked])
    gains = 1 / np.log2(ranks + 1)
    ideal = (1 / np.log2(np.arange(len(clicked)) + 2)).sum()
    weighted = sum(gain / p_of[name] for gain, name in zip(gains, clicked, strict=True))
    served = {
        "ndcg@10": round(ONE * gains.sum() / ideal) if clicked else 0,
        "ips_dcg@10": round(ONE * weighted),
    }
    return settled_query(i, random)._replace(
        features=features,
        candidate_ids=ids,
        propensities=[p_of[name] for name in ids],
        grades=grades,
        units={"served": served},
        logged=LoggedQuery(None, {name: (shown.index(name) + 1, p_of[name]) for name in ids}),
        sources={"click": 1},
    )


@pytest.mark.slow(alone=False)
def test_a_gate_by_weighted_clicks_promotes_where_plain_clicks_do_not():
    random = Random(11)
    clicked = numbered([clicked_query(i, random) for i in range(2_000)])
    measures = MeasureSet.parse(["ndcg@10", "ips_dcg@10"], scales=Terms(ips_clip=1_000.0))
    decided = {}
    for measure in measures.canonical:
        made = rules(
            learner=Learner(label_mode="sum", scale="within_query", schedule="inv_sqrt"),
            offline_ranking=OfflineRanking(measures),
            implicit_sources=frozenset({"click"}),
        )
        made = replace(made, gate=replace(made.gate, measure=measure))
        decided[measure] = [release.status for release in releases(run(clicked, made))]
    assert decided["ips_dcg@10"][:2] == ["challenger", "promoted"]
    assert "promoted" not in decided["ndcg@10"]
