"""`totals`: the totals of all workers, and of earlier topics."""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluator.adapters.files import read_file
from evaluator.adapters.kafka import read_checkpoints, read_topic_ids
from evaluator.cli.wiring import (
    connection_of,
    fingerprint_of,
    meaning_of,
    new_engine,
    segment_rules_of,
)
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.join.changes import Checkpoint, Origin
from evaluator.core.measures import MeasureSet
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.types.records import LOGS, Log
from evaluator.core.types.segments import SegmentRules
from evaluator.core.types.tally import Tally
from evaluator.ports import RequestRefused, SourceUnusable
from evaluator.replay.shards import tally_of
from evaluator.replay.writing import levels_of
from evaluator.wire.outputs.encoding import totals_document
from evaluator.wire.reading import refused_as
from evaluator.wire.state.checkpoint import CheckpointUnreadable, checkpoint_key, decode_checkpoint


def totals(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator totals`: the document of `totals.json` over all tasks."""
    connection = connection_of(options.source, settings)
    records = asyncio.run(read_checkpoints(connection, settings.written_prefix, None))
    topic_ids = asyncio.run(read_topic_ids(connection, settings.written_prefix))
    document = totals_of(records, settings, topic_ids=topic_ids, added=list(map(Path, options.add)))
    print(json.dumps(document, indent=1))
    return 0


def totals_of(
    records: Mapping[int, Mapping[bytes, bytes]],
    settings: Settings,
    *,
    topic_ids: Mapping[Log, str],
    added: Sequence[Path] = (),
) -> dict[str, Any]:
    """The totals of all tasks with a checkpoint of these settings and topics.

    Those of other topics in the files *added*, which this function made, are added to them.

    Raises:
        SourceUnusable: if no task has one, the topics cannot be identified, or a file is damaged.
        RequestRefused: if a file has another meaning, or the same topics.
    """
    fingerprint, measures = fingerprint_of(settings), measure_set(settings)
    segments = segment_rules_of(settings)
    tally: Tally = {}
    positions: dict[str, int] = {}
    tasks: list[int] = []
    of_other_topics: list[int] = []
    now: dict[Log, str] = dict(topic_ids)
    for task, of_task in sorted(records.items()):
        value = of_task.get(checkpoint_key(task, fingerprint))
        if value is None:
            continue
        checkpoint = _checkpoint_of(task, value, measures, segments)
        if _of_other_topics(checkpoint.head.origin, now, topic_ids):
            of_other_topics.append(task)
            continue
        add_tally(tally, new_engine(settings, measures, task).tally_of(checkpoint))
        segments.fold(tally)
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
    document: dict[str, Any] = {
        "meaning": meaning_of(settings),
        "topic_ids": {log: now.get(log) for log in LOGS},
        "tasks": tasks,
        "tasks_missing": sorted(records.keys() - set(tasks)),
        "tasks_of_other_topics": of_other_topics,
        "positions": positions,
    }
    places: list[dict[str, Any]] = []
    for path in added:
        add_tally(tally, _in_file(path, measures, document, places))
        segments.fold(tally)
    if segments.names:
        document["levels"] = levels_of(tally)
    added_to = {"added": places} if added else {}
    return {**totals_document(tally, measures, segments), **document, **added_to}


def _checkpoint_of(
    task: int, value: bytes, measures: MeasureSet, segments: SegmentRules
) -> Checkpoint:
    """The checkpoint in a record. Raises SourceUnusable."""
    try:
        return decode_checkpoint(value, measures=measures, segment_measures=segments.measures)
    except CheckpointUnreadable as unreadable:
        raise SourceUnusable(f"The checkpoint of task {task}: {unreadable}.") from None


def _in_file(
    path: Path, measures: MeasureSet, document: Mapping[str, Any], places: list[dict[str, Any]]
) -> Tally:
    """The totals in a file; adds their topics to *places*. Raises as `totals_of`."""
    with refused_as(SourceUnusable, f"{path} is not a document of `evaluator totals`"):
        other = json.loads(read_file(path))
        places += [{name: other[name] for name in document}, *other.get("added", ())]
        _require_distinct_topics(path, document, places)
        return tally_of(other, measures, other.get("levels", {}))


def _require_distinct_topics(
    path: Path, document: Mapping[str, Any], places: Sequence[Mapping[str, Any]]
) -> None:
    """Raises RequestRefused if meanings differ, or a topic occurs twice or has no id."""
    seen: set[str | None] = {None}
    for each in (document, *places):
        if each["meaning"] != document["meaning"]:
            raise RequestRefused(
                f"{path} has another meaning: its totals come from other settings or rules."
            )
        for log in LOGS:
            if each["topic_ids"][log] in seen:
                raise RequestRefused(
                    f"{path} has totals of the same topics, or of a broker without ids of topics. "
                    "Add the totals of each topic once."
                )
            seen.add(each["topic_ids"][log])


def _of_other_topics(origin: Origin, now: dict[Log, str], topic_ids: Mapping[Log, str]) -> bool:
    """Whether a record belongs to topics other than *now*; adds unknown topic ids to *now*."""
    for log, log_id in origin.logs.items():
        before = log_id.topic_id and now.setdefault(log, log_id.topic_id)
        if before != log_id.topic_id and log not in topic_ids:
            raise SourceUnusable(
                f"Checkpoints are of several topics named {log}, and this user may not read the "
                "id of the present one. Grant Describe on the inputs."
            )
        if before != log_id.topic_id:
            return True
    return False
