"""The graded, set and subtopic measures by hand, and the settings that change their meaning."""

from math import log2

import pytest

from evaluator.core.measures import (
    MISSING,
    UNITS_PER_ONE,
    MeasureSet,
    UnknownMeasureError,
    UnsupportedTiesError,
)
from evaluator.core.measures.registry import parse_measure
from tests.core.build import Task, judgment, ranking

ORDER = "a b c d e f"


def value(measure, grades, order=ORDER, *, scales=None, members=None, **settings):
    """The value of a query; *members* has the members of the ranking beside the order."""
    task = Task(measure, scales=scales, **settings)
    task.rank(ranking(order, at=1_000, **(members or {})))
    task.judge(judgment(grades, at=1_001))
    return task.value()


# Grades 1, 2, 3 at positions 2, 4 and never ranked.
SOME = {"b": 1, "d": 2, "a": 0, "never": 3}


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("ndcg_linear", (1 / log2(3) + 2 / log2(5)) / (3 + 2 / log2(3) + 1 / log2(4))),
        ("ndcg_linear@2", (1 / log2(3)) / (3 + 2 / log2(3))),
        ("map_min@2", (1 / 2) / 2),  # R is 3, only 2 fit
        ("map_min@10", (1 / 2 + 2 / 4) / 3),
        ("map_graded@10", (1 / 2 * 1 / 2 + 2 / 4 * 1) / 3),  # grade 1 counts half
        ("map_graded_ceiling@10", (1 + 1 + 1 / 2) / 3),
        ("map_graded_ceiling@1", 1 / 3),
        ("p@1", 0),
        ("p@2", 1 / 2),
        ("p@4", 2 / 4),
        ("p@100", 2 / 100),  # also for a list of 6
        ("r@2", 1 / 3),
        ("r@100", 2 / 3),
        ("f1@4", 2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3)),
        ("f1@1", 0),
        ("fbeta[2]@4", 5 * (2 / 4) * (2 / 3) / (4 * (2 / 4) + 2 / 3)),
        ("fbeta[0.5]@4", 1.25 * (2 / 4) * (2 / 3) / (0.25 * (2 / 4) + 2 / 3)),
        ("fbeta[0]@4", 2 / 4),  # precision alone
        ("err@10", 1 / 16 / 2 + (1 - 1 / 16) * 3 / 16 / 4),
        ("err@3", 1 / 16 / 2),
        ("rbp[0.8]", (1 - 0.8) * (0.8 + 0.8**3)),
        ("rbp[0]", 0),
        ("judged@1", 1),  # a grade of 0 is a judgment
        ("judged@3", 2 / 3),
        ("judged@10", 3 / 6),  # of the 6 there are
        ("unjudged@3", 1 / 3),
        ("unjudged@10", 3 / 10),
        ("rprec", 1 / 3),  # 3 are relevant, 1 of the first 3
        ("rprec[rel=2]", 0),  # two have at least 2; the first of them is fourth
        ("p[rel=2]@4", 1 / 4),
        ("p[rel=1]@4", 2 / 4),
        ("r[rel=2]@4", 1 / 2),
        ("mrr[rel=2]", 1 / 4),
        ("map[rel=2]", 1 / 4 / 2),
        ("hit[rel=2]@3", 0),
        ("fbeta[0,rel=2]@4", 1 / 4),
    ],
)
def test_measures_equal_values_computed_by_hand(measure, expected):
    assert value(measure, SOME) == pytest.approx(expected, abs=2**-41)


@pytest.mark.parametrize(
    "measure",
    ["ndcg_linear@3", "map_min@3", "map_graded@3", "map_graded_ceiling@3", "p@3", "r@3", "f1@3",
     "fbeta[2]@3", "err@3", "rbp[0.5]", "rprec", "p[rel=2]@3"],
)  # fmt: skip
def test_nothing_relevant_is_0_and_with_skip_no_value(measure):
    assert value(measure, {"a": 0, "b": 0}) == 0
    assert value(measure, {"a": 0, "b": 0}, empty="skip") is None
    assert value(measure, {"a": 1}, order="") == (1 / 2 if "ceiling" in measure else 0)


def test_an_empty_list_has_nothing_judged_and_nothing_unjudged():
    assert value("judged@5", {"a": 1}, order="") == 0
    assert value("unjudged@5", {"a": 1}, order="") == 0


