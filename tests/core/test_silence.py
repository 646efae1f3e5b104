"""Silence: an exposed candidate without a grade by maturity has grade 0."""

from random import Random

import numpy as np
import pytest

from evaluator import evaluate
from evaluator.config import ConfigError, Settings
from evaluator.config.measures import measure_set
from evaluator.core.event_time.activity import Activity
from evaluator.core.measures import MISSING
from tests.core.build import Task, heartbeat, judgment, malformed, ranking, units

ZERO = {"silence": "zero"}
OTHER_JUDGMENT = judgment({"x": 1}, at=50, trace="somebody else")


def settled(shown, *judgments, measures="ndcg_linear@10,mrr,judged@2", **settings):
    """The query of a ranking at 0, which matures at 100, after these judgments."""
    task = Task(measures, **{**ZERO, **settings})
    task.read([shown], judgments)
    task.beat(2_000)
    (query,) = [each for each in task.settled if each.trace_id == "t"]
    return task, query


def test_exposed_candidates_without_a_grade_get_0_and_the_others_none():
    # b was clicked at rank 2; a was seen and not clicked, c was not seen.
    clicked = judgment({"b": 1}, at=20, source="click")
    _, query = settled(ranking("a b c", exposed=[True, True, False]), clicked)
    assert query.grades == {"b": 1, "a": 0}
    dcg, ideal = 1 / np.log2(3), 1 / np.log2(2)
    assert query.units == units(dcg / ideal, 1 / 2, 2 / 2)
    assert not query.silent
    _, before = settled(ranking("a b c", exposed=[True, True, False]), clicked, silence="unjudged")
    assert before.grades == {"b": 1}
    assert before.units == units(dcg / ideal, 1 / 2, 1 / 2)


def test_a_query_without_any_grade_is_silent_and_its_value_is_0():
    task, query = settled(ranking("a b c", exposed=2), OTHER_JUDGMENT)
    assert (query.silent, query.grades) == (True, {"a": 0, "b": 0})
    assert query.units == units(0, 0, 2 / 2)
    assert task.count("queries", "settled_silent") == 1
    assert task.count("queries", "settled_judged") == 0
    assert task.count("settled_queries", "m", "v", "silent") == 1
    assert task.count("extra", "nothing_relevant") == 0
    assert task.total("settled", "mrr") == (1, 0)
    assert task.total("running", "mrr") == (0, 0)


def test_the_mean_of_one_click_and_one_silent_query_is_half():
    task = Task("mrr", **ZERO)
    task.read(
        [ranking("a b", exposed=2), ranking("a b", exposed=2, trace="u")],
        [judgment({"a": 1}, at=20)],
    )
    task.beat(2_000)
    assert task.total("settled", "mrr") == (2, 1 + 0)  # without silence: (1, 1), a mean of 1
    assert task.total("running", "mrr") == (1, 1)


@pytest.mark.parametrize(
    ("records", "silent"),
    [
        ([], False),
        ([heartbeat(at=50)], False),
        ([malformed(at=50)], False),
        ([judgment({"x": 1}, at=0, trace="u")], False),  # not after the query
        ([judgment({"x": 1}, at=1, trace="u")], True),
        ([judgment({"x": 1}, at=100, trace="u")], True),
        ([judgment({"x": 1}, at=101, trace="u")], False),  # after its maturity
        ([judgment({"x": None}, at=50, trace="u")], True),  # a judgment with any content
    ],
)
def test_a_query_is_silent_only_if_judgments_arrive_by_its_maturity(records, silent):
    task, query = settled(ranking("a b", exposed=2), *records)
    assert query.silent is silent
    assert task.count("queries", "settled_silent") == silent
    assert task.count("queries", "settled_unjudged") == (not silent)


def test_a_withdrawn_grade_counts_as_never_given():
    given = judgment({"a": 1}, at=10, name="1"), judgment({"a": None}, at=20, name="2")
    _, query = settled(ranking("a b", exposed=2), *given)
    assert (query.silent, query.grades) == (True, {"a": 0, "b": 0})
    _, query = settled(ranking("a b", exposed=[False, False]), *given)
    assert (query.silent, query.grades, query.units) == (False, {}, None)


def test_an_empty_list_with_exposure_is_silent_and_without_it_unjudged():
    _, query = settled(ranking("", exposed=0), OTHER_JUDGMENT)
    assert (query.silent, query.grades) == (True, {})
    assert query.units == units(0, 0, 0)
    _, query = settled(ranking(""), OTHER_JUDGMENT)
    assert (query.silent, query.grades, query.units) == (False, {}, None)
    _, query = settled(ranking("a b"), OTHER_JUDGMENT)
    assert (query.silent, query.grades, query.units) == (False, {}, None)


