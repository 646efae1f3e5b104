"""The outcomes of judgments, and the merging of their grades."""

import pytest

from evaluator.core.columns.table import RaggedColumns
from evaluator.core.join.rules import JoinRules
from tests.core.build import Task, heartbeat, judgment, ranking, units

DEFAULTS = JoinRules.__struct_defaults__
LIMITS = dict(zip(JoinRules.__struct_fields__[-len(DEFAULTS) :], DEFAULTS, strict=True))


@pytest.fixture
def task() -> Task:
    """One query: a, b, c, d in that order, ranked at 0."""
    task = Task("mrr")
    task.rank(ranking("a b c d"))
    return task


# Grades


def test_a_query_without_judgments_has_no_value(task):
    assert task.evaluations == []
    assert task.total("running") == (0, 0.0)
    assert task.count("queries", "with_value") == 0


def test_the_first_judgment_gives_a_value(task):
    task.judge(judgment({"b": 1}, at=1))
    assert task.value() == 1 / 2
    assert task.last().first_ranks == [2]
    assert task.last().revision == 1
    assert task.total("running") == (1, 1 / 2)


def test_a_correction_replaces_the_grade(task):
    task.judge(judgment({"b": 1}, at=1))
    task.judge(judgment({"b": 0, "d": 2}, at=2))
    assert task.value() == 1 / 4
    assert task.last().grades == {"b": 0, "d": 2}
    assert task.total("running") == (1, 1 / 4)


def test_the_revision_counts_applied_judgments_and_evaluations_come_once_per_batch(task):
    task.judge(judgment({"a": 1}, at=1))
    task.judge(judgment({"b": 1}, at=2), judgment({"c": 1}, at=3))
    task.judge(judgment({"c": 1}, at=3))
    assert [evaluation.revision for evaluation in task.evaluations] == [1, 3]


def test_a_null_withdraws_a_grade_and_the_query_loses_its_value(task):
    task.judge(judgment({"b": 1}, at=1))
    task.judge(judgment({"b": None}, at=2))
    assert task.value() is None
    assert task.last().grades == {}
    assert task.last().first_ranks == [0]
    assert task.total("running") == (0, 0.0)
    assert task.count("queries", "with_value") == 0


def test_a_withdrawn_grade_can_be_given_again(task):
    task.judge(judgment({"b": 1}, at=1), judgment({"b": None}, at=2), judgment({"b": 2}, at=3))
    assert task.last().grades == {"b": 2}
    assert task.total("running") == (1, 1 / 2)


def test_a_first_judgment_that_only_withdraws_gives_no_value(task):
    task.judge(judgment({"b": None}, at=1))
    assert task.value() is None
    assert task.last().revision == 1
    assert task.counts("judgments") == {"applied": 1}


def test_a_newer_withdrawal_beats_an_older_grade_that_arrives_later(task):
    task.judge(judgment({"b": None, "c": 1}, at=5), judgment({"b": 1}, at=4))
    assert task.last().grades == {"c": 1}


def test_an_older_timestamp_that_arrives_later_does_not_win(task):
    task.judge(judgment({"b": 1, "c": 0}, at=5))
    task.judge(judgment({"b": 0, "d": 1}, at=4))
    assert task.last().grades == {"b": 1, "c": 0, "d": 1}
    assert task.last().revision == 2
    assert task.value() == 1 / 2


def test_with_equal_timestamps_the_later_offset_wins(task):
    task.judge(judgment({"b": 1}, at=5))
    task.judge(judgment({"b": 0, "d": 1}, at=5))
    assert task.last().grades == {"b": 0, "d": 1}
    assert task.value() == 1 / 4


@pytest.mark.parametrize("at_once", [True, False])
def test_judgments_of_different_candidates_accumulate(at_once):
    task = Task("map")
    task.rank(ranking("a b c d"))
    pieces = [judgment({"b": 1}, at=1), judgment({"d": 1}, at=2), judgment({"a": 0}, at=3)]
    for batch in [pieces] if at_once else [[piece] for piece in pieces]:
        task.judge(*batch)
    assert task.last().grades == {"b": 1, "d": 1, "a": 0}
    assert task.last().units == units((1 / 2 + 2 / 4) / 2)


def test_the_later_judgment_wins_across_sources(task):
    task.judge(judgment({"a": 2}, at=1, source="human"))
    task.judge(judgment({"a": 0, "c": 1}, at=2, source="click"))
    assert task.last().grades == {"a": 0, "c": 1}
    assert task.last().units == units(1 / 3)


