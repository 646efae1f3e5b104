"""Waiting for an event with a timeout, and between attempts."""

import asyncio
from collections.abc import Iterator
from typing import Final

FIRST_BACKOFF_SECONDS: Final = 0.25
LAST_BACKOFF_SECONDS: Final = 5.0


def backoff_seconds() -> Iterator[float]:
    """The pauses after attempts that fail: twice as long each time, up to a limit."""
    seconds = FIRST_BACKOFF_SECONDS
    while True:
        yield seconds
        seconds = min(2 * seconds, LAST_BACKOFF_SECONDS)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Waits for *event*; False after a timeout.

    `asyncio.wait_for` of Python 3.11 drops a cancellation that comes as the event is set, so a task
    that waits in a loop would never end.
    Source: https://github.com/python/cpython/issues/86296
    """
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
