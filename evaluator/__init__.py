"""Joins rankings with judgments and keeps exact running measures of ranking quality.

As a library: `evaluate` and `compare` measure rankings in memory, with the kernel of the
worker (docs/library.md). They are imported at their first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evaluator.version import __version__

if TYPE_CHECKING:
    from evaluator.library import (
        Compared,
        Detail,
        Effect,
        Freshness,
        InvalidInputError,
        Measured,
        MissingQueriesWarning,
        Paired,
        PrecisionAtRecall,
        ThresholdCurve,
        UnknownMeasureError,
        compare,
        details,
        evaluate,
        precision_at_recall,
        thresholds,
    )

__all__ = [
    "Compared",
    "Detail",
    "Effect",
    "Freshness",
    "InvalidInputError",
    "Measured",
    "MissingQueriesWarning",
    "Paired",
    "PrecisionAtRecall",
    "ThresholdCurve",
    "UnknownMeasureError",
    "__version__",
    "compare",
    "details",
    "evaluate",
    "precision_at_recall",
    "thresholds",
]


def __getattr__(name: str) -> Any:
    """Imports a function of the library at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module("evaluator.library"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
