"""The rules with series that end, pause and return."""

from math import nan

import pytest

from tests.deploy.rules import World, expected_alert, steps


@pytest.mark.promtool
def test_one_alert_fires_without_any_evaluator(tmp_path):
    world = World(step_minutes=1, n=30)
    world.put("up", [1] * 31, job="another-program", instance="a")
    code, output = world.check(
        tmp_path / "tests.yml",
        firing={"0": [], "4m": [], "10m": [("EvaluatorAbsent", "")]},
        alert_rule_test=[
            expected_alert(
                "EvaluatorAbsent",
                "10m",
                {},
                summary="No evaluator has been scraped within a day.",
                description="No other alert can fire meanwhile.",
            )
        ],
    )
    assert code == 0, output


@pytest.mark.promtool
def test_a_vanished_deployment_fires_for_a_day_while_another_runs(tmp_path):
    n, last = 27 * 6, 2 * 6  # it is scraped for two hours
    world = World(step_minutes=10, n=n)
    for job in ("stays", "vanishes"):
        world.healthy(job)
    for path, values in list(world.series.items()):
        if 'job="vanishes"' in path:
            world.series[path] = [*values[: last + 1], *[nan] * (n - last)]
    vanished = [("EvaluatorAbsent", "vanishes")]
    code, output = world.check(
        tmp_path / "tests.yml",
        firing={"2h": [], "2h30m": vanished, "25h50m": vanished, "26h20m": []},
        alert_rule_test=[
            expected_alert(
                "EvaluatorAbsent",
                "2h30m",
                {"job": "vanishes"},
                summary="No evaluator of vanishes is scraped any more; the last was 30m 0s ago.",
                description="No other alert on vanishes can fire meanwhile.",
            )
        ],
    )
    assert code == 0, output


@pytest.mark.promtool
def test_the_alert_still_fires_a_day_after_the_last_deployment_vanished(tmp_path):
    world = World(step_minutes=10, n=26 * 6)
    for job in ("first", "second"):
        scraped = steps((1, 7), (nan, 25 * 6))
        world.put("evaluator_build_info", scraped, job=job, instance="a")
    gone = [("EvaluatorAbsent", "first"), ("EvaluatorAbsent", "second")]
    firing = {"1h": [], "2h": gone, "24h30m": gone, "25h30m": [("EvaluatorAbsent", "")]}
    code, output = world.check(tmp_path / "tests.yml", firing=firing)
    assert code == 0, output


COUNTED = {
    "EvaluatorInputLost": ("evaluator_input_records_lost_total", {"topic": "rankings"}),
    "EvaluatorOutputRefused": ("evaluator_dead_letters_total", {"reason": "oversize_output"}),
    "EvaluatorStateRebuilt": ("evaluator_quarantined_stores_total", {"task": "1"}),
    "EvaluatorWeightsChanged": (
        "evaluator_weights_releases_total",
        {"model": "ranker", "status": "promoted"},
    ),
}
"""Alerts that fire for an hour: alert, its counter and the labels beside job and instance."""


@pytest.mark.promtool
def test_alerts_of_one_hour_fire_for_an_hour_and_not_again_after_a_gap(tmp_path):
    world = World(step_minutes=1, n=230)
    world.put("evaluator_build_info", [1] * 231, job="some", instance="a")
    for name, labels in COUNTED.values():
        for job, parts in {
            "rises": ((0, 61), (12, 170)),
            "begins-late": ((nan, 61), (12, 170)),
            "new-process": ((12, 61), (3, 170)),  # which begins at zero
            "gap": ((12, 60), (nan, 20), (12, 151)),
            "long-gap": ((12, 60), (nan, 100), (12, 71)),
            "rises-in-a-gap": ((12, 60), (nan, 100), (15, 71)),
            "new-process-after-a-gap": ((12, 60), (nan, 100), (3, 71)),
            "first-after-a-gap": ((0, 60), (nan, 100), (3, 71)),
            "new-and-nothing": ((nan, 160), (0, 71)),
        }.items():
            world.put(name, steps(*parts), job=job, instance="a", **labels)

    def of(*jobs: str) -> list[tuple[str, str]]:
        return [(alert, job) for alert in COUNTED for job in jobs]

    # A series that begins so:
    old = of("new-process", "gap", "long-gap", "rises-in-a-gap", "new-process-after-a-gap")
    new = of("first-after-a-gap", "new-process-after-a-gap", "rises-in-a-gap")
    code, output = world.check(
        tmp_path / "tests.yml",
        firing={
            "10m": old,
            "70m": of("rises", "begins-late", "new-process"),
            "100m": of("rises", "begins-late", "new-process"),
            "135m": [],  # an hour after the gap there is nothing to compare with
            "159m": [],
            "170m": new,
            "215m": new,
            "230m": [],
        },
    )
    assert code == 0, output
