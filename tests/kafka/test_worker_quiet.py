"""Quiet partitions, with and without heartbeats."""

import json
import time
from dataclasses import replace

import pytest

from evaluator.cli import main
from tests.kafka.process import arguments_of
from tests.kafka.world import lanes
from tests.oracle.messages import Raw
from tests.oracle.totals import comparable
from tests.worker.traffic import LONG_AGO_MS, SETTINGS, traffic
from tests.worker.truth import taken_in_order

pytestmark = pytest.mark.kafka

SOON = replace(SETTINGS, maturity_ms=100, out_of_orderness_ms=50)


def ranking(trace_id, at_ms):
    message = {"schema_version": 1, "trace_id": trace_id, "node_id": "n", "timestamp_ms": at_ms}
    value = json.dumps({**message, "candidate_ids": ["a", "b"], "scores": [2, 1]}).encode()
    return Raw(0, at_ms, value, trace_id.encode())


def now_ms():
    return time.time_ns() // 1_000_000


def settled(world):
    """The settled queries, without watermark records."""
    return [record for record in lanes(world.outputs(), "settled") if record.key is not None]


def test_a_quiet_partition_settles_and_history_gets_no_heartbeats(make_world, start):
    world, began_ms = make_world(3, settings=SOON), now_ms()
    world.produce({
        ("rankings", 0): [ranking("now", began_ms)],
        ("rankings", 1): [ranking("then", LONG_AGO_MS)],
    })  # fmt: skip
    worker = start(world, idle_ms=200)
    worker.eventually(lambda: settled(world))
    assert worker.stop() == 0
    truth = world.truth()
    assert truth.check_settled(world.outputs()) == 1
    beats = {
        (log, task): [raw for raw in raws if raw.value is None]
        for task, logs in world.inputs().items()
        for log, raws in zip(("rankings", "judgments"), logs, strict=True)
    }
    assert {each for each, found in beats.items() if found} == {("rankings", 0), ("judgments", 0)}
    for found in beats.values():
        assert all(raw.key is None and began_ms < raw.timestamp_ms <= now_ms() for raw in found)


def test_without_heartbeats_a_quiet_partition_does_not_settle(make_world, start):
    world = make_world(1, settings=SOON)
    world.produce({("rankings", 0): [ranking("now", now_ms())]})
    worker = start(world, idle_ms=0, heartbeats="off")
    worker.until_read(world.ends())
    read_ms = now_ms()
    worker.eventually(lambda: worker.document("/status")["last_commit_ms"] > read_ms + 1_000)
    assert worker.document("/status")["settings"]["heartbeats"] is False
    assert worker.stop() == 0
    assert world.ends() == {"rankings-0": 1, "judgments-0": 0}
    assert not settled(world)


def archive(world, ends, folder):
    """Raw records before *ends* in Parquet, as a connector names them: two objects of each log."""
    pa = pytest.importorskip("pyarrow", reason="of the group compare")
    parquet = pytest.importorskip("pyarrow.parquet", reason="of the group compare")
    folder.mkdir()
    for task, logs in world.inputs().items():
        for log, raws in zip(("rankings", "judgments"), logs, strict=True):
            known = [raw for raw in raws if raw.offset < ends[f"{log}-{task}"]]
            for part in (known[: len(known) // 2], known[len(known) // 2 :]):
                times_ms = [raw.timestamp_ms for raw in part]
                columns = {
                    "key": pa.array([raw.key for raw in part], pa.binary()),
                    "value": pa.array([raw.value for raw in part], pa.binary()),
                    "timestamp": pa.array(times_ms, pa.timestamp("ms", tz="UTC")),
                    "offset": [raw.offset for raw in part],
                }
                name = f"{world.prefix}{log}+{task}+{part[0].offset:010d}.parquet"
                parquet.write_table(pa.table(columns), folder / name)


def test_a_replay_of_an_archive_with_heartbeats_and_times_equals_the_live_worker(
    make_world, start, tmp_path
):
    """The last queries settle by heartbeats alone, and one is too far ahead of its record."""
    world, start_ms = make_world(2), now_ms() - 3_600_000
    world.append({task: traffic(5 + task, n_queries=40, start_ms=start_ms) for task in (0, 1)})
    ahead = ranking("ahead", start_ms + 301_000)
    world.produce({("rankings", 0): [replace(ahead, timestamp_ms=start_ms)]})
    ends, worker = world.ends(), start(world, idle_ms=200)

    def settled_by_heartbeats():
        totals = worker.totals
        queries, read = totals.get("queries", {}), totals.get("positions", {})
        beaten = all(read.get(name, 0) > end for name, end in ends.items())
        return totals if beaten and queries["settled"] == queries["started"] else None

    live = worker.eventually(settled_by_heartbeats)
    assert worker.stop() == 0
    assert live["queries"]["started"] > 0
    assert live["dead_letters"]["future"]

    archive(world, live["positions"], tmp_path / "archive")
    chosen = {**arguments_of(world.settings), "topic_prefix": world.prefix, "alarms": "off"}
    arguments = ["--source", f"archive://{tmp_path / 'archive'}", "--out", str(tmp_path / "out")]
    arguments += [f"--set={name}={value}" for name, value in chosen.items()]
    assert main(["replay", *arguments, "--strict", "--at-end=hold"]) == 0
    assert comparable(json.loads((tmp_path / "out" / "totals.json").read_bytes())) == (
        comparable(live)
    )
    lines = (tmp_path / "out" / "settled.ndjson").read_text("utf-8").splitlines()
    outputs = world.outputs()
    for task in (0, 1):
        rows = [row for row in map(json.loads, lines) if row["task"] == task]
        assert rows == taken_in_order(outputs["settled", task])
