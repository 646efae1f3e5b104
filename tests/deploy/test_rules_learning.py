"""The rules on learning: each alert fires on its fault and is otherwise silent."""

from math import nan

import pytest

from tests.deploy.rules import World, expected_alert, steps, together

FAULT = 20
MINUTES = FAULT + 70
"""The last ten minutes are more than an hour after the faults."""
DURING, END = f"{FAULT + 59}m", f"{MINUTES}m"


def then(before: float, after: float) -> list[float]:
    """A figure that changes after FAULT, one for each sample."""
    return steps((before, FAULT + 1), (after, MINUTES - FAULT))


def world_with_faults() -> World:
    """Healthy jobs that learn, to each of which one thing happens at FAULT."""
    world = World(step_minutes=1, n=MINUTES)
    jobs = (
        *("fine", "promotes", "rolls-back", "only-proposes", "starts-with-a-promotion"),
        *("freezes", "fenced", "changes-leadership", "waits", "waits-with-a-full-desk"),
        *("waits-for-ten-minutes", "quiet", "sends-odd-features"),
    )
    for job in jobs:
        world.healthy(job)
        world.learning(job)
    world.healthy("does-not-learn")
    once = [int(minute == FAULT) for minute in range(MINUTES)]
    world.releases("promotes", "promoted", once)
    world.releases("rolls-back", "rolled_back", once)
    for status in ("proposed", "rejected"):
        world.releases("only-proposes", status, once)
    where = {"instance": "c", "model": "ranker", "status": "promoted"}
    late = steps((nan, FAULT + 1), (1, MINUTES - FAULT))
    job = "starts-with-a-promotion"
    world.put("evaluator_weights_releases_total", late, job=job, **where)
    of_model = {"instance": "a", "model": "ranker"}
    world.put("evaluator_learning_frozen", then(0, 1), job="freezes", **of_model)
    unusable = "evaluator_learning_unusable_share"
    world.put(unusable, then(0.05, 0.06), job="sends-odd-features", **of_model)
    for job in ("fenced", "changes-leadership"):
        world.put("evaluator_leader_active", then(1, 0), job=job, instance="a")
    takes = steps((0, FAULT + 6), (1, MINUTES - FAULT - 5))
    world.put("evaluator_leader_active", takes, job="changes-leadership", instance="b")
    put_waits(world)
    return world


def put_waits(world: World) -> None:
    task, desk = {"instance": "a", "task": "1"}, {"instance": "a"}
    awaited, waiting = "evaluator_leader_awaited", "evaluator_leader_buffered_queries"
    well = [(3, 5, 9, 2, 7, 7)[minute % 6] for minute in range(FAULT + 1)]
    growing = [40 * minute for minute in range(1, MINUTES - FAULT + 1)]
    full = [50_000] * (MINUTES - FAULT)  # reading pauses until the task writes a record
    for job, values in (("waits", [*well, *growing]), ("waits-with-a-full-desk", [*well, *full])):
        world.put(awaited, then(0, 1), job=job, **task)
        world.put(awaited, then(1, 0), job=job, instance="a", task="0")
        world.put(waiting, values, job=job, **desk)
    shortly = [float(FAULT < minute <= FAULT + 10) for minute in range(MINUTES + 1)]
    job = "waits-for-ten-minutes"
    world.put(awaited, shortly, job=job, **task)
    world.put(awaited, [0] * (MINUTES + 1), job=job, instance="a", task="0")
    world.put(waiting, [40 * value for value in shortly], job=job, **desk)
    world.put(waiting, [0] * (MINUTES + 1), job="quiet", **desk)
    for number in ("0", "1"):
        world.put(awaited, [0] * (MINUTES + 1), job="quiet", instance="a", task=number)


LASTING = [
    ("EvaluatorLearningFrozen", "freezes"),
    ("EvaluatorLearningUnusable", "sends-odd-features"),
    ("EvaluatorNoLeader", "fenced"),
    ("EvaluatorLeaderWaits", "waits"),
    ("EvaluatorLeaderWaits", "waits-with-a-full-desk"),
]
CHANGES = [
    ("EvaluatorWeightsChanged", "promotes"),
    ("EvaluatorWeightsChanged", "rolls-back"),
    ("EvaluatorWeightsChanged", "starts-with-a-promotion"),
]


def expected_waits() -> dict:
    queries = {"waits": 40 * (MINUTES - FAULT), "waits-with-a-full-desk": 50_000}
    expected = [
        expected_alert(
            "EvaluatorLeaderWaits",
            END,
            {"job": job, "task": "1"},
            summary=f"The leader of {job} waits for task 1, which writes nothing; {n} settled"
            " queries wait with it.",
        )
        for job, n in queries.items()
    ]
    return together(*expected)


def expected_changes() -> dict:
    changed = {
        "promotes": ("promoted", "a challenger was promoted, version 7 (promotes)."),
        "rolls-back": ("rolled_back", "older ones were restored, version 7 (rolls-back)."),
        "starts-with-a-promotion": (
            "promoted",
            "a challenger was promoted, version 7 (starts-with-a-promotion).",
        ),
    }
    expected = [
        expected_alert(
            "EvaluatorWeightsChanged",
            DURING,
            {"job": job, "model": "ranker", "status": status},
            summary=f"The live weights of ranker changed within an hour: {words}",
        )
        for job, (status, words) in changed.items()
    ]
    return together(*expected)


@pytest.mark.promtool
def test_exactly_the_faults_of_learning_fire(tmp_path):
    world = world_with_faults()
    code, output = world.check(
        tmp_path / "tests.yml",
        firing={
            "0": [],
            "5m": [],
            f"{FAULT - 1}m": [],
            f"{FAULT + 3}m": CHANGES,
            DURING: [*LASTING, *CHANGES],
            END: LASTING,
        },
        alert_rule_test=[
            expected_alert(
                "EvaluatorLearningFrozen",
                END,
                {"job": "freezes", "model": "ranker"},
                summary="Learning has stopped for ranker of freezes, after 40 updates.",
                description="Live weights stay live. /status of the leader has the reason.",
            ),
            expected_changes(),
            expected_waits(),
            expected_alert(
                "EvaluatorNoLeader",
                END,
                {"job": "fenced"},
                summary="Of the 2 processes of fenced that may become leader none is it.",
                description="No series is watched, nothing is learned and no weights change; live"
                " weights are still served.",
            ),
        ],
    )
    assert code == 0, output
