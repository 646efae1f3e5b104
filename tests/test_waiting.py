"""Waiting for an event with a timeout, where no cancellation is lost, and between attempts."""

import asyncio
from itertools import islice

import pytest

from evaluator.waiting import backoff_seconds, is_set_within


def test_pauses_double_up_to_a_limit_and_begin_again_in_each_backoff():
    for _ in range(2):
        assert list(islice(backoff_seconds(), 7)) == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


async def test_setting_the_event_ends_the_wait():
    event = asyncio.Event()
    waiting = asyncio.ensure_future(is_set_within(event, 3_600.0))
    await asyncio.sleep(0)
    event.set()
    assert await waiting is True
    assert await is_set_within(event, 0.0) is True


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.001])
async def test_a_timeout_ends_the_wait(seconds):
    assert await is_set_within(asyncio.Event(), seconds) is False


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancellation_at_the_time_the_event_is_set_is_not_lost(turns):
    event = asyncio.Event()
    waiting = asyncio.ensure_future(is_set_within(event, 3_600.0))
    await asyncio.sleep(0)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    if waiting.cancel():  # else the wait was over
        with pytest.raises(asyncio.CancelledError):
            await waiting
    else:
        assert waiting.result() is True
