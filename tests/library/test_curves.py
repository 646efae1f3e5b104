"""Curves against trec_eval, ir_measures and scikit-learn; freshness; details of rankings."""

import doctest
import sys
import warnings

import numpy as np
import pytest

import evaluator
from evaluator.library import candidates, curves
from tests.compare.lists import random_lists
from tests.core.build import Task, judgment, ranking

LEVELS = [level / 10 for level in range(11)]


@pytest.mark.parametrize("module", [curves, candidates])
def test_docstring_examples_are_correct(module):
    failed, tried = doctest.testmod(module)
    assert (failed, tried > 0) == (0, True)


def judged(qrels, runs):
    """The queries with a grade of 0 or more that are in the run."""
    return [name for name in qrels if name in runs and any(g >= 0 for g in qrels[name].values())]


# --- precision at recall


def test_interpolated_precision_is_the_best_at_this_recall_or_a_higher_one():
    """Relevant at 2 and 3 of 4, one never ranked: P is 1/2 at 1/3 and 2/3 at 2/3."""
    qrels = {"q": {"a": 1, "b": 2, "never": 1, "x": 0}}
    run = {"q": {"x": 4, "a": 3, "b": 2, "y": 1}}
    found = evaluator.precision_at_recall(qrels, run, levels=[0, 1 / 3, 0.5, 2 / 3, 0.8, 1])
    assert found.precision.tolist() == [2 / 3, 2 / 3, 2 / 3, 2 / 3, 0, 0]
    grade_2 = evaluator.precision_at_recall(qrels, run, levels=[0, 1], rel=2)
    assert grade_2.precision.tolist() == [1 / 3, 1 / 3]


def naive_interpolated(grades, scores, level):
    order = sorted(scores, key=lambda name: (scores[name], name.encode()), reverse=True)
    n_relevant = sum(grade > 0 for grade in grades.values())
    best, hits = 0.0, 0
    for rank, name in enumerate(order, 1):
        hits += grades.get(name, 0) > 0
        if n_relevant and hits >= max(1, int(level * n_relevant + 0.9)):
            best = max(best, hits / rank)
    return best


@pytest.mark.slow(alone=False)
def test_interpolated_precision_equals_trec_eval_and_the_definition():
    import pytrec_eval

    runs, qrels = random_lists(7, 1_000)
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"iprec_at_recall"}).evaluate(runs)
    found = evaluator.precision_at_recall(qrels, runs, missing="skip")
    assert found.query_ids == judged(qrels, runs)
    assert len(theirs) == 1_000
    for name, values in zip(found.query_ids, found.values.tolist(), strict=True):
        expected = [theirs[name][f"iprec_at_recall_{level:.2f}"] for level in LEVELS]
        assert values == pytest.approx(expected, abs=1e-12), name
        plain = [naive_interpolated(qrels[name], runs[name], level) for level in LEVELS]
        assert values == pytest.approx(plain, abs=1e-12)


def test_the_mean_equals_that_of_ir_measures():
    import ir_measures

    runs, qrels = random_lists(8, 300)
    names = [ir_measures.IPrec @ level for level in (0.0, 0.3, 1.0)]
    theirs = ir_measures.calc_aggregate(names, qrels, runs)
    found = evaluator.precision_at_recall(qrels, runs, levels=[0.0, 0.3, 1.0])
    assert found.precision.tolist() == pytest.approx([theirs[name] for name in names])


def test_arrays_and_mappings_give_the_same_curve():
    grades = np.array([[1.0, 0.0, np.nan], [0.0, 2.0, 1.0], [np.nan] * 3, [1.0, 0.0, 0.0]])
    scores = np.array([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1], [0.1, 0.2, 0.3], [np.nan] * 3])
    qrels, run = {}, {}
    for row in range(3):
        name, columns = f"q{row}", range(3)
        qrels[name] = {f"c{c}": grades[row, c] for c in columns if grades[row, c] >= 0}
        run[name] = {f"c{c}": scores[row, c] for c in columns}
    of_arrays = evaluator.precision_at_recall(grades, scores, missing="skip")
    of_mappings = evaluator.precision_at_recall(qrels, run)
    assert of_arrays.query_ids == [0, 1]
    assert of_mappings.query_ids == ["q0", "q1"]
    assert (of_arrays.values == of_mappings.values).all()
    assert len(evaluator.precision_at_recall(grades, scores, missing="zero").query_ids) == 3
    pairs = (grades, scores), (qrels, run)
    one, other = (evaluator.thresholds(*pair, missing="skip") for pair in pairs)
    assert (one.hits == other.hits).all()
    assert (one.threshold == other.threshold).all()


