"""Framing of a schema registry: the id of a schema before the bytes of a record, or in a header."""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

from evaluator.mapping.record import Record
from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.records import Records, unpacked_headers

HEADER: Final = "__value_schema_id"
"""The header in which serializers may write the id instead."""
_BY_NUMBER, _BY_GUID, _GLUE = 0, 1, 3  # first bytes
_NUMBER_BYTES, _GUID_BYTES, _GLUE_BYTES = 5, 17, 18
_URL: Final = re.compile(
    r"https?://(?:[A-Za-z0-9._-]{1,253}|\[[0-9a-fA-F:.]{2,45}\])(?::[0-9]{1,5})?"
    r"(?:/[A-Za-z0-9._~%/-]{0,200})?"
)


class Frame(NamedTuple):
    """The id of a schema, a number or a GUID as text, and the bytes that it describes."""

    schema_id: str
    payload: bytes


def frame_of(record: Record, *, has_indexes: bool = False) -> Frame | Malformed:
    """The frame of a record; of Protobuf with the indexes of a message before its bytes."""
    value = record.value
    for name, header in reversed(record.headers):
        if name == HEADER and header is not None:
            schema_id = _id_in(header)
            if schema_id is None or (len(header) != _length(header) and not has_indexes):
                return Malformed("decode", f"the header {HEADER} is not the id of a schema")
            return Frame(schema_id, header[_length(header) :] + value)
    schema_id = _id_in(value)
    if schema_id is not None:
        return Frame(schema_id, value[_length(value) :])
    if len(value) >= _GLUE_BYTES and value[0] == _GLUE and value[1] in {0, 5}:
        return Malformed("registry", "framed by AWS Glue, whose registry is not supported")
    began = f"begins with 0x{value[:1].hex()}" if len(value) >= _NUMBER_BYTES else "is too short"
    return Malformed("decode", f"not framed with the id of a schema: the value {began}")


def payload_of_json(value: bytes) -> bytes:
    """A value without the frame of a registry, which JSON cannot begin with."""
    return value if value[:1] > b"\x01" or _id_in(value) is None else value[_length(value) :]


def ids_in(batches: Iterable[Records]) -> set[str]:
    """The ids of the schemas of records."""
    begun: set[tuple[bytes, bytes]] = set()
    for records in batches:
        packed = [None] * len(records) if records.headers is None else records.headers
        for value, headers in zip(records.values, packed, strict=True):
            if value is not None:
                with_id = headers if headers is not None and HEADER.encode() in headers else b""
                size = _NUMBER_BYTES if value[:1] == b"\x00" else _GUID_BYTES
                begun.add((value[:size], with_id))
    frames = (
        frame_of(
            Record(value, None, unpacked_headers(headers) if headers else ()), has_indexes=True
        )
        for value, headers in begun
    )
    return {frame.schema_id for frame in frames if isinstance(frame, Frame)}


def _length(frame: bytes) -> int:
    return _NUMBER_BYTES if frame[0] == _BY_NUMBER else _GUID_BYTES


def _id_in(frame: bytes) -> str | None:
    if frame[:1] not in {b"\x00", b"\x01"} or len(frame) < _length(frame):
        return None
    if frame[0] == _BY_NUMBER:
        return str(int.from_bytes(frame[1:_NUMBER_BYTES], "big"))
    return str(UUID(bytes=bytes(frame[1:_GUID_BYTES])))


def registry_url(text: str) -> str:
    """The address of a registry without a slash at its end. Raises ValueError."""
    if _URL.fullmatch(text) is None:
        raise ValueError("is not the address of a registry; user and password are settings")
    return text.rstrip("/")
