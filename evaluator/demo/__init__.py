"""The demo: generated traffic, a run of a worker on it, and the report; without adapters."""

from evaluator.demo.run import Learning, RunningWorker, run_demo
from evaluator.demo.world import SETTINGS, DemoMessage, DemoWorld

__all__ = ["SETTINGS", "DemoMessage", "DemoWorld", "Learning", "RunningWorker", "run_demo"]
