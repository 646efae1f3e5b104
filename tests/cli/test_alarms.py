"""`evaluator alarms`: the table of series, and the commands for the leader."""

import json
import time

import pytest

from evaluator.cli import alarms, main
from evaluator.core.alarms.alarm import Alarm, Carrier, Context
from evaluator.core.online.alarm_watch import SeriesEvent
from evaluator.core.online.carriers import MIX
from evaluator.core.online.watched import SeriesName
from evaluator.exposition.alarm_sentence import alarm_sentence
from evaluator.wire.alarms.records import AlarmRefused, event_record, read_command, read_commands
from evaluator.wire.records import OutputRecord

SOURCE = "--source=kafka://localhost:9092"
NAME = SeriesName("gamma", "prod", "served", "ndcg@10", "", "", "own")
CARRIER = Carrier("locale", "de", 0.7, 0.3, -0.1)
MIXED = Carrier("", MIX, 0.25, 0.0, -0.01)
ALARM = Alarm(7_200_000, 3_600_000, 6, 0.031, 0.571, 0.602, 0.006, 1.7, 41_210)
CONTEXT = Context(0.8, 0.81, "served-bm25", -0.03, 0.004, (1_763_337_600_000,))
KNOWN = ALARM._replace(acknowledged=True, carried_by=(CARRIER,), context=CONTEXT)


@pytest.fixture
def topics(monkeypatch):
    """The records that are read, and the (key, value) pairs that are written."""
    records, written = [], []

    async def read(connection, prefix, output):
        assert output == "alarms"
        return records

    async def write(connection, prefix, key, value):
        written.append((json.loads(key), read_command(value)))

    monkeypatch.setattr(alarms, "read_weights", read)
    monkeypatch.setattr(alarms, "write_to_weights", write)
    return records, written


def test_the_table_has_the_last_event_of_each_series(topics, capsys):
    records, _ = topics
    assert main(["alarms", "list", SOURCE]) == 0
    assert "No alarm has been on yet." in capsys.readouterr().out
    german = NAME._replace(segment="locale", level="d\x1be")
    events = [
        SeriesEvent("on", NAME, 7_200_000, ALARM),
        SeriesEvent("on", german, 8_100_000, ALARM),
        SeriesEvent("off", NAME, 90_000_000, ALARM._replace(carried_by=(CARRIER, MIXED))),
        SeriesEvent("acknowledge", german, 9_000_000, KNOWN, "coverage"),
        SeriesEvent("exclude", NAME._replace(kind="constant"), 95_000_000, None),
    ]
    records += map(event_record, events)
    records.append(OutputRecord(b"other", b"{}"))  # is ignored
    assert main(["alarms", "list", SOURCE]) == 0
    table, sentence = capsys.readouterr().out.split("\n\n")
    text = alarm_sentence(german, KNOWN, "coverage")
    assert "served-bm25 fell by 0.030 too" in text
    assert sentence.splitlines() == [text, "Runbook: docs/runbooks.md#evaluatorqualityalarm"]
    lines = table.splitlines()
    assert [line.split("kind=")[1].split()[:2] for line in lines[1:]] == [
        ["own", "acknowledged"],
        ["own", "off"],
        ["constant", "off"],
    ]
    assert "level=d\\x1be" in lines[1]
    assert "1970-01-01 02:30" in lines[1]
    assert "0.5710" in lines[2]
    assert "0.6020" in lines[2]
    assert lines[2].endswith("1970-01-01 01:00  locale=de 70%, change of mix 25%")


def test_commands_are_sent_with_their_series(topics, capsys):
    records, written = topics
    records.append(event_record(SeriesEvent("on", NAME, 7_200_000, ALARM)))
    series = ["--series", "model=gamma", "--series", "kind=own"]
    assert main(["alarms", "acknowledge", SOURCE, *series]) == 0
    assert main(["alarms", "accept", SOURCE, *series]) == 0
    times = ["--from", "2025-12-24T00:00Z", "--to", "1766793600000"]
    assert main(["alarms", "exclude", SOURCE, *times]) == 0
    assert "takes effect once" in capsys.readouterr().out
    assert [command.action for _, command in written] == ["acknowledge", "accept", "exclude"]
    assert written[0][1].series == {"model": "gamma", "kind": "own"}
    assert written[2][1][2:5] == ({}, 1_766_534_400_000, 1_766_793_600_000)
    for key, command in written:
        assert key == ["alarm_command", command.id]
        assert command.applied_ms == 0


def test_a_command_without_an_alarm_is_refused(topics, capsys):
    records, written = topics
    other = NAME._replace(model="delta")
    records += [
        event_record(SeriesEvent("on", NAME, 7_200_000, ALARM)),
        event_record(SeriesEvent("off", other, 7_200_000, ALARM)),
    ]
    for series, action in (("model=delta", "accept"), ("model=gama", "acknowledge")):
        assert main(["alarms", action, SOURCE, "--series", series]) == 2
        error = capsys.readouterr().err
        assert f"no alarm of these series is on, so there is nothing to {action}." in error
        assert "On: model=gamma variant=prod" in error
    assert not written
    records.clear()
    assert main(["alarms", "accept", SOURCE, "--series", "model=gamma"]) == 2
    assert "On: none." in capsys.readouterr().err


def test_an_exclusion_that_may_have_no_effect_is_sent_with_a_warning(topics, capsys):
    _, written = topics
    times = ["--from", "2020-12-24T00:00Z", "--to", "2020-12-25T00:00Z"]
    assert main(["alarms", "exclude", SOURCE, *times, "--series", "model=gama"]) == 0
    error = capsys.readouterr().err
    assert "no alarm of these series has been on yet: check their labels" in error
    assert "these hours are more than 8 weeks old" in error
    now_ms = time.time_ns() // 1_000_000
    times = ["--from", str(now_ms), "--to", str(now_ms + 3_600_000)]
    assert main(["alarms", "exclude", SOURCE, *times]) == 0
    assert not capsys.readouterr().err
    assert len(written) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["accept"], "accept needs a series"),
        (["acknowledge", "--series", "gamma"], "is not LABEL=VALUE"),
        (["acknowledge", "--series", "colour=red"], "model, variant, ranker"),
        (["exclude", "--from", "1769846400001", "--to", "1769846400000"], "not a time of up to"),
        (["exclude", "--from", "2025-01-01", "--to", "2025-02-27"], "not a time of up to 8 weeks"),
        (["exclude", "--from", "2025-01-01", "--to", "1735776000"], "13: it may be a"),
    ],
)
def test_an_unusable_command_is_refused(topics, capsys, arguments, message):
    assert main(["alarms", arguments[0], SOURCE, *arguments[1:]]) == 2
    assert message in capsys.readouterr().err
    assert not topics[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action": "delete"}, "Invalid enum value"),
        ({"format": 2}, "Invalid enum value"),
        ({"series": {"colour": "red"}}, "no colour"),
        ({"action": "exclude", "from_ms": 5, "to_ms": 5}, "from_ms before to_ms"),
    ],
)
def test_records_of_commands_are_checked(changes, message):
    document = {"format": 1, "id": "x", "action": "accept", "series": {"model": "m"}} | changes
    with pytest.raises(AlarmRefused, match=message):
        read_command(json.dumps(document).encode())


def test_the_tick_of_a_command_is_read_from_its_log():
    line = {"format": 1, "id": "x", "action": "accept", "series": {}, "applied_ms": 900_000}
    [command] = read_commands([json.dumps(line).encode(), b""])
    assert command.applied_ms == 900_000
