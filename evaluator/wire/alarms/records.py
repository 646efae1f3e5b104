"""Records of events and operator commands of alarms."""

import json
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec

from evaluator.core.alarms.alarm import Alarm, Carrier, Context
from evaluator.core.online.alarm_watch import SeriesEvent
from evaluator.core.online.watched import AlarmCommand, SeriesName
from evaluator.wire.canonical import encode_document
from evaluator.wire.reading import Count, Reader
from evaluator.wire.records import OutputRecord

FORMAT: Final = 1
MAX_COMMAND_BYTES: Final = 64 << 10


_Time = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]


class AlarmRefused(ValueError):
    """A record of alarms cannot be used; the message has the reason."""


def event_record(event: SeriesEvent) -> OutputRecord:
    """An event, keyed by its series."""
    alarm = event.alarm
    document: dict[str, Any] = {
        "format": FORMAT,
        "event": event.name,
        "series": event.series._asdict(),
        "time_ms": event.time_ms,
    }
    figures = "onset_ms since_ms window_hours drop observed expected se evidence queries"
    for name in figures.split():
        document[name] = None if alarm is None else getattr(alarm, name)
    carried = () if alarm is None else alarm.carried_by
    document["carried_by"] = [carrier._asdict() for carrier in carried]
    if alarm is not None:
        document["context"] = alarm.context._asdict()
    if event.unverifiable:
        document["unverifiable"] = event.unverifiable
    key = json.dumps(list(event.series), ensure_ascii=False).encode()
    return OutputRecord(key, encode_document(document))


class _Command(msgspec.Struct):
    format: Literal[1]
    id: str
    action: Literal["acknowledge", "accept", "exclude"]
    series: dict[str, str]
    from_ms: Count = 0
    to_ms: Count = 0
    applied_ms: Count = 0


class _Carrier(msgspec.Struct):
    """The members of a `Carrier`."""

    segment: str
    level: str
    share: float
    queries_share: float = 0.0
    change: float = 0.0


class _Context(msgspec.Struct, frozen=True):
    """The members of a `Context`."""

    judged: float | None = None
    usual_judged: float | None = None
    pair: str = ""
    pair_change: float = 0.0
    pair_se: float = 0.0
    weeks_ms: tuple[_Time, ...] = ()


class EventRecord(msgspec.Struct):
    """Members of an event that `alarms list` shows."""

    event: str
    series: dict[str, str]
    time_ms: _Time
    onset_ms: _Time | None = None
    since_ms: _Time | None = None
    window_hours: Count | None = None
    drop: float | None = None
    observed: float | None = None
    expected: float | None = None
    se: float | None = None
    evidence: float | None = None
    queries: Count | None = None
    carried_by: list[_Carrier] = []
    context: _Context = _Context()
    unverifiable: str = ""

    @property
    def is_on(self) -> bool:
        """Whether the alarm of the series is on after it."""
        return self.event in {"on", "acknowledge"} or (
            self.event == "exclude" and self.drop is not None
        )

    @property
    def name(self) -> SeriesName:
        """The series; labels that are missing are empty."""
        return SeriesName._make(self.series.get(each, "") for each in SeriesName._fields)

    @property
    def alarm(self) -> Alarm | None:
        """The alarm with its figures; None without one."""
        read = {name: getattr(self, name) for name in Alarm._fields if hasattr(self, name)}
        carried = tuple(Carrier(*msgspec.structs.astuple(of)) for of in self.carried_by)
        context = Context(*msgspec.structs.astuple(self.context))
        of_window = {"carried_by": carried, "context": context}
        return None if None in read.values() else Alarm(**{**read, **of_window})


read_event: Final[Reader[EventRecord]] = Reader(
    EventRecord, AlarmRefused, "not an event of alarms", max_bytes=MAX_COMMAND_BYTES
)
_read_command: Final[Reader[_Command]] = Reader(
    _Command, AlarmRefused, "not a command to alarms", max_bytes=MAX_COMMAND_BYTES
)


def command_record(command: AlarmCommand) -> OutputRecord:
    """A command, keyed by its id."""
    document = {"format": FORMAT, **command._asdict(), "series": dict(command.series)}
    return OutputRecord(command.id.encode(), encode_document(document))


def read_command(value: bytes) -> AlarmCommand:
    """The command in a record. Raises AlarmRefused."""
    of = _read_command(value)
    if of.action == "exclude" and not of.from_ms < of.to_ms:
        raise AlarmRefused("not a command to alarms: exclude needs from_ms before to_ms")
    if unknown := of.series.keys() - set(SeriesName._fields):
        raise AlarmRefused(f"not a command to alarms: a series has no {min(unknown)}")
    return AlarmCommand(of.id, of.action, of.series, of.from_ms, of.to_ms, of.applied_ms)


def read_commands(lines: Iterable[bytes]) -> list[AlarmCommand]:
    """The executed commands of a log, which name their tick. Raises AlarmRefused."""
    commands = [read_command(line) for line in lines if line]
    if any(not command.applied_ms for command in commands):
        raise AlarmRefused("a command without applied_ms was never executed: remove it")
    return commands
