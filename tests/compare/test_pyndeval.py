"""Comparison with ndeval through pyndeval: novelty and diversity."""

from random import Random

import pyndeval
import pytest

from tests.compare.lists import EXACTLY, SHARES, differences, engine_values, random_lists
from tests.repeats import first_quick

pytestmark = pytest.mark.xdist_group("pyndeval")  # the lists are made once

SAME = {f"alpha-nDCG@{k}": f"alpha_ndcg@{k}" for k in (5, 10, 20)}
SAME |= {f"strec@{k}": f"subtopic_recall@{k}" for k in (5, 10, 20)}


@pytest.fixture(scope="module", params=SHARES)
def lists(request):
    """Lists with a relevant candidate of a subtopic: it leaves the others out."""
    random = Random(24)
    runs, qrels = random_lists(24, request.param, ties=False)
    topics = {}
    for query, grades in qrels.items():
        top = max(grades, key=lambda name: grades[name])
        grades[top] = max(1, grades[top])
        topics[query] = {
            name: random.sample("abcdef", random.choice((1, 1, 2, 4))) for name in grades
        }
    assert len(runs) == request.param
    return runs, qrels, topics


def reference_values(lists, alpha):
    runs, qrels, topics = lists
    rows = [
        (query, topic, name, int(grade > 0))
        for query, grades in qrels.items()
        for name, grade in grades.items()
        for topic in topics[query][name]
    ]
    run = [(query, name, score) for query, scores in runs.items() for name, score in scores.items()]
    return pyndeval.ndeval(rows, run, list(SAME), alpha=alpha)


def both(lists, alpha):
    """Values by the names of this package: from the engine, and from pyndeval."""
    runs, qrels, topics = lists
    names = {their: own.replace("ndcg@", f"ndcg[{alpha}]@") for their, own in SAME.items()}
    found = reference_values(lists, float(alpha))
    expected = {
        own: {q: min(v[their], 1.0) for q, v in found.items()} for their, own in names.items()
    }
    return engine_values(names.values(), runs, qrels, subtopics=topics), expected


@pytest.mark.parametrize("alpha", first_quick("0.5", "0.75"))
def test_values_equal_those_of_ndeval(lists, alpha):
    mine, expected = both(lists, alpha)
    for name, values in expected.items():
        assert not differences(mine[name], values)
        assert len(set(values.values())) > 5


@pytest.mark.slow(alone=False)
def test_a_few_queries_differ_where_rounding_decides_ties_of_the_greedy_order(lists):
    mine, expected = both(lists, "0.9")
    for name, values in expected.items():
        apart = [q for q, v in values.items() if abs(v - mine[name][q]) > EXACTLY]
        assert len(apart) <= len(values) / 1_000
        assert all(abs(values[q] - mine[name][q]) < 0.01 for q in apart)
