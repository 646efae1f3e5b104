"""The compiled reader of record batches alone: its memory, checksums and decompression."""

import random
import struct
from pathlib import Path

import numpy as np
import pytest
from aiokafka.record.util import calc_crc32c

from evaluator.adapters.kafka.clients import CONSUMER_SETTINGS
from evaluator.wire.native import record_sets
from evaluator.wire.records import (
    KEPT_BYTES,
    MAX_HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_RECORD_BYTES,
)
from tests.repeats import sized
from tests.wire.record_batches import (
    CODECS,
    TIMESTAMP_MS,
    Row,
    batch,
    mutant,
    random_rows,
    with_crc,
)
from tests.wire.sanitized import built, printed

HARNESS = Path(__file__).with_name("record_sets_harness.c")
SEED = 20251121
FLAGS = [
    0,
    record_sets.CHECK_CRC,
    record_sets.CHECK_CRC | record_sets.LEAVE_TRANSACTIONS,
    record_sets.IS_CUT,
    record_sets.CHECK_CRC | record_sets.IS_FOREIGN,
    record_sets.IS_CUT | record_sets.IS_FOREIGN,
    record_sets.CHECK_CRC | record_sets.IS_FOREIGN | record_sets.IS_WHOLE,
]


def read(data, at=0, next_offset=0, flags=record_sets.CHECK_CRC):
    return record_sets.read(np.frombuffer(data, np.uint8), at, next_offset, flags=flags)


def test_the_checksum_equals_that_of_kafka():
    assert calc_crc32c(b"123456789") == 0xE3069283
    rng = random.Random(SEED)
    for size in range(0, 80, sized(1, quick=7)):
        data = batch(0, [Row(0, None, rng.randbytes(size))])
        assert len(read(data).rows) == 1
        for at in range(21, len(data)):
            damaged = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
            assert (len(read(damaged).rows), read(damaged).stop) == (0, record_sets.AT_ODD)


def test_reading_stops_before_an_unsupported_batch():
    plain = batch(0, [Row(0, None, b"a")])
    for codec in CODECS.keys() - {"none"}:
        found = read(plain + batch(1, [Row(0, None, b"b")], codec=codec))
        assert (found.at, found.next_offset, found.stop) == (
            len(plain),
            1,
            record_sets.AT_COMPRESSED,
        )
        assert list(found.rows.values) == [b"a"]
    names = {"is_transactional": True, "producer_id": 5}
    transactional = plain + batch(1, [Row(0, None, b"b")], **names)
    assert read(transactional).stop == record_sets.AT_END
    assert read(transactional, flags=FLAGS[2]).stop == record_sets.AT_ODD
    assert read(plain + batch(1, [Row(0, None, b"b")], **names, is_control=True)).at == len(plain)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (61, 0xFF),  # length of the record: too long a varint
        (61, 0),  # shorter than its parts
        (62, 1),  # attributes
        (64, 3),  # an offset before that of the batch
        (65, 0x7E),  # a key beyond the end
        (65, 3),  # a size of -2
        (60, 0),  # number of records
        (60, 2),
        (16, 3),  # magic
        (0, 0x80),  # offset
    ],
)
def test_an_inconsistent_batch_is_not_read(at, value):
    data = bytearray(batch(0, [Row(0, b"k", b"v")]))
    data[at] = value
    found = read(with_crc(data))
    assert (len(found.rows), found.at, found.stop) == (0, 0, record_sets.AT_ODD)


def test_compressed_batches_are_unpacked_up_to_a_limit(monkeypatch):
    rows = [Row(at, b"k", b"x" * 1_000_000) for at in range(3)]
    plain = batch(7, rows)
    for codec in ("gzip", "lz4", "zstd"):
        data = np.frombuffer(batch(7, rows, codec=codec), np.uint8)
        unpacked, flags = record_sets.unpacked(data)
        assert flags == 0
        assert unpacked[61:].tobytes() == plain[61:]
        assert list(read(unpacked.tobytes(), flags=0).rows.offsets) == [7, 8, 9]
        damaged = data.copy()
        damaged[61:] ^= 0xFF
        assert record_sets.unpacked(damaged) is None
        with monkeypatch.context() as patch:
            patch.setattr(record_sets, "MAX_UNPACKED_BYTES", 2_000_000)
            cut, flags = record_sets.unpacked(data)
            assert (len(cut), flags) == (2_000_061, record_sets.IS_CUT)
            found = record_sets.read(cut, 0, 0, flags=flags)
            assert (found.rows.offsets.tolist(), found.next_offset) == ([7, 8], 9)
            assert found.stop == record_sets.AT_CUT
            assert found.rows.value_sizes.tolist() == [1_000_000] * 2
    assert record_sets.unpacked(np.frombuffer(batch(7, rows, codec="snappy"), np.uint8)) is None


def ends_with_nul(strings):
    """Whether what is kept of each string is followed by a NUL byte."""
    return [strings.buffer[end] for end in strings.starts + strings.sizes] == [0] * len(strings)


