"""What Prometheus sees of a worker and its leader. Every name: docs/metrics.md."""

from evaluator.adapters.prometheus.families import EvaluatorCollector, families
from evaluator.adapters.prometheus.leader import Published
from evaluator.adapters.prometheus.registry import exposition, registry_of
from evaluator.adapters.prometheus.room import Room

__all__ = ["EvaluatorCollector", "Published", "Room", "exposition", "families", "registry_of"]
