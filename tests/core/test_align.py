"""The places of candidates: by scores that hardly differ, and for judgments by id."""

from math import inf, nextafter
from random import Random

import numpy as np
import pytest

from evaluator.core.measures import NEVER_RANKED, align
from evaluator.core.measures.align import (
    TOP,
    QuerySpans,
    RankedPools,
    judged_lists,
    rank_lists,
    span_list_starts,
)
from tests.core.build import ranking, ranking_columns


def codes_of(columns):
    numbers = {}
    ids = columns.candidate_ids.values()
    return np.array([numbers.setdefault(name, len(numbers)) for name in ids], np.int32)


def n_rankers_of(columns):
    counts = [len(stratum.rankers) for stratum in columns.strata.values()]
    return np.array(counts, np.int64)


def rank_of_each(*records):
    """The ranks of each list of each ranking, in message order."""
    columns = ranking_columns(records)
    n_rankers = n_rankers_of(columns)
    flat = rank_lists(columns, codes_of(columns), n_rankers).ranks.tolist()
    found = []
    for n, n_lists in zip(columns.candidate_counts.tolist(), n_rankers.tolist(), strict=True):
        for _ in range(n_lists):
            found.append(flat[:n])
            flat = flat[n:]
    assert not flat
    return found


def expected_ranks(ids, scores):
    """By score descending, then by the bytes of the id descending; repeated ids at the best."""
    best = {}
    for name, score in zip(ids, scores, strict=True):
        best[name] = max(score, best.get(name, -inf))
    order = sorted(best, key=lambda name: (best[name], name.encode()), reverse=True)
    return [order.index(name) + 1 for name in ids]


def names(n):
    return [f"c{i:04}" for i in range(n)]


def neighbours(start, n):
    """The *n* doubles from *start* upwards."""
    found = [start]
    while len(found) < n:
        found.append(nextafter(found[-1], inf))
    return found


SCORES = {
    "the low bits of the mantissa": neighbours(1.0, 20),
    "the low bits across a power of two": neighbours(nextafter(nextafter(1.0, 0), 0), 5),
    "negative, in the low bits": neighbours(-1.0, 20),
    "denormals": [0.0, *neighbours(5e-324, 12)],
    "denormals below zero": [-score for score in [0.0 + 5e-324, *neighbours(1e-323, 9)]],
    "around zero": [-1.0, -1e-300, -5e-324, 0.0, 5e-324, 1e-300, 1.0],
    "huge": neighbours(1.7976931348623e308, 9),
    "huge and small": [-1.7976931348623157e308, -1.0, 0.0, 1e-320, 1.0, 1.7976931348623157e308],
    "one": [3.5],
    "a few ties between": [1.0, 1.0, 2.0, nextafter(2.0, 3), 2.0, -1.0, 0.0, 0.0],
}


@pytest.mark.parametrize("what", SCORES)
@pytest.mark.parametrize("repeat", [1, 7, 60])
def test_scores_are_ordered_exactly(what, repeat):
    random = Random(repeat)
    scores = SCORES[what]
    records, expected = [], []
    for i in range(repeat):
        shuffled = random.sample(scores, len(scores))
        ids = random.sample(names(50), len(scores))
        records.append(ranking(ids, scores=shuffled, trace=str(i)))
        expected.append(expected_ranks(ids, shuffled))
    assert rank_of_each(*records) == expected


@pytest.mark.parametrize("n", [8, 9, 32, 33, 128, 129, 600, 1_000])
def test_scores_that_differ_in_one_bit_keep_their_order_in_long_lists(n):
    random = Random(n)
    scores = neighbours(random.choice((1.0, 5e-324, -3.0, 1e300)), n)
    random.shuffle(scores)
    ids = random.sample(names(n), n)
    assert rank_of_each(ranking(ids, scores=scores)) == [expected_ranks(ids, scores)]


@pytest.mark.slow(alone=False)
@pytest.mark.parametrize("most", [1 << 15, 100])
def test_lists_of_different_lengths_in_one_batch_are_independent(monkeypatch, most):
    monkeypatch.setattr(align, "_CELLS", most)
    random = Random(8)
    records, expected = [], []
    for i in range(400):
        n = random.choice((0, 0, 1, 2, 3, 7, 8, 9, 31, 33, 140))
        ids = [random.choice(names(300)) for _ in range(n)] if i % 5 == 0 else names(n)
        pool = neighbours(0.1, 4) if i % 3 == 0 else [random.gauss(0, 1) for _ in range(200)]
        scorers = {name: [random.choice(pool) for _ in ids] for name in ("x", "y", "z")[: i % 4]}
        scores = [random.choice(pool) for _ in ids]
        records.append(ranking(ids, scores=scores, scorers=scorers, trace=str(i)))
        expected += [expected_ranks(ids, one) for one in (scores, *scorers.values())]
    assert rank_of_each(*records) == expected


