"""Fetches as columns equal the records of aiokafka's own classes for the same bytes."""

import gc
import importlib
import inspect
import random
import weakref
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher as library_fetcher
from aiokafka.consumer.fetcher import PartitionRecords

from evaluator.adapters.kafka import aiokafka_fetches as fetches
from evaluator.adapters.kafka.errors import skip
from evaluator.adapters.kafka.leadership import settled_records
from evaluator.adapters.kafka.topic_reader import Fetched, records_of
from evaluator.ports import SourceUnusable
from evaluator.wire.native import library, record_sets
from evaluator.wire.records import (
    KEPT_BYTES,
    MAX_HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_RECORD_BYTES,
    kept,
    kept_to_map,
    kept_whole,
    unpacked_headers,
)
from tests.repeats import sized
from tests.wire.record_batches import (
    CODECS,
    TIMESTAMP_MS,
    Row,
    batch,
    legacy,
    marker,
    mutant,
    random_rows,
    with_crc,
)

PARTITION = TopicPartition("shop-rankings", 0)
SEED = 20251121
ROWS = [Row(0, b"k", b"v"), Row(1, None, b"w", (("h", b"x"),)), Row(2, b"", None)]


@pytest.fixture(autouse=True)
def replaced(monkeypatch):
    for name in ("FetchResult", "MemoryRecords", "PartitionRecords"):
        monkeypatch.setattr(library_fetcher, name, getattr(library_fetcher, name))
    fetches.replace_unpacking()


class Position(SimpleNamespace):
    """The state of a partition that is assigned."""

    active, paused = True, False

    def state_value(self, partition):
        return self

    def consumed_to(self, position):
        self.position = position


def fetched(data, at=0, aborted=(), deserializer=kept):
    position = Position(position=at)
    module = importlib.import_module("aiokafka.consumer.fetcher")
    records = module.PartitionRecords(
        PARTITION,
        module.MemoryRecords(data),
        list(aborted),
        at,
        deserializer,
        deserializer,
        True,
        1,
    )
    return module.FetchResult(PARTITION, assignment=position, partition_records=records, backoff=0)


@pytest.mark.parametrize("deserializer", [kept, bytes])
def test_a_fetch_is_freed_without_garbage_collection_when_its_records_are_taken(deserializer):
    result = fetched(batch(0, ROWS[:1]), deserializer=deserializer)
    records = result._partition_records
    held = [weakref.ref(records), weakref.ref(getattr(records, "_reference", records))]
    gc.disable()
    try:
        assert len(result.getall(None)) == 1
        del records
        assert [each() for each in held] == [None, None]
    finally:
        gc.enable()


def read(data, at=0, limit=None, *, is_mapped=False, **how):
    """The records of a fetch, taken *limit* at a time, the position, and the error if there is."""
    rows, error, mapped = [], None, {"rankings"} if is_mapped else ()
    result = fetched(data, at, deserializer=kept_to_map if is_mapped else kept, **how)
    try:
        while result.has_more():
            some = result.getall(limit)
            assert limit is None or len(some) <= limit
            found = records_of("rankings", PARTITION, Fetched(some, 0), mapped)
            columns = [found.offsets, found.timestamps_ms, found.keys, found.values]
            assert (found.headers is not None) == is_mapped
            if is_mapped:
                columns.append(map(unpacked_headers, found.headers))
            rows += zip(*map(list, columns), strict=True)
    except SourceUnusable as damaged:
        error = str(damaged)
    return rows, result._assignment.position, error


def by_reference(monkeypatch, data, at=0, **how):
    with monkeypatch.context() as patch:
        patch.setattr(library, "BUILT", None)
        return read(data, at, **how)


def same(monkeypatch, data, at=0, **how):
    """The records of both readers; with headers, the remaining fields are equal."""
    for is_mapped in (True, False):
        found = read(data, at, **how, is_mapped=is_mapped)
        assert found == by_reference(monkeypatch, data, at, **how, is_mapped=is_mapped)
    return found


def test_the_classes_that_are_replaced_take_the_arguments_that_are_used():
    parameters = list(inspect.signature(PartitionRecords.__init__).parameters)
    assert parameters[1:4] == ["tp", "records", "aborted_transactions"]
    assert parameters[-3:] == ["value_deserializer", "check_crcs", "isolation_level"]
    source = inspect.getsource(PartitionRecords)
    assert "records.has_next()" in source
    assert "records.next_batch()" in source


