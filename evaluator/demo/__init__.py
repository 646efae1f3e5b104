"""A whole world in one process: the traffic, the feeding of a worker, the report.

The caller brings the worker and the embedded broker; nothing here knows an adapter.
"""

from evaluator.demo.run import Learning, run_demo
from evaluator.demo.world import SETTINGS, DemoMessage, DemoWorld

__all__ = ["SETTINGS", "DemoMessage", "DemoWorld", "Learning", "run_demo"]
