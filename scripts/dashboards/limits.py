"""The numbers that alerts compare with, for panels that turn red where an alert would fire."""

from functools import cache
from pathlib import Path

import yaml

THRESHOLDS = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules" / "thresholds.yml"


@cache
def _recorded() -> dict[str, list[str]]:
    """Every expression of the file by name; some have one for each measure."""
    found: dict[str, list[str]] = {}
    for group in yaml.safe_load(THRESHOLDS.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            found.setdefault(rule["record"], []).append(rule["expr"])
    return found


def limit(name: str) -> float:
    """The number called `evaluator:NAME` in thresholds.yml; of several the smallest.

    >>> limit("orphan_share_limit")
    0.05
    """
    exprs = _recorded()[f"evaluator:{name}"]
    return min(float(expr.removeprefix("vector(").removesuffix(")")) for expr in exprs)
