"""`weights`: commands that replace others, and a state deleted while a leader runs."""

import contextlib

import pytest

from evaluator.cli import main, weights
from evaluator.config import load_settings
from evaluator.core.online.events import Command
from evaluator.ports import Fenced
from evaluator.wire.records import OutputRecord
from evaluator.wire.weights.leader_state import (
    STATE_KEY,
    command_key,
    command_record,
    emptied_state,
    read_state,
)

WHERE = "--source=kafka://a:1"
GROUP = ("--set=group_id=g", "--set=session_timeout_ms=4000")
LAST = {"model": "m", "epoch": 2, "version": 7, "checksum": "x", "event_time_ms": 9}


def commanded(number):
    command = Command(number, "freeze", "a fair")
    return OutputRecord(command_key("m"), command_record(command))


@pytest.mark.parametrize(
    ("executed", "number", "pending"),
    [(None, 3, True), (2, 3, True), (3, 3, False), (4, 3, False)],
)
def test_a_command_is_replaced_until_the_state_of_the_leader_has_its_number(
    executed, number, pending
):
    records = [commanded(1), commanded(number)]
    if executed is not None:
        records.append(OutputRecord(STATE_KEY, emptied_state([LAST], {"m": executed})))
    found = weights.replaced_command(records, "m")
    assert (found is not None and found.number == number) == pending
    assert weights.replaced_command(records, "other") is None


@pytest.fixture
def topics(monkeypatch):
    """Records of both topics, in memory; by name, as they are now."""
    records = {"weights": [], "weights-log": []}

    async def read(_connection, _prefix, name):
        return records[name]

    monkeypatch.setattr(weights, "read_weights", read)
    monkeypatch.setattr(weights, "read_log_record", lambda _value: LAST)
    return records


def fencing(monkeypatch, topics, n_fenced):
    """A leader that publishes this many times between the fence and the state."""
    left = iter([True] * n_fenced)

    @contextlib.asynccontextmanager
    async def leader_fenced(_connection, _prefix, *group):
        assert group == ("g", 4_000)

        async def write(key, value):
            if next(left, False):
                raise Fenced("Another leader has taken leadership.")
            topics["weights"].append(OutputRecord(key, value))

        yield write

    monkeypatch.setattr(weights, "leader_fenced", leader_fenced)


def test_forget_fences_again_if_the_leader_published_meanwhile(monkeypatch, topics, capsys):
    topics["weights"].append(commanded(3))
    topics["weights-log"].append(OutputRecord(b"k", b"a record"))
    fencing(monkeypatch, topics, 4)
    assert main(["weights", "forget", WHERE, *GROUP]) == 0
    assert "The state is deleted" in capsys.readouterr().out
    [model] = read_state(topics["weights"][-1].value).state["models"]
    assert (model["epoch"], model["version"], model["last_command"]) == (2, 7, 3)


def test_forget_gives_up_with_the_remedy_if_the_leader_keeps_publishing(
    monkeypatch, topics, capsys
):
    fencing(monkeypatch, topics, weights._MOST_ATTEMPTS)
    assert main(["weights", "forget", WHERE, *GROUP]) == 3
    assert "repeat the command" in capsys.readouterr().err
    assert topics["weights"] == []


def test_a_table_has_the_transforms_beside_the_features(monkeypatch, topics, capsys):
    transforms = {"a": {"low": 0.0, "high": 30.0, "log1p": True}}
    shown = {
        **LAST,
        "status": "rolled_back",
        "of_version": 7,
        "feature_names": ["a", "b"],
        "weights": [0.5, -2.0],
        "transforms": transforms,
    }
    topics["weights-log"].append(OutputRecord(b"k", b"a record"))
    monkeypatch.setattr(weights, "read_log_record", lambda _value: shown)
    assert main(["weights", "show", WHERE]) == 0
    assert "a[clip:0:30+log1p]=0.5 b=-2\n" in capsys.readouterr().out


LIVE = {
    **LAST,
    "status": "promoted",
    "feature_names": ["age", "price\x1b"],
    "transforms": {"age": {"low": 0.0, "high": 30.0, "log1p": False}},
}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("age=clip:0:30", []),
        (
            "age=clip:0:40",
            ["live weights of 'm' have other transforms than feature_transforms, of "],
        ),
        ("age=clip:0:30,pric=log1p", ["names pric, and no model with weights has such a feature"]),
        ("", ["live weights of 'm' have other transforms than feature_transforms, of age."]),
    ],
)
def test_check_compares_transforms_with_those_of_live_weights(given, found, topics, monkeypatch):
    earlier = {**LIVE, "transforms": {}, "feature_names": ["pric"]}
    learned = {**LIVE, "status": "challenger", "transforms": {}}
    records = iter([earlier, LIVE, learned])
    topics["weights-log"] += [OutputRecord(b"k", b"a record")] * 3
    monkeypatch.setattr(weights, "read_log_record", lambda _value: next(records))
    transforms = {"feature_transforms": given} if given else {}
    settings = load_settings(
        environment={}, assignments=[f"{name}={text}" for name, text in transforms.items()]
    )
    findings = weights.transform_findings(None, settings)
    assert [finding.severity for finding in findings] == ["warning"] * len(found)
    for finding, text in zip(findings, found, strict=True):
        assert text in finding.what
        assert finding.what.isprintable()


def test_check_without_live_weights_has_nothing_to_compare(topics):
    settings = load_settings(environment={}, assignments=["feature_transforms=age=log1p"])
    assert weights.transform_findings(None, settings) == []
