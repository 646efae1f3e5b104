"""`inspect`: one query with its messages, outcomes and values."""

import argparse
import asyncio
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from evaluator.adapters.files import result_lines
from evaluator.adapters.kafka import read_output
from evaluator.cli.exits import UsageError
from evaluator.cli.ranges import read_rules_of, source_of
from evaluator.cli.wiring import KAFKA, connection_of, topic_names
from evaluator.config import Settings
from evaluator.core.types.records import LOGS, Log
from evaluator.ports import RangeSource, SourceUnusable
from evaluator.replay.inspection import Evidence, Found, MessagePosition, Sought, letter_of, report
from evaluator.replay.ranges import ReadRules, batch_of
from evaluator.replay.writing import DEAD_LETTERS, EVALUATIONS, SETTLED
from evaluator.wire.reading import UNREADABLE

_BATCH = 5_000


def inspect(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator inspect TRACE [NODE]`."""
    if options.source is None and options.results is None:
        raise UsageError("Name --source, the --results of a replay, or both.")
    sought, evidence = Sought(options.trace, options.node), Evidence()
    reading = _Reading(sought, evidence, settings)
    if options.source is not None:
        asyncio.run(reading.source(options))
    if options.results is not None:
        reading.results(options.results)
    try:
        print("\n".join(report(sought, evidence)).strip())
    except UNREADABLE as error:
        raise SourceUnusable(
            "an evaluation or settled query of the trace is not of the form that the evaluator "
            f"writes ({type(error).__name__}: {error}). Read another source or --results."
        ) from error
    return 0


class _Reading(NamedTuple):
    """Collects the evidence on a trace."""

    sought: Sought
    evidence: Evidence
    settings: Settings

    async def source(self, options: argparse.Namespace) -> None:
        """Reads the inputs, and in Kafka the outputs in the partitions of the query."""
        options.end = None
        settings, evidence = self.settings, self.evidence
        rules = read_rules_of(options, settings)
        source = source_of(options, settings, rules)
        try:
            n_partitions = await source.open()
            for log in LOGS:
                for partition in range(n_partitions):
                    await self._input(source, log, partition, rules)
        finally:
            await source.close()
        if not options.source.startswith(KAFKA):
            return
        partitions = {position.partition for position in evidence.messages}
        tasks = sorted(partitions) or list(range(n_partitions))
        connection, prefix = connection_of(options.source, settings), settings.written_prefix
        for output in ("evaluations", "settled", "dead-letters"):
            records = read_output(connection, prefix, output, tasks, rules.from_ms)
            async for value, headers in records:
                if output == "dead-letters":
                    self._add_letter(headers, value)
                else:
                    kept = evidence.evaluations if output == "evaluations" else evidence.settled
                    self._add_document(value, kept)

    async def _input(self, source: RangeSource, log: Log, partition: int, rules: ReadRules) -> None:
        start, end = await source.bounds(log, partition)
        if rules.from_ms is not None:
            start = await source.seek_hint(log, partition, rules.from_ms)
        several = 1 << rules.stages[log].index_bits if log in rules.stages else 1
        kept = self.evidence.messages
        async for records in source.read(log, partition, start, end, max_records=_BATCH):
            messages = batch_of(records, rules) if log in rules.stages else records
            for at, value in enumerate(messages.values):
                if self.sought.document(value) is None or value is None:
                    continue
                if self.evidence.is_full(kept):
                    return
                times, offset = messages.timestamps_ms, int(messages.offsets[at])
                position = MessagePosition(log, partition, *divmod(offset, several))
                kept[position] = Found(position, value, -1 if times is None else int(times[at]))

    def results(self, folder: Path) -> None:
        """Reads the output directory of a replay. Raises SourceUnusable."""
        for row in result_lines(folder / EVALUATIONS):
            self._add_document(row, self.evidence.evaluations)
        for row in result_lines(folder / SETTLED):
            self._add_document(row, self.evidence.settled)
        for row in result_lines(folder / DEAD_LETTERS):
            try:
                letter = msgspec.json.decode(row)
                self._add_letter(letter, b64decode(letter["value"]))
            except UNREADABLE as error:
                raise SourceUnusable(
                    f"{folder / DEAD_LETTERS} has a line that `evaluator replay` does not write "
                    f"({error}). Replay again."
                ) from error

    def _add_document(self, value: bytes | None, kept: list[Mapping[str, Any]]) -> None:
        document = self.sought.document(value)
        if document and not self.evidence.is_full(kept):
            kept.append(document)

    def _add_letter(self, document: Mapping[str, Any], value: bytes | None) -> None:
        """Keeps a dead letter of the trace, and its message if the input has not been read.

        The letter of a foreign record is of the trace if the messages of its input are.
        """
        evidence = self.evidence
        logs: dict[str, Log] = {topic: log for log, topic in topic_names(self.settings).items()}
        is_message = self.sought.document(value) is not None
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
