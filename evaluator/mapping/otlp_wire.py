"""OTLP in Protobuf, to the objects that its JSON gives: one span or log record at a time.

The wire is read here, because classes of its schema would first hold all parts of a request, and
1 MiB has room for 500,000 empty spans.
"""

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

UNSET: Final = ("", "0", 0)
"""Values that mean in OTLP that a member is not given."""
MAX_GROUPS: Final = 10_000
"""Most resources and scopes of a request."""
MAX_DEPTH: Final = 18
"""Most arrays and objects around a value: more are too deep in JSON."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
_IN_JSON: Final = re.compile(rb'[ \t\n\r]*+\{[ \t\n\r]*+(?:"[^\x00-\x1f]|\})')


def is_wire(value: bytes) -> bool:
    """Whether a request begins with its field 1, and not as an object in JSON.

    A line break is that field too, and a brace its size of 123 bytes: so a name has to follow.
    """
    return value[:1] == b"\n" and _IN_JSON.match(value) is None


def items_of(value: bytes) -> Iterator[dict[str, Any]]:
    """The spans and log records of a request, without events and links. Raises ValueError.

    Requests of both have the same form up to these: one with a trace id in field 1 is a span.
    """
    n_groups = 0
    for resource in _parts(value, 1):
        around = {"resource": _group(resource, 1)}
        n_groups = _counted(n_groups)
        for scoped in _parts(resource, 2):
            n_groups = _counted(n_groups)
            around["scope"] = _group(scoped, 3)
            for item in _parts(scoped, 2):
                yield {**_item(item), **around}


def _counted(n_groups: int) -> int:
    if n_groups == MAX_GROUPS:
        raise ValueError(f"more than {MAX_GROUPS} resources and scopes")
    return n_groups + 1


def _group(data: bytes, number: int) -> dict[str, Any]:
    """The attributes, of this number, of the resource or scope in field 1."""
    around = list(_parts(data, 1))
    return {"attributes": _members(_parts(b"".join(around), number))} if around else {}


def _item(data: bytes) -> dict[str, Any]:
    is_span = any(number == 1 and kind == _BYTES for number, kind, _ in _fields(data))
    found = _message(data, _SPAN if is_span else _LOG_RECORD)
    given = {name: each for name, each in found.items() if name == "body" or each not in UNSET}
    return {**given, "attributes": _members(_parts(data, 9 if is_span else 6))}


def _message(data: bytes, members: "Members") -> dict[str, Any]:
    """The members of a message: of several values the last one, but messages are merged."""
    found: dict[str, tuple[Callable[[Any], Any], Any]] = {}
    for number, kind, raw in _fields(data):
        if (number, kind) in members:
            name, convert = members[number, kind]
            is_merged = name in found and convert in _MERGED
            found[name] = convert, found[name][1] + raw if is_merged else raw
    return {name: convert(raw) for name, (convert, raw) in found.items()}


def _members(attributes: Iterable[bytes], depth: int = 0) -> dict[str, Any]:
    """An object of the values by their keys."""
    found: dict[str, Any] = {}
    for attribute in attributes:
        key, value = "", None
        for number, kind, raw in _fields(attribute):
            if number == 1 and kind == _BYTES:
                key = raw.decode()
            elif number == 2 and kind == _BYTES:
                value = raw if value is None else value + raw
        found[key] = None if value is None else _plain(value, depth)
    return found


def _plain(value: bytes, depth: int = 0) -> Any:
    """The plain value of an AnyValue; None for bytes, and if it has none."""
    last, found = 0, None
    for number, kind, raw in _fields(value):
        if _VALUES.get(number) == kind:
            found = found + raw if number == last and number in {_ARRAY, _LIST} else raw
            last = number
    if last not in {_ARRAY, _LIST}:
        return _SCALARS[last](found) if last in _SCALARS else None
    if depth == MAX_DEPTH:
        raise ValueError(f"attributes are nested more than {MAX_DEPTH} deep")
    parts = _parts(found or b"", 1)
    return _members(parts, depth + 1) if last == _LIST else [_plain(x, depth + 1) for x in parts]


def _parts(data: bytes, number: int) -> Iterator[bytes]:
    """The messages in a repeated field."""
    return (raw for each, kind, raw in _fields(data) if each == number and kind == _BYTES)


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """The number and the wire type of each field, and an integer or its bytes."""
    at, end = 0, len(data)
    value: Any
    while at < end:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            size = 0
            value, at = _varint(data, at)
        else:
            size = _SIZES.get(kind, -1)
            if kind == _BYTES:
                size, at = _varint(data, at)
            value = data[at : at + size]
        if size < 0 or not number:
            raise ValueError(f"a field has the number {number} and the wire type {kind}")
        at += size
        if at > end:
            raise ValueError("a field ends too late")
        yield number, kind, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        part = data[at]
        if part < 0x80 and not shift:
            return part, at + 1
        value |= (part & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if part < 0x80:
            return value & (1 << 64) - 1, at
    raise ValueError("a number does not end")


def _whole(raw: bytes) -> int:
    return int.from_bytes(raw, "little")


def _decimal(raw: bytes) -> str:
    """A large integer, which is a text in JSON."""
    return str(_whole(raw))


def _signed(number: int, n_bits: int = 64) -> int:
    number &= (1 << n_bits) - 1
    return number - (number >> n_bits - 1 << n_bits)


def _int32(number: int) -> int:
    return _signed(number, 32)


def _uint32(number: int) -> int:
    return number & 0xFFFF_FFFF


def _double(raw: bytes) -> float:
    return float(struct.unpack("<d", raw)[0])


def _status(raw: bytes) -> dict[str, Any]:
    found = _message(raw, {(2, _BYTES): ("message", bytes.decode), (3, _VARINT): ("code", _int32)})
    return {name: each for name, each in found.items() if each}


_ARRAY, _LIST = 5, 6
_VALUES: Final = {1: _BYTES, 2: _VARINT, 3: _VARINT, 4: _FIXED64, 5: _BYTES, 6: _BYTES, 7: _BYTES}
_SCALARS: Final[Mapping[int, Callable[[Any], Any]]] = {
    1: bytes.decode,
    2: bool,
    3: _signed,
    4: _double,
}
_MERGED: Final = (_plain, _status)

Members = Mapping[tuple[int, int], tuple[str, Callable[[Any], Any]]]
"""By number and wire type: the name in JSON, and the function that gives the value there."""
_SPAN: Final[Members] = {
    (1, _BYTES): ("traceId", bytes.hex),
    (2, _BYTES): ("spanId", bytes.hex),
    (3, _BYTES): ("traceState", bytes.decode),
    (4, _BYTES): ("parentSpanId", bytes.hex),
    (5, _BYTES): ("name", bytes.decode),
    (6, _VARINT): ("kind", _int32),
    (7, _FIXED64): ("startTimeUnixNano", _decimal),
    (8, _FIXED64): ("endTimeUnixNano", _decimal),
    (10, _VARINT): ("droppedAttributesCount", _uint32),
    (12, _VARINT): ("droppedEventsCount", _uint32),
    (14, _VARINT): ("droppedLinksCount", _uint32),
    (15, _BYTES): ("status", _status),
    (16, _FIXED32): ("flags", _whole),
}
_LOG_RECORD: Final[Members] = {
    (1, _FIXED64): ("timeUnixNano", _decimal),
    (2, _VARINT): ("severityNumber", _int32),
    (3, _BYTES): ("severityText", bytes.decode),
    (5, _BYTES): ("body", _plain),
    (7, _VARINT): ("droppedAttributesCount", _uint32),
    (8, _FIXED32): ("flags", _whole),
    (9, _BYTES): ("traceId", bytes.hex),
    (10, _BYTES): ("spanId", bytes.hex),
    (11, _FIXED64): ("observedTimeUnixNano", _decimal),
    (12, _BYTES): ("eventName", bytes.decode),
}