def test_a_repeated_candidate_counts_once_in_the_judged_share():
    assert value("judged@10", {"a": 1}, order="a a b") == 1 / 2
    assert value("unjudged@2", {"a": 1}, order="a a b") == 1 / 2


def test_scales_set_the_grade_that_counts_fully():
    scales = {"map_graded_max_grade": 4, "err_max_grade": 1}
    assert value("map_graded@5", {"a": 1}, scales=scales) == 1 / 4
    assert value("map_graded_ceiling@5", {"a": 1}, scales=scales) == 1 / 4
    assert value("map_graded@5", {"a": 9}, scales=scales) == 1
    assert value("err@5", {"a": 3, "b": 3}, scales=scales) == 1 / 2 + 1 / 2 * 1 / 2 / 2
    assert value("err@5", {"a": 9}) == 15 / 16


# Names


def test_the_ceiling_is_added_and_can_be_requested_alone():
    measures = MeasureSet.parse(["map_graded@5", "mrr"])
    assert measures.spellings == ("map_graded@5", "map_graded_ceiling@5", "mrr")
    assert MeasureSet.parse(["map_graded_ceiling@7"]).canonical == ("map_graded_ceiling@7",)
    both = MeasureSet.parse(["map_graded_ceiling@5", "map_graded@5"])
    assert both.spellings == ("map_graded_ceiling@5", "map_graded@5")


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        ("alpha_ndcg[0.5]@5", "alpha_ndcg@5"),
        ("alpha_ndcg[0.50]@5", "alpha_ndcg@5"),
        ("alpha_ndcg[0.9]@5", "alpha_ndcg[0.9]@5"),
        ("alpha_ndcg[1]@5", "alpha_ndcg[1]@5"),
        ("fbeta[2.0]@5", "fbeta[2]@5"),
        ("fbeta[10]@5", "fbeta[10]@5"),
        ("fbeta[0]@5", "fbeta[0]@5"),
        ("rbp[0.80]", "rbp[0.8]"),
        ("p[rel=2.0]@5", "p[rel=2]@5"),
        ("fbeta[2.0,rel=1.50]@5", "fbeta[2,rel=1.5]@5"),
    ],
)
def test_spellings_of_one_number_are_one_measure(spelling, canonical):
    assert parse_measure(spelling).canonical == canonical
    assert MeasureSet.parse([spelling, canonical]).canonical == (canonical,)


@pytest.mark.parametrize(
    "spelling",
    [
        "p", "r", "f1", "err", "judged", "map_min", "map_graded", "alpha_ndcg", "alpha_ndcg[0.5]",
        "fbeta@5", "fbeta[]@5", "fbeta[-1]@5", "fbeta[1e1]@5", "fbeta[.5]@5", "fbeta[1001]@5",
        "fbeta[01]@5", "rbp", "rbp[1]", "rbp[0.8]@5", "rbp[0.8", "alpha_ndcg[1.1]@5", "p[1]@5",
        "subtopic_recall", "f2@5", "ndcg_linear[2]", "ndcg[rel=2]@5", "p[rel=0]@5", "p[rel=32]@5",
        "p[rel=]@5", "p[,rel=2]@5", "p[]@5", "p[2,rel=2]@5", "rprec@5", "fbeta[rel=2]@5",
    ],
)  # fmt: skip
def test_a_name_with_a_wrong_parameter_or_cutoff_is_refused(spelling):
    with pytest.raises(UnknownMeasureError) as refusal:
        MeasureSet.parse([spelling])
    assert repr(spelling) in str(refusal.value)


# Subtopics


TOPICS = {"a": ["x", "y"], "b": ["x"], "c": ["y"], "d": ["z"], "never": ["x", "y", "z"]}


@pytest.mark.parametrize(
    ("measure", "order", "expected"),
    [
        # best: a (2 new), then d (1 new), then b or c (1/2)
        ("alpha_ndcg@2", "a b c d", (2 + 0.5 / log2(3)) / (2 + 1 / log2(3))),
        ("alpha_ndcg@2", "a d b c", 1),
        ("alpha_ndcg@3", "b a d c", (1 + 1.5 / log2(3) + 1 / 2) / (2 + 1 / log2(3) + 0.5 / 2)),
        ("alpha_ndcg[1]@2", "a b c d", 2 / (2 + 1 / log2(3))),
        ("alpha_ndcg[0]@2", "a b c d", (2 + 1 / log2(3)) / (2 + 1 / log2(3))),
        ("subtopic_recall@1", "a b c d", 2 / 3),
        ("subtopic_recall@3", "a b c d", 2 / 3),
        ("subtopic_recall@4", "a b c d", 1),
        ("subtopic_recall@2", "d never a", 1 / 3),  # other candidates show nothing
    ],
)
def test_subtopic_measures_equal_values_computed_by_hand(measure, order, expected):
    grades = {"a": 1, "b": 2, "c": 1, "d": 1, "never": 0}
    found = value(measure, grades, order, members={"subtopics": TOPICS})
    assert found == pytest.approx(expected, abs=2**-41)


