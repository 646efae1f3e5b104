"""Slots and spans: stored values are found again, and freed space is used again."""

from random import Random

import numpy as np

from evaluator.core.columns.table import Groups, RaggedColumns, RowTable, span_indices


def ints(*values):
    return np.array(values, np.int64)


def test_span_indices_concatenate_the_spans():
    assert span_indices(ints(5, 20), ints(2, 3)).tolist() == [5, 6, 20, 21, 22]
    assert span_indices(ints(9, 4, 9), ints(1, 0, 2)).tolist() == [9, 9, 10]
    assert span_indices(ints(), ints()).tolist() == []
    assert span_indices(ints(7), ints(0)).tolist() == []


def test_groups_are_by_key_then_by_the_other_keys_and_have_the_sums_of_their_rows():
    random = Random(2)
    for n in (0, 1, 2, 300):
        for most in (0, 3):
            keys = [tuple(random.randint(0, most) for _ in range(2)) for _ in range(n)]
            one, other = (ints(*(key[at] for key in keys)) for at in range(2))
            rows = [ints(1, random.randint(-9, 9)) for _ in keys]
            expected = {key: ints(0, 0) for key in sorted(keys)}
            for key, row in zip(keys, rows, strict=True):
                expected[key] = expected[key] + row
            groups = Groups.of(one, other)
            assert np.stack((groups.each(one), groups.each(other)), axis=1).tolist() == list(
                map(list, expected)
            )
            sums = groups.sums(np.array(rows, np.int64).reshape(-1, 2))
            assert sums.tolist() == [row.tolist() for row in expected.values()]


# Slots


def test_slots_in_use_are_all_different():
    random = Random(1)
    table, used = RowTable({"number": np.int64}), {}
    for step in range(300):
        slots = table.allocate(random.randint(0, 40))
        assert used.keys().isdisjoint(slots.tolist())
        table["number"][slots] = step
        used |= dict.fromkeys(slots.tolist(), step)
        gone = random.sample(sorted(used), min(len(used), random.randint(0, 40)))
        table.release(np.array(gone, np.int64))
        for slot in gone:
            del used[slot]
        assert len(table) == len(used)
        held = np.array(sorted(used), np.int64)
        assert table["number"][held].tolist() == [used[slot] for slot in held.tolist()]
    assert len(table["number"]) <= 1_024  # slots are used again: at most some hundred at once


def test_released_slots_are_used_before_new_ones():
    table = RowTable({"number": np.int64})
    first = table.allocate(3)
    table.release(first[:2])
    again = table.allocate(3)
    assert set(first[:2].tolist()) < set(again.tolist())
    assert sorted(again.tolist()) == [0, 1, 3]


def test_growing_keeps_existing_rows():
    table = RowTable({"number": np.int64, "name": object})
    slots = table.allocate(3)
    table["number"][slots], table["name"][slots] = [1, 2, 3], ["a", "b", "c"]
    table.allocate(5_000)
    assert table["number"][slots].tolist() == [1, 2, 3]
    assert table["name"][slots].tolist() == ["a", "b", "c"]


def test_references_to_objects_of_released_slots_are_dropped():
    table = RowTable({"number": np.int64, "name": object})
    slots = table.allocate(2)
    table["name"][slots] = ["a", "b"]
    table.release(slots[:1])
    assert table["name"][slots].tolist() == [None, "b"]


# Spans


def test_spans_are_found_at_the_starts_that_append_returns():
    pool = RaggedColumns({"code": np.int32, "grade": np.float64})
    starts = pool.append(ints(2, 0, 1), code=ints(1, 2, 3), grade=np.array([0.1, 0.2, 0.3]))
    more = pool.append(ints(2_000), code=np.arange(2_000), grade=np.arange(2_000.0))
    assert pool["code"][span_indices(starts, ints(2, 0, 1))].tolist() == [1, 2, 3]
    assert pool["grade"][span_indices(starts, ints(2, 0, 1))].tolist() == [0.1, 0.2, 0.3]
    assert pool["code"][span_indices(more, ints(2_000))].tolist() == list(range(2_000))


def test_a_pool_is_wasteful_when_large_and_more_than_a_third_is_discarded():
    pool = RaggedColumns({"code": np.int64})
    pool.append(ints(65_536), code=np.zeros(65_536))
    pool.discard(65_536)
    assert not pool.wasteful  # not large
    pool.append(ints(131_072), code=np.zeros(131_072))
    assert not pool.wasteful  # exactly a third
    pool.discard(1)
    assert pool.wasteful


def test_compacting_keeps_the_given_spans_and_frees_the_rest(monkeypatch):
    monkeypatch.setattr(RaggedColumns, "_COMPACTED_AT_ONCE", 7)
    random = Random(2)
    pool, spans = RaggedColumns({"code": np.int64}), {}
    for step in range(60):
        lengths = [random.randint(0, 50) for _ in range(20)]
        flat = [random.randrange(1_000) for _ in range(sum(lengths))]
        starts = pool.append(np.array(lengths), code=np.array(flat, np.int64))
        ends = np.cumsum(lengths).tolist()
        for i, (start, length, end) in enumerate(zip(starts.tolist(), lengths, ends, strict=True)):
            spans[step, i] = (start, flat[end - length : end])
        if step % 7 == 6:
            kept = random.sample(sorted(spans), 30)
            starts = np.array([spans[name][0] for name in kept])
            lengths = np.array([len(spans[name][1]) for name in kept])
            moved = pool.compact(starts, lengths).tolist()
            spans = {n: (start, spans[n][1]) for n, start in zip(kept, moved, strict=True)}
            assert not pool.wasteful
        for start, entries in spans.values():
            assert pool["code"][start : start + len(entries)].tolist() == entries
    assert len(pool["code"]) < 60 * 20 * 25


def test_a_pool_compacted_to_nothing_can_be_filled_again():
    pool = RaggedColumns({"code": np.int64})
    pool.append(ints(70_000), code=np.ones(70_000))
    assert pool.compact(ints(), ints()).tolist() == []
    assert len(pool["code"]) <= 1_024
    starts = pool.append(ints(2), code=ints(5, 6))
    assert starts.tolist() == [0]
    assert pool["code"][:2].tolist() == [5, 6]


def test_entries_discarded_before_compacting_are_not_counted_again():
    pool = RaggedColumns({"code": np.int64})
    starts = pool.append(ints(75_000, 80_000), code=np.zeros(155_000))
    pool.discard(80_000)
    assert pool.wasteful
    pool.compact(starts[:1], ints(75_000))
    assert not pool.wasteful
    pool.discard(25_000)
    assert not pool.wasteful  # exactly a third of the 75,000
    pool.discard(1)
    assert pool.wasteful


def test_a_column_becomes_wider_when_an_entry_needs_it():
    pool = RaggedColumns({"rank": np.uint8, "grade": np.float32})
    pool.append(ints(2), rank=np.array([1, 255], np.uint16), grade=np.array([0.5, 31.0]))
    assert (pool["rank"].dtype, pool["grade"].dtype) == (np.uint8, np.float32)
    pool.append(ints(1), rank=np.array([256], np.uint16), grade=np.array([0.1]))
    assert (pool["rank"].dtype, pool["grade"].dtype) == (np.uint16, np.float64)
    assert pool["rank"][:3].tolist() == [1, 255, 256]
    assert pool["grade"][:3].tolist() == [0.5, 31.0, 0.1]
