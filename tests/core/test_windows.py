"""Event-time windows, expiry, and the end of a task: finished and remaining queries."""

import pytest

from evaluator.core.types.records import FinalWindow
from tests.core.build import Task, evaluations_in, judgment, ranking, units
from tests.engines import open_windows


def window(start_ms, queries, value, *, ranker="served", measure="mrr", model="m", variant="v"):
    return FinalWindow(start_ms, model, variant, ranker, measure, queries, units(value)[0])


def judged(task, *times):
    """Queries at these times, each with its relevant candidate second."""
    task.rank(*(ranking("a b", at=at, trace=f"t{at}") for at in times))
    task.judge(*(judgment({"b": 1}, at=at, trace=f"t{at}") for at in times))


# Windows


def test_windows_are_by_the_time_of_the_ranking():
    task = Task(window_ms=200)
    judged(task, 0, 199, 200, 650)
    assert open_windows(task.engine) == [
        window(0, 2, 1 / 2 + 1 / 2),
        window(200, 1, 1 / 2),
        window(600, 1, 1 / 2),
    ]


def test_a_window_is_final_only_when_no_judgment_can_reach_it():
    task = Task(window_ms=200, retention_ms=1_000)
    judged(task, 0, 150)
    task.beat(0 + 200 - 1 + 1_000)
    assert task.windows == []
    task.beat(0 + 200 - 1 + 1_000 + 1)
    assert task.windows == [window(0, 2, 1.0)]
    assert open_windows(task.engine) == []


def test_corrections_reach_the_window_of_their_query_until_it_is_final():
    task = Task(window_ms=200, retention_ms=1_000)
    judged(task, 150, 250)
    task.judge(judgment({"a": 1}, at=1_150, trace="t150"))
    task.beat(5_000)
    assert task.windows == [window(0, 1, 1.0), window(200, 1, 1 / 2)]


def test_a_withdrawn_query_leaves_its_window_and_empty_windows_are_not_emitted():
    task = Task()
    judged(task, 0, 300)
    task.judge(judgment({"b": None}, at=400, trace="t0"))
    assert open_windows(task.engine) == [window(200, 1, 1 / 2)]
    task.beat(5_000)
    assert task.windows == [window(200, 1, 1 / 2)]


def test_windows_are_emitted_by_start_and_name():
    task = Task("mrr,top1", window_ms=200)
    task.rank(
        ranking("a b", at=0, trace="t", model="z"),
        ranking("a b", at=1, trace="u", scorers={"bm25": [1, 2]}),
        ranking("a b", at=201, trace="w", model="a"),
    )
    task.judge(*(judgment({"b": 1}, at=201, trace=trace) for trace in "tuw"))
    task.finish()
    assert task.windows == [
        window(0, 1, 1, ranker="bm25"),
        window(0, 1, 1, ranker="bm25", measure="top1"),
        window(0, 1, 1 / 2),
        window(0, 1, 0, measure="top1"),
        window(0, 1, 1 / 2, model="z"),
        window(0, 1, 0, model="z", measure="top1"),
        window(200, 1, 1 / 2, model="a"),
        window(200, 1, 0, model="a", measure="top1"),
    ]


def test_strata_with_the_same_name_but_other_rankers_are_one_window():
    task = Task()
    task.rank(ranking("a b", trace="t"), ranking("a b", trace="u", scorers={"bm25": [1, 2]}))
    task.judge(judgment({"b": 1}, trace="t"), judgment({"b": 1}, trace="u"))
    assert open_windows(task.engine) == [window(0, 1, 1.0, ranker="bm25"), window(0, 2, 1.0)]


def test_one_window_may_hold_all_time():
    task = Task(window_ms=1 << 70)
    judged(task, 0, 5_000)
    assert open_windows(task.engine) == [window(0, 2, 1.0)]
    task.finish()
    assert task.windows == [window(0, 2, 1.0)]


# Open and expired queries


