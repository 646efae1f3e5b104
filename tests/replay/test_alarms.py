"""Alarms of a replay: the events of a leader, whatever the batches, partitions and tasks."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

from evaluator.cli import main
from tests.core.alarms.naive import Naive
from tests.core.alarms.settled import HOUR_MS, START_MS

pytestmark = pytest.mark.slow

HOURS = 2 * 168 + 36
DROP_HOUR = 2 * 168 + 10
MATURITY_MS = 600_000
TICK_MS = 900_000


def write_world(directory: Path, n_partitions: int) -> list[tuple[int, str, float]]:
    """Rankings whose relevant candidate is first, and later third; returns the values."""
    random = Random(5)
    directory.mkdir()
    logs = {
        (log, task): (directory / f"{log}-{task}.ndjson").open("w")
        for log in ("rankings", "judgments")
        for task in range(n_partitions)
    }
    values = []
    times = sorted(random.randrange(HOURS * HOUR_MS) for _ in range(HOURS * 8))
    for number, ms in enumerate(times):
        time_ms, trace = START_MS + ms, f"t-{number // 2}"
        worse = ms >= DROP_HOUR * HOUR_MS
        place = 2 if worse and random.random() < 0.8 else int(random.random() < 0.1)
        ids = [f"c-{i}" for i in range(3)]
        ranking = {
            "schema_version": 1,
            "trace_id": trace,
            "node_id": str(number),
            "timestamp_ms": time_ms,
            "model": "gamma",
            "variant": "prod",
            "candidate_ids": ids,
            "scores": [3, 2, 1],
            "features": [[3, 0], [2, 0], [1, 0]],
            "segments": {"locale": "de" if number % 3 else "fr"},
        }
        judgment = {
            "schema_version": 1,
            "trace_id": trace,
            "node_id": str(number),
            "timestamp_ms": time_ms + 1,
            "grades": {ids[place]: 1},
        }
        task = number // 2 % n_partitions
        logs["rankings", task].write(json.dumps(ranking) + "\n")
        logs["judgments", task].write(json.dumps(judgment) + "\n")
        values.append((time_ms, trace, (1.0, 0.5, 1 / 3)[place]))
    for file in logs.values():
        file.close()
    return values


def same_order(features: np.ndarray) -> np.ndarray:
    """A model of others that repeats the served order."""
    return features[:, 0]


SCORER = (f"--scorer=mine={__name__}:same_order", "--set=alarm_rankers=served,mine")


def replayed(source: Path, out: Path, *more: str) -> list[dict]:
    settings = (
        f"maturity_ms={MATURITY_MS}",
        "measures=mrr",
        "alarm_measures=mrr",
        "segments=locale",
        "alarm_levels=locale=de,locale=fr",
        "alarm_objectives=mrr=0.8",
    )
    arguments = [each for text in settings for each in ("--set", text)]
    source_arguments = ["--source", f"file://{source}", "--out", str(out)]
    assert main(["replay", *source_arguments, *arguments, *more]) == 0
    return [json.loads(line) for line in (out / "alarms.ndjson").read_text().splitlines()]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    directory = tmp_path_factory.mktemp("world")
    values = write_world(directory / "one", 1)
    write_world(directory / "three", 3)
    return directory, values


@pytest.fixture(scope="module")
def of_one(world, tmp_path_factory):
    """The results of one partition, and its events."""
    out = tmp_path_factory.mktemp("of_one") / "out"
    return out, replayed(world[0] / "one", out)


def test_a_replay_has_the_events_of_the_naive_implementation(world, tmp_path):
    directory, values = world
    naive = Naive("own")
    by_tick = {}
    for time_ms, trace, value in values:
        by_tick.setdefault(time_ms // TICK_MS, []).append((time_ms, trace, round(value * 2**40)))
    for tick in range(min(by_tick), max(by_tick) + 1):
        for query in by_tick.get(tick, ()):
            naive.query(*query)
        naive.tick((tick + 1) * TICK_MS)
    events = replayed(directory / "one", tmp_path / "out", *SCORER)
    of_model = [event for event in events if event["series"]["ranker"] == "mine"]
    events = [event for event in events if event["series"]["ranker"] == "served"]
    found = [
        event
        for event in events
        if event["series"]["kind"] == "own"
        and event["series"]["measure"] == "mrr"
        and not event["series"]["level"]
    ]
    assert [(event["event"], event["time_ms"]) for event in found] == [
        (name, end_ms) for name, end_ms, _ in naive.events
    ]
    assert found[0]["drop"] == naive.events[0][2]["d"]
    assert found[0]["evidence"] == naive.events[0][2]["evidence"]
    assert found[0]["onset_ms"] == START_MS + DROP_HOUR * HOUR_MS
    kinds = {(event["series"]["kind"], event["series"]["level"]) for event in events}
    assert kinds == {("own", ""), ("own", "de"), ("own", "fr"), ("constant", "")}
    assert found[0]["carried_by"][0]["level"] == "de"  # two thirds of the queries
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["settings"]["alarms"]["alarm_tolerance"] == 0.01
    assert manifest["counts"]["alarms"] == len(events) + len(of_model)

    like_served = [{**each, "series": {**each["series"], "ranker": "served"}} for each in of_model]
    # a model of others is alarmed like the served order that it repeats, but has no objectives
    assert like_served == [event for event in events if event["series"]["kind"] == "own"]
    assert like_served


def test_partitions_and_batches_do_not_change_the_bytes(world, of_one, tmp_path):
    directory, _ = world
    more = ("--set", "max_poll_records=77")
    replayed(directory / "three", tmp_path / "three", *more)
    texts = [(out / "alarms.ndjson").read_bytes() for out in (of_one[0], tmp_path / "three")]
    assert texts[0] == texts[1]


def test_commands_beside_the_logs_are_repeated(world, of_one, tmp_path):
    directory, _ = world
    source = tmp_path / "source"
    source.mkdir()
    for path in (directory / "one").iterdir():
        (source / path.name).symlink_to(path)
    _, [first, *_] = of_one
    command = {
        "format": 1,
        "id": "holiday",
        "action": "exclude",
        "series": {"model": "gamma"},
        "from_ms": START_MS + (DROP_HOUR - 2) * HOUR_MS,
        "to_ms": START_MS + HOURS * HOUR_MS,
        "applied_ms": first["time_ms"] - 2 * TICK_MS,
    }
    (source / "alarm-commands.ndjson").write_text(json.dumps(command) + "\n")
    events = replayed(source, tmp_path / "after")
    names = {event["event"] for event in events if event["time_ms"] > command["applied_ms"]}
    assert "on" not in names
    text = (tmp_path / "after" / "alarm-commands.ndjson").read_text()
    assert json.loads(text) == command
    again = tmp_path / "again"
    (source / "alarm-commands.ndjson").write_text(text)
    replayed(source, again)
    assert (again / "alarms.ndjson").read_bytes() == (
        tmp_path / "after" / "alarms.ndjson"
    ).read_bytes()


def test_a_log_of_commands_that_cannot_be_read_is_refused(world, tmp_path, capsys):
    directory, _ = world
    source = tmp_path / "source"
    source.mkdir()
    for path in (directory / "one").iterdir():
        (source / path.name).symlink_to(path)
    line = {"format": 1, "id": "x", "action": "accept", "series": {}}
    (source / "alarm-commands.ndjson").write_text(json.dumps(line) + "\n")
    assert main(["replay", "--source", f"file://{source}", "--out", str(tmp_path / "out")]) == 3
    assert "without applied_ms" in capsys.readouterr().err


def test_without_alarms_there_are_no_such_files(world, tmp_path):
    directory, _ = world
    arguments = ["--source", f"file://{directory / 'one'}", "--out", str(tmp_path / "out")]
    assert main(["replay", *arguments, "--set", "alarms=off"]) == 0
    assert not (tmp_path / "out" / "alarms.ndjson").exists()
