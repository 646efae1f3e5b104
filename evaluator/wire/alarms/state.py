"""The state of the watch of alarms, in records of the topic `weights`.

A record without a series has progress and fingerprints. A series has a record of its own, one of
its reference, and one for each day; only those that changed are written.
"""

import json
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Struct, field

from evaluator.core.alarms.alarm import Alarm
from evaluator.core.alarms.exclusions import Exclusion
from evaluator.core.alarms.series import AlarmSeries
from evaluator.core.online.alarm_watch import AlarmWatch
from evaluator.core.online.watched import AlarmCommand, SeriesName
from evaluator.wire.canonical import encode_document
from evaluator.wire.reading import UNREADABLE, Count, Int64, Reader, Sum, checked_sums
from evaluator.wire.records import OutputRecord

_ALARMS: Final = "alarms"
_HEAD: Final = b'["alarms"]'
_PREFIX: Final = b'["alarms"'
_REQUEST: Final = "alarm_command"


class AlarmStateRefused(ValueError):
    """A state of alarms cannot be used; the message has the reason."""


_Window = Literal[1, 6, 24, 168]
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Spread = Annotated[float, msgspec.Meta(ge=0)]
_Profile = Annotated[list[float], msgspec.Meta(min_length=168, max_length=168)]
_Four = Annotated[list[_Spread], msgspec.Meta(min_length=4, max_length=4)]
_HourOfDay = Annotated[str, msgspec.Meta(pattern=r"^(1?[0-9]|2[0-3])$")]


class _WatchState(Struct):
    format: Literal[1]
    tick_end_ms: Count | None
    from_ms: Count
    taken: dict[int, tuple[Int64, Int64]]
    positions: dict[int, Count]
    executed: list[str]
    excluded: list[AlarmCommand]
    left_out: list[SeriesName]


class _Head(Struct):
    fingerprint: str
    input_fingerprint: str
    generations: dict[int, list[str]]
    state: _WatchState


class _Series(Struct):
    """`AlarmSeries.state` but the reference: no number in it can make a tick fail."""

    week: Int64 | None
    excluded: list[Exclusion]
    moved: tuple[Int64, _Spread]
    alarm: Alarm | None
    looks: list[tuple[_Window, float, _Positive, _Positive, float, Count]]


class _Reference(Struct):
    reference: tuple[_Profile, float, _Positive, _Four, _Four, list[Int64]] | None


def _reader(kind: Any) -> Reader[Any]:
    return Reader(kind, AlarmStateRefused, "not a state of alarms")


_read_key: Final[Reader[list[str]]] = _reader(list[str])
_read_head: Final[Reader[_Head]] = _reader(_Head)
_read_part: Final[dict[str, Reader[Any]]] = {
    "series": _reader(_Series),
    "reference": _reader(_Reference),
}
_read_day: Final = _reader(dict[_HourOfDay, tuple[Count, Sum, Sum, Sum, Sum]])


def is_of_alarms(key: bytes) -> bool:
    """Whether a key of `weights` is one of the state of alarms."""
    return key.startswith(_PREFIX)


def request_key(command_id: str) -> bytes:
    """Key of an operator command that waits."""
    return json.dumps([_REQUEST, command_id], ensure_ascii=False).encode()


def is_request(key: bytes) -> bool:
    """Whether a key of `weights` is one of an operator command to alarms."""
    return key.startswith(f'["{_REQUEST}"'.encode())


def _key(name: SeriesName, part: str) -> bytes:
    return json.dumps([_ALARMS, *name, part], ensure_ascii=False).encode()


