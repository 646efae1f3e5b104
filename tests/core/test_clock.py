"""Event time, the watermark, and timers."""

from random import Random

import numpy as np
import pytest

from evaluator.core.clock import AT_THE_END, MAX_TIMESTAMP_MS, LogClock, TimerQueue, watermark_ms


def times(*values):
    return np.array(values, np.int64)


def advance(clock, *values):
    return clock.advance(times(*values)).tolist()


def test_the_first_record_has_its_own_timestamp_as_event_time():
    clock = LogClock(out_of_orderness_ms=0)
    assert clock.time_ms is None
    assert advance(clock, 7) == [7]
    assert clock.time_ms == 7


def test_the_clock_is_the_largest_timestamp_so_far():
    clock = LogClock(out_of_orderness_ms=100)
    assert advance(clock, 50, 80, 60) == [50, 80, 60]
    assert clock.time_ms == 80
    assert advance(clock, 70) == [70]
    assert clock.time_ms == 80


def test_a_record_beyond_the_bound_gets_the_bound():
    clock = LogClock(out_of_orderness_ms=10)
    assert advance(clock, 100, 90, 89, 0, 95) == [100, 90, 90, 90, 95]


def test_a_record_is_measured_by_the_clock_before_it_not_by_itself_or_later_ones():
    clock = LogClock(out_of_orderness_ms=10)
    assert advance(clock, 100, 50, 300, 50) == [100, 90, 300, 290]


def test_no_record_moves_no_clock():
    clock = LogClock(out_of_orderness_ms=10)
    assert advance(clock) == []
    assert clock.time_ms is None
    advance(clock, 5)
    assert advance(clock) == []
    assert clock.time_ms == 5


@pytest.mark.parametrize("bound", [0, 3, 20, MAX_TIMESTAMP_MS, 1 << 90])
def test_event_times_do_not_depend_on_batches(bound):
    random = Random(bound % 1_000)
    stamps = [random.randrange(100) for _ in range(200)] + [0, MAX_TIMESTAMP_MS, 0, 5]
    expected, largest = [], stamps[0]
    for stamp in stamps:
        expected.append(max(stamp, largest - bound))
        largest = max(largest, stamp)
    for _ in range(10):
        clock, found, rest = LogClock(out_of_orderness_ms=bound), [], list(stamps)
        while rest:
            size = random.randint(0, 60)
            found += advance(clock, *rest[:size])
            rest = rest[size:]
        assert found == expected
        assert clock.time_ms == largest


def test_the_watermark_is_the_smaller_clock_less_the_bound():
    assert watermark_ms([100, 70], out_of_orderness_ms=30) == 70 - 30
    assert watermark_ms([0, 0], out_of_orderness_ms=300) == -300


@pytest.mark.parametrize("clocks", [[None, None], [5, None], [None, 5]])
def test_there_is_no_watermark_before_both_logs_have_spoken(clocks):
    assert watermark_ms(clocks, out_of_orderness_ms=30) is None


def test_no_later_record_is_older_than_the_watermark():
    random = Random(4)
    clocks = [LogClock(out_of_orderness_ms=20) for _ in range(2)]
    watermark = None
    for _ in range(500):
        (event_ms,) = advance(random.choice(clocks), random.randrange(300))
        assert watermark is None or event_ms >= watermark
        watermark = watermark_ms([c.time_ms for c in clocks], out_of_orderness_ms=20)


# Timers


def popped(queue, limit_ms):
    due, slots = queue.pop_before(limit_ms)
    return list(zip(due.tolist(), slots.tolist(), strict=True))


def test_a_timer_has_passed_only_when_the_limit_is_beyond_it():
    queue = TimerQueue()
    queue.push(times(10, 20), times(1, 2))
    assert popped(queue, 10) == []
    assert popped(queue, 11) == [(10, 1)]
    assert popped(queue, 11) == []
    assert popped(queue, 20) == []
    assert popped(queue, 21) == [(20, 2)]


def test_timers_come_in_order_of_time_whenever_they_were_set():
    queue = TimerQueue()
    queue.push(times(30, 10), times(3, 1))
    assert popped(queue, 11) == [(10, 1)]
    queue.push(times(20, 5, 40), times(2, 0, 4))
    assert popped(queue, 31) == [(5, 0), (20, 2), (30, 3)]


def test_an_empty_queue_gives_nothing():
    queue = TimerQueue()
    queue.push(times(), times())
    assert popped(queue, AT_THE_END) == []


def test_at_the_end_every_timer_has_passed():
    queue = TimerQueue()
    queue.push(times(0, MAX_TIMESTAMP_MS), times(1, 2))
    assert popped(queue, MAX_TIMESTAMP_MS) == [(0, 1)]
    assert popped(queue, AT_THE_END) == [(MAX_TIMESTAMP_MS, 2)]


@pytest.mark.parametrize("largest_push", [5, 3_000])
def test_many_timers_pushed_and_popped_in_any_pieces(largest_push):
    random = Random(largest_push)
    queue, model, slot = TimerQueue(), {}, 0
    for limit in range(0, 2_000, 70):
        for _ in range(random.randint(0, 3)):
            due = [limit + random.randrange(600) for _ in range(random.randint(0, largest_push))]
            slots = range(slot, slot + len(due))
            slot += len(due)
            queue.push(times(*due), times(*slots))
            model |= dict(zip(slots, due, strict=True))
        found = popped(queue, limit)
        assert [due for due, _ in found] == sorted(due for due, _ in found)
        assert {slot: due for due, slot in found} == {s: t for s, t in model.items() if t < limit}
        model = {s: t for s, t in model.items() if t >= limit}
    assert len(popped(queue, AT_THE_END)) == len(model) > 0
