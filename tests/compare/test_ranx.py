"""Comparison with ranx, without ties, because ranx leaves their order open."""

import pytest

from tests.compare.lists import N_LISTS, differences, engine_values, random_lists

pytestmark = [
    pytest.mark.slow,  # it takes seconds to import and long to measure
    pytest.mark.xdist_group("ranx"),  # in one process, once
    pytest.mark.filterwarnings("ignore"),  # of its compiler
]

SAME = {
    "hit_rate@1": "top1",
    "hit_rate@5": "hit@5",
    "precision@5": "p@5",
    "precision@50": "p@50",
    "recall@10": "r@10",
    "f1@10": "f1@10",
    "mrr": "mrr",
    "mrr@5": "mrr@5",
    "map": "map",
    "map@10": "map@10",
    "ndcg": "ndcg_linear",
    "ndcg@10": "ndcg_linear@10",
    "ndcg_burges": "ndcg",
    "ndcg_burges@10": "ndcg@10",
}


@pytest.fixture(scope="module")
def ranx():
    """Its code without compilation, which would take most of a minute."""
    reason = "installed by `make test`, not by `make install`"
    numba = pytest.importorskip("numba", reason=reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "DISABLE_JIT", True)
        yield pytest.importorskip("ranx", reason=reason)


@pytest.fixture(scope="module")
def values(ranx):
    runs, qrels = random_lists(25, N_LISTS, ties=False)
    theirs = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(runs), list(SAME), return_mean=False)
    sorted_queries = sorted(qrels)
    by_name = {n: dict(zip(sorted_queries, map(float, v), strict=True)) for n, v in theirs.items()}
    return engine_values(SAME.values(), runs, qrels), by_name


@pytest.mark.parametrize("name", SAME)
def test_values_equal_those_of_ranx(values, name):
    mine, theirs = values
    assert not differences(mine[SAME[name]], theirs[name])
    assert len(set(theirs[name].values())) > 1


def test_rank_biased_precision_is_equal_for_binary_grades_only(ranx):
    runs, qrels = random_lists(27, N_LISTS, ties=False)
    binary = {q: {name: min(g, 1) for name, g in grades.items()} for q, grades in qrels.items()}
    same = {"rbp.80": "rbp[0.8]", "rbp.95": "rbp[0.95]"}
    mine = engine_values(same.values(), runs, qrels)
    theirs = ranx.evaluate(ranx.Qrels(binary), ranx.Run(runs), list(same), return_mean=False)
    for their, own in same.items():
        expected = dict(zip(sorted(qrels), map(float, theirs[their]), strict=True))
        assert not differences(mine[own], expected)