def test_exposure_of_a_repeated_candidate_is_that_of_its_best_rank():
    shown = ranking("a b a", scores=[1, 2, 3], exposed=[True, False, False])
    _, query = settled(shown, OTHER_JUDGMENT)
    assert (query.silent, query.grades) == (False, {})
    shown = ranking("a b a", scores=[1, 2, 3], exposed=[False, False, True])
    _, query = settled(shown, OTHER_JUDGMENT)
    assert query.grades == {"a": 0}


def test_a_click_after_maturity_corrects_the_running_value_only():
    task, query = settled(ranking("a b", exposed=2), OTHER_JUDGMENT, judgment({"a": 1}, at=150))
    assert query.silent
    assert task.total("settled", "mrr") == (1, 0)
    assert task.total("running", "mrr") == (1, 1)


# Exposures


def test_click_rates_are_shares_of_exposed_candidates_at_the_first_ranks():
    clicks = judgment({"b": 1, "d": 1}, at=20), judgment({"c": 0}, at=30)
    shown = ranking("a b c d", exposed=[False, True, True, False], scorers={"x": [1, 2, 3, 4]})
    task, query = settled(shown, *clicks, measures="ctr@1,ctr@2,ctr@10,abandoned")
    lacks = [MISSING] * 4  # the other ranker
    assert query.units == [MISSING, *units(1 / 1, 1 / 2, 0), *lacks]
    assert task.total("settled", "ctr@1") == (0, 0)
    assert task.total("settled", "ctr@10") == (1, 1 / 2)
    assert task.total("running", "ctr@10") == (0, 0)
    assert task.engine.tally()["settled", "m", "v", "served", "ctr@10", "square_units"] == 1 << 38


def test_a_silent_query_is_abandoned_and_one_without_exposure_has_no_value():
    _, query = settled(ranking("a b", exposed=1), OTHER_JUDGMENT, measures="ctr@2,abandoned")
    assert query.units == units(0 / 1, 1)
    _, query = settled(ranking("", exposed=0), OTHER_JUDGMENT, measures="ctr@2,abandoned")
    assert query.units == [MISSING, *units(1)]
    _, query = settled(ranking("a b"), judgment({"a": 1}, at=5), measures="ctr@2,abandoned")
    assert query.units == [MISSING, MISSING]


# Activity


def test_activity_answers_equal_those_from_all_timestamps():
    random = Random(5)
    for _ in range(300):
        longest = random.choice((1, 3, 10))
        activity, times, clock = Activity(longest), [], 0
        for _ in range(random.randrange(12)):
            clock += random.choice((0, 1, 5, 30))
            batch = [max(0, clock - random.randrange(6)) for _ in range(random.randrange(4))]
            activity.add(np.array(batch, np.int64))
            times += batch
            watermark = max(times, default=0) - 6
            for after in range(max(0, watermark - longest), clock + 5):
                expected = any(after < each <= after + longest for each in times)
                assert activity.has_any(after, after + longest) is expected
            activity.forget(watermark)
            loaded = Activity(longest)
            loaded.load(activity.state())
            assert loaded.state() == activity.state()
            activity = loaded


def test_gaps_that_can_no_longer_be_queried_are_dropped():
    activity = Activity(10)
    for at in range(0, 100_000, 20):
        activity.add(np.array([at]))
        activity.forget(at - 100)
    assert len(activity.state()) <= 1 + 2 * (100 / 20 + 1)


# Refusals


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"measures": ("mrr", "ctr@5")}, "ctr@5 needs exposed candidates, and silence is unjudg"),
        ({"measures": ("abandoned",)}, "Set silence to zero"),
        (
            {
                "measures": ("mrr", "ctr@5"),
                "silence": "zero",
                "learning": "propose",
                "gate_measure": "ctr@5",
            },
            "gate_guardrails names ctr@5, which does not compare rankers",
        ),
    ],
)
def test_exposure_measures_are_refused_where_unsupported(settings, message):
    with pytest.raises(ConfigError, match=message):
        measure_set(Settings(**settings))


def test_the_library_has_no_such_measures():
    with pytest.raises(ValueError, match="ctr@5 needs exposure"):
        evaluate({"q": {"a": 1}}, {"q": {"a": 1.0}}, ["ctr@5"])
