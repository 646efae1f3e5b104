"""Memory, disk and open files against their limits."""

import pytest

from tests.deploy.rules import World, expected_alert, steps

N, FAULT = 60, 20
GB = 10**9


@pytest.mark.promtool
def test_only_resources_near_their_limits_fire(tmp_path):
    world = World(step_minutes=1, n=N)

    def put(job, name, before, after=None, **labels):
        values = steps((before, FAULT), (before if after is None else after, N + 1 - FAULT))
        world.put(name, values, job=job, instance="a", **labels)

    for job in ("fine", "no-limits", "memory", "disk", "store", "files", "another-program"):
        if job != "another-program":
            put(job, "evaluator_build_info", 1)
            put(job, "evaluator_disk_free_bytes", 5 * GB, 1 * GB if job == "disk" else None)
            put(
                job, "evaluator_state_bytes", 3 * GB, 3.7 * GB if job == "store" else None, task="1"
            )
        if job not in {"no-limits", "another-program"}:
            put(job, "evaluator_memory_limit_bytes", 2 * GB)
            put(job, "evaluator_state_limit_bytes", 4 * GB)
        put(job, "process_resident_memory_bytes", 1 * GB, 1.9 * GB if job == "memory" else None)
        put(job, "process_max_fds", 1_000)
        many = job in {"files", "another-program"}
        put(job, "process_open_fds", 100, 850 if many else None)
    near = [
        ("EvaluatorDiskLow", "disk"),
        ("EvaluatorMemoryHigh", "memory"),
        ("EvaluatorOpenFiles", "files"),
        ("EvaluatorStoreNearLimit", "store"),
    ]
    code, output = world.check(
        tmp_path / "tests.yml",
        firing={"19m": [], "60m": near},
        alert_rule_test=[
            expected_alert(
                "EvaluatorMemoryHigh",
                "60m",
                {"job": "memory", "instance": "a"},
                summary="a of memory uses 0.95 of its memory limit.",
                description="At the limit the process is killed. It starts again from its store,"
                " and may be killed again.",
            ),
            expected_alert(
                "EvaluatorDiskLow",
                "60m",
                {"job": "disk", "instance": "a"},
                summary="The disk of a of disk has 953.7MiB left.",
                description="On a full disk the worker ends with exit code 4.",
            ),
        ],
    )
    assert code == 0, output
