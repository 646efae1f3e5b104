"""`totals`: what all workers together have summed, from their checkpoint records."""

import argparse
import asyncio
import json
from collections.abc import Mapping
from typing import Any

from evaluator.adapters.kafka import checkpoints_topic, read_checkpoints
from evaluator.cli.wiring import connection_of, lineage_of, new_engine
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.accumulators import add_tally
from evaluator.core.types import LOGS, Tally
from evaluator.ports import SourceUnusable
from evaluator.wire.checkpoint import CheckpointUnreadable, checkpoint_key, decode_checkpoint
from evaluator.wire.outputs import totals_document


def totals(asked: argparse.Namespace, settings: Settings) -> int:
    """`evaluator totals`: the document of `totals.json` over all tasks."""
    connection = connection_of(asked.source, settings)
    topic = checkpoints_topic(settings.topic_prefix)
    records = asyncio.run(read_checkpoints(connection, topic, None))
    print(json.dumps(document_of(records, settings), indent=1))
    return 0


def document_of(records: Mapping[int, Mapping[bytes, bytes]], settings: Settings) -> dict[str, Any]:
    """The totals of all tasks that have a record under these settings.

    Raises SourceUnusable where none has.
    """
    lineage, measures = lineage_of(settings), measure_set(settings)
    tally: Tally = {}
    positions: dict[str, int] = {}
    tasks: list[int] = []
    for task, of_task in sorted(records.items()):
        value = of_task.get(checkpoint_key(task, lineage))
        if value is None:
            continue
        try:
            checkpoint = decode_checkpoint(value, n_measures=len(measures.canonical))
        except CheckpointUnreadable as unreadable:
            raise SourceUnusable(f"The checkpoint of task {task}: {unreadable}.") from None
        add_tally(tally, new_engine(settings, measures, task).tally_of(checkpoint))
        tasks.append(task)
        positions |= {f"{log}-{task}": checkpoint.head.positions[log] for log in LOGS}
    if not tasks:
        others = sum(map(len, records.values()))
        raise SourceUnusable(
            f"No task has a checkpoint under these settings ({others} under others). Give the "
            "settings of the workers with --config or --set, and let them run for "
            "checkpoint_interval_ms."
        )
    return {
        **totals_document(tally, measures),
        "tasks": tasks,
        "tasks_missing": sorted(records.keys() - set(tasks)),
        "positions": positions,
    }
