"""Comparison with trec_eval through pytrec_eval and ir_measures: equal orders and values."""

import pytest
import pytrec_eval

from tests.compare.lists import SHARES, differences, engine_values, random_lists

pytestmark = pytest.mark.xdist_group("trec_eval")  # compared once, for all measures

MEASURE_BY_TREC_NAME = {
    "recip_rank": "mrr",
    "map": "map",
    **{f"map_cut_{k}": f"map@{k}" for k in (5, 10, 100)},
    "ndcg": "ndcg_linear",
    **{f"ndcg_cut_{k}": f"ndcg_linear@{k}" for k in (1, 5, 10, 500)},
    **{f"P_{k}": f"p@{k}" for k in (1, 5, 10, 50)},
    **{f"recall_{k}": f"r@{k}" for k in (1, 5, 10, 100)},
    **{f"success_{k}": f"hit@{k}" for k in (1, 5, 10)},
}
THEIRS = {
    "recip_rank", "map", "map_cut.5,10,100", "ndcg", "ndcg_cut.1,5,10,500", "P.1,5,10,50",
    "recall.1,5,10,100", "success.1,5,10",
}  # fmt: skip


@pytest.fixture(scope="module", params=SHARES)
def lists(request):
    return random_lists(20, request.param)


@pytest.fixture(scope="module")
def values(lists):
    runs, qrels = lists
    theirs = pytrec_eval.RelevanceEvaluator(qrels, THEIRS).evaluate(runs)
    return engine_values(MEASURE_BY_TREC_NAME.values(), runs, qrels), theirs


@pytest.mark.parametrize("name", MEASURE_BY_TREC_NAME)
def test_values_equal_those_of_trec_eval(values, name):
    mine, theirs = values
    expected = {query: found[name] for query, found in theirs.items()}
    assert not differences(mine[MEASURE_BY_TREC_NAME[name]], expected)
    assert len(set(expected.values())) > (1 if "success" in name or name == "P_1" else 5)


def test_judged_only_equals_trec_eval_with_option_j(lists):
    runs, qrels = lists
    names = {"map": "map", "recip_rank": "mrr", "P_5": "p@5", "ndcg_cut_10": "ndcg_linear@10"}
    evaluator = pytrec_eval.RelevanceEvaluator(
        qrels, {"map", "recip_rank", "P.5", "ndcg_cut.10"}, judged_docs_only_flag=True
    )
    theirs = evaluator.evaluate(runs)
    mine = engine_values(names.values(), runs, qrels, judged_only=True)
    for name, own in names.items():
        assert not differences(mine[own], {query: v[name] for query, v in theirs.items()})


@pytest.mark.parametrize("n_lists", SHARES)
def test_the_parameter_of_its_f_is_the_square_of_beta(n_lists):
    runs, qrels = random_lists(21, n_lists, sizes=(10,))
    runs = {query: scores for query, scores in runs.items() if len(scores) == 10}
    qrels = {query: qrels[query] for query in runs}
    mine = engine_values(("f1@10", "fbeta[2]@10", "fbeta[0.5]@10"), runs, qrels)
    for parameter, own in (("1", "f1@10"), ("4", "fbeta[2]@10"), ("0.25", "fbeta[0.5]@10")):
        theirs = pytrec_eval.RelevanceEvaluator(qrels, {f"set_F.{parameter}"}).evaluate(runs)
        expected = {query: v for query, found in theirs.items() for v in found.values()}
        assert not differences(mine[own], expected)


def test_trec_eval_uses_32_bit_scores_and_the_package_64_bit_ones():
    close = {"q": {"a": 1.0 + 2**-40, "b": 1.0}}
    grades = {"q": {"a": 1}}
    theirs = pytrec_eval.RelevanceEvaluator(grades, {"recip_rank"}).evaluate(close)
    assert theirs["q"]["recip_rank"] == 1 / 2  # a tie, to it
    assert engine_values(["mrr"], close, grades)["mrr"] == {"q": 1.0}