def test_a_node_with_two_hundred_candidates():
    task = Task("mrr,map@100,ndcg@200")
    names = [f"c{i:03}" for i in range(200)]
    task.rank(ranking(names))
    task.judge(judgment(dict.fromkeys(names[49::50], 1), at=1))
    assert task.last().first_ranks == [50]
    assert task.value(column=0) == pytest.approx(1 / 50, abs=2**-41)
    assert task.value(column=1) == pytest.approx((1 / 50 + 2 / 100) / 4, abs=2**-41)


def test_nodes_of_a_trace_are_judged_separately():
    task = Task("mrr")
    task.rank(ranking("a b", node="x"), ranking("a b", node="y"))
    task.judge(judgment({"a": 1}, at=1, node="x"), judgment({"b": 1}, at=1, node="y"))
    assert [(e.node_id, e.units) for e in task.evaluations] == [("x", units(1)), ("y", units(0.5))]


def test_a_correction_changes_totals_only_by_its_difference():
    task = Task("mrr")
    task.rank(*(ranking("a b", trace=f"t{i}") for i in range(3)))
    task.judge(*(judgment({"a": 1}, at=1, trace=f"t{i}") for i in range(3)))
    assert task.total("running") == (3, 1 + 1 + 1)
    task.judge(judgment({"a": 0, "b": 1}, at=2, trace="t1"))
    assert task.total("running") == (3, 1 + 1 / 2 + 1)


# Before the ranking


def test_an_early_judgment_is_applied_when_its_ranking_arrives():
    task = Task("mrr")
    task.judge(judgment({"b": 1}, at=0))
    assert task.engine.n_early == 1
    assert task.counts("judgments") == {"early": 1}
    task.rank(ranking("a b", at=0))
    assert task.engine.n_early == 0
    assert task.counts("judgments") == {"applied": 1}
    assert task.value() == 1 / 2


def test_early_judgments_are_applied_in_the_order_of_their_offsets():
    task = Task("mrr")
    task.judge(judgment({"a": 1}, at=0, name="j"), judgment({"a": 0}, at=0, name="k"))
    task.judge(judgment({"b": 1}, at=0, name="j"))
    task.read(rankings=[ranking("a b")], judgments=[judgment({"b": 2}, at=0, name="l")])
    assert task.last().grades == {"a": 0, "b": 2}
    assert task.last().revision == 3
    assert task.reasons == [("judgments", 2, "conflicting")]


def test_an_early_judgment_of_another_query_stays_in_the_early_buffer():
    task = Task("mrr")
    task.judge(judgment({"b": 1}, at=0, trace="t"), judgment({"b": 1}, at=0, trace="u"))
    task.rank(ranking("a b", at=0, trace="u"))
    assert task.counts("judgments") == {"applied": 1, "early": 1}


@pytest.mark.parametrize(("early_by", "outcome"), [(10, "applied"), (11, "early")])
def test_early_ms_is_inclusive(early_by, outcome):
    task = Task("mrr", early_ms=10)
    task.rank(ranking("a b", at=100))
    task.judge(judgment({"b": 1}, at=100 - early_by))
    assert task.counts("judgments") == {outcome: 1}


@pytest.mark.parametrize(("early_by", "outcome"), [(10, "applied"), (11, "early")])
def test_early_ms_is_inclusive_for_buffered_judgments(early_by, outcome):
    task = Task("mrr", early_ms=10)
    task.judge(judgment({"b": 1}, at=100 - early_by))
    task.rank(ranking("a b", at=100))
    assert task.counts("judgments") == {outcome: 1}


@pytest.mark.parametrize(("watermark", "outcome"), [(60, "early"), (61, "orphan")])
def test_a_judgment_is_an_orphan_once_its_ranking_can_no_longer_arrive(watermark, outcome):
    task = Task("mrr", early_ms=10)
    task.judge(judgment({"b": 1}, at=50))
    task.beat(watermark)
    assert task.counts("judgments") == {outcome: 1, "heartbeat": 1}
    assert task.reasons == ([("judgments", 0, "orphan")] if outcome == "orphan" else [])


def test_the_latest_possible_ranking_still_gets_an_early_judgment():
    task = Task("mrr", early_ms=10)
    task.judge(judgment({"b": 1}, at=50))
    task.beat(60)
    task.rank(ranking("a b", at=60))
    assert task.value() == 1 / 2


