"""Measures for rankings that are at hand: `evaluate` and `compare`, for programs and notebooks."""

from evaluator.comparison.paired import Interval, Paired
from evaluator.core.measures import UnknownMeasureError, UnsupportedTiesError
from evaluator.library.comparing import compare
from evaluator.library.measured import Measured
from evaluator.library.measuring import evaluate

__all__ = [
    "Interval",
    "Measured",
    "Paired",
    "UnknownMeasureError",
    "UnsupportedTiesError",
    "compare",
    "evaluate",
]
