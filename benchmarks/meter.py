"""Measurements of a process by itself: wall and CPU time, peak memory, stages."""

import functools
import json
import re
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def cpu_seconds() -> float:
    """User and system time of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_mb() -> float:
    """Largest resident memory of this program so far.

    Not `ru_maxrss`, which is inherited from the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        peak = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        if peak:
            return int(peak[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident_mb() -> float:
    """Present resident memory of this program."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


class Meter:
    """Wall and CPU time from the first poll to the last commit, and CPU time of the second half.

    The second half begins when half of *n_records* are committed: start-up and warm-up are over
    then. A program that reports no commits has none; see `course.Course`.
    """

    def __init__(self, n_records: int) -> None:
        self._began: tuple[float, float] | None = None
        self._half: tuple[int, float] | None = None  # records, CPU time
        self._ended = (0.0, 0.0)
        self._n_records, self._n_committed = n_records, 0
        self.stages = Stages()

    def begin(self) -> None:
        """A poll is about to start; only the first one counts."""
        if self._began is None:
            self._began = (time.perf_counter(), cpu_seconds())
            self.stages.clear()

    def committed(self, n: int) -> None:
        """*n* records are committed so far."""
        if self._half is None and n >= self._n_records // 2:
            self._half = n, cpu_seconds()
        self._n_committed = n
        self.end()

    def end(self) -> None:
        """All work so far is finished; the last call counts."""
        self._ended = (time.perf_counter(), cpu_seconds())

    def write(self, path: Path, **more: object) -> None:
        """Reports as JSON."""
        assert self._began is not None
        n_half, half_cpu = self._half or (self._n_committed, self._ended[1])
        report = {
            "wall_seconds": self._ended[0] - self._began[0],
            "cpu_seconds": self._ended[1] - self._began[1],
            "second_half_cpu_seconds": self._ended[1] - half_cpu,
            "second_half_records": self._n_committed - n_half,
            "max_rss_mb": peak_mb(),
            "stages": dict(self.stages.seconds),
            **more,
        }
        path.write_text(json.dumps(report))


class Stages:
    """Seconds per stage by *clock*; time in a stage within a stage counts for the inner one alone.

    A stage that awaits is charged until it continues, including other work meanwhile: on one core
    that is the client's own work (reading and sending sockets, compression). All stages must be
    entered from one asyncio task.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._clock = clock
        self._open: list[float] = []  # per open stage: seconds spent in stages within it

    def clear(self) -> None:
        self.seconds.clear()

    @contextmanager
    def charging(self, stage: str) -> Iterator[None]:
        """Charges the block to *stage*, without what is charged to stages within it."""
        began = self._clock()
        self._open.append(0.0)
        try:
            yield
        finally:
            took = self._clock() - began
            self.seconds[stage] += took - self._open.pop()
            if self._open:
                self._open[-1] += took

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        """Replaces a synchronous function or method of *owner* by one that is charged."""
        original: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(original)
        def charged(*args: Any, **kwargs: Any) -> Any:
            with self.charging(stage):
                return original(*args, **kwargs)

        setattr(owner, name, charged)

    def wrap_async(self, owner: Any, name: str, stage: str) -> None:
        """The same for a coroutine function."""
        original = getattr(owner, name)

        @functools.wraps(original)
        async def charged(*args: Any, **kwargs: Any) -> Any:
            with self.charging(stage):
                return await original(*args, **kwargs)

        setattr(owner, name, charged)