def test_plain_batches_create_no_row_objects(monkeypatch):
    monkeypatch.setattr(fetches._PartitionRecords, "read_batch", None)
    data = batch(5, ROWS) + batch(8, ROWS, has_append_time=True)
    assert read(data, 5)[0] == [
        (5, TIMESTAMP_MS, b"k", b"v"),
        (6, TIMESTAMP_MS, None, b"w"),
        (7, TIMESTAMP_MS, b"", None),
        (8, TIMESTAMP_MS, b"k", b"v"),
        (9, TIMESTAMP_MS, None, b"w"),
        (10, TIMESTAMP_MS, b"", None),
    ]
    for codec in ("gzip", "lz4", "zstd"):
        assert len(read(batch(5, ROWS, codec=codec), 5)[0]) == 3


@pytest.mark.parametrize("limit", [None, 1, 2, 3, 100])
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_limit_and_gap_reads_the_same(monkeypatch, codec, limit):
    rng = random.Random(f"{SEED}{codec}{limit}")
    for at in (0, 1, 4, 11):
        first = batch(0, random_rows(rng, 5), codec=codec, last_delta=40)
        data = first + batch(41, random_rows(rng, 9), codec=rng.choice(list(CODECS)), last_delta=90)
        rows, position, error = same(monkeypatch, data, at, limit=limit)
        assert rows
        assert (position, error) == (132, None)


def test_older_formats_are_parsed_by_aiokafka(monkeypatch):
    for magic in (0, 1):
        data = legacy(magic, 3, [b"a", None, b"c"])
        rows, position, _ = same(monkeypatch, data, 4)
        assert ([row[0] for row in rows], position) == ([4, 5], 6)
        rows, _, _ = same(monkeypatch, legacy(magic, 0, [b"a", None, b"c"], codec=1))
        assert [row[3] for row in rows] == [b"a", None, b"c"]


def test_aborted_transactions_and_markers_are_left_out(monkeypatch):
    def part(offset, producer, codec="none"):
        return batch(offset, ROWS, producer_id=producer, is_transactional=True, codec=codec)

    data = b"".join(
        [
            part(0, 7),
            part(3, 8, "lz4"),
            batch(6, ROWS),
            marker(9, 7, commits=False),
            marker(10, 8, commits=True),
            part(11, 7, "zstd"),
            marker(14, 7, commits=True),
        ]
    )
    rows, position, _ = same(monkeypatch, data, 0, aborted=[(7, 0)])
    assert [row[0] for row in rows] == [3, 4, 5, 6, 7, 8, 11, 12, 13]
    assert position == 15
    rows, position, _ = same(monkeypatch, data, 0)
    assert len(rows) == 12
    assert position == 15


def test_a_batch_emptied_by_compaction_advances_the_position(monkeypatch):
    empty = bytearray(batch(0, ROWS[:1], last_delta=9))
    del empty[61:]
    empty[57:61] = bytes(4)
    empty[8:12] = (49).to_bytes(4, "big")
    empty = with_crc(empty)
    assert same(monkeypatch, empty, 0) == ([], 10, None)


def test_a_truncated_batch_is_left_for_the_next_fetch(monkeypatch):
    data = batch(0, ROWS)
    for end in (len(data) + 1, len(data) + 30, 2 * len(data) - 1):
        rows, position, _ = same(monkeypatch, (data + batch(3, ROWS))[:end], 0)
        assert (len(rows), position) == (3, 3)


def test_damaged_batches_are_named_and_skipped(monkeypatch):
    whole = batch(0, ROWS)
    for codec in CODECS:
        data = batch(3, ROWS, codec=codec)
        broken = data[:-1] + bytes([data[-1] ^ 1])
        for limit in (None, 2):
            rows, position, error = same(monkeypatch, whole + broken + whole, limit=limit)
            assert (len(rows), position, error) == (3, 3, None)  # the next fetch begins with it
            rows, position, error = same(monkeypatch, broken + batch(6, ROWS), 3, limit=limit)
            assert (rows, position) == ([], 3)
            assert "--skip shop-rankings-0:3-5`" in error
        skip(PARTITION, [(3, 5)])
        rows, position, error = same(monkeypatch, whole + broken + batch(6, ROWS))
        skip(PARTITION, [])
        assert ([row[0] for row in rows], position, error) == ([0, 1, 2, 6, 7, 8], 9, None)