@pytest.mark.parametrize(
    ("flags", "most"), [(0, MAX_MESSAGE_BYTES), (record_sets.IS_FOREIGN, MAX_RECORD_BYTES)]
)
def test_keys_and_values_are_cut_above_their_limits(flags, most):
    key, value = b"k" * MAX_MESSAGE_BYTES, b"v" * most
    rows = read(batch(0, [Row(0, key, value), Row(1, key + b"k", value + b"v")]), flags=flags).rows
    assert rows.value_sizes.tolist() == [most, most + 1]
    assert rows.values.sizes.tolist() == [most, KEPT_BYTES]
    assert rows.keys.sizes.tolist() == [MAX_MESSAGE_BYTES, KEPT_BYTES]
    assert ends_with_nul(rows.keys)
    assert ends_with_nul(rows.values)


@pytest.mark.parametrize(
    ("size", "n_kept", "is_read"),
    [
        (MAX_MESSAGE_BYTES, KEPT_BYTES, False),  # a whole message, whose end is missing
        (MAX_MESSAGE_BYTES + 1, KEPT_BYTES, True),
        (MAX_MESSAGE_BYTES + 1, KEPT_BYTES - 1, False),
    ],
)
def test_a_cut_value_is_read_if_it_is_too_large_and_enough_of_it_is_left(size, n_kept, is_read):
    value = b"v" * size
    whole = batch(0, [Row(0, None, value)])
    cut = bytearray(whole[: whole.index(value) + n_kept])
    cut[8:12] = struct.pack(">i", len(cut) - 12)
    found = read(bytes(cut), flags=record_sets.IS_CUT)
    assert found.rows.value_sizes.tolist() == [size] * is_read
    assert found.stop == (record_sets.AT_END if is_read else record_sets.AT_CUT)


@pytest.mark.parametrize("more", [0, 1])
def test_headers_above_the_limit_are_left_to_the_reference_path(more):
    # One header: a byte of their number, one of the key's size, the key, three of the value's size.
    headers = (("a", b"x" * (MAX_HEADER_BYTES - 6 + more)),)
    found = read(batch(0, [Row(0, None, b"v", headers)]), flags=record_sets.IS_FOREIGN)
    sizes = [] if found.rows.headers is None else found.rows.headers.sizes.tolist()
    assert sizes == ([] if more else [MAX_HEADER_BYTES])


def test_reused_arrays_have_room_for_every_record(monkeypatch):
    """Records without key and value, 64 a batch, are the most that so many bytes can have."""
    monkeypatch.setattr(record_sets, "_reused", record_sets._Reused())
    n_bytes = (1 << 16) - 1
    read(bytes((1 << 15) + 1))
    room = record_sets._reused.room(n_bytes)
    sizes = [64] * 128 + [46]
    data = b"".join(
        batch(64 * n, [Row(at, None, None, (), TIMESTAMP_MS + n) for at in range(size)])
        for n, size in enumerate(sizes)
    )
    assert n_bytes - 7 < len(data) <= n_bytes
    found = read(data)
    assert record_sets._reused.room(n_bytes) is room
    assert found.rows.offsets.tolist() == list(range(sum(sizes)))
    times_ms = found.rows.timestamps_ms - TIMESTAMP_MS
    assert times_ms.tolist() == [n for n, size in enumerate(sizes) for _ in range(size)]


def test_arrays_for_the_largest_usual_fetch_are_reused():
    n_bytes = CONSUMER_SETTINGS["max_partition_fetch_bytes"]
    assert record_sets._reused.room(n_bytes) is record_sets._reused.room(n_bytes)


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    """The reader with sanitizers in a program of its own."""
    return built(HARNESS, tmp_path_factory.mktemp("record_sets"))


@pytest.mark.slow
def test_no_mutant_causes_an_invalid_memory_access(harness):
    rng = random.Random(SEED)
    smallest = batch(0, [Row(at, None, None) for at in range(63)])
    large = batch(0, [Row(at, b"k" * 262_145, b"v" * n) for at, n in enumerate((262_144, 262_145))])
    foreign = batch(0, [Row(0, None, b"v" * (1 << 20) + b"v" * n) for n in range(2)])
    sets = [b"", smallest, smallest[:-1], large, large[:-1], foreign, foreign[:-1]]
    whole = [batch(0, random_rows(rng, rng.randrange(1, 9))) for _ in range(400)]
    for _ in range(12_000):
        parts = [rng.choice(whole) for _ in range(rng.choice([1, 1, 2, 5]))]
        parts = [mutant(part, rng) if rng.random() < 0.8 else part for part in parts]
        sets.append(b"".join(parts))
    heads = [(rng.choice([0, 0, 3, 1 << 62]), rng.choice(FLAGS), len(each)) for each in sets]
    sent = b"".join(
        struct.pack("<3q", *head) + each for head, each in zip(heads, sets, strict=True)
    )
    n_sets, n_rows = map(int, printed(harness, sent).split())
    assert min(n_sets, n_rows) > 1_000