@pytest.mark.parametrize(("watermark", "n_open"), [(1_000, 1), (1_001, 0)])
@pytest.mark.parametrize("expire", [True, False])
def test_a_query_is_open_until_the_watermark_is_past_its_retention(watermark, n_open, expire):
    task = Task(retention_ms=1_000, expire=expire)
    task.rank(ranking("a b"))
    assert task.engine.n_open == 1
    task.beat(watermark)
    assert task.engine.n_open == n_open
    assert task.count("rankings", "open") == n_open
    assert task.count("rankings", "expired") == 1 - n_open


def test_expiry_does_not_change_totals():
    task = Task()
    judged(task, 0, 10)
    before = {path: n for path, n in task.engine.tally().items() if path[0] == "running"}
    task.beat(10_000)
    after = {path: n for path, n in task.engine.tally().items() if path[0] == "running"}
    assert before == after
    assert task.count("queries", "with_value") == 2


@pytest.mark.slow(alone=False)
def test_memory_of_expired_queries_is_reused():
    task = Task("mrr")
    for i in range(40):
        at = i * 3_000
        names = [f"c{i}-{j}" for j in range(40)]
        batch = [ranking(names, at=at, trace=f"t{i}-{n}") for n in range(60)]
        task.rank(*batch)
        task.judge(
            *(judgment({names[n % 40]: 1}, at=at, trace=f"t{i}-{n}", name="j") for n in range(60))
        )
        task.beat(at + 2_900)
    assert task.count("rankings", "expired") == 40 * 60
    open_queries = task.engine._queries
    assert len(open_queries.table) == 0
    assert (
        len(open_queries.pools.ranks) < 40 * 60 * 40
    )  # a batch fills 2,400 of them; cleaned when past 65,536
    one_batch = sum(units(*(1 / (n % 40 + 1) for n in range(60))))
    path = ("running", "m", "v", "served", "mrr", "sum_units")
    assert task.engine.tally()[path] == 40 * one_batch


def test_a_query_in_a_reused_row_has_no_state_of_the_former_query():
    task = Task()
    judged(task, 0, 1)
    task.beat(5_000)
    task.rank(ranking("a b", at=5_000, trace="t5000"), ranking("a b", at=5_000, trace="other"))
    task.beat(5_500)
    assert [s.grades for s in task.settled] == [{"b": 1}, {"b": 1}, {}, {}]
    assert [(e.revision, e.grades) for e in evaluations_in(task.engine.remaining())] == [
        (0, {})
    ] * 2
    task.judge(judgment({"b": 1}, at=5_500, trace="t5000"))
    assert task.last("t5000").revision == 1
    assert task.count("queries", "with_value") == 2 + 1
    assert len(task.engine._queries.table["key"]) <= 1_024


@pytest.mark.slow(alone=False)
def test_candidate_ids_of_expired_queries_are_dropped_and_those_of_open_ones_kept():
    task = Task("mrr,map", finished=True)
    task.engine._queries._clean_codes_at = 0  # clean whenever something is expired
    for i in range(30):
        at = i * 400  # two or three queries are open at a time
        order = [f"{i}-{j}" for j in range(5)] + ["shared"]
        task.rank(ranking(order, at=at, trace=f"t{i}"))
        task.judge(judgment({order[3]: 1, "shared": 0, "never": 1}, at=at, trace=f"t{i}"))
        task.judge(judgment({"shared": 1}, at=at + 350, trace=f"t{i}"))
        task.beat(at + 350)
        assert len(task.engine._queries.codes.values_by_number) <= 5 * 4 + 2
        task.engine._queries._clean_codes_at = 0
    task.finish()
    assert [(e.trace_id, e.grades, e.units) for e in task.finished] == [
        (
            f"t{i}",
            {f"{i}-3": 1, "shared": 1, "never": 1},
            units(1 / 4, (1 / 4 + 2 / 6) / 3),
        )
        for i in range(30)
    ]
    assert [e.top[0][0] for e in task.finished] == [(f"{i}-0", 6.0) for i in range(30)]
    assert [s.grades for s in task.settled] == [
        {f"{i}-3": 1, "shared": 0, "never": 1} for i in range(30)
    ]


