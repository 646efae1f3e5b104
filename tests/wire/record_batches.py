"""Record batches as producers write them, and changes to them."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
TIMESTAMP_MS = 1_763_690_000_000


class Row(NamedTuple):
    """A record; `delta` is its offset relative to its batch."""

    delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = TIMESTAMP_MS


def batch(
    first_offset: int,
    rows: Sequence[Row],
    *,
    codec: str = "none",
    last_delta: int | None = None,
    producer_id: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    has_append_time: bool = False,
) -> bytes:
    """A batch of magic 2."""
    builder = DefaultRecordBatchBuilder(
        2, CODECS[codec], is_transactional, producer_id, 0, 0, 1 << 30
    )
    for row in rows:
        builder.append(row.delta, row.timestamp_ms, row.key, row.value, list(row.headers))
    data = bytearray(builder.build())
    data[0:8] = first_offset.to_bytes(8, "big")
    if last_delta is not None:
        data[23:27] = last_delta.to_bytes(4, "big")
    data[22] |= 8 * has_append_time + 32 * is_control
    return with_crc(data)


def with_crc(data: bytearray) -> bytes:
    """The batch with its correct checksum."""
    data[17:21] = calc_crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def marker(offset: int, producer_id: int, *, commits: bool) -> bytes:
    """A batch with the marker of the end of a transaction."""
    row = Row(0, b"\0\0" + bytes([0, commits]), b"\0" * 6)
    how = {"producer_id": producer_id, "is_transactional": True, "is_control": True}
    return batch(offset, [row], **how)


def legacy(magic: int, first_offset: int, values: Sequence[bytes | None], codec: int = 0) -> bytes:
    """Records in an older format."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 30)
    for at, value in enumerate(values):
        builder.append(first_offset + at, TIMESTAMP_MS, b"k", value)
    return bytes(builder.build())


def random_rows(rng: random.Random, n: int) -> list[Row]:
    """Rows of all kinds, some removed by compaction."""
    rows, delta = [], rng.choice([0, 0, 0, 3])
    for _ in range(n):
        rows.append(
            Row(
                delta,
                rng.choice([None, b"", b"k", rng.randbytes(200)]),
                rng.choice([None, b"", rng.randbytes(rng.randrange(400)), b"{}" * 70]),
                rng.choice([(), (), (("a", b"b"), ("c", None)), (("\u00e4", b""),)]),
                TIMESTAMP_MS + rng.randrange(-(10**6), 10**6),
            )
        )
        delta += rng.choice([1, 1, 1, 1, 7])
    return rows


def mutant(data: bytes, rng: random.Random) -> bytes:
    """The bytes with a few of them changed, removed or added; mostly with a correct checksum."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.choice([rng.randrange(len(changed)), rng.randrange(min(80, len(changed)))])
        what = rng.randrange(4)
        if what == 0:
            changed[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif what == 1:
            changed[at] ^= 1 << rng.randrange(8)
        elif what == 2:
            del changed[at : at + rng.choice([1, 1, 9])]
        else:
            changed[at:at] = rng.choice([b"\xff" * 10, b"\x80", rng.randbytes(3)])
    if len(changed) > 61 and rng.random() < 0.8:
        if rng.random() < 0.8:
            changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
        return with_crc(changed)
    return bytes(changed)
