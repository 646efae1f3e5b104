"""Scrapes of real workers, one a minute, as series for `promtool test rules`."""

import re
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from math import isnan, nan
from pathlib import Path

import numpy as np

from tests.deploy import rules
from tests.kafka.process import Worker
from tests.waiting import until

JOB = "evaluator"
OF_THE_MACHINE = {"evaluator_disk_free_bytes", "process_resident_memory_bytes"}
WALL_CLOCK = {"evaluator_checkpoint_timestamp_seconds"}
EVENT_TIME = {"evaluator_watermark_timestamp_seconds"}

Page = Mapping[str, float]
"""The samples of a worker."""


class Recording:
    """A minute of event time passes between two scrapes, and one of Prometheus.

    How long that takes on this machine does not matter: a wall-clock time in a sample becomes the
    minutes between which it was.
    """

    def __init__(self, start_ms: int) -> None:
        self._start_seconds = start_ms / 1_000
        self._walls: list[float] = []
        self._pages: list[dict[str, Page | None]] = []

    def __len__(self) -> int:
        return len(self._pages)

    def scrape(
        self, workers: Mapping[str, Worker], complete: Callable[[Mapping[str, Page]], bool]
    ) -> None:
        """Scrapes all until what responds is *complete*; the last scrapes are recorded."""
        pages: dict[str, Page | None] = {}

        def look() -> bool:
            pages.update(
                {n: each.samples() if each.running else None for n, each in workers.items()}
            )
            return complete({name: page for name, page in pages.items() if page is not None})

        until(look, every=0.1, details=lambda: pages)
        self._walls.append(time.time())
        self._pages.append(pages)

    def _series(self) -> dict[tuple[str, str], list[float]]:
        """The samples of each instance and series; NaN where there is none."""
        found: dict[tuple[str, str], list[float]] = {}
        for minute, pages in enumerate(self._pages):
            for instance, page in pages.items():
                for series, value in (page or {}).items():
                    found.setdefault((instance, series), [nan] * len(self))[minute] = value
        return found

    def increase(self, name: str) -> float:
        """The growth of a counter of all instances, from zero and from zero after each reset."""
        return sum(
            now - before if now >= before else now
            for (_, series), values in self._series().items()
            if series.startswith(name)
            for before, now in pairwise([0.0, *(value for value in values if not isnan(value))])
        )

    def check(self, file: Path, *, firing: Mapping[int, set[str]]) -> tuple[int, str]:
        """Whether exactly these alerts fire at these minutes, and no other one ever."""
        world = rules.World(step_minutes=1, n=len(self) - 1)
        for name in self._pages[-1]:
            up = [float(pages.get(name) is not None) for pages in self._pages]
            world.put("up", up, job=JOB, instance=name)
        read = set(re.findall(r"\w+", "".join(path.read_text("utf-8") for path in rules.RULES)))
        for (instance, series), values in self._series().items():
            name, _, labels = series.partition("{")
            if name in read - OF_THE_MACHINE:
                path = f'{name}{{job="{JOB}",instance="{instance}",{labels or "}"}'
                world.series[path] = _with_markers(self._in_minutes(name, values))
        expected = {f"{at}m": {(alert, JOB) for alert in alerts} for at, alerts in firing.items()}
        return world.check(file, firing=expected)

    def _in_minutes(self, name: str, values: list[float]) -> list[float]:
        if name in EVENT_TIME:
            return [value - self._start_seconds for value in values]
        if name in WALL_CLOCK:
            minutes = 60.0 * np.arange(len(self))
            return np.interp(values, self._walls, minutes).tolist()
        return values


def _with_markers(values: list[float]) -> list[float | None]:
    """With a stale marker where a series ends, as Prometheus writes it."""
    before = [nan, *values]
    return [
        None if isnan(value) and not isnan(last) else value
        for last, value in zip(before, values, strict=False)
    ]
