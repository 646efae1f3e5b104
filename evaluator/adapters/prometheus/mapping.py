"""Metrics of `evaluator map`. Every name: docs/metrics.md."""

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from evaluator.adapters.prometheus.families import Series, families_of


@dataclass(eq=False)
class MapperCollector(Collector):
    """The metrics of a mapper; `figures` are samples by name in SPECS."""

    figures: Callable[[], Series]
    ready: Callable[[], bool]
    version: str

    def collect(self) -> Iterator[Metric]:
        """The families as of now."""
        of_all: Series = {
            "ready": [((), int(self.ready()))],
            "build_info": [((self.version, platform.python_version()), 1)],
        }
        return families_of({**self.figures(), **of_all})