def test_a_list_better_than_the_greedy_one_has_value_1():
    topics = {"c": ["x", "y"], "b": ["x", "z"], "a": ["y", "w"]}
    grades = dict.fromkeys("abc", 1)  # the greedy order takes c first, and b and a lose by it
    assert value("alpha_ndcg@3", grades, "b a c", members={"subtopics": topics}) == 1
    assert value("alpha_ndcg@3", grades, "c b a", members={"subtopics": topics}) == 1
    assert value("alpha_ndcg@3", grades, "x c b a", members={"subtopics": topics}) < 1


def test_the_greedy_order_recomputes_the_gain_of_each_candidate():
    topics = {"z": ["p", "q"], "y": ["p", "q"], "a": ["r", "s"]}
    grades = dict.fromkeys("zya", 1)  # z first, then a with 2; y adds 1 below z, 2 without it
    ideal = 2 + 2 / log2(3) + 1 / 2
    found = value("alpha_ndcg@3", grades, "a", members={"subtopics": topics})
    assert found == pytest.approx(2 / ideal, abs=2**-41)


def test_a_query_in_a_reused_row_has_no_subtopics_of_the_former_query():
    task = Task("subtopic_recall@1")
    task.rank(ranking("a", subtopics={"a": ["x"]}))
    task.judge(judgment({"a": 1}, at=1))
    assert task.value() == 1
    task.beat(5_000)
    task.rank(ranking("a", at=5_000, trace="u"))
    task.judge(judgment({"a": 1}, at=5_001, trace="u"))
    assert task.value("u") is None


def test_a_query_without_subtopics_lacks_their_values_only():
    task = Task("mrr,alpha_ndcg@5,subtopic_recall@5")
    task.rank(ranking("a b"), ranking("a b", trace="u", subtopics={"b": ["x"]}))
    task.judge(judgment({"b": 1}, at=1), judgment({"b": 1}, at=1, trace="u"))
    half = UNITS_PER_ONE // 2
    assert task.last().units == [half, MISSING, MISSING]
    assert task.last("u").units == [half, round(UNITS_PER_ONE / log2(3)), UNITS_PER_ONE]
    task.beat(5_000)
    for kind in ("running", "settled"):
        assert task.total(kind, "mrr") == (2, 1.0)
        assert task.total(kind, "subtopic_recall@5") == (1, 1.0)
    assert {w.measure: w.queries for w in task.windows} == {
        "mrr": 2, "alpha_ndcg@5": 1, "subtopic_recall@5": 1,
    }  # fmt: skip


def test_subtopics_of_irrelevant_candidates_give_0_and_not_no_value():
    assert value("alpha_ndcg@5", {"a": 0}, members={"subtopics": TOPICS}) == 0
    assert value("subtopic_recall@5", {"f": 1}, members={"subtopics": TOPICS}) == 0
    assert value("subtopic_recall@5", {"a": 1}, members={"subtopics": {"a": [], "b": None}}) is None


def test_subtopics_of_judgments_win_and_merge_and_are_withdrawn_like_grades():
    task = Task("subtopic_recall@1")
    task.rank(ranking("a b", subtopics={"a": ["x"], "b": ["y"]}))
    task.judge(judgment({"a": 1, "b": 1}, at=5))
    assert task.value() == 1 / 2
    task.judge(judgment({"a": 1}, at=6, subtopics={"a": ["y", "y"]}))
    assert task.value() == 1  # a and b have y now
    task.judge(judgment({"a": 1}, at=4, subtopics={"a": ["z"]}))
    assert task.value() == 1  # older than the current grade
    task.judge(judgment({"a": 1}, at=7, subtopics={"a": None}))
    assert task.value() == 1 / 2  # the ranking's again
    task.judge(judgment({"a": 1}, at=8, subtopics={"a": []}))
    assert task.value() == 0  # a has none, b has y


