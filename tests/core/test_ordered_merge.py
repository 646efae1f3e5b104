"""The order of settled queries over all tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.core.online.ordered_merge import OrderedMerge, SettledGap, TaskProgress
from evaluator.core.types.records import WatermarkRecord
from tests.core.learned import N_TASKS, interleaved, parts, world

WORLD = world(5, 60)
BEGINNING = dict.fromkeys(range(N_TASKS), TaskProgress(0, -1))


def merged(batches):
    merge, taken = OrderedMerge(N_TASKS, BEGINNING), []
    for batch in batches:
        for record in batch:
            if isinstance(record[1], WatermarkRecord):
                merge.watermark(*record)
            else:
                merge.add(record)
        taken += merge.take()
    return merge, taken


@given(st.randoms(use_true_random=False))
def test_merged_order_is_by_settled_time_and_key_for_any_reading_order(random):
    merge, taken = merged(interleaved(WORLD, random))
    assert taken == WORLD
    assert merge.n_buffered == 0


def test_a_task_without_records_blocks_the_merge_and_is_reported():
    silent = [records for task, records in enumerate(parts(WORLD)) if task != 1]
    merge, taken = merged(silent)
    assert taken == []
    assert merge.awaited == [1]


def test_waiting_queries_are_counted_in_bytes():
    merge = OrderedMerge(2, dict.fromkeys(range(2), TaskProgress(0, -1)))
    for n, query in enumerate(WORLD[:3]):
        merge.add(query._replace(task=0, n=n, n_bytes=100 << n))
    assert (merge.n_buffered, merge.n_buffered_bytes) == (3, 700)
    merge.watermark(1, WatermarkRecord(WORLD[1].settled_time_ms + 1, 0))
    assert [query.n for query in merge.take()] == [0, 1]
    assert (merge.n_buffered, merge.n_buffered_bytes) == (1, 400)


def test_a_watermark_record_at_the_settled_time_does_not_release_the_query():
    """A later record may settle at the same time, with a smaller trace_id."""
    first = WORLD[0]
    others = [task for task in range(N_TASKS) if task != first.task]
    merge = OrderedMerge(N_TASKS, BEGINNING)
    merge.add(first)
    for task in others:
        merge.watermark(task, WatermarkRecord(first.settled_time_ms, 0))
    assert list(merge.take()) == []
    for task in others:
        merge.watermark(task, WatermarkRecord(first.settled_time_ms + 1, 0))
    assert list(merge.take()) == [first]


def test_a_watermark_record_beyond_unread_records_is_not_used():
    merge = OrderedMerge(N_TASKS, BEGINNING)
    merge.add(WORLD[0])
    for task in range(N_TASKS):
        merge.watermark(task, WatermarkRecord(1 << 60, 7))
    assert list(merge.take()) == []


def test_repeated_records_are_ignored_and_a_gap_raises():
    mine = [query for query in WORLD if query.task == 0]
    merge = OrderedMerge(N_TASKS, {**BEGINNING, 0: TaskProgress(2, mine[1].settled_time_ms)})
    merge.add(mine[0])
    merge.add(mine[1])
    assert merge.n_buffered == 0
    merge.add(mine[2])
    merge.add(mine[2])
    assert merge.n_buffered == 1
    with pytest.raises(SettledGap, match="n = 4 instead of 3"):
        merge.add(mine[4])


def test_without_progress_the_merge_starts_at_the_first_record():
    mine = [query for query in WORLD if query.task == 0]
    merge = OrderedMerge(1, {})
    merge.add(mine[2])
    merge.watermark(0, WatermarkRecord(mine[2].settled_time_ms + 1, 3))
    assert list(merge.take()) == [mine[2]]
    with pytest.raises(SettledGap, match="n = 4 instead of 3"):
        merge.add(mine[4])


def test_a_watermark_record_may_be_the_first_record():
    later = WORLD[-1]._replace(task=0, n=9)
    merge = OrderedMerge(1, {})
    merge.watermark(0, WatermarkRecord(later.settled_time_ms, 9))
    merge.add(later._replace(n=8))  # written again by a killed worker
    merge.add(later)
    assert merge.n_buffered == 1


def test_a_repeated_n_with_a_later_settled_time_raises():
    mine = [query for query in WORLD if query.task == 0]
    merge = OrderedMerge(1, {0: TaskProgress(2, mine[1].settled_time_ms)})
    merge.add(mine[0])
    with pytest.raises(SettledGap, match="n = 0 again, at a later time than n = 1") as raised:
        merge.add(mine[0]._replace(settled_time_ms=mine[1].settled_time_ms + 1))
    assert raised.value.query.n == 0
