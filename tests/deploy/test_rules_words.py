"""The texts of the alerts on the pipeline, with their numbers."""

import pytest

from tests.deploy.rules import World, expected_alert, steps

N = 120
END = f"{N}m"


def world_in_trouble() -> World:
    """Three workers of one job, with one fault of each kind."""
    world = World(step_minutes=1, n=N)
    for instance, works in (("a", 0), ("b", 1), ("c", 1)):
        where = {"job": "evaluator", "instance": instance}
        for name in ("up", "evaluator_ready"):
            world.put(name, [works] * (N + 1), **where)
        world.put("evaluator_build_info", [1] * (N + 1), **where)
    world.messages("evaluator", "rankings", "started", [0] * N)
    world.messages("evaluator", "rankings", "heartbeat", [1] * N)
    of_task = {"job": "evaluator", "instance": "b", "task": "1"}
    world.put("evaluator_quarantined_stores_total", steps((0, 100), (2, 21)), **of_task)
    return world


IN_WORDS = {
    "EvaluatorTargetDown": (
        {"instance": "a"},
        {"summary": "a of evaluator does not respond; 2 of 3 do."},
    ),
    "EvaluatorNotReady": (
        {"instance": "a"},
        {
            "summary": "a of evaluator is not ready; 2 of 3 are.",
            "description": "/readyz has the reason: the broker is unavailable, outputs are not"
            " acknowledged, or tasks restore.",
        },
    ),
    "EvaluatorNothingYet": (
        {"topic": "rankings"},
        {"summary": f"No record of rankings has ever counted in evaluator; {N} were read."},
    ),
    "EvaluatorStateRebuilt": (
        {"task": "1"},
        {
            "summary": "A store or checkpoint of task 1 of evaluator could not be used,"
            " 2 time(s) within an hour.",
            "description": "The task was rebuilt with the same totals, or begins at zero: if a"
            " topic was recreated, a log has lost its end, or the fingerprint is another one. The"
            " log has the reason.",
        },
    ),
}


@pytest.mark.promtool
def test_descriptions_state_the_measured_numbers(tmp_path):
    expected = [
        expected_alert(alert, END, {"job": "evaluator"} | labels, **words)
        for alert, (labels, words) in IN_WORDS.items()
    ]
    code, output = world_in_trouble().check(
        tmp_path / "tests.yml",
        firing={END: [(alert, "evaluator") for alert in IN_WORDS]},
        alert_rule_test=expected,
    )
    assert code == 0, output
