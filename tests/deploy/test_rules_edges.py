"""Edge cases of the rules: just within a bound, few queries, recovery, and restarts."""

import pytest
import yaml

from tests.deploy.rules import GROUPS, World, expected_alert, only, promtool, steps, threshold

N = 140
FAULT = 40
RESTART = 120
"""Minutes: the last hour is entirely after the fault, and has a restart of a process."""
MOMENTS = (f"{RESTART - 5}m", f"{RESTART + 2}m", f"{N}m")


def then(before: float, after: float) -> list[float]:
    """The changes at FAULT, one for each minute."""
    return steps((before, FAULT), (after, N - FAULT))


@pytest.fixture
def world() -> World:
    """A world in which an evaluator is scraped, without other series yet."""
    world = World(step_minutes=1, n=N)
    world.put("evaluator_build_info", [1] * (N + 1), job="some", instance="a")
    return world


@pytest.mark.promtool
def test_bad_queries_fire_if_the_rise_is_significant_and_persistent(world, tmp_path):
    # With 3,000 queries an hour the bound is 0.05 below the share; the bar is 4 x 0.1.
    for job, queries, bad in (
        ("bad", 50, then(0.08, 0.47)),
        ("not-surely-bad", 50, then(0.08, 0.44)),
        ("bad-with-few-queries", 3, then(0.08, 0.99)),  # 180 an hour
        ("recovers", 50, steps((0.08, FAULT), (0.9, 90), (0, 10))),
        ("restarts", 50, [0.3] * N),
        ("bad-and-restarts", 50, then(0.08, 0.47)),
    ):
        world.quality(job, [queries] * N, [0.8] * N)
        world.values(job, [queries] * N, bad)
    for job in ("restarts", "bad-and-restarts"):
        world.restart_counters(job, RESTART)
    bad = [("EvaluatorBadQueries", job) for job in ("bad", "bad-and-restarts")]
    recovers = ("EvaluatorBadQueries", "recovers")
    before, restart, end = MOMENTS
    firing = {before: [*bad, recovers], restart: [*bad, recovers], end: bad}
    code, output = world.check(tmp_path / "tests.yml", firing=firing)
    assert code == 0, output


@pytest.mark.promtool
def test_shares_of_judgments_and_messages_fire_only_with_enough_records(world, tmp_path):
    for job, judgments, late in (
        ("late", 50, then(0, 0.4)),
        ("late-and-restarts", 50, then(0, 0.4)),
        ("in-time-and-restarts", 50, then(0, 0.24)),  # nearly a quarter
        ("late-with-few", 3, then(0, 0.9)),
    ):
        world.delays(job, [judgments] * N, late)
    for job, applied, orphans in (
        ("orphans", 50, 3.0),
        ("orphans-and-restarts", 50, 3.0),
        ("few-orphans-and-restarts", 50, 2.4),
        ("orphans-of-few", 2, 0.5),  # 150 judgments an hour
    ):
        world.messages(job, "judgments", "applied", [applied] * N)
        world.messages(job, "judgments", "orphan", then(0.0, orphans))
    for job, records, refused in (("refused", 2, 0.1), ("refused-of-few", 1, 0.2)):
        world.messages(job, "rankings", "started", [records] * N)
        world.dead_letters(job, "schema", then(0.0, refused))
    for what, at in (
        ("orphans", RESTART),
        ("few-orphans", RESTART),
        ("late", N - 40),
        ("in-time", N - 40),
    ):
        world.restart_counters(f"{what}-and-restarts", at)  # longer ago than the alert waits
    expected = [
        ("EvaluatorDeadLetters", "refused"),
        ("EvaluatorJudgmentDelay", "late"),
        ("EvaluatorJudgmentDelay", "late-and-restarts"),
        ("EvaluatorOrphans", "orphans"),
        ("EvaluatorOrphans", "orphans-and-restarts"),
    ]
    code, output = world.check(tmp_path / "tests.yml", firing=dict.fromkeys(MOMENTS, expected))
    assert code == 0, output


@pytest.mark.promtool
def test_a_task_that_restores_is_not_stale(world, tmp_path):
    for job, restoring in (("stale", 0), ("restores", 1)):
        world.put("evaluator_restoring", [0, *then(0, restoring)], job=job, instance="a")
        world.watermark(job, "1", then(60, 0))
        world.checkpoint(job, "1", then(60, 0))
        where = {"job": job, "instance": "a", "topic": "rankings", "partition": "1"}
        world.put("evaluator_input_position", range(0, 25 * N + 1, 25), **where)
    stale = [("EvaluatorCheckpointStale", "stale"), ("EvaluatorWatermarkStale", "stale")]
    code, output = world.check(tmp_path / "tests.yml", firing=dict.fromkeys(MOMENTS, stale))
    assert code == 0, output


@pytest.mark.promtool
def test_a_missing_count_of_bad_queries_fires_an_alert(tmp_path):
    world = World(step_minutes=1, n=60)
    world.healthy("fine")
    world.drop("evaluator_quality_values")
    code, output = world.check(
        tmp_path / "tests.yml",
        firing={"20m": [], "45m": [("EvaluatorBadQueriesUnwatched", "")]},
        alert_rule_test=[
            expected_alert(
                "EvaluatorBadQueriesUnwatched",
                "45m",
                {"measure": "ndcg@10"},
                summary="No evaluator counts the bad queries of ndcg@10, of which a share of 0.10"
                " is accepted: EvaluatorBadQueries cannot fire.",
                description="Add it to the setting histogram_measures, or remove its rule from"
                " thresholds.yml.",
            )
        ],
    )
    assert code == 0, output


@pytest.mark.promtool
def test_the_change_of_a_mean_is_against_the_same_hour_a_week_ago(tmp_path):
    hours, few = 7 * 24, threshold("min_queries") / 2
    series, expected = [], []
    for job, queries, before in (("falls", 4 * few, 0.5), ("few", few, 0.5), ("fell", few, 0.4)):
        n_before = 4 * few if job == "fell" else queries
        totals = {"queries": [0.0], "value": [0.0], "value_squares": [0.0]}
        for half_hour in range(2 * hours + 4):
            # a day ago equals now, so only a week ago makes a difference
            is_late = half_hour >= 2 * (hours - 48)
            mean, n = (0.4, queries) if is_late else (before, n_before)
            for name, each in (("queries", 1), ("value", mean), ("value_squares", mean**2 + 0.01)):
                totals[name].append(totals[name][-1] + n / 2 * each)
        labels = f'job="{job}",model="m",variant="v",ranker="served",measure="ndcg@10"'
        for name, values in totals.items():
            text = " ".join(f"{value:.9g}" for value in values)
            series.append({"series": f"evaluator_quality_{name}_total{{{labels}}}", "values": text})
        if job == "falls":
            expected.append({"labels": f"{{{labels}}}", "value": -0.1})
    rounded = "round(evaluator:quality_change:ratio1h, 0.0001)"
    tests = {
        "rule_files": [str(only(tmp_path / "rules.yml", "evaluator:quality_change:ratio1h"))],
        "evaluation_interval": "30m",
        "group_eval_order": GROUPS,
        "tests": [
            {
                "interval": "30m",
                "input_series": series,
                "promql_expr_test": [
                    {"expr": rounded, "eval_time": f"{hours + 1}h", "exp_samples": expected}
                ],
            }
        ],
    }
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests))
    code, output = promtool("test", "rules", tmp_path / "tests.yml")
    assert code == 0, output
