"""Writes the PrometheusRule of Kubernetes from the rule files of deploy/prometheus."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parent.parent / "deploy"
RULES = DEPLOY / "prometheus" / "rules"
TARGET = DEPLOY / "kubernetes" / "base" / "prometheus-rule.yaml"
LABELS = {
    "app.kubernetes.io/name": "evaluator",
    "prometheus": "k8s",  # with `role`: the selector of older versions of kube-prometheus
    "release": "kube-prometheus-stack",  # the selector of the Helm chart: the name of its release
    "role": "alert-rules",
}
HEAD = "# Generated from deploy/prometheus/rules: make generate\n"


def rule_files() -> list[Path]:
    """The rule files, in the order of their names."""
    return sorted(RULES.glob("*.yml"))


def prometheus_rule(files: Iterable[Path]) -> str:
    """One PrometheusRule with every group of the files, unchanged and in their order."""
    groups: list[Any] = []
    for file in files:
        groups += yaml.safe_load(file.read_text("utf-8"))["groups"]
    document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "evaluator", "labels": LABELS},
        "spec": {"groups": groups},
    }
    return HEAD + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


if __name__ == "__main__":
    TARGET.write_text(prometheus_rule(rule_files()), "utf-8")
    print(f"wrote {TARGET}")
