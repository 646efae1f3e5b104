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
    """The known bounds of one log with these offsets, and of another, empty one."""
    known = PositionBounds()
    known.note({R0: begin, J1: 0}, ends=False)
    known.note({R0: end, J1: 0}, ends=True)
    return known


def compared(known, offset):
    with capture_logs() as logs:
        known.compare({R0: Committed(offset, ""), J1: Committed(0, "")})
    return logs


@pytest.mark.parametrize("offset", [8, 9, 20])
def test_an_offset_within_its_log_is_not_reported(offset):
    known = outside(8, 20)
    assert compared(known, offset) == []
    assert (known.counts.total(), known.lost.total()) == (0, 0)


def test_records_expired_before_they_were_read_are_logged_and_counted_once():
    known = outside(8, 20)
    fields = {"log": "rankings", "partition": 0, "records": 3, "committed": 5, "first": 8}
    assert compared(known, 5) == [{"event": "input_lost", "log_level": "warning", **fields}]
    assert compared(known, 5) == []  # at the next rebalance
    assert dict(known.counts) == {("rankings", "before"): 1}
    assert dict(known.lost) == {"rankings": 3}


def test_a_position_beyond_its_log_is_counted_once_and_logged_by_the_worker():
    known = outside(8, 20)
    assert compared(known, 21) == compared(known, 21) == []
    assert dict(known.counts) == {("rankings", "beyond"): 1}
    assert known.lost.total() == 0


@pytest.mark.parametrize(
    ("offset", "side", "n_lost", "message"),
    [
        (5, "before", 3, "not in its log, which holds 8 to 20: 3 records have expired .* longer"),
        (21, "beyond", 0, "not in its log, which holds 8 to 20: it was truncated, or the topic"),
        (9, "beyond", 0, "the topic was recreated"),  # and has grown meanwhile
    ],
)
def test_the_error_for_an_unreadable_position_names_the_available_range(
    offset, side, n_lost, message
):
    known = outside(8, 20)
    error = known.unusable(R0, "p-rankings", offset)
    assert str(error).startswith(f"Offset {offset} of p-rankings-0 is the next to read")
    assert re.search(message, str(error))
    assert dict(known.counts) == {("rankings", side): 1}
    assert known.lost.total() == n_lost
    if side == "before":
        assert compared(known, offset) == []  # counted already


def test_an_unreadable_position_is_reported_without_bounds_too():
    assert "Offset 9 of p-rankings-0" in str(PositionBounds().unusable(R0, "p-rankings", 9))


# Retention


@pytest.fixture
def looks(monkeypatch):
    """Creates a watch that finds the given entries, one for each look."""

    def make(*found, needed_ms=DAY_MS):
        entries = list(found)

        async def described(connection, names):
            entry = entries.pop(0)
            if isinstance(entry, Exception):
                raise entry
            return {f"p-{name}": {"retention.ms": kept} for name, kept in entry.items()}

        monkeypatch.setattr(checks, "described", described)
        connection = Connection("b:1", security_protocol="SSL")
        watch = InputRetention(connection, topic_prefix="p-", needed_ms=needed_ms)

        def look():
            with capture_logs() as logs:
                is_available = asyncio.run(watch.look())
            return is_available, [(line["event"], line.get("retention_ms")) for line in logs], logs

        return watch, look

    return make


def test_a_too_short_retention_is_logged_once_per_change(looks):
    long, short, shorter = str(DAY_MS + 1), str(DAY_MS), "1000"
    watch, look = looks(
        {"rankings": long, "judgments": "-1"},
        {"rankings": short, "judgments": "-1"},
        {"rankings": short, "judgments": "-1"},
        {"rankings": shorter, "judgments": "-1"},
        {"rankings": long, "judgments": "-1"},
        {"rankings": short, "judgments": "-1"},
    )
    logged = []
    for _ in range(6):
        is_available, events, logs = look()
        assert is_available
        logged.append(events)
    assert logged == [
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


def test_an_unknown_retention_is_logged_once_and_an_unavailable_broker_never(looks):
    watch, look = looks({"rankings": "-1"}, {"rankings": "-1"}, SourceUnavailable("gone"), {})
    assert look()[:2] == (True, [("input_retention_unknown", None)])
    assert look()[:2] == (True, [])
    assert look()[:2] == (False, [])
    assert watch.known == {"rankings": None}
    assert look()[:2] == (True, [("input_retention_unknown", None)])
    assert watch.known == {}


def polled():
    event = asyncio.Event()
    event.set()
    return event


async def test_the_inputs_are_described_after_the_first_poll(monkeypatch):
    looked = asyncio.Event()

    async def described(connection, names):
        looked.set()
        return {}

    monkeypatch.setattr(checks, "described", described)
    first_poll = asyncio.Event()
    async with patience(), InputRetention(Connection("b:1"), needed_ms=1).watching(first_poll):
        await asyncio.sleep(0.01)
        assert not looked.is_set()
        first_poll.set()
        await looked.wait()


async def test_watching_ends_even_if_the_library_swallows_the_cancellation(monkeypatch):
    looked = asyncio.Event()

    async def described(connection, names):
        looked.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return {}

    monkeypatch.setattr(checks, "described", described)
    retention = InputRetention(Connection("b:1"), needed_ms=1)
    async with patience(), retention.watching(polled()):
        await looked.wait()


async def test_an_unexpected_error_while_watching_is_raised(monkeypatch):
    async def described(connection, names):
        raise ZeroDivisionError

    monkeypatch.setattr(checks, "described", described)
    watching = InputRetention(Connection("b:1"), needed_ms=1).watching(polled())
    await watching.__aenter__()
    await asyncio.sleep(0.01)
    with pytest.raises(ZeroDivisionError):
        await watching.__aexit__(None, None, None)