def test_only_early_judgments_past_their_deadline_become_orphans():
    task = Task("mrr", early_ms=10)
    task.judge(judgment({"b": 1}, at=50), judgment({"b": 2}, at=70))
    task.beat(75)
    assert task.reasons == [("judgments", 0, "orphan")]
    task.rank(ranking("a b", at=75))
    assert task.last().grades == {"b": 2}


# After the ranking


def test_a_judgment_exactly_retention_ms_old_is_applied(task):
    task.judge(judgment({"b": 1}, at=1_000))
    assert task.counts("judgments") == {"applied": 1}
    assert task.value() == 1 / 2


@pytest.mark.parametrize("age", [1_001, 1_050])
def test_judgments_past_retention_ms_are_late_until_remember_ms(task, age):
    task.judge(judgment({"b": 1}, at=age))
    assert task.counts("judgments") == {"late": 1}
    assert task.reasons == [("judgments", 0, "late")]
    assert f"{age} ms after its ranking" in task.dead_letters[0].detail
    assert task.evaluations == []


def test_a_judgment_past_remember_ms_is_early_and_becomes_an_orphan(task):
    task.judge(judgment({"b": 1}, at=1_051))
    assert task.counts("judgments") == {"early": 1}
    task.beat(1_061)
    assert task.counts("judgments") == {"early": 1, "heartbeat": 1}
    task.beat(1_062)
    assert task.counts("judgments") == {"orphan": 1, "heartbeat": 2}


def test_judgments_of_an_expired_query_are_late():
    task = Task("mrr")
    task.rank(ranking("a b"), heartbeat(at=1_040))
    task.judge(heartbeat(at=1_040))
    assert task.engine.n_open == 0
    task.judge(judgment({"b": 1}, at=1_040))
    assert task.counts("judgments") == {"late": 1, "heartbeat": 1}


# The same again


def test_the_same_judgment_id_with_equal_bytes_is_a_duplicate(task):
    task.judge(judgment({"b": 1}, at=1, name="j"))
    task.judge(judgment({"b": 1}, at=2, name="j"))
    assert task.counts("judgments") == {"applied": 1, "duplicate": 1}
    assert task.dead_letters == []
    assert len(task.evaluations) == 1


def test_the_same_judgment_id_with_other_bytes_is_conflicting(task):
    task.judge(judgment({"b": 1}, at=1, name="j"))
    task.judge(judgment({"a": 1}, at=2, name="j", source="another"))
    assert task.counts("judgments") == {"applied": 1, "conflicting": 1}
    assert task.reasons == [("judgments", 1, "conflicting")]
    assert task.value() == 1 / 2


def test_a_repeated_judgment_in_one_batch_counts_once(task):
    task.judge(judgment({"b": 1}, at=1, name="j"), judgment({"b": 1}, at=1, name="j"))
    assert task.counts("judgments") == {"applied": 1, "duplicate": 1}


def test_without_an_id_equal_bytes_are_a_duplicate(task):
    task.judge(judgment({"b": 1}, at=1))
    task.judge(judgment({"b": 1}, at=2), judgment({"b": 2}, at=2))
    assert task.counts("judgments") == {"applied": 2, "duplicate": 1}


def test_judgments_with_and_without_an_id_never_match(task):
    task.judge(judgment({"b": 1}, at=1, name="j"), judgment({"b": 1}, at=1))
    assert task.counts("judgments") == {"applied": 2}


def test_every_applied_judgment_is_recognised_not_only_the_last(task):
    task.judge(*(judgment({"b": i}, at=i, name=f"j{i}") for i in range(4)))
    task.judge(*(judgment({"b": i}, at=9, name=f"j{i}") for i in range(4)))
    task.judge(judgment({"b": 9}, at=9, name="j0"))
    assert task.counts("judgments") == {"applied": 4, "duplicate": 4, "conflicting": 1}
    assert task.last().grades == {"b": 3}


def test_a_refused_judgment_is_not_recognised(task):
    task.judge(judgment({"b": 1}, at=1, name="j"))
    task.judge(judgment({"b": 2}, at=2, name="j"), judgment({"b": 2}, at=2, name="j"))
    assert task.counts("judgments") == {"applied": 1, "conflicting": 2}


