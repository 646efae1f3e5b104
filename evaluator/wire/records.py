"""Records as bytes, before they mean anything: what adapters read and write."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from evaluator.core.types.records import Log
from evaluator.core.types.skips import OffsetRange, between, covered

MAX_MESSAGE_BYTES = 262_144

Output = Literal["evaluations", "settled", "windows", "dead-letters", "checkpoints"]
OUTPUTS: tuple[Output, ...] = ("evaluations", "settled", "windows", "dead-letters")
"""What is said to others."""
CHECKPOINTS: Output = "checkpoints"
"""What the workers say to each other: the latest record of a key counts."""
WRITTEN: tuple[Output, ...] = (*OUTPUTS, CHECKPOINTS)
"""Everything that a worker writes."""
LeaderOutput = Literal["weights", "weights-log"]
"""What the leader says: the latest record of a key counts, and all that was ever said."""
SAID: tuple[LeaderOutput, ...] = ("weights", "weights-log")
"""Everything that the leader writes."""
KEPT_BYTES = 64 << 10
"""What is kept of a value, or of a key, that is larger than a message may be."""
FINGERPRINT_HEADER = "fingerprint"
"""Header of records of `settled` while somebody learns: names the settings of their worker."""

GENERATION_HEADER = "generation"
"""Header of records of `settled`: names the logs that they come from; `n` counts within one."""


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records of one partition of one input, as they were read.

    The lists are parallel. A value of None is a heartbeat. `timestamps_ms` is None where
    the medium has no record timestamps (files); -1 stands for a record without one.
    `next_offset` is the offset to read next: offsets may have gaps. `oversize` has the bytes, by
    offset, that values had of which only the beginning was kept.
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
    """A value or key as it is open in memory: of one larger than a message only its beginning."""
    return value if value is None or len(value) <= MAX_MESSAGE_BYTES else value[:KEPT_BYTES]


def without(records: Records, ranges: Sequence[OffsetRange]) -> Records:
    """The records but those at offsets in *ranges*."""
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
    """`Records.oversize` of whole values."""
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
