"""The rules of the library: counted queries, results and refusals."""

import doctest
import subprocess
import sys
from math import sqrt
from types import SimpleNamespace

import numpy as np
import pytest

import evaluator
from evaluator.comparison.paired import paired
from evaluator.core.measures import dense, order
from evaluator.library import Effect, comparing, measuring, names
from evaluator.library.comparing import effect_of, holm

QRELS = {"both": {"a": 1}, "only judged": {"b": 1}, "empty": {}, "withdrawn": {"a": -1, "b": None}}
RUN = {"both": {"a": 1.0}, "only ranked": {"c": 1.0}, "empty": {"a": 1.0}, "withdrawn": {"a": 1.0}}


@pytest.mark.parametrize("module", [measuring, comparing, names, dense, order])
def test_docstring_examples_are_correct(module):
    failed, tried = doctest.testmod(module)
    assert (failed, tried > 0) == (0, True)


def test_only_judged_queries_of_both_sides_have_a_value():
    found = evaluator.evaluate(QRELS, RUN, "mrr", missing="skip")
    assert found.per_query == {"both": {"mrr": 1.0}}
    assert (found.missing, found.unjudged) == (1, 1)


def test_a_query_that_the_run_lacks_may_count_as_an_empty_ranking():
    found = evaluator.evaluate(QRELS, RUN, "mrr", missing="zero")
    assert found.per_query == {"both": {"mrr": 1.0}, "only judged": {"mrr": 0.0}}
    assert found.mean == {"mrr": 0.5}


def test_an_empty_ranking_has_value_0():
    assert evaluator.evaluate({"q": {"a": 1}}, {"q": {}}, "mrr").per_query == {"q": {"mrr": 0.0}}


def test_a_row_without_scores_is_a_query_that_the_run_lacks():
    grades = np.array([[1.0], [1.0], [np.nan], [np.nan], [1.0]])
    scores = np.array([[0.5], [np.nan], [0.5], [np.nan], [np.nan]])
    message = "2 of 3 queries of the qrels are not in the run, 1 of 2 queries of the run are not in"
    for measured in (
        lambda missing: evaluator.evaluate(grades, scores, "mrr", missing=missing).values("mrr"),
        lambda missing: evaluator.precision_at_recall(grades, scores, missing=missing).values[:, 0],
    ):
        with pytest.warns(evaluator.MissingQueriesWarning, match=message) as warned:
            assert measured("warn").tolist() == [1.0]
        assert [one.filename for one in warned] == [__file__]
        with pytest.raises(evaluator.InvalidInputError, match=message):
            measured("error")
        assert measured("skip").tolist() == [1.0]
        assert measured("zero").tolist() == [1.0, 0.0, 0.0]
    found = evaluator.evaluate(grades, scores, "mrr", missing="skip")
    assert (found.missing, found.unjudged) == (2, 1)


def test_without_any_query_there_is_no_mean():
    found = evaluator.evaluate({}, RUN, ["mrr", "map@5"], missing="skip")
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


def test_results_have_the_requested_names_and_their_companions():
    found = evaluator.evaluate(
        {"q": {"a": 1}}, {"q": {"a": 1.0}}, ["hit@1", "top1", "map_graded@5"]
    )
    assert found.measures == ("hit@1", "top1", "map_graded@5", "map_graded_ceiling@5")
    assert found.mean["map_graded_ceiling@5"] == 0.5
    assert found.values("top1").tolist() == [1.0]


def test_scales_are_applied():
    found = evaluator.evaluate(
        {"q": {"a": 1}},
        {"q": {"a": 1.0}},
        "map_graded@5,err@5",
        map_graded_max_grade=1,
        err_max_grade=1,
    )
    assert found.mean == {"map_graded@5": 1.0, "map_graded_ceiling@5": 1.0, "err@5": 0.5}


