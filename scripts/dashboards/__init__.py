"""The Grafana dashboards of `deploy/grafana/dashboards`, as code."""
