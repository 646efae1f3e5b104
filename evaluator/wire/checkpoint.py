"""Checkpoint records: one per task and lineage, in the compacted topic `checkpoints`.

A checkpoint of many strata is a set of records, its parts: each names the hash of the whole, its
own number and how many there are. Only a set that is whole counts.
"""

import json
import re
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Final

import xxhash

from evaluator.core.stored import Checkpoint, Digest
from evaluator.wire.records import OutputRecord
from evaluator.wire.state import (
    UNREADABLE,
    head_from,
    stratum_from,
    stratum_row,
    totals_document,
    totals_from,
)

FORMAT: Final = 1
"""Grows when records are written otherwise than before."""
PART_BYTES: Final = 512 << 10
"""Of a checkpoint in one record, which is half of what a topic takes by default."""
_MOST_OPEN: Final = 4
"""Sets of a key that may be incomplete at a time; the oldest is dropped."""
_PART: Final = re.compile(rb'\{"set":"([0-9a-f]{32})","part":(\d{1,4}),"parts":(\d{1,4})\}\n')
_INCOMPLETE: Final = b"incomplete"


class CheckpointUnreadable(Exception):
    """A record is not one that this version writes."""


def checkpoint_key(task: int, lineage: str) -> bytes:
    """The key of the record of a task."""
    return f"{task}+{lineage}".encode()


def checkpoint_records(task: int, lineage: str, value: bytes) -> list[OutputRecord]:
    """The records of an encoded checkpoint: itself, or its parts if it is large.

    The key of part k > 0 is that of the checkpoint with `+k` behind it.
    """
    key = checkpoint_key(task, lineage)
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


@dataclass(slots=True)
class CheckpointSets:
    """The latest whole checkpoint by key, from the records of one partition in their order.

    A crash between two parts leaves a set incomplete: the whole one before it counts, as long as
    its records were not compacted.
    """

    _whole: dict[bytes, bytes] = field(default_factory=dict)
    _open: dict[bytes, dict[bytes, dict[int, bytes]]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Reads the next record; one without a value deletes its key."""
        if key is None or value is None:
            self._whole.pop(key or b"", None)
            return
        part = _PART.match(value)
        if part is None:
            self._whole[key] = value
            return
        name, number, n_parts = part[1], int(part[2]), int(part[3])
        key = key.removesuffix(b"+%d" % number) if number else key
        sets = self._open[key]
        parts = sets.setdefault(name, {})
        parts[number] = value[part.end() :]
        if len(parts) == n_parts:
            whole = b"".join(parts[each] for each in sorted(parts))
            if xxhash.xxh3_128_hexdigest(whole).encode() == name:
                self._whole[key] = whole
                del sets[name]
        if len(sets) > _MOST_OPEN:
            del sets[next(iter(sets))]

    def latest(self) -> dict[bytes, bytes]:
        """By key; of one without a whole set a value that `decode_checkpoint` refuses."""
        return {**{key: _INCOMPLETE for key, sets in self._open.items() if sets}, **self._whole}


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The value of a record."""
    document = {
        "format": FORMAT,
        "head": asdict(checkpoint.head),
        "low_water": checkpoint.low_water,
        "watermark_ms": checkpoint.watermark_ms,
        "totals": [
            [stratum_row(stratum).decode(), totals_document(totals)]
            for stratum, totals in checkpoint.totals.items()
        ],
        "digest": checkpoint.digest._asdict(),
    }
    return json.dumps(document, separators=(",", ":")).encode()


def decode_checkpoint(value: bytes) -> Checkpoint:
    """What `encode_checkpoint` wrote. Raises CheckpointUnreadable."""
    if value == _INCOMPLETE:
        raise CheckpointUnreadable("it has several parts, and some of them are missing")
    try:
        document = json.loads(value)
        if document["format"] != FORMAT:
            raise CheckpointUnreadable(
                f"its format is {document['format']}, and this version reads {FORMAT}"
            )
        return Checkpoint(
            head=head_from(json.dumps(document["head"]).encode()),
            low_water=document["low_water"],
            watermark_ms=document["watermark_ms"],
            totals={
                stratum_from(stratum.encode()): totals_from(totals)
                for stratum, totals in document["totals"]
            },
            digest=Digest(**document["digest"]),
        )
    except UNREADABLE as error:
        raise CheckpointUnreadable(f"it cannot be read: {error!r}") from error
