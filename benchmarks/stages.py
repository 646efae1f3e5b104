"""The functions of each stage of a batch."""

import importlib
import sys

from benchmarks.meter import Stages

FUNCTIONS = (
    ("evaluator.wire.messages.codec", "decode_rankings", "decode rankings"),
    ("evaluator.wire.messages.codec", "decode_judgments", "decode judgments"),
    ("evaluator.core.measures.align", "rank_lists", "receive: rank"),
    ("evaluator.wire.outputs.encoding", "encode_evaluations", "encode evaluations"),
    ("evaluator.wire.outputs.encoding", "encode_settled", "encode settled"),
    ("evaluator.wire.outputs.encoding", "encode_windows", "encode windows"),
    ("evaluator.wire.outputs.encoding", "encode_dead_letters", "encode dead letters"),
)
METHODS = (
    ("evaluator.core.engine.engine", "Engine", "receive", "receive: rest"),
    ("evaluator.core.engine.inputs", "Inputs", "read", "receive: clocks"),
    ("evaluator.core.settle.running", "Running", "measure", "receive: measure and sum"),
    ("evaluator.core.settle.evaluate", "Evaluator", "evaluations", "receive: evaluations"),
    ("evaluator.core.engine.expiry", "Expiry", "settle", "receive: settle"),
    ("evaluator.worker.task_state", "TaskState", "commit", "store: gather"),
    ("evaluator.adapters.rocksdb.store", "RocksBatch", "write", "store: write"),
    ("evaluator.core.engine.engine", "Engine", "_fire_timers", "receive: timers"),
    ("evaluator.core.engine.engine", "Engine", "tally", "tally"),
    ("evaluator.core.join.keys", "Keys", "start_queries", "receive: hold"),
    ("evaluator.core.join.join", "Join", "apply_judgments", "receive: match"),
)
COROUTINES = (
    ("evaluator.adapters.kafka.source", "KafkaSource", "poll", "poll"),
    ("evaluator.adapters.kafka.sink", "KafkaSink", "emit", "emit"),
    ("evaluator.worker.connectivity", "Emissions", "acknowledged", "acknowledge"),
    ("evaluator.worker.loop", "Worker", "_commit", "commit"),
)


def charge_core(stages: Stages) -> None:
    """Charges synchronous functions. The time of a missing private function is charged to its
    caller."""
    for module, name, stage in FUNCTIONS:
        owner = importlib.import_module(module)
        original = getattr(owner, name)
        stages.wrap(owner, name, stage)
        _replace_everywhere(name, original, getattr(owner, name))
    for module, class_name, name, stage in METHODS:
        owner = getattr(importlib.import_module(module), class_name)
        if hasattr(owner, name):
            stages.wrap(owner, name, stage)


def charge_all(stages: Stages) -> None:
    """The same, and the coroutines of the worker and of the adapter."""
    charge_core(stages)
    for module, class_name, name, stage in COROUTINES:
        stages.wrap_async(getattr(importlib.import_module(module), class_name), name, stage)


def _replace_everywhere(name: str, old: object, new: object) -> None:
    """Modules that imported a function by name hold the old one."""
    for module_name, module in list(sys.modules.items()):
        ours = module_name.partition(".")[0] in {"evaluator", "benchmarks", "__main__"}
        if ours and getattr(module, name, None) is old:
            setattr(module, name, new)
