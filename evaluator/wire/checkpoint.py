"""Checkpoint records: one per task and lineage, small, in the compacted topic `checkpoints`."""

import json
from dataclasses import asdict
from typing import Final

from evaluator.core.stored import Checkpoint, Digest
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


class CheckpointUnreadable(Exception):
    """A record is not one that this version writes."""


def checkpoint_key(task: int, lineage: str) -> bytes:
    """The key of the record of a task."""
    return f"{task}+{lineage}".encode()


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
