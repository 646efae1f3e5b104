"""A broker inside this process, for the demo and the tests.

It keeps the guarantees of a log (order, offsets, groups with handover, commits) and passes the
contract tests of Kafka. It runs on one event loop, and nothing is durable.
"""

from evaluator.adapters.memory.broker import MemoryBroker as MemoryBroker
from evaluator.adapters.memory.outputs import MemoryLeadership as MemoryLeadership
from evaluator.adapters.memory.outputs import MemorySink as MemorySink
from evaluator.adapters.memory.source import MemorySource as MemorySource
from evaluator.adapters.memory.state import MemoryStateDirectory as MemoryStateDirectory
