"""Checkpoints in several records, and the parts that count."""

import random

import pytest

from evaluator.wire.records import OutputRecord
from evaluator.wire.state import checkpoint
from evaluator.wire.state.checkpoint import (
    CheckpointSets,
    CheckpointUnreadable,
    checkpoint_key,
    checkpoint_records,
    decode_checkpoint,
)

KEY = checkpoint_key(3, "ab12")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(checkpoint, "PART_BYTES", 10)


def records_of(value: bytes, *, key: str = "ab12") -> list[OutputRecord]:
    return checkpoint_records(3, key, value)


def latest(*records: OutputRecord) -> dict[bytes, bytes]:
    sets = CheckpointSets()
    for record in records:
        sets.take(record.key, record.value)
    return sets.latest()


def compacted(records: list[OutputRecord]) -> list[OutputRecord]:
    """The last record of each key, in the order of the log."""
    last = {record.key: at for at, record in enumerate(records)}
    return [record for at, record in enumerate(records) if last[record.key] == at]


A, B, C = b"a" * 25, b"b" * 45, b"c" * 15  # three parts, five, two


@pytest.mark.parametrize("n_bytes", [0, 1, 9, 10, 11, 20, 21, 1_000])
def test_a_checkpoint_of_any_size_is_read_completely(n_bytes):
    value = random.Random(n_bytes).randbytes(n_bytes)
    records = records_of(value)
    assert len(records) == max(1, -(-n_bytes // 10))
    assert latest(*records) == {KEY: value}


def test_each_part_has_a_key_of_its_own_and_a_bounded_size():
    records = records_of(b"x" * 1_000)
    assert len({record.key for record in records}) == 100
    assert records[0].key == KEY
    assert max(len(record.value) for record in records) <= 10 + 100


@pytest.mark.parametrize("n_written", range(5))
def test_an_incomplete_set_of_parts_leaves_the_set_before_it(n_written):
    assert latest(*records_of(A), *records_of(B)[:n_written]) == {KEY: A}
    assert latest(*records_of(C), *records_of(A)[:2], *records_of(B)[:n_written]) == {KEY: C}


def test_without_a_complete_set_the_checkpoint_is_refused_with_the_reason():
    value = latest(*records_of(A)[1:])[KEY]
    with pytest.raises(CheckpointUnreadable, match="some of them are missing"):
        decode_checkpoint(value)


def test_parts_of_a_longer_set_left_by_compaction_are_ignored():
    written = [*records_of(B), *records_of(A), *records_of(C)]
    assert len(compacted(written)) == 5
    assert latest(*compacted(written)) == {KEY: C}
    assert latest(*compacted([*written, OutputRecord(KEY, b"short")])) == {KEY: b"short"}


def test_a_set_partly_removed_by_compaction_is_incomplete():
    written = [*records_of(A), *records_of(B)[:2]]
    with pytest.raises(CheckpointUnreadable, match="missing"):
        decode_checkpoint(latest(*compacted(written))[KEY])


def test_parts_of_two_concurrent_writers_are_not_mixed():
    first, second = records_of(A), records_of(b"z" * 25)
    mixed = [each for pair in zip(first, second, strict=True) for each in pair]
    assert latest(*mixed) == {KEY: b"z" * 25}
    assert latest(*mixed[:-1]) == {KEY: A}
    assert latest(*second, *first, *second[:1]) == {KEY: A}


def test_a_changed_part_invalidates_its_set():
    good, bad = records_of(A), records_of(B)
    bad[2] = bad[2]._replace(value=bad[2].value[:-1] + b"x")
    assert latest(*good, *bad) == {KEY: A}
    renamed = [bad[0]._replace(value=bad[0].value.replace(b'"part":0', b'"part":7')), *bad[1:]]
    assert latest(*good, *renamed) == {KEY: A}


def test_other_keys_are_other_checkpoints():
    other = records_of(B, key="ff00")
    assert latest(*records_of(A), *other) == {KEY: A, checkpoint_key(3, "ff00"): B}
    deleted = OutputRecord(KEY, None)
    assert latest(*records_of(A), *other, deleted) == {checkpoint_key(3, "ff00"): B}


def test_parts_of_incomplete_sets_do_not_accumulate():
    sets = CheckpointSets()
    for number in range(100):
        for record in records_of(b"%d" % number * 20)[:-1]:
            sets.take(record.key, record.value)
    assert sum(len(each) for each in sets._incomplete.values()) <= 5