def test_candidates_are_distinguished_when_numbers_exceed_narrow_columns():
    """The second query has candidates around the largest number of 16 bits."""
    task, queries = Task("mrr"), None
    for trace in ("narrow", "wide"):
        order = [f"{trace}-{i}" for i in range(6)]
        task.rank(ranking(order, at=0, trace=trace))
        task.judge(judgment({order[3]: 1, order[5]: 0}, at=0, trace=trace))
        queries = task.engine._queries
        queries.codes.of((f"other-{i}" for i in range(2**15 - 11)), 2**15 - 11)
    assert max(queries.pools.candidate_codes) >= 2**15
    task.judge(judgment({"narrow-1": 1}, at=1, trace="narrow"))
    found = [(e.trace_id, e.grades, e.units, e.top[0][0]) for e in task.evaluations]
    assert found == [
        ("narrow", {"narrow-3": 1, "narrow-5": 0}, units(1 / 4), ("narrow-0", 6.0)),
        ("wide", {"wide-3": 1, "wide-5": 0}, units(1 / 4), ("wide-0", 6.0)),
        ("narrow", {"narrow-3": 1, "narrow-5": 0, "narrow-1": 1}, units(1 / 2), ("narrow-0", 6.0)),
    ]


# Ends


def test_at_the_end_of_a_replay_queries_settle_and_expire_and_windows_are_final():
    task = Task(finished=True)
    judged(task, 0, 30)
    task.judge(judgment({"b": 1}, at=40, trace="nobody"))
    task.finish()
    assert [s.trace_id for s in task.settled] == ["t0", "t30"]
    assert task.counts("rankings") == {"expired": 2}
    assert task.counts("judgments") == {"applied": 2, "orphan": 1}
    assert task.windows == [window(0, 2, 1.0)]
    assert [e.trace_id for e in task.finished] == ["t0", "t30"]


def test_finished_queries_are_emitted_once_with_their_last_revision():
    task = Task(finished=True, evaluations=False)
    task.rank(ranking("a b", trace="u"), ranking("a", trace="w"), ranking("a b", trace="t", at=5))
    task.judge(judgment({"b": 1}, trace="u"), judgment({"b": 1}, at=6), judgment({"a": 1}, at=900))
    task.beat(5_000)
    task.finish()
    assert task.evaluations == []
    assert [(e.trace_id, e.revision, e.units) for e in task.finished] == [
        ("u", 1, units(1 / 2)),
        ("w", 0, None),
        ("t", 2, units(1)),
    ]


def test_remaining_queries_are_the_open_ones_by_time_and_key():
    task = Task()
    task.rank(ranking("a", trace="old"))
    task.beat(1_001)
    task.rank(*(ranking("a b", trace=trace, at=1_001) for trace in "cab"))
    task.judge(judgment({"b": 1}, at=1_002, trace="a"))
    remaining = evaluations_in(task.engine.remaining())
    assert [(e.trace_id, e.revision, e.units) for e in remaining] == [
        ("a", 1, units(1 / 2)),
        ("b", 0, None),
        ("c", 0, None),
    ]


def test_an_engine_without_records_has_an_empty_tally():
    task = Task()
    task.read()
    task.finish()
    assert not any(task.engine.tally().values())
    assert task.settled == task.windows == task.dead_letters == []
    assert evaluations_in(task.engine.remaining()) == []


def test_durations_longer_than_any_time_span_never_elapse():
    task = Task(
        retention_ms=1 << 80, maturity_ms=1 << 80, early_ms=1 << 80, remember_ms=1 << 80,
        out_of_orderness_ms=1 << 80,
    )  # fmt: skip
    task.judge(judgment({"b": 1}, at=0))
    task.rank(ranking("a b", at=(1 << 63) - 1))
    task.beat((1 << 63) - 1)
    assert task.value() == 1 / 2
    assert task.settled == []
    task.finish()
    assert task.settled[0].units == units(1 / 2)
