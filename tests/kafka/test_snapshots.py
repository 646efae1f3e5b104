"""Real processes with snapshots: a worker that loses its disk continues from its snapshot."""

import shutil
import signal

import pytest

from tests.oracle.totals import comparable
from tests.worker.traffic import traffic

pytestmark = pytest.mark.kafka


def append_part(world, begin, end):
    world.append({task: traffic(task).part(begin, end) for task in range(world.n_tasks)})


def test_a_worker_that_loses_its_disk_continues_from_its_snapshot(world, start, tmp_path):
    state, folder = tmp_path / "state", tmp_path / "snapshots"
    with_snapshots = {"snapshot_url": f"file://{folder}", "snapshot_interval_ms": 1_000}
    append_part(world, 0, 0.7)
    killed = start(world, state_dir=state, max_poll_records=40, **with_snapshots)
    killed.until_read(world.ends())
    first = world.ends()
    n_first = sum(first.values())
    tasks = range(world.n_tasks)
    progress = {task: first[f"rankings-{task}"] + first[f"judgments-{task}"] for task in tasks}

    def written() -> bool:
        return all(list(folder.glob(f"*/*/{task}/*/{progress[task]}.json")) for task in tasks)

    killed.eventually(written)
    killed.eventually(
        lambda: all(each["last_snapshot_bytes"] for each in killed.document("/status")["tasks"])
    )
    killed.signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    shutil.rmtree(state)

    append_part(world, 0.7, 1)
    back = start(world, state_dir=state, **with_snapshots)
    back.until_read(world.ends())
    back.until_ready()
    assert comparable(back.totals) == world.truth().totals
    fetched = {event["task"]: event["positions"] for event in back.events("snapshot_fetched")}
    assert {task: sum(fetched[task].values()) for task in tasks} == progress
    samples = back.samples()
    assert samples['evaluator_snapshot_bytes_total{direction="fetched"}'] > 0
    assert samples['evaluator_snapshot_failures_total{operation="fetch"}'] == 0
    assert samples['evaluator_snapshot_timestamp_seconds{task="0"}'] > 0
    assert not back.events("task_restored"), "no record before the snapshots is read again"
    assert back.stop() == 0
    (stopped,) = back.events("worker_stopped")
    assert stopped["records"] == sum(world.ends().values()) - n_first
    world.truth().check_outputs(world.outputs(), once=False)
    assert "Traceback" not in killed.err + back.err