def test_batches_after_an_error_are_not_read():
    data = batch(0, ROWS)
    result = fetched(data[:-1] + bytes([data[-1] ^ 1]) + batch(3, ROWS))
    with pytest.raises(SourceUnusable):
        result.getall(None)
    assert not len(result.getall(None))
    assert not result.has_more()
    assert result._assignment.position == 0


@pytest.mark.parametrize("codec", CODECS)
def test_values_larger_than_the_message_limit_are_cut(monkeypatch, codec):
    values = [b"a" * MAX_MESSAGE_BYTES, b"b" * (MAX_MESSAGE_BYTES + 1), b"c"]
    data = batch(0, [Row(at, value[1:], value) for at, value in enumerate(values)], codec=codec)
    rows, _, _ = same(monkeypatch, data)
    assert [len(row[3]) for row in rows] == [MAX_MESSAGE_BYTES, KEPT_BYTES, 1]
    some = records_of("rankings", PARTITION, Fetched(fetched(data).getall(2), 2))
    assert some.oversize == {1: MAX_MESSAGE_BYTES + 1}


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_foreign_records_have_a_higher_limit_than_messages(monkeypatch, codec):
    sizes = MAX_MESSAGE_BYTES + 1, MAX_RECORD_BYTES, MAX_RECORD_BYTES + 1
    data = batch(0, [Row(at, b"k", b"a" * size) for at, size in enumerate(sizes)], codec=codec)
    rows, _, _ = read(data, is_mapped=True)
    assert rows == by_reference(monkeypatch, data, is_mapped=True)[0]
    assert [len(row[3]) for row in rows] == [*sizes[:2], KEPT_BYTES]
    some = fetched(data, deserializer=kept_to_map).getall()
    assert records_of("rankings", PARTITION, Fetched(some, 3), {"rankings"}).oversize == {
        2: sizes[2]
    }
    beside = records_of("judgments", PARTITION, Fetched(some, 3))
    assert beside.oversize == dict(enumerate(sizes))
    assert list(beside.values) == [b"a" * KEPT_BYTES] * 3
    assert beside.headers is None


