"""`totals`: the exact totals of all workers, from their checkpoint records."""

import argparse
import asyncio
import json
from collections.abc import Mapping
from typing import Any

from evaluator.adapters.kafka import read_checkpoints, read_topic_ids
from evaluator.cli.wiring import connection_of, fingerprint_of, new_engine
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.join.changes import Origin
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.types.records import LOGS, Log, Tally
from evaluator.ports import SourceUnusable
from evaluator.wire.outputs.encoding import totals_document
from evaluator.wire.state.checkpoint import CheckpointUnreadable, checkpoint_key, decode_checkpoint


def totals(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator totals`: the document of `totals.json` over all tasks."""
    connection = connection_of(options.source, settings)
    records = asyncio.run(read_checkpoints(connection, settings.topic_prefix, None))
    topic_ids = asyncio.run(read_topic_ids(connection, settings.topic_prefix))
    print(json.dumps(document_of(records, settings, topic_ids=topic_ids), indent=1))
    return 0


def document_of(
    records: Mapping[int, Mapping[bytes, bytes]],
    settings: Settings,
    *,
    topic_ids: Mapping[Log, str],
) -> dict[str, Any]:
    """The totals of all tasks with a checkpoint of these settings and topics.

    Raises SourceUnusable if no task has one, or if the topics cannot be identified.
    """
    fingerprint, measures = fingerprint_of(settings), measure_set(settings)
    tally: Tally = {}
    positions: dict[str, int] = {}
    tasks: list[int] = []
    of_other_topics: list[int] = []
    now: dict[Log, str] = dict(topic_ids)
    for task, of_task in sorted(records.items()):
        value = of_task.get(checkpoint_key(task, fingerprint))
        if value is None:
            continue
        try:
            checkpoint = decode_checkpoint(value, n_measures=len(measures.canonical))
        except CheckpointUnreadable as unreadable:
            raise SourceUnusable(f"The checkpoint of task {task}: {unreadable}.") from None
        if _of_other_topics(checkpoint.head.origin, now, topic_ids):
            of_other_topics.append(task)
            continue
        add_tally(tally, new_engine(settings, measures, task).tally_of(checkpoint))
        tasks.append(task)
        positions |= {f"{log}-{task}": checkpoint.head.positions[log] for log in LOGS}
    if not tasks:
        others = sum(map(len, records.values()))
        raise SourceUnusable(
            f"No task has a checkpoint of these settings ({others - len(of_other_topics)} of other "
            f"settings, {len(of_other_topics)} of topics that were recreated since). Give the "
            "settings of the workers with --config or --set, and let them run for "
            "checkpoint_interval_ms."
        )
    return {
        **totals_document(tally, measures),
        "tasks": tasks,
        "tasks_missing": sorted(records.keys() - set(tasks)),
        "tasks_of_other_topics": of_other_topics,
        "positions": positions,
    }


def _of_other_topics(origin: Origin, now: dict[Log, str], topic_ids: Mapping[Log, str]) -> bool:
    """Whether a record is of other topics than *now*, to which unknown topic ids are added."""
    for log, mark in origin.logs.items():
        before = mark.topic_id and now.setdefault(log, mark.topic_id)
        if before != mark.topic_id and log not in topic_ids:
            raise SourceUnusable(
                f"Checkpoints are of several topics named {log}, and this user may not read the "
                "id of the present one. Grant Describe on the inputs."
            )
        if before != mark.topic_id:
            return True
    return False
