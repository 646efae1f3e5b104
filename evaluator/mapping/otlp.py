"""OTLP, as the collector writes it, to one plain object for each span or log record."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from evaluator.mapping import otlp_wire
from evaluator.mapping.otlp_wire import UNSET, is_wire

MAX_ITEMS: Final = 10_000
"""Most spans and log records of a request."""


class _Value(msgspec.Struct, rename="camel"):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None
    bytes_value: str | None = None
    array_value: "_Array | None" = None
    kvlist_value: "_List | None" = None


class _Array(msgspec.Struct):
    values: list[_Value] = []


class _Attribute(msgspec.Struct):
    key: str = ""
    value: _Value | None = None


class _List(msgspec.Struct):
    values: list[_Attribute] = []


class _Attributes(msgspec.Struct):
    attributes: list[_Attribute] = []


class _Scoped(msgspec.Struct, rename="camel"):
    scope: _Attributes | None = None
    spans: list[dict[str, Any]] = []
    log_records: list[dict[str, Any]] = []


class _Resource(msgspec.Struct, rename="camel"):
    resource: _Attributes | None = None
    scope_spans: list[_Scoped] = []
    scope_logs: list[_Scoped] = []


class _Request(msgspec.Struct, rename="camel"):
    resource_spans: list[_Resource] | None = None
    resource_logs: list[_Resource] | None = None


_decode: Final = msgspec.json.Decoder(_Request).decode


def items_of(value: bytes) -> Iterator[dict[str, Any]]:
    """The spans and log records of a request, with attributes as one object.

    `resource` and `scope` have those of both. Raises ValueError.
    """
    if is_wire(value):
        yield from otlp_wire.items_of(value)
        return
    request = _decode(value)
    if request.resource_spans is None and request.resource_logs is None:
        raise ValueError("neither resourceSpans nor resourceLogs are there")
    for resource in (*(request.resource_spans or ()), *(request.resource_logs or ())):
        of_resource = _object(resource.resource)
        for scoped in (*resource.scope_spans, *resource.scope_logs):
            around = {"resource": of_resource, "scope": _object(scoped.scope)}
            for item in (*scoped.spans, *scoped.log_records):
                given = {name: each for name, each in item.items() if each not in UNSET}
                if "body" in given:
                    given["body"] = _plain(msgspec.convert(given["body"], _Value))
                yield {**given, **_object(msgspec.convert(item, _Attributes)), **around}


def _object(of: _Attributes | None) -> dict[str, Any]:
    return {} if of is None else {"attributes": _members(of.attributes)}


def _members(attributes: list[_Attribute]) -> dict[str, Any]:
    return {each.key: _plain(each.value) for each in attributes}


def _plain(value: _Value | None) -> Any:
    """An attribute's value; None if it has none. Raises ValueError."""
    if value is None:
        return None
    if value.int_value is not None:
        return int(value.int_value)
    if value.double_value is not None:
        return float(value.double_value)
    if value.array_value is not None:
        return [_plain(each) for each in value.array_value.values]
    if value.kvlist_value is not None:
        return _members(value.kvlist_value.values)
    return value.string_value if value.bool_value is None else value.bool_value