def test_headers_of_foreign_records_are_kept_up_to_a_limit(monkeypatch):
    large = MAX_HEADER_BYTES - 10
    headers = (
        (),
        (("a", b"1"), ("b", None), ("a", b"")),
        (("a", b"x" * large), ("b", b"1")),  # longer than the compiled reader keeps
        (("a", b"x" * large), ("b", b"x" * 20), ("c", b"")),
        (("\u00e4", b"1"),),
    )
    found = []
    for each in headers:
        data = batch(0, [Row(0, b"k", b"v", each)])
        ((*_, kept_headers),), _, _ = read(data, is_mapped=True)
        found.append(tuple(kept_headers))
        assert by_reference(monkeypatch, data, is_mapped=True)[0][0][-1] == kept_headers
    assert found == [*headers[:3], headers[3][:1], headers[4]]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_settled_queries_are_read_uncut_with_the_fingerprint_of_their_headers(monkeypatch, codec):
    large, headers = b"a" * (MAX_RECORD_BYTES + 1), (("fingerprint", b"f"), ("generation", b"g"))
    rows = [Row(0, b"k", large, headers), Row(1, b"k", None, headers), Row(2, None, b"w", headers)]
    data = batch(
        0, [*rows, Row(3, b"k", b"x"), Row(4, b"k", b"y", (("fingerprint", None),))], codec=codec
    )

    def read_all():
        columns = fetched(data, deserializer=kept_whole).getall()
        return [
            (each.fingerprint, each.generation, each.offsets.tolist(), list(each.values))
            for each in settled_records(7, Fetched(columns, 5))
            if each.task == 7
        ]

    expected = [
        (b"f", b"g", [0, 2], [large, b"w"]),
        (b"", b"", [3], [b"x"]),
        (b"", b"", [4], [b"y"]),
    ]
    assert read_all() == expected
    assert isinstance(fetched(data, deserializer=kept_whole).getall(), record_sets.RecordColumns)
    monkeypatch.setattr(record_sets, "MAX_UNPACKED_BYTES", len(large) // 2)
    assert read_all() == expected  # the batch is left to aiokafka
    monkeypatch.setattr(library, "BUILT", None)
    assert read_all() == expected


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_only_the_first_records_of_an_oversized_decompressed_batch_are_read(monkeypatch, codec):
    monkeypatch.setattr(record_sets, "MAX_UNPACKED_BYTES", 1_000_000)
    large = b" " * 2_000_000
    before, last = [Row(0, b"k", b"v"), Row(1, b"k", large)], Row(2, None, b"w")
    alone = batch(0, before, codec=codec) + batch(2, [Row(0, None, b"x")])
    rows, position, error = read(alone)
    assert [(row[0], row[3]) for row in rows] == [(0, b"v"), (1, large[:KEPT_BYTES]), (2, b"x")]
    assert (position, error) == (3, None)
    assert records_of("rankings", PARTITION, Fetched(fetched(alone).getall(), 3)).oversize == {
        1: len(large)
    }
    followed = batch(0, [*before, last], codec=codec) + batch(3, [Row(0, None, b"x")])
    rows, position, error = read(followed)
    assert ([row[0] for row in rows], position, error) == ([0, 1], 2, None)
    rows, position, error = read(followed, 2)
    assert (rows, position) == ([], 2)
    assert "shop-rankings-0:2 cannot be read: their batch unpacks to more than" in error
    assert "--skip shop-rankings-0:2`" in error
    skip(PARTITION, [(0, 0), (3, 9)])  # others than those
    with_others = read(followed, 2)
    skip(PARTITION, [(2, 2)])
    rows, position, error = read(followed, 2)
    skip(PARTITION, [])
    assert with_others == ([], 2, with_others[2])
    assert "unpacks to more than" in with_others[2]
    assert ([row[0] for row in rows], position, error) == ([3], 4, None)


def test_other_consumers_and_other_aiokafka_versions_get_rows(monkeypatch):
    data = batch(0, ROWS)
    assert [row.headers for row in fetched(data, deserializer=None).getall()][1] == (("h", b"x"),)
    monkeypatch.setattr(fetches, "_KNOWN", False)
    assert [row.value for row in fetched(data).getall()] == [b"v", b"w", None]


@pytest.mark.slow(alone=False)
def test_mutated_batches_are_read_as_aiokafka_reads_them(monkeypatch):
    rng = random.Random(SEED)
    n_plain = n_errors = 0
    for _ in range(sized(6_000, quick=600)):
        codec = rng.choice(["none", "none", "none", "lz4", "zstd", "gzip"])
        data = batch(rng.choice([0, 5]), random_rows(rng, rng.randrange(1, 6)), codec=codec)
        damaged = mutant(data, rng) if rng.random() < 0.9 else data
        try:
            how = {"is_mapped": rng.random() < 0.5}
            expected = by_reference(monkeypatch, damaged, limit=rng.choice([None, 2]), **how)
        except Exception:  # noqa: BLE001  # neither way promises anything
            continue
        found = read(damaged, **how)
        if "shorter than its header" in str(found[2]):  # aiokafka reads beyond its end
            continue
        assert found == expected, damaged.hex()
        n_plain += found[2] is None
        n_errors += found[2] is not None
    assert min(n_plain, n_errors) > 30


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_batch_beside_an_aborted_transaction_is_unpacked_with_the_limit_too(monkeypatch, codec):
    monkeypatch.setattr(record_sets, "MAX_UNPACKED_BYTES", 1_000_000)
    large = [Row(0, b"k", b" " * 2_000_000)]
    data = batch(3, large, codec=codec, producer_id=8, is_transactional=True)
    rows, position, error = read(data, 3, aborted=[(7, 0)])
    assert (rows, position) == ([], 3)
    assert "shop-rankings-0:3 cannot be read: their batch unpacks to more than" in error
    rows, position, error = read(batch(0, ROWS) + data, aborted=[(7, 0)])
    assert ([row[0] for row in rows], position, error) == ([0, 1, 2], 3, None)


@pytest.mark.parametrize("size", [26, 40, 60])
def test_a_batch_that_is_shorter_than_its_header_is_refused(size):
    short = bytearray(batch(3, ROWS)[:size])
    short[8:12] = (size - 12).to_bytes(4, "big")
    rows, position, error = read(bytes(short), 3)
    assert (rows, position) == ([], 3)
    assert "their batch is shorter than its header" in error
