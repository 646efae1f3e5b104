"""Comparison with ir_measures, which calls other programs, gdeval and its own code."""

import shutil

import ir_measures
import pytest
from ir_measures import AP, ERR, RR, Judged, P, R, Rprec, Success, nDCG

from tests.compare.lists import SHARES, differences, engine_values, random_lists

pytestmark = pytest.mark.xdist_group("ir_measures")  # compared once, for all measures

SAME = {
    AP: "map",
    AP @ 10: "map@10",
    RR: "mrr",
    nDCG @ 10: "ndcg_linear@10",
    P @ 5: "p@5",
    R @ 10: "r@10",
    Success @ 3: "top3",
    Rprec: "rprec",
    Rprec(rel=2): "rprec[rel=2]",
    AP(rel=2): "map[rel=2]",
    P(rel=2) @ 5: "p[rel=2]@5",
    R(rel=3) @ 10: "r[rel=3]@10",
    RR(rel=2): "mrr[rel=2]",
    Success(rel=2) @ 5: "hit[rel=2]@5",
}
FIVE_DIGITS = 5.1e-6


@pytest.fixture(scope="module", params=SHARES)
def lists(request):
    return random_lists(22, request.param)


def reference_values(measure, lists):
    runs, qrels = lists
    metrics = ir_measures.iter_calc([measure], qrels, runs)
    return {metric.query_id: metric.value for metric in metrics}


@pytest.fixture(scope="module")
def values(lists):
    return engine_values(SAME.values(), *lists)


@pytest.mark.parametrize("measure", SAME, ids=str)
def test_values_equal_those_of_ir_measures(lists, values, measure):
    assert not differences(values[SAME[measure]], reference_values(measure, lists))


@pytest.mark.parametrize("n_lists", SHARES)
def test_the_judged_share_is_equal_without_ties(n_lists):
    lists = random_lists(26, n_lists, ties=False)
    values = engine_values(["judged@1", "judged@5", "judged@10"], *lists)
    for k in (1, 5, 10):
        assert not differences(values[f"judged@{k}"], reference_values(Judged @ k, lists))


def test_judged_only_equals_judged_only_of_ir_measures(lists):
    values = engine_values(["ndcg_linear@5"], *lists, judged_only=True)
    assert not differences(
        values["ndcg_linear@5"], reference_values(nDCG(judged_only=True) @ 5, lists)
    )


@pytest.mark.skipif(shutil.which("perl") is None, reason="gdeval is a program in Perl")
@pytest.mark.parametrize(
    ("measure", "name"), [(ERR @ 10, "err@10"), (nDCG(dcg="exp-log2") @ 10, "ndcg@10")], ids=str
)
@pytest.mark.slow  # a program in Perl
@pytest.mark.parametrize("n_lists", [share.values[0] for share in SHARES])
def test_values_equal_the_five_printed_digits_of_gdeval(measure, name, n_lists):
    runs, qrels = random_lists(23, 2 * n_lists, ties=False)
    relevant = [query for query, grades in qrels.items() if any(grades.values())]
    assert len(relevant) > n_lists
    chosen = tuple({query[1:]: part[query] for query in relevant} for part in (runs, qrels))
    assert not differences(
        engine_values([name], *chosen)[name], reference_values(measure, chosen), FIVE_DIGITS
    )
