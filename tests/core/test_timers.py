"""Event-time timers: each is due once, in any order of pushes and pops."""

from random import Random

import numpy as np
import pytest

from evaluator.core.event_time.clock import AT_THE_END, MAX_TIMESTAMP_MS
from evaluator.core.event_time.timers import Timers
from tests.repeats import first_quick


def times(*values):
    return np.array(values, np.int64)


def popped(timers, limit_ms, age="settle"):
    """(time, slot) of due timers, sorted."""
    return sorted(
        (due, slot)
        for due_range in timers.pop_before(age, limit_ms)
        for due, slot in zip(due_range.times_ms.tolist(), due_range.rows.tolist(), strict=True)
    )


def push(timers, due, slots):
    timers.push(times(*due), times(*slots), times(*slots))


def test_a_timer_is_due_only_when_the_limit_has_passed_it():
    timers = Timers()
    push(timers, [10, 20], [1, 2])
    assert popped(timers, 10) == []
    assert popped(timers, 11) == [(10, 1)]
    assert popped(timers, 11) == []
    assert popped(timers, 20) == []
    assert popped(timers, 21) == [(20, 2)]


def test_timers_are_due_in_order_of_time_for_any_order_of_pushes():
    timers = Timers()
    push(timers, [30, 10], [3, 1])
    assert popped(timers, 11) == [(10, 1)]
    push(timers, [20, 15, 40], [2, 0, 4])
    assert popped(timers, 31) == [(15, 0), (20, 2), (30, 3)]


def test_no_timer_is_due_without_timers():
    timers = Timers()
    push(timers, [], [])
    assert popped(timers, AT_THE_END) == []


def test_every_timer_is_due_at_the_end():
    timers = Timers()
    push(timers, [0, MAX_TIMESTAMP_MS], [1, 2])
    assert popped(timers, MAX_TIMESTAMP_MS) == [(0, 1)]
    assert popped(timers, AT_THE_END) == [(MAX_TIMESTAMP_MS, 2)]


@pytest.mark.parametrize("largest_push", first_quick(5, 3_000))
def test_many_timers_pushed_and_popped_in_any_pieces(largest_push):
    random = Random(largest_push)
    timers, model, slot = Timers(), {}, 0
    for limit in range(0, 2_000, 70):
        for _ in range(random.randint(0, 3)):
            due = [limit + random.randrange(600) for _ in range(random.randint(0, largest_push))]
            slots = range(slot, slot + len(due))
            slot += len(due)
            push(timers, [*due], [*slots])
            model |= dict(zip(slots, due, strict=True))
        found = popped(timers, limit)
        assert [due for due, _ in found] == sorted(due for due, _ in found)
        assert {slot: due for due, slot in found} == {s: t for s, t in model.items() if t < limit}
        model = {s: t for s, t in model.items() if t >= limit}
    assert len(popped(timers, AT_THE_END)) == len(model) > 0
