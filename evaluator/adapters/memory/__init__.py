"""A broker inside this process, for the demo and the tests.

It keeps the guarantees of a log (order, offsets, groups with handover, commits) and passes the
contract tests of Kafka. It runs on one event loop, and nothing is durable.
"""

from evaluator.adapters.memory.broker import MemoryBroker
from evaluator.adapters.memory.outputs import MemoryLeadership, MemorySink
from evaluator.adapters.memory.source import MemorySource
from evaluator.adapters.memory.state import MemoryStateDirectory

__all__ = ["MemoryBroker", "MemoryLeadership", "MemorySink", "MemorySource", "MemoryStateDirectory"]