def test_queries_without_a_relevant_candidate_may_be_skipped():
    qrels, run = {"q": {"a": 0}, "r": {"a": 1}}, {"q": {"a": 1.0}, "r": {"a": 1.0}}
    assert evaluator.precision_at_recall(qrels, run).precision.tolist() == [0.5] * 11
    skipped = evaluator.precision_at_recall(qrels, run, empty="skip")
    assert (skipped.query_ids, skipped.area) == (["r"], 1.0)


def test_the_area_follows_the_trapezoidal_rule():
    qrels, run = {"q": {"a": 1, "b": 1}}, {"q": {"a": 3.0, "x": 2.0, "b": 1.0}}
    found = evaluator.precision_at_recall(qrels, run, levels=[0.0, 0.5, 1.0])
    assert found.area == pytest.approx((1 + 1) / 2 * 0.5 + (1 + 2 / 3) / 2 * 0.5)


@pytest.mark.parametrize("levels", [[], [0.5, 0.5], [0.5, 0.2], [-0.1], [1.1], [float("nan")]])
def test_levels_ascend_from_0_to_1(levels):
    with pytest.raises(evaluator.InvalidInputError, match="levels must"):
        evaluator.precision_at_recall({"q": {"a": 1}}, {"q": {"a": 1}}, levels=levels)


# --- thresholds


def pooled(qrels, runs):
    """Labels and scores of all ranked candidates, unjudged ones not relevant."""
    names = judged(qrels, runs)
    scores = [score for name in names for score in runs[name].values()]
    labels = [qrels[name].get(one, 0) > 0 for name in names for one in runs[name]]
    return np.array(labels), np.array(scores)


@pytest.fixture(scope="module")
def ranked():
    """Lists without candidates that were judged and never ranked."""
    runs, qrels = random_lists(9, 400)
    return runs, {
        name: {one: grade for one, grade in grades.items() if one in runs[name]}
        for name, grades in qrels.items()
    }


