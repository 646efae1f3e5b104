"""The one loop that learns from what has settled: `evaluator.core.steward` between the topics."""

from evaluator.steward.loop import Stewardship

__all__ = ["Stewardship"]