def test_subtopics_after_maturity_change_only_the_running_value():
    task = Task("subtopic_recall@1")
    task.rank(ranking("a b", subtopics={"a": ["x"], "b": ["y"]}))
    task.judge(judgment({"a": 1, "b": 1}, at=100))
    task.judge(judgment({"a": 1}, at=101, subtopics={"a": ["x", "y"]}))
    task.beat(5_000)
    assert task.total("running") == (1, 1.0)
    assert task.total("settled") == (1, 0.5)


def test_an_early_judgment_keeps_its_subtopics():
    task = Task("subtopic_recall@1", early_ms=10)
    task.judge(judgment({"a": 1}, at=0, subtopics={"a": ["x"]}))
    task.rank(ranking("a b", at=1))
    assert task.value() == 1


# Freshness


def test_a_gain_halves_with_every_half_life_in_the_list_and_in_the_ideal():
    members = {"published_ms": [1_000 - 20, 1_000 - 10, 1_000, None, 2_000, 0]}
    fresh = {"members": members, "freshness_half_life_ms": 10}
    # a: 3/4, b: 3/2, c: 1; the best order is b, c, a
    ideal = 3 / 2 + 1 / log2(3) + 3 / 4 / 2
    found = 3 / 4 + 3 / 2 / log2(3) + 1 / 2
    grades = {"a": 2, "b": 2, "c": 1}
    assert value("ndcg", grades, **fresh) == pytest.approx(found / ideal, abs=2**-41)
    linear = (2 / 4 + 2 / 2 / log2(3) + 1 / 2) / (1 + 1 / log2(3) + 1 / 2 / 2)
    assert value("ndcg_linear@3", grades, **fresh) == pytest.approx(linear, abs=2**-41)
    assert value("map", grades, **fresh) == 1  # no gain, no decay


# 2, 1 and 2 of the smallest doubles make a DCG of 2 + 1 + 1, in their best order one of 2 + 1 + 0.


def test_almost_fully_decayed_gains_give_no_value_above_1():
    task = Task("ndcg,ndcg@3,ndcg_linear", freshness_half_life_ms=1)
    task.rank(
        ranking("a b c", at=2_000, published_ms=[2_000 - 1_073, 2_000 - 1_074, 2_000 - 1_073])
    )
    task.judge(judgment({"a": 1, "b": 1, "c": 1}, at=2_000))
    assert task.last().units == [UNITS_PER_ONE] * 3


def test_tiny_grades_give_no_value_above_1():
    smallest = 2.0**-1074
    tiny = {"a": 2 * smallest, "b": smallest, "c": 2 * smallest}
    assert value("ndcg_linear", tiny, "a b c") == 1
    larger = {name: 1.5 * grade for name, grade in tiny.items()}  # gains of 2, 1 and 2 again
    assert value("ndcg", larger, "a b c") == 1


def test_no_decay_for_unknown_or_later_publication_times():
    members = {"published_ms": [None, 1_000 - 10, 5_000, 1_000, 1_000, 1_000]}
    fresh = {"members": members, "freshness_half_life_ms": 10}
    ideal = 1 + 1 / log2(3) + 1 / 2 + 1 / 2 / log2(5)
    grades = {"a": 1, "b": 1, "c": 1, "never": 1}
    found = 1 + 1 / 2 / log2(3) + 1 / 2
    assert value("ndcg", grades, **fresh) == pytest.approx(found / ideal, abs=2**-41)
    assert value("ndcg", grades, members=members) == value("ndcg", grades)  # 0: no decay


# Judged only


def test_judged_only_removes_unjudged_candidates():
    grades = {"c": 1, "e": 0, "f": 2, "never": 1}
    for measure in ("mrr", "ndcg@2", "map", "p@2", "err@2", "rbp[0.5]", "judged@5", "unjudged@5"):
        condensed = value(measure, grades, "c e f")
        assert value(measure, grades, judged_only=True) == condensed
        if measure != "unjudged@5":
            assert value(measure, grades) != condensed
    task = Task("mrr", judged_only=True)
    task.rank(ranking(ORDER))
    task.judge(judgment({"c": 1}, at=1))
    assert task.value() == 1
    assert task.last().first_ranks == [3]  # exposed


# Ties that cannot be averaged


def test_measures_without_a_closed_form_are_refused_with_averaged_ties():
    with pytest.raises(UnsupportedTiesError, match=r"for alpha_ndcg@5, err@3\. Set ties to id"):
        Task("mrr,alpha_ndcg@5,err@3,subtopic_recall@5", ties="average")
