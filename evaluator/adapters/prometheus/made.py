"""Metric families from their specs."""

from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from evaluator.exposition.series import Spec

Samples = Iterable[tuple[tuple[str, ...], float]]
"""Labels, in the order of the spec, and a value."""


def family(spec: Spec, samples: Samples) -> Metric:
    """A counter or a gauge."""
    make = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    made = make(spec.name, spec.meaning, labels=spec.labels)
    for labels, value in samples:
        made.add_metric(labels, value)
    return made
