"""A broker inside this process: the demo's medium, and the tests' stand-in that is no mock.

It keeps the promises of a log (order, offsets, groups with handover, commits) and passes the
same contract tests as Kafka. Everything happens on one event loop; nothing is durable.
"""

from evaluator.adapters.memory.broker import MemoryBroker
from evaluator.adapters.memory.leadership import MemoryLeadership
from evaluator.adapters.memory.sink import MemorySink
from evaluator.adapters.memory.source import MemorySource
from evaluator.adapters.memory.state import MemoryStateDirectory

__all__ = ["MemoryBroker", "MemoryLeadership", "MemorySink", "MemorySource", "MemoryStateDirectory"]
