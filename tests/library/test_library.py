"""The library's own rules: which queries count, what comes back, what is refused."""

import doctest
import subprocess
import sys

import numpy as np
import pytest

import evaluator
from evaluator.comparison.paired import paired
from evaluator.core.measures import dense, order
from evaluator.library import comparing, measuring

QRELS = {"both": {"a": 1}, "only judged": {"b": 1}, "empty": {}, "withdrawn": {"a": -1, "b": None}}
RUN = {"both": {"a": 1.0}, "only ranked": {"c": 1.0}, "empty": {"a": 1.0}, "withdrawn": {"a": 1.0}}


@pytest.mark.parametrize("module", [measuring, comparing, dense, order])
def test_the_examples_of_a_module_hold(module):
    failed, tried = doctest.testmod(module)
    assert (failed, tried > 0) == (0, True)


def test_only_judged_queries_of_both_sides_have_a_value():
    assert evaluator.evaluate(QRELS, RUN, "mrr").per_query == {"both": {"mrr": 1.0}}


def test_a_query_that_the_run_lacks_may_count_as_an_empty_ranking():
    found = evaluator.evaluate(QRELS, RUN, "mrr", missing="zero")
    assert found.per_query == {"both": {"mrr": 1.0}, "only judged": {"mrr": 0.0}}
    assert found.mean == {"mrr": 0.5}


def test_a_ranking_that_returned_nothing_is_worth_0():
    assert evaluator.evaluate({"q": {"a": 1}}, {"q": {}}, "mrr").per_query == {"q": {"mrr": 0.0}}


def test_a_row_without_scores_is_a_query_that_the_run_lacks():
    grades, scores = np.array([[1.0], [1.0]]), np.array([[0.5], [np.nan]])
    assert len(evaluator.evaluate(grades, scores, "mrr")) == 1
    assert evaluator.evaluate(grades, scores, "mrr", missing="zero").mean == {"mrr": 0.5}


def test_without_any_query_there_is_no_mean():
    found = evaluator.evaluate({}, RUN, ["mrr", "map@5"])
    assert (len(found), found.mean, found.per_query) == (0, {"mrr": None, "map@5": None}, {})
    assert repr(found) == "Measured(0 queries: mrr -, map@5 -)"
    assert len(evaluator.evaluate(np.ones((0, 4)), np.ones((0, 4)), "mrr")) == 0
    assert len(evaluator.evaluate(np.ones((3, 0)), np.ones((3, 0)), "mrr")) == 0


def test_a_value_that_a_query_lacks_is_absent_and_not_in_the_mean():
    qrels = {"q1": {"a": 1}, "q2": {"a": 1}}
    run = {"q1": {"a": 1.0}, "q2": {"a": 1.0}}
    found = evaluator.evaluate(qrels, run, "subtopic_recall@1,mrr", subtopics={"q2": {"a": ["x"]}})
    assert found.per_query["q1"] == {"mrr": 1.0}
    assert found.per_query["q2"] == {"subtopic_recall@1": 1.0, "mrr": 1.0}
    assert found.mean == {"subtopic_recall@1": 1.0, "mrr": 1.0}


def test_names_come_back_as_they_were_asked_for_with_their_companions():
    found = evaluator.evaluate(
        {"q": {"a": 1}}, {"q": {"a": 1.0}}, ["hit@1", "top1", "map_graded@5"]
    )
    assert found.measures == ("hit@1", "top1", "map_graded@5", "map_graded_ceiling@5")
    assert found.mean["map_graded_ceiling@5"] == 0.5
    assert found.values("top1").tolist() == [1.0]


def test_scales_are_obeyed():
    found = evaluator.evaluate(
        {"q": {"a": 1}},
        {"q": {"a": 1.0}},
        "map_graded@5,err@5",
        map_graded_max_grade=1,
        err_max_grade=1,
    )
    assert found.mean == {"map_graded@5": 1.0, "map_graded_ceiling@5": 1.0, "err@5": 0.5}


@pytest.mark.parametrize(
    ("measures", "settings", "said"),
    [
        ("ndgc@10", {}, "'ndgc@10' is not a measure. Measures: top1, top3, hit@k"),
        ([], {}, "0 measures are configured"),
        ("mrr", {"empty": "none"}, "empty is 'none'; it must be zero or skip"),
        ("mrr", {"missing": "no"}, "missing is 'no'; it must be skip or zero"),
        ("mrr", {"ties": "no"}, "ties is 'no'; it must be id or average"),
        ("err@5", {"ties": "average"}, "no closed form for err@5"),
        ("err@5", {"err_max_grade": 0}, "err_max_grade is 0"),
        ("mrr", {"map_graded_max_grade": 32}, "map_graded_max_grade is 32"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_words(measures, settings, said):
    with pytest.raises(ValueError, match=said):
        evaluator.evaluate(QRELS, RUN, measures, **settings)


def test_subtopics_go_with_names_of_candidates():
    with pytest.raises(ValueError, match="subtopics are by candidate id"):
        evaluator.evaluate([[1.0]], [[1.0]], "mrr", subtopics={})


def test_importing_the_package_imports_nothing_else():
    program = "import sys, evaluator; print('numpy' in sys.modules); evaluator.evaluate"
    program += "; print('numpy' in sys.modules); print(evaluator.compare is evaluator.compare)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True", "True"]


def test_what_the_package_offers_can_be_listed_and_nothing_else_is_there():
    assert {"evaluate", "compare", "Measured", "Paired"} <= set(dir(evaluator))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = evaluator.nothing


# --- compare

GRADES = {f"q{number}": {"a": 1, "b": 0} for number in range(6)}
RIGHT, WRONG = {"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 2.0}


def test_a_comparison_is_the_paired_one_on_the_common_queries():
    before = {"q0": RIGHT, "q1": WRONG, "q2": WRONG, "q3": RIGHT, "q5": WRONG}
    after = {"q1": RIGHT, "q0": RIGHT, "q2": WRONG, "q3": WRONG, "q4": RIGHT}
    traces = {"q0": "t", "q1": "t"}
    found = evaluator.compare(GRADES, {"before": before, "after": after}, "mrr", traces=traces)
    baseline, other = np.array([1.0, 0.5, 0.5, 1.0]), np.array([1.0, 1.0, 0.5, 0.5])
    assert found == {"after": {"mrr": paired(baseline, other, np.array(["t", "t", "u", "v"]))}}
    assert (found["after"]["mrr"].traces, found["after"]["mrr"].wins) == (3, 1)


def test_the_baseline_may_be_any_and_every_other_run_is_compared():
    runs = {"one": {"q0": RIGHT}, "two": {"q0": WRONG}, "three": {"q1": RIGHT}}
    found = evaluator.compare(GRADES, runs, "mrr", baseline="two")
    assert found["one"]["mrr"].difference == 0.5
    assert found["three"] == {"mrr": None}
    assert list(found) == ["one", "three"]


def test_arrays_are_compared_row_by_row():
    grades = np.array([[1.0, 0.0]] * 2)
    runs = {"one": np.array([[2.0, 1.0], [1.0, 2.0]]), "two": np.array([[2.0, 1.0], [2.0, 1.0]])}
    assert evaluator.compare(grades, runs, "mrr")["two"]["mrr"].difference == 0.25


@pytest.mark.parametrize(
    ("runs", "baseline"), [({}, None), ({"one": {}}, None), ({"one": {}, "two": {}}, "three")]
)
def test_a_comparison_of_nothing_is_refused(runs, baseline):
    with pytest.raises(ValueError, match="give two or more"):
        evaluator.compare(GRADES, runs, "mrr", baseline=baseline)
