"""Rules on the latched state of alarms: one of each kind, and their inhibition."""

import re

import pytest

from tests.deploy.rules import World, expected_alert, rules_of, together
from tests.deploy.server import INHIBIT_RULES

N = 60
BEGIN, END = 20, 40
LABELS = {
    "model": "gamma",
    "variant": "prod",
    "ranker": "served",
    "measure": "ndcg@10",
    "segment": "",
    "level": "",
    "kind": "own",
}
KINDS = {
    "EvaluatorQualityAlarm": {},
    "EvaluatorPairAlarm": {"kind": "pair", "ranker": "served-bm25"},
    "EvaluatorVariantsAlarm": {"kind": "variants", "variant": "canary-prod"},
    "EvaluatorObjectiveAlarm": {"kind": "constant"},
    "EvaluatorCoverageAlarm": {"measure": "coverage", "ranker": ""},
}

CARRIED = {"locale=fr": 0.11, "locale=de": 0.82}


def put(
    world, job, *, active, acknowledged=0, instance="a", begin=BEGIN, end=END, carried_by=None,
    **changes,
):  # fmt: skip
    labels = {**LABELS, "job": job, "instance": instance, **changes}
    carried_by = carried_by or {}
    during = [*[0] * begin, *[active] * (end - begin), *[0] * (N + 1 - end)]
    world.put("evaluator_alarm_active", during, **labels)
    world.put("evaluator_alarm_acknowledged", [acknowledged] * (N + 1), **labels)
    world.put("evaluator_alarm_evidence_ratio", [1.7 * of for of in during], **labels)
    world.put("evaluator_alarm_since_timestamp_seconds", [60 * begin] * (N + 1), **labels)
    world.put("evaluator_alarm_observed_mean", [0.5714] * end, **labels)
    world.put("evaluator_alarm_expected_mean", [0.602] * end, **labels)
    for carrier, share in carried_by.items():
        world.put("evaluator_alarm_carried_share", [share] * end, **labels, carrier=carrier)


@pytest.fixture
def world():
    world = World(step_minutes=1, n=N)
    world.put("evaluator_build_info", [1] * (N + 1), job="some", instance="a")
    return world


@pytest.mark.promtool
def test_each_kind_has_its_alert_while_its_alarm_is_on(world, tmp_path):
    for name, changes in KINDS.items():
        put(world, f"{name}-on", active=1, **changes, carried_by=CARRIED)
        put(world, f"{name}-off", active=0, **changes)
        put(world, f"{name}-known", active=1, acknowledged=1, **changes)
    put(world, "level", active=1, segment="locale", level="de")
    firing = [(name, f"{name}-on") for name in KINDS]
    firing += [("EvaluatorQualityAlarm", "level")]
    level = {"segment": "locale", "level": "de"}
    described = (
        "`evaluator alarms list` and the page have its onset, the change of each level and that of"
        " the pair. If the coverage has an alarm too, check it first."
    )
    expected = [
        expected_alert(
            "EvaluatorQualityAlarm",
            "30m",
            {"job": job, **{name: of for name, of in {**LABELS, **changes}.items() if of}},
            summary=f"ndcg@10 of gamma/prod (served){shown} is 0.571, expected 0.602: lower than"
            " its past weeks explain; alarm since 1970-01-01 00:20:00 +0000 UTC, evidence now 1.7"
            f" times the limit of an alarm{carried}.",
            description=described,
        )
        for job, changes, shown, carried in (
            ("EvaluatorQualityAlarm-on", {}, "", "; carried by locale=de 82%, locale=fr 11%"),
            ("level", level, ", locale=de,", ""),
        )
    ]
    canary = expected_alert(
        "EvaluatorVariantsAlarm",
        "30m",
        {
            "job": "EvaluatorVariantsAlarm-on",
            **{
                name: of for name, of in {**LABELS, **KINDS["EvaluatorVariantsAlarm"]}.items() if of
            },
        },
        summary="The difference canary-prod of ndcg@10 of gamma (served) is 0.571, and 0 is"
        " expected in the same hours; alarm since 1970-01-01 00:20:00 +0000 UTC, evidence now 1.7"
        " times the limit of an alarm; carried by locale=de 82%, locale=fr 11%.",
        description="`evaluator alarms list` and the page have its onset, and the change of each"
        " level. It ends when the first variant has had no query for a day.",
    )
    code, output = world.check(
        tmp_path / "tests.yml",
        # it is kept for ten minutes after its end, as a new leader may need some
        firing={"15m": [], "30m": firing, "45m": firing, "55m": []},
        alert_rule_test=[together(*expected), canary],
    )
    assert code == 0, output


@pytest.mark.promtool
def test_an_alert_keeps_firing_while_another_process_becomes_the_leader(world, tmp_path):
    put(world, "some", active=1, instance="a", end=30)
    put(world, "some", active=1, instance="b", begin=34, end=N)
    on = [("EvaluatorQualityAlarm", "some")]
    code, output = world.check(tmp_path / "t.yml", firing={"25m": on, "33m": on, "50m": on})
    assert code == 0, output


def test_inhibit_rules_name_existing_alerts_and_one_of_two_variants():
    rules = INHIBIT_RULES
    for rule in rules:
        named = re.findall(
            r"Evaluator\w+", " ".join([*rule["source_matchers"], *rule["target_matchers"]])
        )
        assert len(named) > 1
        assert {*named} <= rules_of("alert").keys()
        assert "job" in rule["equal"]
    (of_two,) = [rule for rule in rules if "EvaluatorVariantsAlarm" in rule["source_matchers"][0]]
    (both,) = re.findall(r'variant="([^"]+)"', " ".join(of_two["source_matchers"]))
    assert f'variant="{both.partition("-")[0]}"' in of_two["target_matchers"]


@pytest.mark.promtool
def test_links_use_the_base_urls_of_the_settings_also_after_the_process_ends(tmp_path):
    world = World(step_minutes=1, n=N)
    docs, grafana = "https://docs.example.com/r.md", "https://grafana.example.com"
    for job, n in (("a b", N + 1), ("gone", 20)):
        where = {"job": job, "instance": "a"}
        world.put("evaluator_build_info", [1] * n, **where)
        world.put("evaluator_ready", [int(job == "gone")] * n, **where)
        world.put("evaluator_links_info", [1] * 10, **where, runbooks=docs, dashboards=grafana)
    alerts = {"a b": "EvaluatorNotReady", "gone": "EvaluatorAbsent"}
    expected = []
    for job, name in alerts.items():
        labels = {"job": job} | ({"instance": "a"} if job == "a b" else {})
        rule = rules_of("alert")[name]
        description = rule["annotations"]["description"]
        one = expected_alert(name, "50m", labels)
        (alert,) = one["exp_alerts"]
        links = alert["exp_annotations"]
        links["runbook_url"] = f"{docs}#{name.lower()}"
        links["dashboard_url"] = f"{grafana}/d/evaluator-pipeline?var-job={job.replace(' ', '+')}"
        if job == "a b":
            links["summary"] = "a of a b is not ready; 0 of 1 are."
            links["description"] = description
        else:
            links["summary"] = "No evaluator of gone is scraped any more; the last was 31m 0s ago."
            links["description"] = "No other alert on gone can fire meanwhile."
        expected.append(one)
    firing = {"50m": [(name, job) for job, name in alerts.items()]}
    code, output = world.check(tmp_path / "tests.yml", firing=firing, alert_rule_test=expected)
    assert code == 0, output