@pytest.mark.slow
def test_curves_and_areas_equal_those_of_scikit_learn(ranked):
    from sklearn import metrics

    runs, qrels = ranked
    labels, scores = pooled(qrels, runs)
    found = evaluator.thresholds(qrels, runs, missing="skip")
    precision, recall, steps = metrics.precision_recall_curve(labels, scores)
    assert found.threshold.tolist() == steps[::-1].tolist()
    assert found.precision == pytest.approx(precision[-2::-1])
    assert found.recall == pytest.approx(recall[-2::-1])
    assert found.pr_area == pytest.approx(metrics.average_precision_score(labels, scores))
    assert found.roc_area == pytest.approx(metrics.roc_auc_score(labels, scores))
    fpr, tpr, _ = metrics.roc_curve(labels, scores, drop_intermediate=False)
    assert found.false_positive_rate == pytest.approx(fpr[1:])
    assert found.recall == pytest.approx(tpr[1:])
    for place in range(0, len(steps), max(1, len(steps) // 7)):
        kept = scores >= found.threshold[place]
        for beta in (0.5, 1.0, 2.0):
            expected = metrics.fbeta_score(labels, kept, beta=beta, zero_division=0)
            assert found.f_beta(beta)[place] == pytest.approx(expected)


@pytest.mark.slow
def test_unranked_candidates_are_below_every_score_for_scikit_learn():
    from sklearn import metrics

    runs, qrels = random_lists(10, 200)
    labels, scores = pooled(qrels, runs)
    never = [
        grade > 0
        for name in judged(qrels, runs)
        for one, grade in qrels[name].items()
        if one not in runs[name]
    ]
    assert any(never)
    found = evaluator.thresholds(qrels, runs, missing="skip")
    assert found.n_relevant == labels.sum() + sum(never)
    below = np.full(len(never), scores.min() - 1)
    every = metrics.roc_auc_score(np.append(labels, never), np.append(scores, below))
    assert found.roc_area == pytest.approx(every)
    assert found.recall[-1] == labels.sum() / found.n_relevant < 1


def test_thresholds_by_hand():
    """Relevant at 0.9 and one of two at 0.5; one relevant never ranked; c is unjudged."""
    qrels = {"q": {"a": 1, "b": 1, "d": 0, "never": 3}}
    run = {"q": {"a": 0.9, "c": 0.7, "b": 0.5, "d": 0.5}}
    found = evaluator.thresholds(qrels, run)
    assert found.threshold.tolist() == [0.9, 0.7, 0.5]
    assert found.precision.tolist() == [1, 1 / 2, 2 / 4]
    assert found.recall.tolist() == [1 / 3, 1 / 3, 2 / 3]
    assert found.false_positive_rate.tolist() == [0, 1 / 2, 1]
    assert found.f_beta().tolist() == pytest.approx([2 * 1 / (3 + 1), 2 * 1 / (3 + 2), 4 / 7])
    assert found.best() == (0.5, pytest.approx(4 / 7))
    assert found.pr_area == pytest.approx(1 / 3 * 1 + 1 / 3 * 2 / 4)
    without = evaluator.thresholds(qrels, run, judged_only=True)
    assert without.threshold.tolist() == [0.9, 0.5]
    assert without.precision.tolist() == [1, 2 / 3]
    assert evaluator.thresholds(qrels, run, rel=3).n_relevant == 1


def test_without_relevant_or_other_candidates_an_area_is_undefined():
    only = evaluator.thresholds({"q": {"a": 1}}, {"q": {"a": 0.5}})
    assert (only.pr_area, np.isnan(only.roc_area)) == (1.0, True)
    none = evaluator.thresholds({"q": {"a": 0}}, {"q": {"a": 0.5}})
    assert np.isnan(none.pr_area)
    assert np.isnan(none.roc_area)
    nothing = evaluator.thresholds({}, {})
    assert len(nothing.threshold) == 0
    with pytest.raises(evaluator.InvalidInputError, match="there is no threshold"):
        nothing.best()


@pytest.mark.slow(alone=False)
def test_curves_are_frames():
    pytest.importorskip("polars")
    frame = evaluator.thresholds({"q": {"a": 1}}, {"q": {"a": 0.5, "b": 0.1}}).to_frame()
    assert frame["threshold"].to_list() == [0.5, 0.1]
    assert frame["precision"].to_list() == [1.0, 0.5]
    levels = evaluator.precision_at_recall({"q": {"a": 1}}, {"q": {"a": 0.5}}).to_frame()
    assert levels["recall"].to_list() == LEVELS


# --- plots


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pr", "roc", "f", "levels", "runs"])
def test_a_plot_has_the_data_and_its_labels(kind, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    qrels = {f"q{i}": {"a": 1, "b": 0} for i in range(40)}
    right, wrong = {"a": 0.9, "b": 0.1}, {"a": 0.2, "b": 0.4}
    run = {name: right if i < 30 else wrong for i, name in enumerate(qrels)}
    runs = {"base": dict.fromkeys(qrels, wrong), "new": run}
    if kind == "levels":
        axes = evaluator.precision_at_recall(qrels, run).plot()
        assert axes.lines[0].get_xdata().tolist() == LEVELS
    elif kind == "runs":
        axes = evaluator.compare(qrels, runs, "mrr").plot()
        (interval, point, zero) = axes.lines
        assert point.get_xdata() == [0.375]
        low, high = interval.get_xdata()
        assert low < 0.375 < high
        assert list(zero.get_xdata()) == [0.0, 0.0]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["new, mrr"]
    else:
        curve = evaluator.thresholds(qrels, run)
        axes = curve.plot(kind)
        drawn = axes.lines[0].get_ydata().tolist()
        expected = {
            "pr": curve.precision.tolist(),
            "roc": [0.0, *curve.recall.tolist(), 1.0],
            "f": curve.f_beta().tolist(),
        }
        assert drawn == expected[kind]
        assert axes.get_legend() is not None
    assert axes.get_xlabel()
    matplotlib.pyplot.close("all")


def test_a_plot_without_matplotlib_names_the_package_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(evaluator.InvalidInputError, match="pip install matplotlib"):
        evaluator.thresholds({"q": {"a": 1}}, {"q": {"a": 0.5}}).plot()
    with pytest.raises(evaluator.InvalidInputError, match="must be pr, roc or f"):
        evaluator.thresholds({"q": {"a": 1}}, {"q": {"a": 0.5}}).plot("area")


# --- freshness and details


def test_freshness_equals_the_worked_example():
    """docs/measures.md: a, two days old, grade 2, above b, new, grade 1; the half-life is a day."""
    day = 86_400_000
    fresh = evaluator.Freshness(half_life_ms=day, ages_ms={"q": {"a": 2 * day, "never": 9 * day}})
    qrels, run = {"q": {"a": 2, "b": 1}}, {"q": {"a": 2.0, "b": 1.0}}
    found = evaluator.evaluate(qrels, run, "ndcg,ndcg_linear,mrr", freshness=fresh)
    third = 1 / np.log2(3)
    assert found.mean["ndcg"] == pytest.approx((3 / 4 + third) / (1 + 3 / 4 * third))
    assert found.mean["ndcg_linear"] == pytest.approx((2 / 4 + third) / (1 + 2 / 4 * third))
    assert found.mean["mrr"] == 1.0
    # a candidate that was never ranked keeps its gain, as in a worker
    never = evaluator.evaluate({"q": {"a": 1, "never": 1}}, run, "ndcg", freshness=fresh)
    assert never.mean["ndcg"] == pytest.approx((1 / 4) / (1 + third / 4))


@pytest.mark.slow(alone=False)
def test_freshness_has_the_bits_of_a_worker():
    rng = np.random.default_rng(2)
    ids, now = [f"c{i}" for i in range(8)], 100_000
    task = Task("ndcg@5,ndcg_linear", freshness_half_life_ms=9_000)
    qrels, run, ages = {}, {}, {}
    for name in (f"q{i}" for i in range(50)):
        run[name] = dict(zip(ids, rng.random(8).tolist(), strict=True))
        qrels[name] = {one: int(rng.integers(0, 4)) for one in ids[:5]}
        ages[name] = {one: int(rng.integers(-5, 50_000)) for one in ids}
        published = [now - age for age in ages[name].values()]
        scores = list(run[name].values())
        task.rank(ranking(ids, trace=name, at=now, scores=scores, published_ms=published))
        task.judge(judgment(qrels[name], trace=name, at=now + 1))
    fresh = evaluator.Freshness(half_life_ms=9_000, ages_ms=ages)
    found = evaluator.evaluate(qrels, run, "ndcg@5,ndcg_linear", freshness=fresh)
    expected = {one.trace_id: list(one.units) for one in task.evaluations}
    assert len(expected) == 50
    assert dict(zip(found.query_ids, found.units.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("half_life_ms", "age", "why"),
    [(0, 1, "ms is 0"), (1.5, 1, "ms is 1.5"), (5, 0.5, "'q' is 0.5"), (5, 2**63, "ages are")],
)  # fmt: skip
def test_ages_are_whole_milliseconds(half_life_ms, age, why):
    def measure():
        fresh = evaluator.Freshness(half_life_ms=half_life_ms, ages_ms={"q": {"a": age}})
        evaluator.evaluate({"q": {"a": 1}}, {"q": {"a": 1.0}}, "ndcg", freshness=fresh)

    with pytest.raises(evaluator.InvalidInputError, match=why):
        measure()


def test_freshness_is_by_candidate_id():
    fresh = evaluator.Freshness(half_life_ms=5, ages_ms={})
    with pytest.raises(evaluator.InvalidInputError, match="by candidate id"):
        evaluator.evaluate(np.ones((1, 1)), np.ones((1, 1)), "ndcg", freshness=fresh)


def test_details_are_the_first_relevant_rank_and_the_top():
    qrels = {"q": {"a": 1, "z": 0}, "none": {"a": 0}, "unjudged": {"a": -1}, "missing": {"a": 1}}
    run = {"q": {"a": 0.5, "b": 0.5, "c": 0.9, "d": -0.0}, "none": {"a": 1}, "unjudged": {"a": 1}}
    found = evaluator.details(qrels, run, missing="skip")
    assert found == {"q": (3, [("c", 0.9), ("b", 0.5), ("a", 0.5)]), "none": (None, [("a", 1.0)])}
    assert evaluator.details(qrels, run, rel=2, missing="skip")["q"].rank is None
    runs, grades = random_lists(11, 300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mrr = evaluator.evaluate(grades, runs, "mrr").per_query
    ranks = {name: one.rank for name, one in evaluator.details(grades, runs).items()}
    for name, values in mrr.items():
        assert values["mrr"] == pytest.approx(1 / ranks[name] if ranks[name] else 0.0, abs=1e-11)
