"""The numbers that alerts compare with, for panels that turn red where an alert would fire."""

from functools import cache
from pathlib import Path

import yaml

THRESHOLDS = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules" / "thresholds.yml"


@cache
def _recorded() -> dict[str, list[float]]:
    """Every number of the file by name; some have one for each measure."""
    found: dict[str, list[float]] = {}
    for group in yaml.safe_load(THRESHOLDS.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            number = float(rule["expr"].removeprefix("vector(").removesuffix(")"))
            found.setdefault(rule["record"].removeprefix("evaluator:"), []).append(number)
    return found


def limit(name: str) -> float:
    """The number called `evaluator:NAME` in thresholds.yml; of several the smallest.

    >>> limit("coverage_tolerance")
    0.1
    """
    return min(_recorded()[name])
