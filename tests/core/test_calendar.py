"""When queries come of age, whatever pieces they are pushed and popped in."""

from random import Random

import numpy as np
import pytest

from evaluator.core.calendar import Calendar
from evaluator.core.clock import AT_THE_END, MAX_TIMESTAMP_MS


def times(*values):
    return np.array(values, np.int64)


def popped(calendar, limit_ms, age="settle"):
    """(time, slot) of what comes of age, sorted."""
    return sorted(
        (due, slot)
        for passage in calendar.pop_before(age, limit_ms)
        for due, slot in zip(passage.times_ms.tolist(), passage.slots.tolist(), strict=True)
    )


def push(calendar, due, slots):
    calendar.push(times(*due), times(*slots), times(*slots))


def test_a_timer_has_passed_only_when_the_limit_is_beyond_it():
    calendar = Calendar()
    push(calendar, [10, 20], [1, 2])
    assert popped(calendar, 10) == []
    assert popped(calendar, 11) == [(10, 1)]
    assert popped(calendar, 11) == []
    assert popped(calendar, 20) == []
    assert popped(calendar, 21) == [(20, 2)]


def test_timers_come_in_order_of_time_whenever_they_were_set():
    calendar = Calendar()
    push(calendar, [30, 10], [3, 1])
    assert popped(calendar, 11) == [(10, 1)]
    push(calendar, [20, 15, 40], [2, 0, 4])
    assert popped(calendar, 31) == [(15, 0), (20, 2), (30, 3)]


def test_an_empty_calendar_gives_nothing():
    calendar = Calendar()
    push(calendar, [], [])
    assert popped(calendar, AT_THE_END) == []


def test_at_the_end_every_timer_has_passed():
    calendar = Calendar()
    push(calendar, [0, MAX_TIMESTAMP_MS], [1, 2])
    assert popped(calendar, MAX_TIMESTAMP_MS) == [(0, 1)]
    assert popped(calendar, AT_THE_END) == [(MAX_TIMESTAMP_MS, 2)]


@pytest.mark.parametrize("largest_push", [5, 3_000])
def test_many_timers_pushed_and_popped_in_any_pieces(largest_push):
    random = Random(largest_push)
    calendar, model, slot = Calendar(), {}, 0
    for limit in range(0, 2_000, 70):
        for _ in range(random.randint(0, 3)):
            due = [limit + random.randrange(600) for _ in range(random.randint(0, largest_push))]
            slots = range(slot, slot + len(due))
            slot += len(due)
            push(calendar, [*due], [*slots])
            model |= dict(zip(slots, due, strict=True))
        found = popped(calendar, limit)
        assert [due for due, _ in found] == sorted(due for due, _ in found)
        assert {slot: due for due, slot in found} == {s: t for s, t in model.items() if t < limit}
        model = {s: t for s, t in model.items() if t >= limit}
    assert len(popped(calendar, AT_THE_END)) == len(model) > 0
