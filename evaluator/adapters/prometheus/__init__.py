"""What Prometheus sees of a worker and its steward. Every name: docs/metrics.md."""

from evaluator.adapters.prometheus.families import EvaluatorCollector, families
from evaluator.adapters.prometheus.registry import exposition, registry_of
from evaluator.adapters.prometheus.room import Room
from evaluator.adapters.prometheus.steward import Published

__all__ = ["EvaluatorCollector", "Published", "Room", "exposition", "families", "registry_of"]