def test_two_queries_may_have_the_same_judgment_id():
    task = Task("mrr")
    task.rank(ranking("a b", trace="t"), ranking("a b", trace="u"))
    task.judge(*(judgment({"b": 1}, at=1, trace=trace, name="j") for trace in "tu"))
    assert task.counts("judgments") == {"applied": 2}


def test_the_1001st_judgment_is_over_the_limit(task):
    assert LIMITS["max_judgments"] == 1_000
    task.judge(*(judgment({"b": i % 2}, at=i // 2, name=f"j{i}") for i in range(1_001)))
    assert task.counts("judgments") == {"applied": 1_000, "over_limit": 1}
    assert task.reasons == [("judgments", 1_000, "over_limit")]
    assert task.last().revision == 1_000
    task.judge(judgment({"b": 0}, at=500, name="j0"), judgment({"b": 9}, at=500, name="j1"))
    assert task.counts("judgments") == {
        "applied": 1_000, "over_limit": 1, "duplicate": 1, "conflicting": 1,
    }  # fmt: skip


def test_a_judgment_that_would_exceed_10000_candidates_is_over_the_limit(task):
    assert LIMITS["max_candidates"] == 10_000
    names = [f"c{i}" for i in range(10_001)]
    task.judge(
        *(judgment(dict.fromkeys(names[i : i + 1_000], 1), at=1) for i in range(0, 9_000, 1_000)),
        judgment(dict.fromkeys(names[9_000:9_999], 1), at=1),
        judgment(dict.fromkeys(names[9_999:], 1), at=1),  # two more: one too many
        judgment({"c0": 3, "c9999": None}, at=1),  # a candidate that is withdrawn counts
        judgment({"c10000": 1}, at=1),
        judgment({"c9999": 2, "c1": None}, at=1),  # nothing new
    )
    assert task.counts("judgments") == {"applied": 12, "over_limit": 2}
    assert task.reasons == [("judgments", 10, "over_limit"), ("judgments", 12, "over_limit")]
    assert len(task.last().grades) == 9_999


@pytest.mark.parametrize("batches", [1, 2, 6])
@pytest.mark.parametrize("withdrawn", [None, 1])
def test_over_limit_judgments_do_not_depend_on_batches(batches, withdrawn):
    task = Task("mrr", max_judgments=4, max_candidates=3)
    task.rank(ranking("a b c d"))
    judgments = [
        judgment({"a": 1, "b": withdrawn}, at=1),
        judgment({"c": 1, "d": 1}, at=2),  # four candidates
        judgment({"c": 1}, at=3),
        judgment({"b": 2}, at=4),
        judgment({"a": 2}, at=5),
        judgment({"a": 0}, at=6),  # the fifth applied one
    ]
    size = len(judgments) // batches
    for first in range(0, len(judgments), size):
        task.judge(*judgments[first : first + size])
    assert task.counts("judgments") == {"applied": 4, "over_limit": 2}
    assert [offset for _, offset, _ in task.reasons] == [1, 5]
    assert task.last().grades == {"a": 2, "b": 2, "c": 1}


# Delays


def test_delays_are_counted_by_bucket_and_an_early_judgment_has_none():
    task = Task("mrr", retention_ms=10_000)
    task.rank(ranking("a b", at=100))
    task.judge(*(judgment({"b": 1}, at=at, name=str(at)) for at in (95, 100, 1_100, 1_101, 6_000)))
    delays = [task.count("delay", str(bucket)) for bucket in range(3)]
    assert delays == [3, 1, 1]  # up to 1 s: 0, 0, 1,000 ms; up to 5 s: 1,001; up to 15 s: 5,900
    assert task.count("delay_sum_ms") == 0 + 0 + 1_000 + 1_001 + 5_900


@pytest.mark.slow(alone=False)
def test_a_late_judgment_finds_an_expired_query_whose_memory_was_reused(monkeypatch):
    """Pools shrink once most of their entries are discarded; stale spans must not be read."""
    monkeypatch.setattr(RaggedColumns, "_SMALLEST", 30)
    task, n = Task("mrr", remember_ms=100_000), 60
    for i in range(n):
        at = 100 * i
        task.rank(ranking("a", trace=f"t-{i}", at=at))
        task.judge(judgment({"a": 1}, trace=f"t-{i}", at=at))
        if i >= 12:  # two after its query was expired
            task.judge(judgment({"a": 2}, trace=f"t-{i - 12}", at=at))
    assert {letter.reason for letter in task.dead_letters} == {"late"}
    assert task.counts("judgments") == {"applied": n, "late": n - 12}
