"""Writes deploy/prometheus/rules/thresholds.yml from the list of limits."""

from pathlib import Path
from textwrap import wrap

from evaluator.exposition.limits import LIMITS

TARGET = Path(__file__).parent.parent / "deploy" / "prometheus" / "rules" / "thresholds.yml"
HEAD = """\
# Generated from evaluator/exposition/limits.py: make generate
# Every number that an alert compares with, as a series. docs/alerts.md describes each, the
# resulting rate of false alarms, and how to tune.
groups:
  - name: evaluator-thresholds
    interval: 1m
    rules:
"""


def thresholds() -> str:
    """One recorded constant for each limit."""
    rules = []
    for limit in LIMITS:
        lines = [f"      # {line}" for line in wrap(limit.meaning, 92)]
        lines += [f"      - record: evaluator:{limit.name}"]
        lines += [f"        expr: vector({limit.number:.10g})"]
        if limit.measure:
            lines += [f"        labels: {{measure: {limit.measure}}}"]
        rules.append("\n".join(lines))
    return HEAD + "\n".join(rules) + "\n"


if __name__ == "__main__":
    TARGET.write_text(thresholds(), "utf-8")
    print(f"wrote {TARGET}")
