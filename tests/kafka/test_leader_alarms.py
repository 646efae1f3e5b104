"""Alarms of the leader of a worker on a real broker: killed, it publishes the replay's events."""

import json
from itertools import count

import pytest

from evaluator.adapters.kafka import read_weights
from evaluator.cli import main
from tests.kafka.test_alarm import HOURS, QUICK, records
from tests.kafka.world import answered
from tests.oracle.messages import Raw

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

N_TASKS = 2


def in_tasks(hours: range = range(HOURS)) -> dict[tuple[str, int], list[Raw]]:
    """The records of the ranker whose quality drops, in two partitions by trace."""
    made = {(log, task): [] for log in ("rankings", "judgments") for task in range(N_TASKS)}
    for (log, _), raws in records(drops=True, hours=hours).items():
        for number, raw in enumerate(raws):
            made[log, number % N_TASKS].append(raw)
    return made


def published(world, topic):
    """The records of a topic of the leader, each once: a crash may repeat one."""
    found = answered(lambda: read_weights(world.connection, world.prefix, topic))
    return list(dict.fromkeys(record.value for record in found if record.value))


def watched_until(worker):
    """The end of the last closed tick; None while it does not lead."""
    return worker.document("/status").get("leader", {}).get("alarms", {}).get("watched_until_ms")


def test_a_killed_leader_publishes_the_events_of_a_replay(make_world, start, tmp_path, capsys):
    world = make_world(N_TASKS, settings=QUICK)
    halves = {}
    for partition, raws in in_tasks().items():
        halves[partition] = raws[: len(raws) // 2], raws[len(raws) // 2 :]
    world.produce({partition: half[0] for partition, half in halves.items()})
    worker = start(world, alarms="on", max_poll_records=300)
    worker.eventually(lambda: watched_until(worker))
    worker.end()
    world.produce({partition: half[1] for partition, half in halves.items()})
    again = start(world, alarms="on")
    flags = [f"--set={name}={value}" for name, value in again.settings.items()]
    source = f"--source=kafka://{world.bootstrap}"
    again.eventually(lambda: published(world, "alarms"))
    [on] = [json.loads(value) for value in published(world, "alarms")]
    assert (on["event"], on["series"]["measure"], on["series"]["kind"]) == ("on", "ndcg@10", "own")
    assert main(["alarms", "acknowledge", source, "--series", "measure=ndcg@10", *flags]) == 0
    times = ["--from", "2025-11-01", "--to", "2025-11-02"]
    assert main(["alarms", "exclude", source, *times, *flags]) == 0
    hours = count(HOURS)

    def are_executed() -> bool:
        """They take effect with a tick that closes after the leader has read them."""
        first = next(hours)
        world.produce(in_tasks(range(first, first + 1)))
        return len(published(world, "alarm-commands")) == 2

    again.eventually(are_executed)
    out = tmp_path / "replayed"
    assert main(["replay", source, "--out", str(out), "--force", *flags]) == 0
    commands = (out / "alarm-commands.ndjson").read_bytes().splitlines()
    assert commands == published(world, "alarm-commands")
    events = (out / "alarms.ndjson").read_bytes().splitlines()
    again.eventually(lambda: published(world, "alarms") == events)
    by_name = {event["event"]: event for event in map(json.loads, events)}
    assert by_name.keys() == {"on", "acknowledge", "exclude"}
    assert by_name["acknowledge"]["drop"] == on["drop"]
    applied_ms = {of["action"]: of["applied_ms"] for of in map(json.loads, commands)}
    assert applied_ms == {name: by_name[name]["time_ms"] for name in applied_ms}
    capsys.readouterr()
    assert main(["alarms", "list", source, *flags]) == 0
    assert "model=ranker" in capsys.readouterr().out
    assert main(["alarms", "backtest", source, *flags]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "still on" in line]
    assert f"  {on['observed']:.4f}    {on['expected']:.4f}  {on['se']:.4f} " in row
    assert again.stop() == 0