class AlarmState(Struct):
    """Reads and writes the state of a watch.

    Args:
        fingerprint: of all settings that the values and rules of series depend on.
        input_fingerprint: of the workers whose settled queries are read.
        records: the records of `weights` so far, by key.
        generations: generations of `settled` that were read, by task; the present one is last.
    """

    fingerprint: str
    input_fingerprint: str = ""
    records: dict[bytes, bytes] = field(default_factory=dict)
    generations: dict[int, list[str]] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    _written: dict[bytes, bytes] = field(default_factory=dict)

    def forget_written(self) -> None:
        """Discards the results of `written`: only the records in the topic count."""
        self._written.clear()
        self.generations, self.positions = {}, {}

    def keep(self, key: bytes, value: bytes) -> None:
        """Keeps a record of `weights`; b"" deletes it."""
        if value:
            self.records[key] = value
        else:
            self.records.pop(key, None)

    def load(self, watch: AlarmWatch) -> str:
        """Loads the stored state; returns the reason why it is not continued, or "".

        Raises AlarmStateRefused.
        """
        if (value := self.records.get(_HEAD)) is None:
            return ""
        head = _read_head(value)
        if head.fingerprint != self.fingerprint:
            return "its settings have changed"
        is_same = head.input_fingerprint == self.input_fingerprint
        try:
            watch.load(msgspec.structs.asdict(head.state), self._stored(watch))
            self.generations, self.positions = head.generations, head.state.positions
            if is_same:
                return ""
            self.generations, self.positions = {}, {}
            watch.begin_all_again()
        except UNREADABLE as error:
            raise AlarmStateRefused(f"not a state of alarms: {error!r}") from None
        return "the workers' settings have changed: queries count from the next whole hour"

    def _stored(self, watch: AlarmWatch) -> dict[SeriesName, AlarmSeries]:
        """All series from their records."""
        documents: dict[SeriesName, dict[str, Any]] = {}
        for key, value in self.records.items():
            if key != _HEAD:
                *labels, part = _read_key(key)[1:]
                name = msgspec.convert(labels, SeriesName)
                documents.setdefault(name, {})[part] = _part_of(part, value)
        found = {}
        for name, parts in documents.items():
            if {"series", "reference"} <= parts.keys():
                state = {**parts.pop("series"), **parts.pop("reference")}
                found[name] = watch.new_series(name)
                found[name].load(state, parts)
        return found

    def written(self, watch: AlarmWatch) -> list[OutputRecord]:
        """The records that have changed since the last call, or since `load`."""
        head = {
            "fingerprint": self.fingerprint,
            "input_fingerprint": self.input_fingerprint,
            "generations": {str(task): of for task, of in sorted(self.generations.items())},
            "state": watch.state(),
        }
        found: dict[bytes, bytes] = {_HEAD: encode_document(head)}
        for name, series in watch.series.items():
            state = series.state()
            reference = {"reference": state.pop("reference")}
            found[_key(name, "series")] = encode_document(state)
            found[_key(name, "reference")] = encode_document(reference)
            for part, day in series.changed_days().items():
                found[_key(name, part)] = encode_document(day) if day else b""
        changed = {
            key: value
            for key, value in found.items()
            if self._written.get(key, self.records.get(key)) != value
        }
        self._written |= changed
        return [OutputRecord(key, value) for key, value in changed.items()]

    def deletions(self) -> list[OutputRecord]:
        """Deletes all records, of a state that is not continued."""
        self._written = dict.fromkeys(self.records, b"")
        return [OutputRecord(key, b"") for key in self.records]

    def event_deletions(self) -> list[OutputRecord]:
        """Deletes the last event of each series: an alarm that was on has no end."""
        keys = dict[bytes, None]()
        for key in self.records.keys() - {_HEAD}:
            with suppress(AlarmStateRefused):
                keys[json.dumps(_read_key(key)[1:-1], ensure_ascii=False).encode()] = None
        return [OutputRecord(key, b"") for key in sorted(keys)]


def _part_of(part: str, value: bytes) -> dict[str, Any]:
    """The record of a part of a series: `series`, `reference`, or the sums of a day."""
    if part in _read_part:
        return msgspec.structs.asdict(_read_part[part](value))
    day: dict[str, Any] = _read_day(value)
    for sums in day.values():
        checked_sums(sums)
    return day
