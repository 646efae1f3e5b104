"""Names of the choices of learning, as settings have them."""

from typing import Final

LOSSES: Final = (
    "softmax",
    "pairwise_logistic",
    "pairwise_hinge",
    "pairwise_exponential",
    "lambdarank",
    "pointwise_squared",
    "pointwise_logistic",
)
LABEL_MODES: Final = ("distribution", "gain", "sum")
OPTIMIZERS: Final = ("sgd", "adagrad", "adam")
SCHEDULES: Final = ("constant", "inv_sqrt")
SCALES: Final = ("none", "within_query")
GATES: Final = ("cautious", "standard", "quick")
"""Presets of the rules of the promotion gate."""
