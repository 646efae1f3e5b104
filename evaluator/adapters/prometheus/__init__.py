"""Metrics of a worker and of the leader for Prometheus. Every name: docs/metrics.md."""

from evaluator.adapters.prometheus.families import EvaluatorCollector as EvaluatorCollector
from evaluator.adapters.prometheus.families import MapperCollector as MapperCollector
from evaluator.adapters.prometheus.families import Series as Series
from evaluator.adapters.prometheus.families import exposition as exposition
from evaluator.adapters.prometheus.families import families as families
from evaluator.adapters.prometheus.families import registry_of as registry_of
