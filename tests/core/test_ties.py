"""`ties = average` is the mean of the values over all orders of candidates with equal scores."""

from itertools import groupby, permutations, product
from random import Random

import pytest

from evaluator.core.measures import UNITS_PER_ONE
from tests.core.build import Task, judgment, ranking
from tests.oracle.measures import Known, value
from tests.repeats import first_quick, sized

MEASURES = (
    "top1", "top3", "hit@2", "hit@5", "mrr", "mrr@2", "ndcg", "ndcg@3", "ndcg_linear@2", "map",
    "map@3", "map_min@2", "map_graded@3", "map_graded@10", "map_graded_ceiling@3", "p@1", "p@4",
    "r@3", "f1@3", "fbeta[2]@4", "rbp[0.7]", "rbp[0]", "judged@3", "judged@10", "unjudged@2",
    "subtopic_recall@1", "subtopic_recall@3",
)  # fmt: skip
ONE_UNIT = 1 / UNITS_PER_ONE


def orders(scores):
    """Every order that the scores allow, best first."""
    ranked = sorted(scores, key=lambda name: scores[name], reverse=True)
    groups = [list(group) for _, group in groupby(ranked, key=lambda name: scores[name])]
    for parts in product(*(permutations(group) for group in groups)):
        yield [name for part in parts for name in part]


def random_query(random):
    """A few candidates on even fewer levels, with grades and subtopics of some."""
    names = list("abcdef")[: random.choice((0, 1, 2, 3, 4, 5, 5, 5))]
    n_levels = random.choice((1, 2, 3))
    scores = {name: float(random.randrange(n_levels)) for name in names}
    judged = [name for name in [*names, "never"] if random.random() < 0.7] or ["never"]
    grades = {name: random.choice((0, 0, 1, 1, 2, 3, 0.5)) for name in judged}
    topics = {name: tuple(random.sample("xyz", random.randint(0, 2))) for name in judged}
    return scores, grades, topics


def mean_over_orders(measure, scores, grades, topics, *, judged_only):
    known = Known(tuple(grades.items()), tuple(topics.items()), judged_only=judged_only)
    values = [value(measure, order, grades, known) for order in orders(scores)]
    return None if None in values else sum(values) / len(values)


@pytest.mark.parametrize("judged_only", first_quick(False, True))
def test_average_ties_equal_the_mean_over_all_orders(judged_only):
    random = Random(31)
    queries = [random_query(random) for _ in range(sized(80, quick=20))]
    often = sum(1 for scores, _, _ in queries if len(list(orders(scores))) > 5)
    assert often > len(queries) / 5
    task = Task(",".join(MEASURES), ties="average", judged_only=judged_only)
    task.rank(
        *(
            ranking(list(scores), scores=list(scores.values()), trace=str(i), subtopics=topics)
            for i, (scores, _, topics) in enumerate(queries)
        )
    )
    task.judge(*(judgment(grades, at=1, trace=str(i)) for i, (_, grades, _) in enumerate(queries)))
    for i, (scores, grades, topics) in enumerate(queries):
        for measure in MEASURES:
            column = task.measures.columns[measure]
            expected = mean_over_orders(measure, scores, grades, topics, judged_only=judged_only)
            found = task.value(str(i), column=column)
            if expected is None:
                assert found is None
            else:
                assert found == pytest.approx(expected, abs=ONE_UNIT), (measure, queries[i])


def values(task_settings, records):
    rankings, judgments = records
    task = Task(",".join(MEASURES), **task_settings)
    task.read(rankings, judgments)
    return {e.trace_id: e.units for e in task.evaluations}


@pytest.mark.slow(alone=False)
def test_without_ties_both_settings_give_the_same_bits():
    random = Random(32)
    rankings, judgments = [], []
    for i in range(400):
        names = [f"c{j}" for j in range(random.choice((0, 1, 5, 20, 200)))]
        scores = random.sample(range(1_000), len(names))
        grades = {name: random.choice((0, 1, 2, 0.3)) for name in [*names[::2], "never"]}
        topics = {name: random.sample("xyz", 2) for name in names[:9]}
        rankings.append(ranking(names, scores=scores, trace=str(i), subtopics=topics))
        judgments.append(judgment(grades, at=1, trace=str(i)))
    records = (rankings, judgments)
    assert values({"ties": "average"}, records) == values({"ties": "id"}, records)


def test_names_of_tied_candidates_do_not_matter():
    scores = [2.0, 2.0, 2.0, 1.0, 1.0]
    one, other = Task("ndcg,map,mrr", ties="average"), Task("ndcg,map,mrr", ties="average")
    one.read([ranking("a b c d e", scores=scores)], [judgment({"a": 2, "d": 1}, at=1)])
    other.read([ranking("c b a e d", scores=scores)], [judgment({"b": 2, "e": 1}, at=1)])
    assert one.last().units == other.last().units


def test_explicit_ranks_tie_as_scores_do():
    by_score, by_rank = Task("mrr,ndcg", ties="average"), Task("mrr,ndcg", ties="average")
    by_score.read([ranking("a b c", scores=[2, 2, 1])], [judgment({"a": 1}, at=1)])
    by_rank.read([ranking("a b c", ranks=[4, 4, 9])], [judgment({"a": 1}, at=1)])
    assert by_rank.last().units == by_score.last().units
    assert by_rank.value() == (1 + 1 / 2) / 2


def test_a_repeated_candidate_ties_at_its_best_score():
    task = Task("mrr", ties="average")
    task.read([ranking("a b a c", scores=[1, 2, 2, 1])], [judgment({"a": 1}, at=1)])
    assert task.value() == (1 + 1 / 2) / 2  # tied with b; c is third


def test_a_thousand_tied_candidates_are_averaged():
    names = [f"c{i}" for i in range(1_000)]
    task = Task("mrr,p@10,map,rbp[0.9]", ties="average")
    task.read([ranking(names, scores=[1.0] * 1_000)], [judgment({"c7": 1}, at=1)])
    mean_reciprocal = sum(1 / i for i in range(1, 1_001)) / 1_000
    expected = [mean_reciprocal, 1 / 1_000, mean_reciprocal, (1 - 0.9**1_000) / 1_000]
    found = [task.value(column=column) for column in range(4)]
    assert found == pytest.approx(expected, abs=ONE_UNIT)
