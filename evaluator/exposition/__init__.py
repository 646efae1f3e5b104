"""Prometheus metrics: names of series, limits of labels, OpenMetrics text."""