@pytest.mark.parametrize(
    ("measures", "settings", "message"),
    [
        ("ndgc@10", {}, "'ndgc@10' is not a measure. Measures: top1, top3, hit@k"),
        ([], {}, "0 measures are configured"),
        (None, {}, "measures is of type NoneType; give names"),
        ("mrr", {"empty": "none"}, "empty is 'none'; it must be zero or skip"),
        ("mrr", {"missing": "no"}, "missing is 'no'; it must be warn or skip or zero or error"),
        ("mrr", {"ties": "no"}, "ties is 'no'; it must be id or average"),
        ("err@5", {"ties": "average"}, "not defined for err@5"),
        ("err@5", {"err_max_grade": 0}, "err_max_grade is 0"),
        ("mrr", {"map_graded_max_grade": 32}, "map_graded_max_grade is 32"),
    ],
)
def test_unsupported_measures_and_settings_are_refused_with_a_message(measures, settings, message):
    with pytest.raises(ValueError, match=message):
        evaluator.evaluate(QRELS, RUN, measures, **settings)


ONE, ARRAY = {"q": {"a": 1}}, np.ones((1, 1))
BOTH, ARRAYS = {"a": ONE, "b": ONE}, {"a": ARRAY, "b": ARRAY}
AGES = evaluator.Freshness(half_life_ms=1, ages_ms={0: {"a": 1}})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evaluator.evaluate(ONE, ONE, "ndgc@10"), "is not a measure"),
        (lambda: evaluator.evaluate(ONE, ONE, "IPrec@0.1"), "of another program"),
        (lambda: evaluator.evaluate(ONE, ONE, "err@9", ties="average"), "not defined for err"),
        (lambda: evaluator.evaluate(ONE, ONE, "ctr@3"), "ctr@3 needs exposure"),
        (lambda: evaluator.evaluate(ONE, ONE, "ips_clicks"), "needs exposure"),
        (lambda: evaluator.evaluate(ONE, ONE, "err@3", err_max_grade="4"), "err_max_grade is '4'"),
        (lambda: evaluator.evaluate(ONE, ONE, "mrr", freshness=7), "it must be a Freshness"),
        (lambda: evaluator.evaluate(ONE, ONE, "mrr", subtopics={"q": 1}), "and have 1"),
        (
            lambda: evaluator.evaluate(ONE, ONE, "alpha_ndcg@3", subtopics={"q": {"a": "xy"}}),
            "subtopics must be",
        ),
        (lambda: evaluator.evaluate(ONE, ONE, "mrr", subtopics=["a"]), "subtopics must be"),
        (lambda: evaluator.evaluate(ONE, ONE, "mrr", subtopics={"q": ["a"]}), "and have \\['a'\\]"),
        (lambda: evaluator.evaluate(ONE, ONE, "mrr", subtopics={"q": None}), "and have None"),
        (
            lambda: evaluator.evaluate(ONE, ONE, "mrr", subtopics={"q": {"a": [["x"]]}}),
            "subtopics must be",
        ),
        (lambda: evaluator.Freshness(half_life_ms=1, ages_ms=3), "ages_ms must be"),
        (lambda: evaluator.Freshness(half_life_ms=1, ages_ms={"q": 3}), "ages_ms must be"),
        (lambda: evaluator.compare(ONE, {"a": ONE, "b": ONE}, "mrr", resamples=0), "resamples 0"),
        (lambda: evaluator.compare(ONE, {"a": ONE, "b": ONE}, "mrr", seed=0.5), "seed 0.5"),
        (lambda: evaluator.compare(ONE, {"a": ONE, "b": ONE}, "mrr", confidence="x"), "x a number"),
        (lambda: evaluator.compare(ONE, {"a": ONE, "b": ONE}, "mrr", traces=["t"]), "and traces"),
        (lambda: evaluator.compare(ONE, BOTH, "mrr", traces={1: "t"}), "query ids of traces"),
        (lambda: evaluator.compare(ARRAY, ARRAYS, "mrr", traces={"0": "t"}), "query ids of traces"),
        (
            lambda: evaluator.evaluate(ONE, ONE, "mrr", groups={0: "de"}),
            "query ids of groups .of t",
        ),
        (lambda: evaluator.evaluate(ARRAY, ARRAY, "mrr", groups={"0": 1}), "query ids of groups"),
        (lambda: evaluator.evaluate(ONE, ONE, "mrr", subtopics={0: {}}), "query ids of subtopics"),
        (lambda: evaluator.evaluate(ONE, ONE, "mrr", freshness=AGES), "query ids of ages_ms"),
        (lambda: evaluator.evaluate(ONE, ONE, "ERR"), "'ERR' .* err needs a cutoff, e.g. err@10"),
        (lambda: evaluator.evaluate(ONE, ONE, "success"), "hit needs a cutoff"),
        (lambda: evaluator.compare(ONE, [ONE, ONE], "mrr"), "runs must be"),
        (lambda: evaluator.compare(ONE, {1: ONE, 2: ONE}, "mrr"), "runs must be"),
        (lambda: evaluator.compare(ONE, {"a": ONE, "b": ONE}, "mr"), "^'mr' is not a measure"),
        (lambda: evaluator.precision_at_recall(ONE, ONE, missing="warm"), "missing is 'warm'"),
        (lambda: evaluator.precision_at_recall(ONE, ONE, empty="none"), "empty is 'none'"),
        (lambda: evaluator.precision_at_recall(ONE, ONE, levels=["x"]), "levels must be"),
        (lambda: evaluator.precision_at_recall(ONE, ONE, rel=0), "rel is 0; it must be a grade"),
        (lambda: evaluator.thresholds(ONE, ONE, missing="drop"), "missing is 'drop'"),
        (lambda: evaluator.thresholds(ARRAY, ARRAY, missing="drop"), "missing is 'drop'"),
        (lambda: evaluator.thresholds(ONE, ONE, rel="2"), "rel is '2'"),
        (lambda: evaluator.details(ONE, ONE, top=-1), "top is -1"),
        (lambda: evaluator.details(ONE, ONE, rel=32), "rel is 32"),
        (lambda: evaluator.details(ONE, ONE, missing="no"), "missing is 'no'"),
        (lambda: evaluator.details(ONE, {"q": {"a": "x"}}), "is not a number"),
        (lambda: evaluator.details(ONE, {"q": {"a": float("inf")}}), "scores must be finite"),
        (lambda: evaluator.details(ARRAY, ARRAY), "details are by candidate id"),
    ],
)
def test_every_error_is_an_error_class_of_the_library(call, message):
    with pytest.raises(evaluator.InvalidInputError, match=message):
        call()


