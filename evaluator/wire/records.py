"""Records as bytes, before they mean anything: what adapters read and write."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from evaluator.core.types import Log

Output = Literal["evaluations", "settled", "windows", "dead-letters", "checkpoints"]
OUTPUTS: tuple[Output, ...] = ("evaluations", "settled", "windows", "dead-letters")
"""What is said to others."""
CHECKPOINTS: Output = "checkpoints"
"""What the workers say to each other: the latest record of a key counts."""
WRITTEN: tuple[Output, ...] = (*OUTPUTS, CHECKPOINTS)
"""Everything that a worker writes."""
StewardOutput = Literal["weights", "weights-log"]
"""What the steward says: the latest record of a key counts, and all that was ever said."""
SAID: tuple[StewardOutput, ...] = ("weights", "weights-log")
"""Everything that the steward writes."""
LINEAGE_HEADER = "lineage"
"""Header of records of `settled` while somebody learns: names the settings of their worker."""


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records of one partition of one input, as they were read.

    The lists are parallel. A value of None is a heartbeat. `timestamps_ms` is None where
    the medium has no record timestamps (files); -1 stands for a record without one.
    `next_offset` is the offset to read next: offsets may have gaps.
    """

    log: Log
    partition: int
    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps_ms: list[int] | None
    next_offset: int

    def __len__(self) -> int:
        return len(self.offsets)


class OutputRecord(NamedTuple):
    """A record to be produced."""

    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
