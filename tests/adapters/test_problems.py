"""The problems of a process: at the limits of the alerts, and with equal severity."""

import pytest
from msgspec.structs import replace

from evaluator.adapters.http.problems import QUARTER_MS, STALL_MS, Recent, problems_of
from evaluator.core.alarms.ticks import HOUR_MS
from evaluator.core.types.tally import GroupedTally
from evaluator.exposition.limits import LIMITS, limit
from evaluator.exposition.snapshot import Resources, Snapshot
from scripts.write_thresholds import TARGET, thresholds
from tests.adapters.synthetic import NOW_MS, FixedViews, alarmed, learned, one_task, task_view
from tests.deploy.rules import rules_of, threshold

HOUR_AGO, LONG_AGO = NOW_MS - HOUR_MS, NOW_MS - 2 * HOUR_MS


def problems(snapshot: Snapshot, *before: tuple[int, Snapshot], **facts):
    """The problems of a snapshot after other ones at these times."""
    recent = Recent()
    for time_ms, earlier in before:
        recent.sample(earlier, now_ms=time_ms)
    given = {"reasons": [], "resources": Resources(), "leader": None, "now_ms": NOW_MS}
    given["max_future_skew_ms"] = 300_000
    return problems_of(snapshot, recent, **(given | facts))


def alerts(*arguments, **facts):
    return [problem.alert for problem in problems(*arguments, **facts)]


def judged(read, **outcomes):
    counts = {("judgments", name): n for name, n in outcomes.items()}
    return one_task({("judgments", "read"): read, ("judgments", "applied"): 1, **counts})


def test_the_rules_are_written_from_the_list_of_limits():
    assert TARGET.read_text("utf-8") == thresholds(), "run: make generate"
    for each in LIMITS:
        assert threshold(each.name) == each.number


def test_orphans_above_their_share_of_the_last_hour_are_a_problem():
    most = round(limit("orphan_share_limit") * 1000)
    assert alerts(judged(1000, orphan=most)) == []
    (problem,) = problems(judged(1000, orphan=650))
    assert problem[:2] == ("EvaluatorOrphans", "warning")
    # 650 of 1,000
    assert problem.text.startswith("65 % of the judgments of the last hour have no ranking")


def test_records_without_a_message_are_not_in_a_share():
    # 51 orphans of 1,000 messages; with 9,000 heartbeats they would be 0.5 %
    snapshot = judged(10_000, orphan=51, heartbeat=8_000, left_out=1_000)
    assert alerts(snapshot) == ["EvaluatorOrphans"]


def test_orphans_of_the_previous_hour_and_shares_of_few_judgments_are_ignored():
    old = judged(1000, orphan=900)
    assert alerts(judged(2000, orphan=900), (HOUR_AGO, old)) == []
    assert alerts(judged(2000, orphan=900), (HOUR_AGO + 1, old)) == ["EvaluatorOrphans"]
    few = round(limit("min_queries")) - 1
    assert alerts(judged(few, orphan=few)) == []
    assert alerts(judged(few + 1, orphan=few)) == ["EvaluatorOrphans"]


@pytest.mark.parametrize(
    ("path", "alert", "name"),
    [
        (("dead_letters", "schema"), "EvaluatorDeadLetters", "dead_letter_share_limit"),
        (("extra", "out_of_order"), "EvaluatorOutOfOrder", "out_of_order_share_limit"),
    ],
)
def test_shares_of_the_last_quarter_of_an_hour(path, alert, name):
    def of(records, n):
        return one_task({("rankings", "read"): records, path: n})

    most = round(limit(name) * 5000)
    assert alerts(of(5000, most)) == []
    assert alerts(of(5000, most + 1)) == [alert]
    assert alerts(of(9000, most + 1), (NOW_MS - QUARTER_MS, of(4000, most + 1))) == []
    few = round(limit("min_expected_messages")) - 1
    assert alerts(of(few, few)) == []
    assert alerts(of(few + 1, few)) == [alert]


def test_late_and_orphan_judgments_are_not_in_the_share_of_dead_letters():
    counts = {("dead_letters", "late"): 900, ("dead_letters", "orphan"): 100}
    assert alerts(one_task({("rankings", "read"): 1000, **counts})) == []


