"""Alarms of the leader inside a worker on a real broker: killed, it publishes a replay's events."""

import asyncio
import json

import pytest

from evaluator.adapters.kafka import read_weights
from evaluator.cli import main
from tests.kafka.test_alarm import QUICK, records
from tests.oracle.messages import Raw

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

N_TASKS = 2


def in_tasks(falls: bool) -> dict[tuple[str, int], list[Raw]]:
    """The same records in two partitions, by trace."""
    made = {(log, task): [] for log in ("rankings", "judgments") for task in range(N_TASKS)}
    for (log, _), raws in records(falls=falls).items():
        for number, raw in enumerate(raws):
            made[log, number % N_TASKS].append(raw)
    return made


def published(world, topic):
    """The records of a topic of the leader, each once: a crash may repeat one."""
    found = asyncio.run(read_weights(world.connection, world.prefix, topic))
    return list(dict.fromkeys(record.value for record in found if record.value))


def watched_until(worker):
    """The end of the last closed tick; None while it does not lead."""
    return worker.document("/status").get("leader", {}).get("alarms", {}).get("watched_until_ms")


def test_a_killed_leader_publishes_the_events_of_a_replay(make_world, start, tmp_path, capsys):
    world = make_world(N_TASKS, settings=QUICK)
    halves = {}
    for partition, raws in in_tasks(falls=True).items():
        halves[partition] = raws[: len(raws) // 2], raws[len(raws) // 2 :]
    world.produce({partition: half[0] for partition, half in halves.items()})
    worker = start(world, alarms="on", max_poll_records=300)
    worker.eventually(lambda: watched_until(worker))
    worker.end()
    world.produce({partition: half[1] for partition, half in halves.items()})
    again = start(world, alarms="on")
    flags = [f"--set={name}={value}" for name, value in again.settings.items()]
    source = f"--source=kafka://{world.bootstrap}"
    exclude = ["alarms", "exclude", source, "--from", "2025-01-01", "--to", "2025-01-02", *flags]
    again.eventually(lambda: published(world, "alarms"))
    assert main(exclude) == 0  # executed when the open tick is closed: here by a replay alone
    [on] = [json.loads(value) for value in published(world, "alarms")]
    assert (on["event"], on["series"]["measure"], on["series"]["kind"]) == ("on", "ndcg@10", "own")
    assert main(["alarms", "list", source, *flags]) == 0
    assert "model=ranker" in capsys.readouterr().out
    out = tmp_path / "replayed"
    assert main(["replay", source, "--out", str(out), "--force", *flags]) == 0
    assert (out / "alarms.ndjson").read_bytes().splitlines() == published(world, "alarms")
    assert main(["alarms", "backtest", source, *flags]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "still on" in line]
    assert f"  {on['observed']:.4f}    {on['expected']:.4f}  {on['se']:.4f} " in row
    assert again.stop() == 0
