"""Logs and counts of the inputs: positions that no longer exist, and retention."""

import asyncio
import re

import pytest
from structlog.testing import capture_logs

from evaluator.adapters.kafka import Connection, InputRetention, checks
from evaluator.adapters.kafka.membership import PositionBounds
from evaluator.ports import Committed, SourceUnavailable
from tests.waiting import patience

R0, J1 = ("rankings", 0), ("judgments", 1)
DAY_MS = 86_400_000


def outside(begin, end):
    """What is known of one log that holds so much, and of an empty other one."""
    known = PositionBounds()
    known.note({R0: begin, J1: 0}, ends=False)
    known.note({R0: end, J1: 0}, ends=True)
    return known


def compared(known, offset):
    with capture_logs() as logs:
        known.compare({R0: Committed(offset, ""), J1: Committed(0, "")})
    return logs


@pytest.mark.parametrize("offset", [8, 9, 20])
def test_what_a_log_holds_is_no_matter(offset):
    known = outside(8, 20)
    assert compared(known, offset) == []
    assert (known.counts.total(), known.lost.total()) == (0, 0)


def test_what_has_expired_before_it_was_read_is_said_and_counted_once():
    known = outside(8, 20)
    told = {"log": "rankings", "partition": 0, "records": 3, "committed": 5, "first": 8}
    assert compared(known, 5) == [{"event": "input_lost", "log_level": "warning", **told}]
    assert compared(known, 5) == []  # at the next rebalance
    assert dict(known.counts) == {("rankings", "before"): 1}
    assert dict(known.lost) == {"rankings": 3}


def test_a_position_beyond_its_log_is_counted_once_and_said_by_the_worker():
    known = outside(8, 20)
    assert compared(known, 21) == compared(known, 21) == []
    assert dict(known.counts) == {("rankings", "beyond"): 1}
    assert known.lost.total() == 0


@pytest.mark.parametrize(
    ("offset", "side", "n_lost", "told"),
    [
        (5, "before", 3, "not in its log, which holds 8 to 20: 3 records have expired .* longer"),
        (21, "beyond", 0, "not in its log, which holds 8 to 20: it was truncated, or the topic"),
        (9, "beyond", 0, "the topic was recreated"),  # and has grown meanwhile
    ],
)
def test_a_position_that_cannot_be_read_says_what_is_there_instead(offset, side, n_lost, told):
    known = outside(8, 20)
    error = known.unusable(R0, "p-rankings", offset)
    assert str(error).startswith(f"Offset {offset} of p-rankings-0 is the next to read")
    assert re.search(told, str(error))
    assert dict(known.counts) == {("rankings", side): 1}
    assert known.lost.total() == n_lost
    if side == "before":
        assert compared(known, offset) == []  # counted already


def test_without_bounds_a_position_is_still_told():
    assert "Offset 9 of p-rankings-0" in str(PositionBounds().unusable(R0, "p-rankings", 9))


# Retention


@pytest.fixture
def looks(monkeypatch):
    """Makes a watch that finds what it is given, one entry for each look."""

    def make(*found, needed_ms=DAY_MS):
        answers = list(found)

        async def described(connection, names):
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return {f"p-{name}": {"retention.ms": kept} for name, kept in answer.items()}

        monkeypatch.setattr(checks, "described", described)
        connection = Connection("b:1", security_protocol="SSL")
        watch = InputRetention(connection, topic_prefix="p-", needed_ms=needed_ms)

        def look():
            with capture_logs() as logs:
                answered = asyncio.run(watch.look())
            return answered, [(line["event"], line.get("retention_ms")) for line in logs], logs

        return watch, look

    return make


def test_a_retention_that_is_too_short_is_said_once_per_change(looks):
    long, short, shorter = str(DAY_MS + 1), str(DAY_MS), "1000"
    watch, look = looks(
        {"rankings": long, "judgments": "-1"},
        {"rankings": short, "judgments": "-1"},
        {"rankings": short, "judgments": "-1"},
        {"rankings": shorter, "judgments": "-1"},
        {"rankings": long, "judgments": "-1"},
        {"rankings": short, "judgments": "-1"},
    )
    said = []
    for _ in range(6):
        answered, events, logs = look()
        assert answered
        said.append(events)
    assert said == [
        [],
        [("input_retention_short", DAY_MS)],
        [],
        [("input_retention_short", 1000)],
        [],
        [("input_retention_short", DAY_MS)],
    ]
    assert logs[0]["needed_ms"] == DAY_MS
    assert logs[0]["command"] == (
        "kafka-configs.sh --bootstrap-server b:1 --command-config admin.properties --alter "
        "--entity-type topics --entity-name p-rankings --add-config retention.ms=172800000"
    )
    assert watch.known == {"rankings": DAY_MS, "judgments": None}


def test_what_is_not_to_be_seen_is_said_once_and_what_is_away_never(looks):
    watch, look = looks({"rankings": "-1"}, {"rankings": "-1"}, SourceUnavailable("gone"), {})
    assert look()[:2] == (True, [("input_retention_unknown", None)])
    assert look()[:2] == (True, [])
    assert look()[:2] == (False, [])
    assert watch.known == {"rankings": None}
    assert look()[:2] == (True, [("input_retention_unknown", None)])
    assert watch.known == {}


async def test_watching_ends_though_the_library_swallows_the_cancellation(monkeypatch):
    looked = asyncio.Event()

    async def described(connection, names):
        looked.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return {}

    monkeypatch.setattr(checks, "described", described)
    async with patience(), InputRetention(Connection("b:1"), needed_ms=1).watching():
        await looked.wait()


async def test_a_defect_in_watching_is_not_kept_quiet(monkeypatch):
    async def described(connection, names):
        raise ZeroDivisionError

    monkeypatch.setattr(checks, "described", described)
    watching = InputRetention(Connection("b:1"), needed_ms=1).watching()
    await watching.__aenter__()
    await asyncio.sleep(0.01)
    with pytest.raises(ZeroDivisionError):
        await watching.__aexit__(None, None, None)
