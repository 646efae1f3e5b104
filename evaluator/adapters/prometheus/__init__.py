"""What Prometheus sees of a worker and its steward. Every name: docs/metrics.md."""

from evaluator.adapters.prometheus.families import (
    EvaluatorCollector,
    exposition,
    families,
    registry_of,
)
from evaluator.adapters.prometheus.steward import Published

__all__ = ["EvaluatorCollector", "Published", "exposition", "families", "registry_of"]
