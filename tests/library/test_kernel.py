"""The values of the library equal those of the worker for the same queries, to the last bit."""

from math import nan
from random import Random

import numpy as np
import pytest

import evaluator
from tests.compare.lists import engine_values, random_lists
from tests.repeats import sized

MEASURES = """top1 top3 hit@7 mrr mrr@2 ndcg@10 ndcg ndcg_linear@3 ndcg_linear map@10 map map_min@5
map_graded@10 p@1 p@10 r@5 f1@10 fbeta[2]@5 err@10 rbp[0.8] judged@1 judged@10
unjudged@10""".split()
AVERAGED = [name for name in MEASURES if not name.startswith("err")]
N = sized(1_500, quick=300)

SETTINGS = {
    "as usual": (MEASURES, {}),
    "skip": (MEASURES, {"empty": "skip"}),
    "judged only": (MEASURES, {"judged_only": True}),
    "average": (AVERAGED, {"ties": "average"}),
    "average of the judged": (AVERAGED, {"ties": "average", "judged_only": True}),
}

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def lists():
    return random_lists(41, n_lists=N)


def by_query(values):
    """From values by measure to values by query, without queries that have none."""
    found = {}
    for name, of_queries in values.items():
        for query, value in of_queries.items():
            if value is not None:
                found.setdefault(query, {})[name] = value
    return found


@pytest.mark.parametrize("what", SETTINGS)
def test_values_are_those_of_the_engine_to_the_last_bit(lists, what):
    runs, qrels = lists
    measures, settings = SETTINGS[what]
    expected = by_query(engine_values(measures, runs, qrels, **settings))
    found = evaluator.evaluate(qrels, runs, measures, **settings)
    assert len(expected) > N / 2
    per_query = {
        query: {name: values[name] for name in measures}
        for query, values in found.per_query.items()
    }
    assert per_query == expected


def test_fractional_grades_and_close_scores_give_the_same_bits():
    random = Random(3)
    runs, qrels = {}, {}
    for number in range(sized(500, quick=100)):
        names = [f"d{place}" for place in range(random.randint(1, 40))]
        scores = [1 + random.randrange(50) * 2.0**-50 for _ in names]
        runs[f"q{number}"] = dict(zip(names, scores, strict=True))
        qrels[f"q{number}"] = {name: random.random() * 4 for name in names if random.random() < 0.7}
        qrels[f"q{number}"].setdefault("d0", -0.0)
    expected = by_query(engine_values(MEASURES, runs, qrels))
    found = evaluator.evaluate(qrels, runs, MEASURES).per_query
    assert {q: {name: values[name] for name in MEASURES} for q, values in found.items()} == expected


def test_subtopics_give_the_same_bits():
    random = Random(4)
    names = [f"d{place}" for place in range(12)]
    runs, qrels, subtopics = {}, {}, {}
    for number in range(300):
        ranked = random.sample(names, 8)
        runs[f"q{number}"] = {name: random.random() for name in ranked}
        qrels[f"q{number}"] = {name: random.choice((0, 1, 2)) for name in random.sample(names, 9)}
        if number % 5:
            subtopics[f"q{number}"] = {
                name: random.sample("xyz", random.randint(0, 3)) for name in random.sample(names, 7)
            }
    measures = ["alpha_ndcg@5", "subtopic_recall@3", "mrr"]
    expected = by_query(engine_values(measures, runs, qrels, subtopics=subtopics))
    found = evaluator.evaluate(qrels, runs, measures, subtopics=subtopics)
    assert found.per_query == expected
    assert np.isnan(found.values("alpha_ndcg@5")).any()


def as_arrays(runs, qrels):
    """The same queries with a column per candidate, in the order of the ids: ties as by id."""
    width = max(len(runs[query].keys() | qrels[query].keys()) for query in runs)
    scores, grades = np.full((2, len(runs), width), nan)
    for row, query in enumerate(runs):
        for column, name in enumerate(sorted(runs[query].keys() | qrels[query].keys())):
            scores[row, column] = runs[query].get(name, nan)
            grades[row, column] = qrels[query].get(name, nan)
    return scores, grades


@pytest.fixture(scope="module")
def arrays(lists):
    runs, qrels = ({q: part[q] for q in list(part)[:499]} for part in lists)
    return (runs, qrels), as_arrays(runs, qrels)


@pytest.mark.parametrize("what", SETTINGS)
def test_arrays_give_the_same_bits_as_mappings(arrays, what):
    (runs, qrels), (scores, grades) = arrays
    measures, settings = SETTINGS[what]
    expected = evaluator.evaluate(qrels, runs, measures, **settings)
    found = evaluator.evaluate(grades, scores, measures, **settings)
    names = list(qrels)
    assert [names[row] for row in found.query_ids] == list(expected.query_ids)
    assert (found.units == expected.units).all()


@pytest.mark.parametrize("size", [64, *(pytest.param(n, marks=SLOW) for n in (1, 2, 17))])
def test_values_do_not_depend_on_other_queries(arrays, size):
    _, (scores, grades) = arrays
    whole = evaluator.evaluate(grades, scores, MEASURES).units
    order = np.random.default_rng(1).permutation(len(scores))
    parts = [
        evaluator.evaluate(grades[rows], scores[rows], MEASURES).units
        for rows in np.array_split(order, len(order) // size)
    ]
    assert (np.concatenate(parts) == whole[order]).all()


def test_lists_of_lists_are_arrays(arrays):
    _, (scores, grades) = arrays
    expected = evaluator.evaluate(grades, scores, MEASURES).units
    lengths = [
        int(np.flatnonzero(~np.isnan(g) | ~np.isnan(s)).max()) + 1
        for g, s in zip(grades, scores, strict=True)
    ]
    short = [
        [row[:n].tolist() for row, n in zip(part, lengths, strict=True)]
        for part in (grades, scores)
    ]
    assert (evaluator.evaluate(*short, MEASURES).units == expected).all()


@pytest.mark.parametrize("width", [1, 2, 127, 128, pytest.param(1_000, marks=SLOW)])
def test_fully_judged_lists_give_the_same_bits_at_any_width(width):
    rng = np.random.default_rng(width)
    scores, grades = rng.random((40, width)), rng.integers(0, 5, (40, width)).astype(float)
    grades[3] = 0.0
    runs = {
        f"q{row}": {f"{c:04}": s for c, s in enumerate(of)}
        for row, of in enumerate(scores.tolist())
    }
    qrels = {
        f"q{row}": {f"{c:04}": g for c, g in enumerate(of)}
        for row, of in enumerate(grades.tolist())
    }
    expected = by_query(engine_values(MEASURES, runs, qrels))
    found = evaluator.evaluate(grades, scores, MEASURES).per_query
    assert {
        f"q{row}": {name: of[name] for name in MEASURES} for row, of in found.items()
    } == expected
