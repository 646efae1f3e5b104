"""`evaluate` and `compare`: measures of rankings for programs and notebooks."""

from evaluator.comparison.paired import Interval, Paired
from evaluator.core.measures import UnknownMeasureError, UnsupportedTiesError
from evaluator.library.comparing import compare
from evaluator.library.measuring import Measured, evaluate

__all__ = [
    "Interval",
    "Measured",
    "Paired",
    "UnknownMeasureError",
    "UnsupportedTiesError",
    "compare",
    "evaluate",
]
