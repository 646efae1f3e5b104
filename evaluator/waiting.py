"""Waiting for an event with a timeout."""

import asyncio


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
