"""Several grades of a candidate by source, such as a purchase and a later click."""

import itertools

import pytest

from evaluator.core.join.merging import GradeMerge, GradesBySource
from tests.core.build import Task, judgment, ranking

BY_MAX = {"grades_merge": "max"}
CLICKS = {"grades_merge_by_source": (("click", "max"),)}


def graded(*entries, **rules):
    """The grade of candidate a after (timestamp, source, grade), in the order of the log."""
    task = Task("mrr", out_of_orderness_ms=1_000, **rules)
    judgments = [
        judgment({"a": grade}, at=at, name=f"j-{n}", source=source)
        for n, (at, source, grade) in enumerate(entries)
    ]
    task.read([ranking("a b")], judgments)
    return task.last().grades.get("a")


@pytest.mark.parametrize(
    ("rules", "expected"), [({}, 1), (BY_MAX, 3), (CLICKS, 3), ({"grades_merge": "last"}, 1)]
)
def test_a_click_after_a_purchase_replaces_it_unless_the_largest_counts(rules, expected):
    assert graded((10, "click", 3), (20, "click", 1), **rules) == expected


def test_a_withdrawal_applies_to_earlier_grades_of_all_sources_only():
    entries = [(10, "click", 3), (20, "human", 2), (30, "click", None), (40, "click", 1)]
    assert graded(*entries, **BY_MAX) == 1
    assert graded(*entries[:3], **BY_MAX) is None
    assert graded((10, "click", 3), (30, "click", 1), (20, "human", None), **BY_MAX) == 1
    assert graded((30, "click", None), (10, "click", 3), **BY_MAX) is None


def test_the_latest_source_wins_with_its_largest_grade():
    human_between = [(10, "click", 3), (20, "human", 0), (30, "click", 1)]
    assert graded(*human_between, **CLICKS) == 3  # the click at 30 is the latest: max(3, 1)
    human_last = [*human_between, (40, "human", 0)]
    assert graded(*human_last, **CLICKS) == 0
    assert graded(*human_last, (50, "human", 2), (60, "human", 1), **CLICKS) == 1  # human: last


def test_an_out_of_order_withdrawal_leaves_the_largest_remaining_grade():
    entries = [(50, "click", 1), (40, "click", 2), (30, "click", 3), (35, "click", None)]
    for order in itertools.permutations(entries):
        assert graded(*order, **BY_MAX) == 2  # of 40 and 50


def test_only_grades_that_may_count_later_are_kept():
    by_source = GradesBySource()
    for at, grade in enumerate([1, 5, 3, 3, 2, 4]):
        by_source.add((at, 0), "click", grade, takes_max=True)
    assert by_source._by_source == {"click": [((1, 0), 5), ((5, 0), 4)]}
    for at in range(1_000):
        by_source.add((at, 0), "human", 1, takes_max=False)
    assert by_source._by_source["human"] == [((999, 0), 1)]


def test_rules_equal_to_the_default_are_dropped():
    assert GradeMerge("last", {"click": "last"}).by_time_alone
    assert not GradeMerge("last", {"click": "max"}).by_time_alone


def test_the_settled_grade_is_merged_without_later_judgments():
    task = Task("mrr", **BY_MAX)
    task.read(
        [ranking("a b")],
        [judgment({"a": 1}, at=10, source="click"), judgment({"a": 3}, at=500, source="click")],
    )
    task.beat(2_000)
    (settled,) = task.settled
    assert settled.grades == {"a": 1}