def test_queries_that_settle_without_any_judgment_are_a_problem():
    few = round(limit("min_queries"))
    settled = {("queries", "settled"): few}
    assert alerts(one_task(settled)) == ["EvaluatorNoJudgments"]
    assert alerts(one_task({("queries", "settled"): few - 1})) == []
    applied = {**settled, ("judgments", "applied"): 1}
    assert alerts(one_task(applied)) == []


def test_a_judged_share_below_its_limit_is_a_problem_without_history():
    few = round(limit("min_queries"))
    most = round((1 - limit("judged_share_limit")) * few)

    def of(settled, unjudged):
        counts = {("queries", "settled"): settled, ("queries", "settled_unjudged"): unjudged}
        return one_task({**counts, ("judgments", "applied"): settled})

    assert alerts(of(few, most)) == []
    (problem,) = problems(of(few, most + 2))  # 200 - 182 = 18 of 200
    assert problem[:2] == ("EvaluatorJudgedShareLow", "warning")
    assert problem.text.startswith("9 % of the 200 queries that settled within the last hour are")
    assert alerts(of(few - 1, few - 1)) == []
    assert alerts(of(2 * few, most + 2), (HOUR_AGO, of(few, 0))) == ["EvaluatorJudgedShareLow"]
    assert alerts(of(2 * few, most + 2), (HOUR_AGO, of(few, most + 2))) == []


def test_a_task_with_lag_and_a_constant_watermark_is_stalled():
    far = round(limit("lag_limit"))

    def behind(lag, moved_ms=0):
        ends = {"rankings": lag - 1, "judgments": 1}
        return one_task({}, end_offsets=ends, watermark_ms=NOW_MS - 900_000 + moved_ms)

    then = (NOW_MS - STALL_MS, behind(far))
    assert alerts(behind(far + 1), then) == ["EvaluatorStalled"]
    assert alerts(behind(far), then) == []
    assert alerts(behind(far + 1, moved_ms=1), then) == []
    assert alerts(behind(far + 1), (then[0] + 1, then[1])) == []
    assert alerts(behind(far + 1)) == []  # it has just begun


def test_a_persistently_old_watermark_is_a_problem_unless_a_task_restores():
    most_ms = round(1000 * limit("watermark_age_limit_seconds"))
    then_ms = NOW_MS - STALL_MS

    def at(time_ms, age_ms):
        return one_task({}, watermark_ms=time_ms - age_ms)

    old = at(NOW_MS, most_ms + 1)
    was_old, was_young = ((then_ms, at(then_ms, most_ms + ms)) for ms in (1, 0))
    assert alerts(old, was_old) == ["EvaluatorWatermarkStale"]
    assert alerts(at(NOW_MS, most_ms), was_old) == []
    assert alerts(old, was_young) == []
    assert alerts(old, (then_ms + 1, at(then_ms, most_ms + 1))) == []  # a shorter time ago
    assert alerts(old) == []  # it has just begun, and catches up
    restoring = replace(old, tasks=(*old.tasks, task_view(1, {}, restoring=True)))
    assert alerts(restoring, was_old) == []


def test_the_same_problem_of_many_tasks_is_shortened():
    old = [task_view(n, {}, watermark_ms=NOW_MS - 10**8) for n in range(8)]
    found = problems(Snapshot(tuple(old)), (NOW_MS - STALL_MS, Snapshot(tuple(old))))
    # 4 of 8 tasks by name, and the other 4
    assert [problem.alert for problem in found] == ["EvaluatorWatermarkStale"] * 5
    assert found[-1].text == "The same of 4 more."


@pytest.mark.parametrize(
    ("within", "beyond", "alert"),
    [
        (Resources(1000, resident=900), Resources(1000, resident=901), "EvaluatorMemoryHigh"),
        (Resources(disk_free=2 * 10**9), Resources(disk_free=2 * 10**9 - 1), "EvaluatorDiskLow"),
        (
            Resources(state_limit=4552),  # 0.9 of it are 4,096.8
            Resources(state_limit=4551),  # 4,095.9, and the store of a task has 4,096
            "EvaluatorStoreNearLimit",
        ),
    ],
)
def test_memory_disk_and_store_near_their_limits_are_problems(within, beyond, alert):
    assert alerts(one_task({}), resources=within) == []
    assert alerts(one_task({}), resources=beyond) == [alert]
    assert alerts(one_task({})) == []  # without a limit


