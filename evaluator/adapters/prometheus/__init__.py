"""Metrics of a worker and of the leader for Prometheus. Every name: docs/metrics.md."""

from evaluator.adapters.prometheus.families import (
    EvaluatorCollector,
    Resources,
    exposition,
    families,
    registry_of,
)
from evaluator.adapters.prometheus.leader import PublishedSums

__all__ = [
    "EvaluatorCollector",
    "PublishedSums",
    "Resources",
    "exposition",
    "families",
    "registry_of",
]
