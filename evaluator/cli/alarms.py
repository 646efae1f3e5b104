"""`alarms`: lists alarms, and sends commands of operators to the leader."""

import argparse
import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from evaluator.adapters.kafka import Connection, read_weights, write_to_weights
from evaluator.cli.exits import UsageError
from evaluator.cli.wiring import connection_of, readable, warn
from evaluator.config import Settings
from evaluator.core.alarms.alarm import Carrier
from evaluator.core.alarms.sums import KEPT_HOURS
from evaluator.core.alarms.ticks import HOUR_MS
from evaluator.core.online.watched import AlarmCommand, SeriesName
from evaluator.exposition.alarm_sentence import alarm_sentence, alert_of, carrier_text
from evaluator.replay.ranges import parse_time_ms
from evaluator.tables import format_table, printable, utc_time
from evaluator.wire.alarms.records import EventRecord, command_record, read_event
from evaluator.wire.alarms.state import request_key

MAX_EXCLUDED_MS: Final = 8 * 7 * 86_400_000
_HEADER: Final = (
    "series",
    "alarm",
    "event (UTC)",
    "observed",
    "expected",
    "onset (UTC)",
    "carried by",
)


def list(options: argparse.Namespace, settings: Settings) -> int:  # noqa: A001 - the command's name
    """`alarms list`: the series that have had an event, and whether their alarm is on."""
    events = _events(connection_of(options.source, settings), settings.written_prefix)
    events = sorted(events, key=lambda event: event.time_ms)
    rows = [_row(event) for event in events]
    print(format_table(_HEADER, rows, numbers=(3, 4)) if rows else "No alarm has been on yet.")
    for event in events:
        if event.is_on and (alarm := event.alarm) is not None:
            runbook = f"{settings.runbook_url or 'docs/runbooks.md'}#{alert_of(event.name).lower()}"
            print(f"\n{alarm_sentence(event.name, alarm, event.unverifiable)}\nRunbook: {runbook}")
    return 0


def _events(connection: Connection, prefix: str) -> Sequence[EventRecord]:
    """The last event of each series."""
    records = asyncio.run(read_weights(connection, prefix, "alarms"))
    latest = {record.key: record.value for record in records}
    return readable("alarms", latest.values(), read_event)


def _series_text(event: EventRecord) -> str:
    labels = [f"{name}={value}" for name, value in event.series.items() if value]
    return printable(" ".join(labels))


def _row(event: EventRecord) -> Sequence[str]:
    state = ("acknowledged" if event.event == "acknowledge" else "on") if event.is_on else "off"
    figures, carried, alarm = ["", "", ""], "", event.alarm
    if alarm is not None:
        carried = carried_text(alarm.carried_by)
        since = utc_time(alarm.onset_ms / 1000, "%Y-%m-%d %H:%M")
        figures = [f"{alarm.observed:.4f}", f"{alarm.expected:.4f}", since]
    at = utc_time(event.time_ms / 1000, "%Y-%m-%d %H:%M")
    return [_series_text(event), state, at, *figures, carried]


def carried_text(carriers: Iterable[Carrier]) -> str:
    """The levels that carry a drop, each with its share of it."""
    return ", ".join(printable(f"{carrier_text(of)} {of.share:.0%}") for of in carriers)


def acknowledge(options: argparse.Namespace, settings: Settings) -> int:
    """`alarms acknowledge`."""
    return _send(options, settings, "acknowledge")


def accept(options: argparse.Namespace, settings: Settings) -> int:
    """`alarms accept`."""
    return _send(options, settings, "accept")


def exclude(options: argparse.Namespace, settings: Settings) -> int:
    """`alarms exclude`."""
    try:
        begin_ms, end_ms = parse_time_ms(options.begin), parse_time_ms(options.end)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not 0 < end_ms - begin_ms <= MAX_EXCLUDED_MS:
        raise UsageError(
            f"--from {options.begin} to --to {options.end} is not a time of up to 8 weeks. Give "
            "its begin and its end, e.g. 2025-12-24T00:00Z and 2025-12-27T00:00Z."
        )
    return _send(options, settings, "exclude", begin_ms, end_ms)


def _send(
    options: argparse.Namespace,
    settings: Settings,
    action: Literal["acknowledge", "accept", "exclude"],
    from_ms: int = 0,
    to_ms: int = 0,
) -> int:
    series = dict[str, str]()
    for text in options.series:
        label, equals, value = text.partition("=")
        if not equals or label not in SeriesName._fields:
            raise UsageError(
                f"--series {text!r} is not LABEL=VALUE with one of the labels "
                f"{', '.join(SeriesName._fields)}."
            )
        series[label] = value
    if not series and action != "exclude":
        raise UsageError(f"{action} needs a series, e.g. --series model=gamma; see `alarms list`.")
    now_ms = time.time_ns() // 1_000_000
    number = f"{now_ms}-{action}"
    command = AlarmCommand(number, action, series, from_ms, to_ms)
    connection = connection_of(options.source, settings)
    _require_effect(command, _events(connection, settings.written_prefix), now_ms)
    key, value = request_key(number), command_record(command).value
    asyncio.run(write_to_weights(connection, settings.written_prefix, key, value))
    print("Sent to the leader: it takes effect once, when the open quarter of an hour is closed.")
    return 0


def _require_effect(command: AlarmCommand, events: Sequence[EventRecord], now_ms: int) -> None:
    """Raises UsageError for a command that changes nothing; warns of one that may not."""
    named = [event for event in events if command.series.items() <= event.series.items()]
    if command.action == "exclude":
        if command.series and not named:
            warn("no alarm of these series has been on yet: check their labels in /status.")
        if command.to_ms <= now_ms - KEPT_HOURS * HOUR_MS:
            warn(
                "these hours are more than 8 weeks old. The leader keeps no older ones, so this "
                "has no effect, unless it watches messages that old."
            )
    elif not any(event.is_on for event in named):
        which = "; ".join(_series_text(event) for event in events if event.is_on)
        raise UsageError(
            f"no alarm of these series is on, so there is nothing to {command.action}. "
            f"On: {which or 'none'}."
        )
