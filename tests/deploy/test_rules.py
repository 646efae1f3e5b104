"""The rules for Prometheus: each alert fires on its fault and is otherwise silent."""

import re
from math import inf, nan
from pathlib import Path

import pytest

from tests.deploy.rules import (
    RULES,
    RUNBOOKS,
    World,
    counter,
    expected_alert,
    looking_back_a_day,
    only,
    promtool,
    rules_of,
    steps,
    threshold,
)
from tests.tidy.test_docs import anchors

DOCS = Path(__file__).parents[2] / "docs"
ALERTS = rules_of("alert")
SERVED = {"ranker": "served", "measure": "ndcg@10"}


# Required members of every rule


@pytest.mark.promtool
@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_promtool_accepts(path):
    code, output = promtool("check", "rules", path)
    assert code == 0, output
    assert "SUCCESS" in output


def test_an_alert_has_a_duration_a_severity_and_a_runbook(subtests):
    for name in ALERTS:
        with subtests.test(name=name):
            alert = ALERTS[name]
            assert alert["for"]
            assert alert["labels"] in [
                {"severity": each} for each in ("critical", "warning", "info")
            ]
            url = '{{ with query "evaluator:runbooks" }}{{ . | first | label "url" }}{{ end }}'
            assert alert["annotations"]["runbook_url"] == f"{url}#{name.lower()}"
            assert name.lower() in anchors(DOCS.parent / RUNBOOKS)
            summary = alert["annotations"]["summary"]
            assert "$labels" in summary, "a summary names a label"
            assert "$value" in summary or "query" in summary, "a summary has a number"


def test_the_list_has_exactly_the_alerts():
    page = (DOCS / "alerts.md").read_text("utf-8")
    rows = re.findall(
        r"^\| \[`(\w+)`\]\(runbooks\.md#(\w+)\) \| (\w+) \| (\w+) \|", page, re.MULTILINE
    )
    assert [row[0].lower() == row[1] for row in rows] == [True] * len(rows)
    listed = {row[0]: (row[2], row[3]) for row in rows}
    assert listed == {n: (a["labels"]["severity"], a["for"]) for n, a in ALERTS.items()}


def test_the_table_has_every_threshold_with_its_value():
    page = (DOCS / "alerts.md").read_text("utf-8")
    rows = re.findall(r"^\| `evaluator:(\w+)` \| ([\d.]+) \|", page, re.MULTILINE)
    text = next(path for path in RULES if path.name == "thresholds.yml").read_text("utf-8")
    thresholds = set(re.findall(r"record: (\S+)", text))
    assert {(f"evaluator:{name}", float(number)) for name, number in rows} == {
        (name, threshold(name.removeprefix("evaluator:"))) for name in thresholds
    }


def test_every_recorded_series_is_documented():
    page = (DOCS / "alerts.md").read_text("utf-8")
    missing = [name for name in rules_of("record") if f"`{name}`" not in page]
    assert not missing


# Against last week: steps of five minutes, a week (here of three days) and more than a day

DAY = 24 * 12
LOOK_BACK = 3 * DAY
N = LOOK_BACK + 30 * 12
FALL = LOOK_BACK + 2 * 12
"""Two hours into the second week."""

DROPPED = [
    ("EvaluatorNoJudgments", "stops"),
    ("EvaluatorNoRankings", "stops"),
]


def after_a_week() -> World:
    """Jobs that change in one way each, from FALL on."""
    world = World(step_minutes=5, n=N)
    world.put("evaluator_build_info", [1] * (N + 1), job="some", instance="a")
    falls = steps((0.8, FALL), (0.2, N - FALL))
    for job, means in (("same", [0.8] * N), ("falls", falls)):  # the evaluator's alarms detect it
        world.quality(job, [50] * N, means)
        world.coverage(job, [70] * N, means)
    night = steps((50, 24), (0, 24), (50, LOOK_BACK - 24), (0, 24), (50, N - LOOK_BACK - 48))
    world.messages("quiet-at-this-hour", "rankings", "started", night)
    stops = steps((50, FALL), (0, N - FALL))
    world.messages("stops", "rankings", "started", stops)
    world.messages("stops", "judgments", "applied", stops)
    world.messages("sparse", "rankings", "started", steps((2, FALL), (0, N - FALL)))
    return world


