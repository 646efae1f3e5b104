"""Records as bytes, as adapters read and write them."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.types.records import IntArray, Log
from evaluator.core.types.skips import OffsetRange, between

MAX_MESSAGE_BYTES = 262_144

Output = Literal[
    "evaluations", "settled", "windows", "dead-letters", "checkpoints", "rankings", "judgments"
]  # fmt: skip
"""A topic that is written; the last two by `evaluator map`."""
Headers = Sequence[tuple[str, bytes | None]]

OUTPUTS: tuple[Output, ...] = ("evaluations", "settled", "windows", "dead-letters")
"""Outputs for other programs."""
CHECKPOINTS: Output = "checkpoints"
"""Checkpoint records of the workers: the latest record of a key counts."""
WRITTEN: tuple[Output, ...] = (*OUTPUTS, CHECKPOINTS)
"""All outputs of a worker."""
LeaderOutput = Literal["weights", "weights-log", "alarms", "alarm-commands"]
"""Outputs of the leader. Of `weights` and `alarms` the latest record of a key counts."""
LEADER_OUTPUTS: tuple[LeaderOutput, ...] = ("weights", "weights-log", "alarms", "alarm-commands")
"""All outputs of the leader."""
SCHEMAS = "schemas"
"""Schemas that foreign records name: the first record of an id counts."""
MAX_RECORD_BYTES = 1 << 20
"""Limit of the value of a foreign record that is mapped to messages."""
MAX_HEADER_BYTES = 16 << 10
"""Limit of the headers of a foreign record that its dead letter keeps."""
KEPT_BYTES = 64 << 10
"""Limit of the kept part of a value or key that is larger than a message."""
FINGERPRINT_HEADER = "fingerprint"
"""Header of records of `settled` while learning is on: fingerprint of their worker."""

GENERATION_HEADER = "generation"
"""Header of records of `settled`: generation of their input logs; `n` counts within one."""


class Records(Struct, frozen=True, eq=False):
    """Consecutive records of one partition of one input.

    The columns are parallel. A value of None is a heartbeat. `timestamps_ms` is None if the medium
    has no record timestamps (files); -1 is a record without one. `next_offset` is the offset to
    read next: offsets may have gaps. `oversize` has the original size of truncated values, by
    offset. `headers` are kept for mappings only, in the form of `packed_headers`.
    """

    log: Log
    partition: int
    offsets: IntArray
    keys: ByteStrings
    values: ByteStrings
    timestamps_ms: IntArray | None
    next_offset: int
    oversize: Mapping[int, int] = field(default_factory=dict)
    headers: ByteStrings | None = None

    @classmethod
    def of(
        cls,
        log: Log,
        partition: int,
        offsets: Sequence[int],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int] | None,
        next_offset: int,
        max_bytes: int = MAX_MESSAGE_BYTES,
    ) -> "Records":
        """The records in these lists; keys and values of more than *max_bytes* are truncated."""
        return cls(
            log,
            partition,
            np.array(offsets, np.int64),
            ByteStrings.of(list(map(kept, keys))),
            ByteStrings.of([kept(value, max_bytes) for value in values]),
            None if timestamps_ms is None else np.array(timestamps_ms, np.int64),
            next_offset,
            oversize_of(offsets, values, max_bytes),
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def rows(self, chosen: slice | NDArray[np.bool_], next_offset: int) -> "Records":
        """Some of these records."""
        times = self.timestamps_ms
        return replace(
            self,
            offsets=self.offsets[chosen],
            keys=self.keys[chosen],
            values=self.values[chosen],
            timestamps_ms=None if times is None else times[chosen],
            next_offset=next_offset,
            headers=None if self.headers is None else self.headers[chosen],
        )


class SettledRecords(Struct, frozen=True):
    """Consecutive records of one partition of `settled` with the same headers.

    Offsets may have gaps. Fingerprint and generation are those of the headers, b"" without.
    """

    task: int
    fingerprint: bytes
    generation: bytes
    offsets: IntArray
    values: ByteStrings

    @classmethod
    def split(
        cls, task: int, offsets: IntArray, values: ByteStrings, headers: Sequence[Headers]
    ) -> list["SettledRecords"]:
        """Consecutive records, by runs of equal headers."""
        found, first = [], 0
        for of, run in groupby(headers):
            end, named = first + len(list(run)), dict(of)
            fingerprint = named.get(FINGERPRINT_HEADER) or b""
            generation = named.get(GENERATION_HEADER) or b""
            rows = slice(first, end)
            found.append(cls(task, fingerprint, generation, offsets[rows], values[rows]))
            first = end
        return found

    def __len__(self) -> int:
        return len(self.offsets)


def kept(value: bytes | None, max_bytes: int = MAX_MESSAGE_BYTES) -> bytes | None:
    """The part of a value or key that is kept in memory: truncated beyond *max_bytes*."""
    return value if value is None or len(value) <= max_bytes else value[:KEPT_BYTES]


def kept_to_map(value: bytes | None) -> bytes | None:
    """The part of a value that is kept to be mapped."""
    return kept(value, MAX_RECORD_BYTES)


def kept_whole(value: bytes | None) -> bytes | None:
    """A value of any size, of a topic that workers write."""
    return value


def packed_headers(headers: Headers) -> bytes:
    """Headers as one byte string of `Records.headers`: as in a Kafka record, up to a limit."""
    packed, n, size = b"", 0, 0
    for name, value in headers:
        text = name.encode()
        size += len(text) + len(value or b"")
        if size <= MAX_HEADER_BYTES:
            n += 1
            value_size = _varint(-1 if value is None else len(value))
            packed += b"".join((_varint(len(text)), text, value_size, value or b""))
    return _varint(n) + packed


def unpacked_headers(packed: bytes) -> Headers:
    """The headers in a byte string of `Records.headers`."""
    found: list[tuple[str, bytes | None]] = []
    n, at = _read_varint(packed, 0) if packed else (0, 0)
    for _ in range(n):
        size, at = _read_varint(packed, at)
        name, at = packed[at : at + size].decode(), at + size
        size, at = _read_varint(packed, at)
        found.append((name, None if size < 0 else packed[at : at + size]))
        at += max(size, 0)
    return found


def _varint(number: int) -> bytes:
    """A zigzag varint."""
    number, text = number << 1 ^ number >> 63, b""
    while number > 0x7F:
        text += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return text + bytes((number,))


def _read_varint(text: bytes, at: int) -> tuple[int, int]:
    bits = shift = 0
    while True:
        bits |= (text[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if text[at - 1] < 0x80:
            return bits >> 1 ^ -(bits & 1), at


def without(records: Records, ranges: Sequence[OffsetRange]) -> Records:
    """The records except those at offsets in *ranges*."""
    first = int(records.offsets[0]) if len(records) else 0
    inside = between(ranges, first, records.next_offset)
    if not inside:
        return records
    left = np.ones(len(records), bool)
    for low, high in inside:
        left &= (records.offsets < low) | (records.offsets > high)
    return records.rows(left, records.next_offset)


def oversize_of(
    offsets: Sequence[int],
    values: Sequence[bytes | None],
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> dict[int, int]:
    """`Records.oversize` of values that are not truncated."""
    pairs = zip(offsets, values, strict=True)
    return {
        offset: len(value)
        for offset, value in pairs
        if value is not None and len(value) > max_bytes
    }


class OutputRecord(NamedTuple):
    """A record to be produced."""

    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
