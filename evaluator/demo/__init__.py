"""The demo: generated traffic, a run of a worker on it, and the report; without adapters."""

from evaluator.demo.run import Learning as Learning
from evaluator.demo.run import RunningWorker as RunningWorker
from evaluator.demo.run import run_demo as run_demo
from evaluator.demo.world import REGRESSED as REGRESSED
from evaluator.demo.world import SETTINGS as SETTINGS
from evaluator.demo.world import DemoWorld as DemoWorld