@pytest.mark.promtool
def test_exactly_the_faults_fire_with_a_last_week_to_compare(tmp_path):
    """Of the alerts that look back a day or longer; the others do not need the past of a week."""
    compared = looking_back_a_day()
    assert {alert for alert, _ in DROPPED} < {*compared}
    code, output = after_a_week().check(
        tmp_path / "tests.yml",
        rules=[only(tmp_path / "rules.yml", *compared, look_back_days=LOOK_BACK // DAY)],
        firing={"0": [], "5m": [], "2d": [], "3d1h50m": [], "3d4h": DROPPED, "4d3h": DROPPED},
    )
    assert code == 0, output


@pytest.mark.promtool
def test_a_missing_and_a_superfluous_alert_are_both_detected(tmp_path):
    world = World(step_minutes=5, n=24)
    world.healthy("fine")
    too_many = world.check(tmp_path / "a.yml", firing={"2h": [("EvaluatorNotReady", "fine")]})
    assert too_many[0] == 1
    world.put("evaluator_ready", [0] * 25, job="fine", instance="a")
    missing = world.check(tmp_path / "b.yml", firing={"2h": []})
    assert missing[0] == 1


# From the first hour on: steps of one minute

MINUTES = 200
FAULT = 100
END = f"{MINUTES}m"

FAULTS = [
    ("EvaluatorBadQueries", "bad"),
    ("EvaluatorCheckpointStale", "no-checkpoints"),
    ("EvaluatorClockSkewed", "skewed"),
    ("EvaluatorDeadLetters", "malformed"),
    ("EvaluatorDeadLetters", "map-refuses"),
    ("EvaluatorInputClockAhead", "clock-ahead"),
    ("EvaluatorInputRetentionShort", "short"),
    ("EvaluatorJudgedShareLow", "unjudged"),
    ("EvaluatorJudgmentDelay", "late-judgments"),
    ("EvaluatorMapBehind", "map-falls-behind"),
    ("EvaluatorMapStalled", "map-stalls"),
    ("EvaluatorNoJudgments", "stops"),
    ("EvaluatorNoRankings", "stops"),
    ("EvaluatorNotReady", "not-ready"),
    ("EvaluatorNothingYet", "never"),
    ("EvaluatorOrphans", "orphans"),
    ("EvaluatorOutOfOrder", "out-of-order"),
    ("EvaluatorOutputRefused", "refuses"),
    ("EvaluatorSnapshotStale", "no-snapshots"),
    ("EvaluatorStalled", "stalls"),
    ("EvaluatorStateRebuilt", "quarantined"),
    ("EvaluatorStateRebuilt", "quarantined-at-start"),
    ("EvaluatorTargetDown", "shop/evaluator"),
    ("EvaluatorTargetDown", "shop/evaluator-map"),
    ("EvaluatorTasksUnowned", "unowned"),
    ("EvaluatorWatermarkStale", "silent-log"),
    ("EvaluatorWatermarkStale", "stalls"),
]


def then(before: float, after: float) -> list[float]:
    """A figure that changes at FAULT, one for each minute."""
    return steps((before, FAULT), (after, MINUTES - FAULT))


def put_faults_of_state(world: World) -> None:
    for job in ("no-checkpoints", "nothing-to-checkpoint"):
        world.checkpoint(job, "1", then(60, 0))
    snapshots = counter(then(60, 0))
    world.put("evaluator_snapshot_timestamp_seconds", snapshots, job="no-snapshots", task="1")
    for topic in ("rankings", "judgments"):
        read = {"instance": "a", "topic": topic, "partition": "1"}
        world.put(
            "evaluator_input_position",
            counter(then(25, 0)),
            job="nothing-to-checkpoint",
            **read,
        )
    late = MINUTES - 30
    for job, values in (
        ("quarantined", steps((0, late + 1), (1, 30))),
        ("quarantined-at-start", steps((nan, late + 1), (1, 30))),
    ):
        where = {"job": job, "instance": "a", "task": "1"}
        world.put("evaluator_quarantined_stores_total", values, **where)
    refusing = {"job": "refuses", "instance": "a", "reason": "oversize_output"}
    world.put("evaluator_dead_letters_total", steps((0, late + 1), (1, 30)), **refusing)


def put_maps(world: World) -> None:
    """Processes of `evaluator map`: one in a job of its own for each fault, and healthy ones."""
    growing = [500 * (minute // 5) for minute in range(5, MINUTES - FAULT + 5)]
    for job, lag, mapped, refused in (
        ("fine", 40 * [1_001], 50, 0),  # in the job of its workers, of more partitions than these
        ("map-catches-up", [900_000 - 1_000 * minute for minute in range(MINUTES)], 5_000, 0),
        ("map-waits", [4_000 * (minute % 3) for minute in range(MINUTES)], 50, 0),
        ("map-stalls", steps((0, FAULT), (5_000, MINUTES - FAULT)), then(50, 0), 0),
        ("map-falls-behind", [*[0] * FAULT, *growing], 50, 0),
        ("map-refuses", [0], 50, then(0, 2)),
    ):
        values = [*lag, *[lag[-1]] * (MINUTES + 1 - len(lag))]
        for partition in range(6 if job == "fine" else 1):
            of_log = {"job": job, "instance": "map", "topic": "rankings"}
            world.put("evaluator_map_lag", values, **of_log, partition=str(partition))
        for outcome, growth in (("mapped", mapped), ("refused", refused), ("left_out", mapped)):
            each_minute = growth if isinstance(growth, list) else [growth] * MINUTES
            counts = counter(each_minute)
            world.put("evaluator_map_records_total", counts, **of_log, outcome=outcome)
    world.put("evaluator_build_info", [1] * (MINUTES + 1), job="map-refuses", instance="map")
    world.dead_letters("map-refuses", "mapping", then(0, 2))
    world.put("up", [1, *then(1, 0)], job="shop/evaluator-map", instance="map")


def with_pipeline_faults() -> World:
    """Healthy jobs, each with one fault from FAULT on; `nearly` stays within each threshold."""
    world = World(step_minutes=1, n=MINUTES)
    jobs = (
        *("fine", "restarts", "stops", "restores", "orphans", "malformed"),
        *("stalls", "lags", "silent-log", "late-judgments", "not-ready"),
        *("unowned", "evaluator", "shop/evaluator"),
        *("nearly", "falls", "bad", "bad-for-ten-minutes", "short", "clock-ahead", "out-of-order"),
        *("no-checkpoints", "nothing-to-checkpoint", "quarantined", "quarantined-at-start"),
        *("refuses", "skewed", "unjudged"),
    )
    for job in jobs:
        world.healthy(job)
    world.healthy("never", per_step=0)
    world.put("up", [1, *then(1, 0)], job="shop/evaluator", instance="a")
    world.put("up", [1, *then(1, 0)], job="another-program", instance="a")
    world.put("evaluator_ready", [1, *then(1, 0)], job="not-ready", instance="a")
    world.put("evaluator_tasks_owned", [2, *then(2, 1)], job="unowned", instance="a")
    for job, kept in (("short", 180_120.0), ("nearly", inf)):
        where = {"job": job, "topic": "judgments"}
        world.put("evaluator_input_retention_seconds", [inf, *then(inf, kept)], **where)
    for job in ("stops", "restores"):
        for topic, outcome in (("rankings", "started"), ("judgments", "applied")):
            world.messages(job, topic, outcome, then(50, 0))
        world.messages(job, "judgments", "orphan", then(0.2, 0))
    world.put("evaluator_restoring", [0, *then(0, 1)], job="restores", instance="a")
    world.messages("orphans", "judgments", "orphan", then(0.2, 5))
    world.messages("nearly", "judgments", "orphan", then(0.2, 1))
    world.dead_letters("malformed", "schema", then(0.1, 2))
    world.dead_letters("nearly", "schema", then(0.1, 0.3))
    for job in ("stalls", "lags"):
        where = {"job": job, "instance": "a", "topic": "rankings", "partition": "1"}
        world.put("evaluator_consumer_lag", [5, *then(5, 5000)], **where)
    for job in ("stalls", "silent-log"):
        world.watermark(job, "1", then(60, 0))
    put_faults_of_state(world)
    put_maps(world)
    for job, seconds in (("clock-ahead", 3_300), ("nearly", 300)):
        where = {"job": job, "instance": "a", "topic": "judgments", "partition": "1"}
        world.put("evaluator_input_clock_ahead_seconds", [0, *then(0, seconds)], **where)
    for job, seconds in (("skewed", -61), ("nearly", -60)):
        where = {"job": job, "instance": "a"}
        world.put("evaluator_clock_skew_seconds", [0, *then(0, seconds)], **where)
    world.coverage("unjudged", [50] * MINUTES, then(0.7, 0.05))
    world.coverage("nearly", [50] * MINUTES, then(0.7, 0.11))
    world.out_of_order("out-of-order", then(0.2, 3))
    world.out_of_order("nearly", then(0.2, 0.6))
    world.delays("late-judgments", [50] * MINUTES, then(0, 0.4))
    world.quality("falls", [50] * MINUTES, then(0.8, 0.2))  # the evaluator's alarms detect it
    for job, share in (("bad", 0.6), ("nearly", 0.3)):
        world.values(job, [50] * MINUTES, then(0.08, share))
    world.values(
        "bad-for-ten-minutes", [50] * MINUTES, steps((0.08, MINUTES - 20), (0.99, 10), (0, 10))
    )
    world.values("restarts", [50] * MINUTES, [0.3] * MINUTES)
    world.restart_counters("restarts", FAULT + 5)
    return world


@pytest.mark.promtool
def test_exactly_the_faults_fire_from_the_first_hour_on(tmp_path):
    world = with_pipeline_faults()
    code, output = world.check(
        tmp_path / "tests.yml",
        firing={
            "0": [],
            "5m": [],
            "20m": [],
            f"{FAULT - 5}m": [("EvaluatorNothingYet", "never")],
            END: FAULTS,
        },
        alert_rule_test=[
            expected_alert(
                "EvaluatorBadQueries",
                END,
                {"job": "bad", "model": "ranker", "variant": "prod", **SERVED},
                summary="0.60 of the queries of ranker/prod had a ndcg@10 of at most 0.1 within an"
                " hour, and still has; accepted is 0.10.",
            ),
            expected_alert(
                "EvaluatorInputRetentionShort",
                END,
                {"job": "short", "topic": "judgments"},
                summary="Topic judgments of short keeps its records for 2d 2h 2m 0s only, which is"
                " too short to rebuild a task.",
            ),
            expected_alert(
                "EvaluatorMapStalled",
                END,
                {"job": "map-stalls"},
                summary="`evaluator map` of map-stalls has 5000 unread records and finishes none.",
                description="Workers get no messages from it. If they write heartbeats, later"
                " messages will be out of order.",
            ),
            expected_alert(
                "EvaluatorMapBehind",
                END,
                {"job": "map-falls-behind"},
                summary="`evaluator map` of map-falls-behind is slower than its topics grow: at"
                " least 8000 records were unread in the last 25 minutes, more than before.",
            ),
            expected_alert(
                "EvaluatorTasksUnowned",
                END,
                {"job": "unowned"},
                summary="2 tasks of unowned had an owner within six hours, and only 1 have one"
                " now.",
            ),
        ],
    )
    assert code == 0, output
