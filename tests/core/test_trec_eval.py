"""The whole path from columns to values equals trec_eval on random queries."""

from random import Random

import pytest
import pytrec_eval

from evaluator.core.measures import UNITS_PER_ONE
from tests.core.build import Task, judgment, ranking
from tests.repeats import sized

OURS_BY_THEIRS = {
    "recip_rank": "mrr",
    "map": "map",
    "map_cut_5": "map@5",
    "map_cut_100": "map@100",
    "ndcg": "ndcg",
    "ndcg_cut_1": "ndcg@1",
    "ndcg_cut_10": "ndcg@10",
    "ndcg_cut_500": "ndcg@500",
    "success_1": "top1",
    "success_3": "top3",
    "success_10": "hit@10",
}
THEIRS = {"recip_rank", "map", "map_cut.5,100", "ndcg", "ndcg_cut.1,10,500", "success.1,3,10"}
N_QUERIES = sized(3_000, quick=500)
BATCH = 500
pytestmark = pytest.mark.xdist_group("trec_eval")  # compared once, for all measures


def random_query(random, i):
    """Scores by name, and grades of some ranked and some never ranked candidates.

    trec_eval keeps scores as 32-bit floats: eighths are exact in them. Few levels make ties.
    """
    size = random.choice((1, 2, 5, 8, 9, 20, 40))
    if i % 100 == 0:
        size = 1_000
    names = random.sample([f"doc{j:x}" for j in range(3 * size)], size)
    levels = random.choice((1, 3, 10, 10_000))
    scores = {name: random.randrange(-levels, levels) / 8 for name in names}
    judged = random.sample(names, random.randint(0, min(size, random.choice((1, 5, 40)))))
    judged += [f"never{j}" for j in range(random.choice((0, 0, 1, 3)))]
    grades = {name: random.choice((0, 0, 1, 1, 2, 3, 6)) for name in judged or names[:1]}
    return scores, grades


@pytest.fixture(scope="module")
def compared():
    """Our values and theirs for each query, by their names."""
    random = Random(20)
    runs, qrels, task = {}, {}, Task(",".join(OURS_BY_THEIRS.values()))
    for first in range(0, N_QUERIES, BATCH):
        rankings, judgments = [], []
        for i in range(first, first + BATCH):
            query = f"q{i}"
            scores, grades = runs[query], _ = random_query(random, i)
            # their gain is the relevance itself, ours 2^grade - 1
            qrels[query] = {name: 2**grade - 1 for name, grade in grades.items()}
            rankings.append(ranking(list(scores), scores=list(scores.values()), trace=query))
            judgments.append(judgment(grades, trace=query, at=1))
        random.shuffle(judgments)
        task.read(rankings, judgments)
    theirs = pytrec_eval.RelevanceEvaluator(qrels, THEIRS).evaluate(runs)
    ours = {
        evaluation.trace_id: dict(
            zip(OURS_BY_THEIRS, (u / UNITS_PER_ONE for u in evaluation.units), strict=True)
        )
        for evaluation in task.evaluations
    }
    assert len(ours) == len(theirs) == N_QUERIES
    return ours, theirs


@pytest.mark.parametrize("name", OURS_BY_THEIRS)
def test_values_equal_trec_eval(compared, name):
    ours, theirs = compared
    different = [
        (query, theirs[query][name], ours[query][name])
        for query in theirs
        if abs(theirs[query][name] - ours[query][name]) > 2**-40
    ]
    assert not different
    assert len({theirs[query][name] for query in theirs}) > (1 if "success" in name else 5)
