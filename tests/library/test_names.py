"""Names of trec_eval, ir_measures and ranx: they mean the same here, or are refused."""

import pytest

import evaluator
from evaluator.library.names import own_name

OWN = {
    "nDCG@10": "ndcg_linear@10",
    "nDCG": "ndcg_linear",
    "nDCG(dcg='log2')@10": "ndcg_linear@10",
    "nDCG(dcg='exp-log2')@10": "ndcg@10",
    "AP": "map",
    "AP@100": "map@100",
    "AP(rel=2)": "map[rel=2]",
    "RR@10": "mrr@10",
    "RR(rel=2)@10": "mrr[rel=2]@10",
    "P@5": "p@5",
    "P(rel=2)@5": "p[rel=2]@5",
    "R@100": "r@100",
    "Success@5": "hit@5",
    "Rprec": "rprec",
    "ERR@20": "err@20",
    "Judged@10": "judged@10",
    "alpha_nDCG(alpha=0.9)@10": "alpha_ndcg[0.9]@10",
    "ndcg_cut_10": "ndcg_linear@10",
    "ndcg_cut.10": "ndcg_linear@10",
    "P_5": "p@5",
    "recall_100": "r@100",
    "map_cut_10": "map@10",
    "recip_rank": "mrr",
    "success_1": "hit@1",
    "hit_rate@5": "hit@5",
    "precision@10": "p@10",
    "precision@10-l2": "p[rel=2]@10",
    "recall@10": "r@10",
    "r-precision": "rprec",
    "ndcg_burges@10": "ndcg@10",
}


def test_a_name_of_another_program_is_that_of_the_same_measure_here():
    assert {name: own_name(name) for name in OWN} == OWN


def test_our_names_and_unknown_ones_are_unchanged():
    ours = ["ndcg@10", "ndcg", "map", "top1", "hit@5", "p[rel=2]@5", "fbeta[2,rel=3]@5", "rbp[0.8]"]
    for name in (*ours, "map_graded@10", "subtopic_recall@5", "nonsense@5", "last_relevant", ""):
        assert own_name(name) == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hits@10", "hit@k is 1 if one of them is relevant"),
        ("dcg@10", "ndcg_linear@k"),
        ("RBP(p=0.8)", "rbp\\[0.8\\]"),
        ("rbp.95", "rbp\\[0.8\\]"),
        ("bpref", "judged_only=True with map"),
        ("set_F", "fbeta\\[b\\]@k"),
        ("iprec_at_recall_0.10", "precision_at_recall\\(\\) has it"),
        ("nDCG(judged_only=True)@10", "give judged_only=True to the function"),
        ("P(judged_only=True, rel=2)@10", "give judged_only=True to the function"),
        ("nDCG(gains={})@10", "ndcg_linear does not take gains"),
        ("ndcg@10-l2", "ndcg does not take rel"),
    ],
)
def test_a_measure_with_another_meaning_is_refused_with_the_nearest(name, message):
    with pytest.raises(evaluator.UnknownMeasureError, match=message):
        evaluator.evaluate({"q": {"a": 1}}, {"q": {"a": 1.0}}, [name])


def test_values_have_the_requested_names():
    qrels, run = {"q": {"a": 2, "b": 1}}, {"q": {"a": 0.1, "b": 0.5}}
    found = evaluator.evaluate(qrels, run, "nDCG@10, ndcg_linear@10, AP(rel=2), map_graded@5, top1")
    assert found.measures == (
        "nDCG@10", "ndcg_linear@10", "AP(rel=2)", "map_graded@5", "map_graded_ceiling@5", "top1",
    )  # fmt: skip
    assert found.mean["nDCG@10"] == found.mean["ndcg_linear@10"] != 1.0
    assert found.mean["AP(rel=2)"] == 0.5
    assert list(found.per_query["q"]) == list(found.measures)


def test_objects_of_ir_measures_are_names():
    ir_measures = pytest.importorskip("ir_measures")
    measures = [ir_measures.nDCG @ 10, ir_measures.AP(rel=2), ir_measures.RR]
    found = evaluator.evaluate({"q": {"a": 1}}, {"q": {"a": 1.0}}, measures)
    assert found.mean == {"nDCG@10": 1.0, "AP(rel=2)": 0.0, "RR": 1.0}