def test_wrong_clocks_are_problems():
    ahead = one_task({}, clocks_ms={"rankings": NOW_MS + 301_000, "judgments": NOW_MS})
    skewed = replace(one_task({}), skew_ms=95_000)
    (clock,) = problems(replace(ahead, skew_ms=0))
    assert clock[:2] == ("EvaluatorInputClockAhead", "critical")
    assert clock.text.startswith("The clock of rankings-0 is 301 s ahead of the broker's")
    (machine,) = problems(skewed)
    assert machine[:2] == ("EvaluatorClockSkewed", "warning")
    assert machine.text.startswith("The clock of this machine is 95 s ahead of the broker's")
    at_most = 1000 * round(limit("clock_skew_limit_seconds"))
    assert alerts(replace(skewed, skew_ms=-at_most)) == []
    assert alerts(replace(skewed, skew_ms=-at_most - 1)) == ["EvaluatorClockSkewed"]


@pytest.mark.parametrize(
    ("changes", "alert"),
    [
        ({"kind": "own"}, "EvaluatorQualityAlarm"),
        ({"kind": "pair", "ranker": "served-bm25"}, "EvaluatorPairAlarm"),
        ({"kind": "variants", "variant": "canary-prod"}, "EvaluatorVariantsAlarm"),
        ({"kind": "constant"}, "EvaluatorObjectiveAlarm"),
        ({"measure": "coverage"}, "EvaluatorCoverageAlarm"),
    ],
)
def test_an_alarm_is_a_problem_until_it_is_acknowledged(changes, alert):
    (problem,) = problems(one_task({}), leader=alarmed(**changes))
    assert problem.alert == alert
    leader = alarmed(**changes)
    document = FixedViews(learned=leader).status()["leader"]["alarms"]["series"][0]["alarm"]
    assert (document["alert"], document["summary"]) == (alert, problem.text)
    assert "lower by 0.031 (standard error 0.006)" in problem.text
    assert problem.text.endswith("The coverage has an alarm too: check it first.")
    assert problems(one_task({}), leader=learned()) == []  # acknowledged


def test_critical_problems_are_first_and_severities_equal_those_of_the_alerts():
    snapshot = one_task({}, watermark_ms=NOW_MS - 10**8, clocks_ms={"rankings": NOW_MS + 10**6})
    everything = replace(snapshot, skew_ms=95_000)
    counts = judged(1000, orphan=650, applied=0).counters.groups[()]
    counts = {**counts, ("dead_letters", "schema"): 99, ("extra", "out_of_order"): 99}
    counts |= {("queries", "settled"): 999}
    everything = replace(everything, counters=GroupedTally.of(counts))
    ended = {"rankings": 10**6, "judgments": 0}
    everything = replace(everything, tasks=(replace(everything.tasks[0], end_offsets=ended),))
    found = problems(
        everything,
        (LONG_AGO, replace(everything, counters=Snapshot().counters)),
        reasons=["no tasks"],
        resources=Resources(10, 10, 10, 10),
        leader=alarmed(),
    )
    severities = [problem.severity for problem in found]
    assert severities == sorted(severities)  # critical, then warning
    rules = rules_of("alert")
    named = {problem.alert: problem.severity for problem in found}
    assert len(named) == 13
    assert named == {name: rules[name]["labels"]["severity"] for name in named}


def test_a_clock_ahead_is_a_problem_from_the_setting_on() -> None:
    clocks = {"rankings": NOW_MS + 400_000, "judgments": NOW_MS}
    snapshot = replace(one_task({}, clocks_ms=clocks), last_commit_ms=NOW_MS)

    def found(setting_ms: int) -> list[str]:
        return [
            problem.alert
            for problem in problems_of(
                snapshot, Recent(), reasons=[], resources=Resources(), leader=None,
                now_ms=NOW_MS, max_future_skew_ms=setting_ms,
            )
        ]  # fmt: skip

    assert found(600_000) == []
    assert found(300_000) == ["EvaluatorInputClockAhead"]