def test_an_unusable_package_of_measures_is_an_error_of_the_library(monkeypatch):
    point = SimpleNamespace(name="odd", dist=None, load=lambda: 7)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point])
    with pytest.raises(evaluator.InvalidInputError, match="odd of another package is a int"):
        evaluator.evaluate(ONE, ONE, "odd@3")


def test_subtopics_go_with_names_of_candidates():
    with pytest.raises(ValueError, match="subtopics and freshness are by candidate id"):
        evaluator.evaluate([[1.0]], [[1.0]], "mrr", subtopics={})


@pytest.mark.slow
def test_the_library_loads_no_broker_no_store_and_no_server():
    program = """
import sys, evaluator
runs = {name: {"q": {"a": 1.0}} for name in "ab"}
evaluator.compare({"q": {"a": 1}}, runs, "mrr,nDCG@10").to_markdown()
heavy = {"aiokafka", "aiohttp", "rocksdict", "pydantic", "pandas", "polars"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_importing_the_package_imports_nothing_else():
    program = "import sys, evaluator; print('numpy' in sys.modules); evaluator.evaluate"
    program += "; print('numpy' in sys.modules); print(evaluator.compare is evaluator.compare)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True", "True"]


def test_dir_lists_the_public_names_and_others_raise():
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
    found = evaluator.compare(
        GRADES, {"before": before, "after": after}, "mrr", traces=traces, missing="skip"
    )
    baseline, other = np.array([1.0, 0.5, 0.5, 1.0]), np.array([1.0, 1.0, 0.5, 0.5])
    assert found == {"after": {"mrr": paired(baseline, other, np.array(["t", "t", "u", "v"]))}}
    assert (found["after"]["mrr"].traces, found["after"]["mrr"].wins) == (3, 1)


def test_any_run_may_be_the_baseline_of_all_others():
    runs = {"one": {"q0": RIGHT}, "two": {"q0": WRONG}, "three": {"q1": RIGHT}}
    found = evaluator.compare(GRADES, runs, "mrr", baseline="two", missing="skip")
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
def test_an_empty_comparison_is_refused(runs, baseline):
    with pytest.raises(ValueError, match="give two or more"):
        evaluator.compare(GRADES, runs, "mrr", baseline=baseline)


# --- several runs


def several(n=40):
    """A baseline that finds the relevant candidate second, one that is better in 30, one in 1."""
    qrels = {f"q{i}": {"a": 1, "b": 0} for i in range(n)}
    runs = {
        "base": dict.fromkeys(qrels, WRONG),
        "much": {name: RIGHT if i < 30 else WRONG for i, name in enumerate(qrels)},
        "little": {name: RIGHT if i < 1 else WRONG for i, name in enumerate(qrels)},
    }
    return evaluator.compare(qrels, runs, "mrr,p@1")


def test_holm_corrects_over_the_runs_of_a_measure():
    found = several()
    p = {name: found[name]["mrr"].p for name in ("much", "little")}
    assert p["much"] == 1 / 10_001  # no flip of 30 signs is as far from 0
    assert p["little"] == 1.0  # one sign: every flip is as far
    assert found.p_holm["much"]["mrr"] == 2 * p["much"]
    assert found.p_holm["little"]["mrr"] == 1.0
    assert holm({"a": 0.02, "b": 0.01, "c": 0.6}) == {"a": 0.04, "b": 0.03, "c": 0.6}
    assert holm({"a": 0.5, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_an_effect_is_the_mean_difference_over_its_standard_deviation():
    """30 differences of 0.5 and 10 of 0: mean 0.375."""
    effect = several().effects["much"]["mrr"]
    deviation = sqrt((30 * 0.125**2 + 10 * 0.375**2) / 39)
    assert effect.value == pytest.approx(0.375 / deviation)
    assert effect.interval.low < effect.value < effect.interval.high
    one = effect_of(np.full(3, 0.5), np.array(list("abc")), resamples=9, confidence=0.9, seed=0)
    assert one == Effect(value=None, interval=None)


def test_the_unit_of_an_effect_is_the_trace():
    """Traces have the differences 0.5 (of three queries) and 0: mean 0.25, deviation 0.3536."""
    found = effect_of(
        np.array([0.5, 0.5, 0.5, 0.0]), np.array(list("aaab")),
        resamples=99, confidence=0.9, seed=0,
    )  # fmt: skip
    assert found.value == pytest.approx(0.25 / sqrt(0.125))


@pytest.mark.slow(alone=False)
def test_the_interval_of_an_effect_is_that_of_scipy():
    from scipy.stats import bootstrap

    values = np.random.default_rng(1).normal(0.3, 1.0, size=200)
    found = effect_of(values, np.arange(200), resamples=9_999, confidence=0.9, seed=0)
    expected = bootstrap(
        (values,), lambda x, axis: x.mean(axis=axis) / x.std(axis=axis, ddof=1),
        confidence_level=0.9, method="percentile", rng=np.random.default_rng(5),
    ).confidence_interval  # fmt: skip
    assert found.interval.low == pytest.approx(expected.low, abs=0.02)
    assert found.interval.high == pytest.approx(expected.high, abs=0.02)


def test_a_table_has_the_best_in_bold_and_marks_what_is_significant():
    assert several().to_markdown() == (
        "| run | mrr | p@1 |\n"
        "| --- | ---: | ---: |\n"
        "| base | 0.5000 | 0.0000 |\n"
        "| much | **0.8750** (+0.3750\\*) | **0.7500** (+0.7500\\*) |\n"
        "| little | 0.5125 (+0.0125) | 0.0250 (+0.0250) |\n"
        "\n"
        "Differences from base; \\* p < 0.05 by a paired randomisation test with Holm's correction "
        "over 2 runs.\n"
    )


def test_the_best_share_of_unjudged_candidates_is_the_smallest():
    other = {"q": {"a": 1.0, "unjudged": 2.0}}
    table = evaluator.compare(ONE, {"one": ONE, "two": other}, "unjudged@1").to_markdown()
    assert table.splitlines()[2:4] == ["| one | **0.0000** |", "| two | 1.0000 (+1.0000) |"]


@pytest.mark.parametrize(
    "library",
    ["polars", pytest.param("pandas", marks=pytest.mark.slow)],  # it takes long to import
)
def test_comparisons_and_values_are_frames_of_the_installed_library(library, monkeypatch):
    module = pytest.importorskip(library)
    other = {"pandas": "polars", "polars": "pandas"}[library]
    monkeypatch.setitem(sys.modules, other, None)  # as if it were not installed
    found = several()
    frame = found.to_frame()
    assert isinstance(frame, module.DataFrame)
    assert list(frame.columns) == list(found.rows()[0])
    assert frame["run"].to_list() == ["base", "base", "much", "much", "little", "little"]
    assert frame["difference"].to_list()[2] == 0.375
    values = found.measured["much"].to_frame()
    assert list(values.columns) == ["query_id", "mrr", "p@1"]
    assert values["mrr"].to_list() == [1.0] * 30 + [0.5] * 10
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(evaluator.InvalidInputError, match="a frame needs pandas or polars"):
        found.to_frame()


# --- groups


def test_the_values_of_a_group_are_those_of_its_queries_alone():
    qrels = {f"q{i}": {"a": 1, "b": 0} for i in range(5)}
    run = {name: RIGHT if i % 2 else WRONG for i, name in enumerate(qrels)}
    groups = {"q0": "de", "q1": "de", "q3": "fr", "q4": "de", "q2": ""}
    found = evaluator.evaluate(qrels, run, "mrr,p@1", groups=groups).by_group
    assert list(found) == ["de", "fr"]  # the largest first; q2 has none
    assert found["de"].query_ids == ["q0", "q1", "q4"]
    assert found["de"].mean["mrr"] == pytest.approx((0.5 + 1 + 0.5) / 3)
    alone = {name: run[name] for name in ("q0", "q1", "q4")}
    only = evaluator.evaluate({name: qrels[name] for name in alone}, alone, "mrr,p@1")
    assert found["de"].mean == only.mean
    assert evaluator.evaluate(qrels, run, "mrr").by_group == {}


def test_rows_of_arrays_have_a_group_each():
    grades, scores = np.array([[1.0, 0.0]] * 3), np.array([[2.0, 1.0], [1.0, 2.0], [1.0, 2.0]])
    found = evaluator.evaluate(grades, scores, "mrr", groups=np.array([7, 7, 8]))
    assert {group: one.mean["mrr"] for group, one in found.by_group.items()} == {
        "7": 0.75,
        "8": 0.5,
    }
    with pytest.raises(evaluator.InvalidInputError, match="groups are 2 for 3 rows"):
        evaluator.evaluate(grades, scores, "mrr", groups=["de", "fr"])
    with pytest.raises(evaluator.InvalidInputError, match="must be a mapping"):
        evaluator.evaluate(GRADES, {"q0": RIGHT}, "mrr", groups=["de"], missing="skip")


def test_a_comparison_by_group_is_that_of_the_queries_of_the_group():
    qrels = {f"q{i}": {"a": 1, "b": 0} for i in range(8)}
    runs = {
        "one": dict.fromkeys(qrels, WRONG),
        "two": {name: RIGHT if i < 6 else WRONG for i, name in enumerate(qrels)},
    }
    groups = {name: "even" if i % 2 == 0 else "odd" for i, name in enumerate(qrels)}
    traces = dict.fromkeys(list(qrels)[:4], "t")
    found = evaluator.compare(qrels, runs, "mrr", groups=groups, traces=traces)
    even = {name: grades for name, grades in qrels.items() if groups[name] == "even"}
    alone = evaluator.compare(even, runs, "mrr", traces=traces, missing="skip")
    assert list(found.by_group) == ["even", "odd"]
    assert found.by_group["even"] == alone
    assert found.by_group["even"].to_markdown() == alone.to_markdown()
    assert found["two"]["mrr"].difference == 0.375
