"""Checkpoint records: one per task and fingerprint, in the compacted topic `checkpoints`.

A checkpoint of many strata is a set of records, its parts: each has the hash of the whole, its
number, and the number of parts. Only a complete set counts.
"""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import xxhash
from msgspec import Struct, field
from msgspec.structs import asdict, astuple

from evaluator.core.join.changes import Checkpoint, Digest
from evaluator.core.measures import MeasureSet
from evaluator.core.measures.exact_sums import StratumTotals
from evaluator.core.types.records import LOGS, AnyStratum, LevelStratum
from evaluator.wire.reading import Count, Reader, Sum, checked_sums, refused_as
from evaluator.wire.records import OutputRecord
from evaluator.wire.state.heads import HeadRow, PerLog, checked_head
from evaluator.wire.state.task_rows import (
    StateDamaged,
    TotalsRow,
    stratum_from,
    stratum_row,
    totals_document,
    totals_from,
)

FORMAT: Final = 4
"""Version of the layout of records."""
PART_BYTES: Final = 512 << 10
"""Limit of a checkpoint in one record: half of the default limit of a topic."""
_MAX_INCOMPLETE: Final = 4
"""Limit of the incomplete sets of a key; the oldest is dropped."""
_PART: Final = re.compile(rb'\{"set":"([0-9a-f]{32})","part":(\d{1,4}),"parts":(\d{1,4})\}\n')
_INCOMPLETE: Final = b"incomplete"


class CheckpointUnreadable(Exception):
    """A record is unreadable, or of another version."""


class _Format(Struct):
    format: int


class _Digest(Struct, forbid_unknown_fields=True):
    n_open: Sum
    n_early: Sum
    queries: Sum
    sum_units: Sum
    weighted_units: Sum


class _Record(Struct):
    head: HeadRow
    restore_offsets: PerLog[Count]
    watermark_ms: Sum | None
    totals: list[tuple[str, TotalsRow]]
    digest: _Digest


_CANNOT: Final = "it cannot be read"
_read_format: Final[Reader[_Format]] = Reader(_Format, CheckpointUnreadable, _CANNOT)
_read: Final[Reader[_Record]] = Reader(_Record, CheckpointUnreadable, _CANNOT)


def checkpoint_key(task: int, fingerprint: str) -> bytes:
    """The key of the record of a task."""
    return f"{task}+{fingerprint}".encode()


def checkpoint_records(task: int, fingerprint: str, value: bytes) -> list[OutputRecord]:
    """The records of an encoded checkpoint: one, or its parts if it is large.

    The key of part k > 0 is that of the checkpoint followed by `+k`.
    """
    key = checkpoint_key(task, fingerprint)
    if len(value) <= PART_BYTES:
        return [OutputRecord(key, value)]
    parts = [value[at : at + PART_BYTES] for at in range(0, len(value), PART_BYTES)]
    name = xxhash.xxh3_128_hexdigest(value).encode()
    return [
        OutputRecord(
            key + b"+%d" % number if number else key,
            b'{"set":"%s","part":%d,"parts":%d}\n' % (name, number, len(parts)) + part,
        )
        for number, part in enumerate(parts)
    ]


class CheckpointSets(Struct):
    """The latest complete checkpoint by key, from the records of one partition in order.

    A crash between two parts leaves a set incomplete: then the complete one before it counts,
    unless its records were compacted.
    """

    _complete: dict[bytes, bytes] = field(default_factory=dict)
    _incomplete: dict[bytes, dict[bytes, dict[int, bytes]]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Adds the next record; one without a value deletes its key."""
        if key is None or value is None:
            self._complete.pop(key or b"", None)
            return
        part = _PART.match(value)
        if part is None:
            self._complete[key] = value
            return
        name, number, n_parts = part[1], int(part[2]), int(part[3])
        key = key.removesuffix(b"+%d" % number) if number else key
        sets = self._incomplete[key]
        parts = sets.setdefault(name, {})
        parts[number] = value[part.end() :]
        if len(parts) == n_parts:
            whole = b"".join(parts[each] for each in sorted(parts))
            if xxhash.xxh3_128_hexdigest(whole).encode() == name:
                self._complete[key] = whole
                del sets[name]
        if len(sets) > _MAX_INCOMPLETE:
            del sets[next(iter(sets))]

    def latest(self) -> dict[bytes, bytes]:
        """Values by key; without a complete set one that `decode_checkpoint` refuses."""
        return {
            **{key: _INCOMPLETE for key, sets in self._incomplete.items() if sets},
            **self._complete,
        }


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The value of a record."""
    document = {
        "format": FORMAT,
        "head": {**asdict(checkpoint.head), "origin": asdict(checkpoint.head.origin)},
        "restore_offsets": checkpoint.restore_offsets,
        "watermark_ms": checkpoint.watermark_ms,
        "totals": [
            [stratum_row(stratum).decode(), totals_document(totals)]
            for stratum, totals in checkpoint.totals.items()
        ],
        "digest": checkpoint.digest._asdict(),
    }
    return json.dumps(document, separators=(",", ":")).encode()


def decode_checkpoint(
    value: bytes, *, measures: MeasureSet | None = None, segment_measures: Sequence[str] = ()
) -> Checkpoint:
    """The checkpoint in a record, with *measures* if given. Raises CheckpointUnreadable."""
    if value == _INCOMPLETE:
        raise CheckpointUnreadable("it has several parts, and some of them are missing")
    written = _read_format(value).format
    if written != FORMAT:
        raise CheckpointUnreadable(f"its format is {written}, and this version reads {FORMAT}")
    record = _read(value)
    n_measures = None
    if measures is not None:
        n_measures = (len(measures.canonical), len(measures.columns_of(segment_measures)))
    with refused_as(CheckpointUnreadable, _CANNOT):
        digest = Digest(*checked_sums(list(astuple(record.digest))))
        checked_sums([record.watermark_ms or 0])
        if any(record.restore_offsets[log] > record.head["positions"][log] for log in LOGS):
            raise CheckpointUnreadable("its restore offsets are beyond its positions")
        return Checkpoint(
            head=checked_head(record.head),
            restore_offsets={log: record.restore_offsets[log] for log in LOGS},
            watermark_ms=record.watermark_ms,
            totals=dict(_stratum_totals(*row, n_measures) for row in record.totals),
            digest=digest,
        )


def _stratum_totals(
    name: str, row: TotalsRow, n_measures: tuple[int, int] | None
) -> tuple[AnyStratum, StratumTotals]:
    try:
        stratum, totals = stratum_from(name.encode()), totals_from(row)
    except StateDamaged as damaged:
        raise CheckpointUnreadable(f"{_CANNOT}: {damaged}") from None
    if n_measures is not None:
        by_level = isinstance(stratum, LevelStratum)
        n_columns = n_measures[by_level] * len(stratum.rankers)
        expected = StratumTotals.zero(n_columns, 0 if by_level else n_columns)
        for sums, zero in zip(totals.sums(), expected.sums(), strict=True):
            if {len(zero.units)} != {len(sums.units), len(sums.lacking or sums.units)}:
                raise CheckpointUnreadable(f"its totals have other columns than {n_columns}")
    return stratum, totals
