"""ir_measures, which asks other programs, gdeval and its own."""

import shutil

import ir_measures
import pytest
from ir_measures import AP, ERR, RR, Judged, P, R, Success, nDCG

from tests.compare.lists import N_LISTS, differences, ours, random_lists

SAME = {
    AP: "map",
    AP @ 10: "map@10",
    RR: "mrr",
    nDCG @ 10: "ndcg_linear@10",
    P @ 5: "p@5",
    R @ 10: "r@10",
    Success @ 3: "top3",
}
FIVE_DIGITS = 5.1e-6


@pytest.fixture(scope="module")
def lists():
    return random_lists(22)


def theirs(measure, lists):
    runs, qrels = lists
    metrics = ir_measures.iter_calc([measure], qrels, runs)
    return {metric.query_id: metric.value for metric in metrics}


@pytest.fixture(scope="module")
def mine(lists):
    return ours(SAME.values(), *lists)


@pytest.mark.parametrize("measure", SAME, ids=str)
def test_it_equals_ir_measures(lists, mine, measure):
    assert not differences(mine[SAME[measure]], theirs(measure, lists))


@pytest.mark.parametrize("k", [1, 5, 10])
def test_the_judged_share_is_the_same_without_ties_which_it_orders_by_id_ascending(k):
    lists = random_lists(26, ties=False)
    assert not differences(ours([f"judged@{k}"], *lists)[f"judged@{k}"], theirs(Judged @ k, lists))


def test_judged_only_is_its_judged_only(lists):
    mine = ours(["ndcg_linear@5"], *lists, judged_only=True)
    assert not differences(mine["ndcg_linear@5"], theirs(nDCG(judged_only=True) @ 5, lists))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("perl") is None, reason="gdeval is a program in Perl")
@pytest.mark.parametrize(
    ("measure", "name"), [(ERR @ 10, "err@10"), (nDCG(dcg="exp-log2") @ 10, "ndcg@10")], ids=str
)
def test_it_equals_gdeval_to_the_five_digits_that_it_prints(measure, name):
    runs, qrels = random_lists(23, n_lists=2 * N_LISTS, ties=False)
    relevant = [query for query, grades in qrels.items() if any(grades.values())]
    assert len(relevant) > N_LISTS
    chosen = tuple({query[1:]: part[query] for query in relevant} for part in (runs, qrels))
    assert not differences(ours([name], *chosen)[name], theirs(measure, chosen), FIVE_DIGITS)