def test_the_top_is_of_codes_and_scores_and_empty_past_the_end():
    columns = ranking_columns(
        [
            ranking("a b c d", scores=[1, 4, 3, 2]),
            ranking("d a", scores=[1, 1], trace="u"),
            ranking("", trace="w"),
            ranking("a a b", scores=[1, 5, 3], trace="x"),
        ]
    )
    ranked = rank_lists(columns, codes_of(columns), n_rankers_of(columns))
    assert TOP == 3
    assert ranked.top_codes.tolist() == [[1, 2, 3], [3, 0, -1], [-1, -1, -1], [0, 1, -1]]
    assert np.nan_to_num(ranked.top_scores, nan=-1).tolist() == [
        [4, 3, 2], [1, 1, -1], [-1, -1, -1], [5, 3, -1],
    ]  # fmt: skip


def test_a_batch_without_rankings_or_candidates_has_no_ranks():
    assert rank_of_each() == []
    assert rank_of_each(ranking(""), ranking("", trace="u")) == [[], []]


# Judgments and ranks together


def test_lists_of_a_span_are_contiguous():
    starts = span_list_starts(np.array([100, 7]), np.array([2, 3]), np.array([4, 0]))
    assert starts.tolist() == [100, 104, 7, 7, 7]


def brought_together(queries):
    """`judged_lists` of queries given as (candidate codes, ranks per ranker, grades by code)."""
    candidates = [code for codes, _, _ in queries for code in codes]
    ranks = [rank for _, lists, _ in queries for one in lists for rank in one]
    judged = [pair for _, _, grades in queries for pair in grades.items()]

    def starts_of(lengths):
        return np.cumsum([0, *lengths])[:-1]

    n_candidates = [len(codes) for codes, _, _ in queries]
    n_ranks = [len(lists) * len(codes) for codes, lists, _ in queries]
    n_judged = [len(grades) for _, _, grades in queries]
    spans = QuerySpans(
        starts_of(n_candidates),
        np.array(n_candidates),
        starts_of(n_ranks),
        np.array([len(lists) for _, lists, _ in queries]),
        starts_of(n_judged),
        np.array(n_judged),
        np.array(n_candidates),
        np.zeros(len(queries), np.int64),
    )
    return judged_lists(
        spans,
        RankedPools(np.array(candidates, np.int32), np.array(ranks, np.uint16)),
        np.array([code for code, _ in judged], np.int32),
        np.array([grade for _, grade in judged], np.float64),
    )


def expected_lists(codes, ranks, grades):
    """(rank, grade) of every judged candidate in rank order, those never ranked last."""
    rank_of = dict(zip(codes, ranks, strict=True))
    return sorted((rank_of.get(code, NEVER_RANKED), -grade) for code, grade in grades.items())


def test_judged_candidates_get_their_rank_in_every_list():
    random = Random(9)
    queries = []
    for _ in range(300):
        n = random.choice((0, 1, 2, 8, 9, 40, 200))
        codes = random.sample(range(1_000), n)
        lists = [random.sample(range(1, n + 1), n) for _ in range(random.randint(1, 3))]
        names_judged = random.sample(codes, random.randint(0, min(n, 40)))
        names_judged += random.sample(range(1_000, 1_050), random.randint(not names_judged, 3))
        random.shuffle(names_judged)
        queries.append((codes, lists, {code: random.choice((0, 1, 2.5)) for code in names_judged}))
    seen = []
    for members, lists in brought_together(queries):
        seen += members.tolist()
        row = 0
        for i, query in enumerate(members.tolist()):
            codes, ranks, grades = queries[query]
            n = len(grades)
            ideal = lists.ideal_grades[i].tolist()
            assert ideal[:n] == sorted(grades.values(), reverse=True)
            assert not any(ideal[n:])
            assert lists.n_relevant[i] == sum(grade > 0 for grade in grades.values())
            for one in ranks:
                assert lists.query_of[row] == i
                found = zip(lists.ranks[row].tolist(), (-lists.grades[row]).tolist(), strict=True)
                expected = expected_lists(codes, one, grades)
                padding = [(NEVER_RANKED, 0.0)] * (lists.ranks.shape[1] - n)
                assert sorted(found) == sorted(expected + padding)
                assert lists.ranks[row].tolist() == sorted(lists.ranks[row].tolist())
                row += 1
        assert row == len(lists.query_of)
    assert sorted(seen) == list(range(len(queries)))


def test_unranked_candidates_come_after_all_ranked_ones():
    ((members, lists),) = brought_together([([4, 5], [[2, 1]], {5: 1, 9: 2})])
    assert members.tolist() == [0]
    assert lists.ranks.tolist() == [[1, NEVER_RANKED]]
    assert lists.grades.tolist() == [[1, 2]]
    assert lists.first_relevant.tolist() == [1]


def test_the_first_relevant_candidate_is_the_best_ranked_one_above_grade_0():
    ((_, lists),) = brought_together([([1, 2, 3], [[1, 2, 3], [3, 2, 1]], {1: 0, 3: 1, 2: 0.5})])
    assert lists.first_relevant.tolist() == [2, 1]
