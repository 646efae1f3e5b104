"""`inspect`: one query with its messages, outcomes and values."""

import argparse
import asyncio
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from evaluator.adapters.files import result_lines
from evaluator.adapters.kafka import read_output
from evaluator.cli.exits import UsageError
from evaluator.cli.ranges import read_rules_of, source_of
from evaluator.cli.wiring import KAFKA, connection_of, topic_names
from evaluator.config import Settings
from evaluator.core.types.records import LOGS, Log
from evaluator.ports import RangeSource, SourceUnusable
from evaluator.replay.inspection import (
    Evidence,
    Found,
    MessagePosition,
    Sought,
    letter_of,
    report,
)
from evaluator.replay.ranges import ReadRules, batch_of
from evaluator.replay.writing import DEAD_LETTERS, EVALUATIONS, SETTLED
from evaluator.wire.reading import UNREADABLE

_BATCH = 5_000


def inspect(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator inspect TRACE [NODE]`."""
    if options.source is None and options.results is None:
        raise UsageError("Name --source, the --results of a replay, or both.")
    sought, evidence = Sought(options.trace, options.node), Evidence()
    if options.source is not None:
        asyncio.run(_read_source(options, settings, sought, evidence))
    if options.results is not None:
        _read_results(options.results, sought, evidence, settings)
    try:
        print("\n".join(report(sought, evidence)).strip())
    except UNREADABLE as error:
        raise SourceUnusable(
            "an evaluation or settled query of the trace is not of the form that the evaluator "
            f"writes ({type(error).__name__}: {error}). Read another source or --results."
        ) from error
    return 0


async def _read_source(
    options: argparse.Namespace,
    settings: Settings,
    sought: Sought,
    evidence: Evidence,
) -> None:
    """Reads the inputs, and in Kafka the outputs in the partitions of the query."""
    options.end = None
    rules = read_rules_of(options, settings)
    source, is_kafka = source_of(options, settings, rules)
    try:
        n_partitions = await source.open()
        for log in LOGS:
            for partition in range(n_partitions):
                await _read_input(source, log, partition, sought, evidence, rules)
    finally:
        await source.close()
    if not is_kafka or not options.source.startswith(KAFKA):
        return
    partitions = {position.partition for position in evidence.messages}
    tasks = sorted(partitions) or list(range(n_partitions))
    connection, prefix = connection_of(options.source, settings), settings.written_prefix
    for output in ("evaluations", "settled", "dead-letters"):
        async for value, headers in read_output(connection, prefix, output, tasks, rules.from_ms):
            if output == "dead-letters":
                _add_letter(headers, value, sought, evidence, settings)
            else:
                kept = evidence.evaluations if output == "evaluations" else evidence.settled
                _add_document(value, sought, evidence, kept)


async def _read_input(
    source: RangeSource,
    log: Log,
    partition: int,
    sought: Sought,
    evidence: Evidence,
    rules: ReadRules,
) -> None:
    start, end = await source.bounds(log, partition)
    if rules.from_ms is not None:
        start = await source.seek_hint(log, partition, rules.from_ms)
    several = 1 << rules.stages[log].index_bits if log in rules.stages else 1
    async for records in source.read(log, partition, start, end, max_records=_BATCH):
        messages = batch_of(records, rules) if log in rules.stages else records
        for at, value in enumerate(messages.values):
            if sought.document(value) is None or value is None:
                continue
            if evidence.is_full(evidence.messages):
                return
            times = messages.timestamps_ms
            position = MessagePosition(log, partition, *divmod(int(messages.offsets[at]), several))
            time_ms = -1 if times is None else int(times[at])
            evidence.messages[position] = Found(position, value, time_ms)


def _read_results(folder: Path, sought: Sought, evidence: Evidence, settings: Settings) -> None:
    """Reads the output directory of a replay. Raises SourceUnusable."""
    for row in result_lines(folder / EVALUATIONS):
        _add_document(row, sought, evidence, evidence.evaluations)
    for row in result_lines(folder / SETTLED):
        _add_document(row, sought, evidence, evidence.settled)
    for row in result_lines(folder / DEAD_LETTERS):
        try:
            letter = msgspec.json.decode(row)
            _add_letter(letter, b64decode(letter["value"]), sought, evidence, settings)
        except UNREADABLE as error:
            raise SourceUnusable(
                f"{folder / DEAD_LETTERS} has a line that `evaluator replay` does not write "
                f"({error}). Replay again."
            ) from error


def _add_document(
    value: bytes | None, sought: Sought, evidence: Evidence, kept: list[Mapping[str, Any]]
) -> None:
    document = sought.document(value)
    if document and not evidence.is_full(kept):
        kept.append(document)


def _add_letter(
    document: Mapping[str, Any],
    value: bytes | None,
    sought: Sought,
    evidence: Evidence,
    settings: Settings,
) -> None:
    """Keeps a dead letter of the trace, and its message if the input has not been read.

    The letter of a foreign record is of the trace if the messages of its input are.
    """
    logs: dict[str, Log] = {topic: log for log, topic in topic_names(settings).items()}
    is_message = sought.document(value) is not None
    if "offset" not in document:
        return
    found = letter_of(document, logs, is_message=is_message)
    if found is None or not (is_message or found[0] in evidence.messages):
        return
    position, letter = found
    if evidence.is_full(evidence.letters):
        return
    evidence.letters[position] = letter
    is_new = position not in evidence.messages
    if value is not None and is_new and not evidence.is_full(evidence.messages):
        evidence.messages[position] = Found(position, value)
