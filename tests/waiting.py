"""How tests wait: for a state, with more patience than a busy machine needs. There is one way.

A test that waits asks again and again whether the state is there, until it is or until far more
time has passed than anything takes. A pause of a fixed length shows nothing: on a busy machine
what it waits for comes later, and what must not come has not come yet.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

T = TypeVar("T")
PATIENCE_SECONDS = 600.0
"""Of everything that must come. Only what never comes takes so long."""
STOP_SECONDS = 30.0
"""Of a program that was asked to stop: what orchestrators give it (docs/deployment.md)."""


def until(
    look: Callable[[], T],
    *,
    seconds: float = PATIENCE_SECONDS,
    every: float = 0.02,
    told: Callable[[], object] = lambda: "",
) -> T:
    """What *look* gives once it is true; fails after *seconds* with what is *told*."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            pytest.fail(f"did not come true in {seconds} s: {told()}")
        time.sleep(every)
    return found


async def eventually(
    look: Callable[[], T], *, seconds: float = PATIENCE_SECONDS, every: float = 0.005
) -> T:
    """As `until`, beside other tasks of the event loop."""
    async with patience(seconds):
        while not (found := look()):  # noqa: ASYNC110 - what is looked at sets no event
            await asyncio.sleep(every)
    return found


def patience(seconds: float = PATIENCE_SECONDS) -> asyncio.Timeout:
    """`async with patience():` for loops that wait by what they call."""
    return asyncio.timeout(seconds)


async def finished(awaitable: Awaitable[T], *, seconds: float = PATIENCE_SECONDS) -> T:
    """The result of what must end by itself."""
    async with patience(seconds):
        return await awaitable
