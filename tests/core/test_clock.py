"""Event time, the watermark, and timers."""

from random import Random

import numpy as np
import pytest

from evaluator.core.event_time.clock import MAX_TIMESTAMP_MS, LogClock, watermark_ms


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


def test_event_time_is_bounded_by_the_clock_before_the_record():
    clock = LogClock(out_of_orderness_ms=10)
    assert advance(clock, 100, 50, 300, 50) == [100, 90, 300, 290]


def test_an_empty_batch_does_not_move_the_clock():
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


def test_the_watermark_is_the_smaller_clock_minus_the_out_of_orderness():
    assert watermark_ms([100, 70], out_of_orderness_ms=30) == 70 - 30
    assert watermark_ms([0, 0], out_of_orderness_ms=300) == -300


@pytest.mark.parametrize("clocks", [[None, None], [5, None], [None, 5]])
def test_there_is_no_watermark_before_both_logs_have_a_clock(clocks):
    assert watermark_ms(clocks, out_of_orderness_ms=30) is None


def test_no_later_record_is_older_than_the_watermark():
    random = Random(4)
    clocks = [LogClock(out_of_orderness_ms=20) for _ in range(2)]
    watermark = None
    for _ in range(500):
        (event_ms,) = advance(random.choice(clocks), random.randrange(300))
        assert watermark is None or event_ms >= watermark
        watermark = watermark_ms([c.time_ms for c in clocks], out_of_orderness_ms=20)
