"""Records as bytes, as adapters read and write them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from evaluator.core.types.records import Log
from evaluator.core.types.skips import OffsetRange, between, covered

MAX_MESSAGE_BYTES = 262_144

Output = Literal["evaluations", "settled", "windows", "dead-letters", "checkpoints"]
OUTPUTS: tuple[Output, ...] = ("evaluations", "settled", "windows", "dead-letters")
"""Outputs for other programs."""
CHECKPOINTS: Output = "checkpoints"
"""Checkpoint records of the workers: the latest record of a key counts."""
WRITTEN: tuple[Output, ...] = (*OUTPUTS, CHECKPOINTS)
"""All outputs of a worker."""
LeaderOutput = Literal["weights", "weights-log"]
"""Outputs of the leader: the latest record of a key, and the log of all records."""
LEADER_OUTPUTS: tuple[LeaderOutput, ...] = ("weights", "weights-log")
"""All outputs of the leader."""
KEPT_BYTES = 64 << 10
"""Limit of what is kept of a value or key that is larger than a message."""
FINGERPRINT_HEADER = "fingerprint"
"""Header of records of `settled` while learning is on: fingerprint of their worker."""

GENERATION_HEADER = "generation"
"""Header of records of `settled`: generation of their input logs; `n` counts within one."""


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records of one partition of one input.

    The lists are parallel. A value of None is a heartbeat. `timestamps_ms` is None if the medium
    has no record timestamps (files); -1 is a record without one. `next_offset` is the offset to
    read next: offsets may have gaps. `oversize` has the original size of truncated values, by
    offset.
    """

    log: Log
    partition: int
    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps_ms: list[int] | None
    next_offset: int
    oversize: Mapping[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.offsets)


def kept(value: bytes | None) -> bytes | None:
    """The part of a value or key that is kept in memory: truncated if larger than a message."""
    return value if value is None or len(value) <= MAX_MESSAGE_BYTES else value[:KEPT_BYTES]


def without(records: Records, ranges: Sequence[OffsetRange]) -> Records:
    """The records except those at offsets in *ranges*."""
    if not between(ranges, records.offsets[0] if records.offsets else 0, records.next_offset):
        return records
    left = [i for i, at in enumerate(records.offsets) if not covered(ranges, at, at)]
    times = records.timestamps_ms
    return replace(
        records,
        offsets=[records.offsets[i] for i in left],
        keys=[records.keys[i] for i in left],
        values=[records.values[i] for i in left],
        timestamps_ms=None if times is None else [times[i] for i in left],
    )


def oversize_of(offsets: list[int], values: Sequence[bytes | None]) -> dict[int, int]:
    """`Records.oversize` of values that are not truncated."""
    pairs = zip(offsets, values, strict=True)
    return {
        offset: len(value)
        for offset, value in pairs
        if value is not None and len(value) > MAX_MESSAGE_BYTES
    }


class OutputRecord(NamedTuple):
    """A record to be produced."""

    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
