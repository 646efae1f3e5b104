"""Waits of tests: for a state, for longer than a busy machine needs.

There is one way. A waiting test checks repeatedly for the state, until it is reached or until far
more time has passed than it can take. A pause of a fixed length proves nothing: on a busy machine
an expected event comes later, and an unexpected one may still follow.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

T = TypeVar("T")
MIN_PAUSE, MAX_PAUSE = 0.02, 0.25
"""Seconds between two looks at a state, at the beginning of a wait and after five seconds."""
PATIENCE_SECONDS = 600.0
"""Limit of every wait; only an event that never occurs reaches it."""
STOP_SECONDS = 30.0
"""Limit of a program that has been asked to stop, as of orchestrators (docs/deployment.md)."""


def until(
    look: Callable[[], T],
    *,
    seconds: float = PATIENCE_SECONDS,
    every: float | None = None,
    details: Callable[[], object] = lambda: "",
) -> T:
    """The result of *look* once it is true; fails after *seconds* with the text of *details*.

    Without *every* the pauses grow with the wait: a look often takes CPU time of two processes.
    """
    began = time.monotonic()
    while not (found := look()):
        if (waited := time.monotonic() - began) > seconds:
            pytest.fail(f"did not come true in {seconds} s: {details()}")
        time.sleep(min(max(MIN_PAUSE, waited / 20), MAX_PAUSE) if every is None else every)
    return found


async def eventually(
    look: Callable[[], T], *, seconds: float = PATIENCE_SECONDS, every: float = 0.005
) -> T:
    """As `until`, while other tasks of the event loop run."""
    async with patience(seconds):
        while not (found := look()):  # noqa: ASYNC110 - what is looked at sets no event
            await asyncio.sleep(every)
    return found


def patience(seconds: float = PATIENCE_SECONDS) -> asyncio.Timeout:
    """`async with patience():` limits loops whose calls wait."""
    return asyncio.timeout(seconds)


async def finished(awaitable: Awaitable[T], *, seconds: float = PATIENCE_SECONDS) -> T:
    """The result of an awaitable that must end by itself."""
    async with patience(seconds):
        return await awaitable
