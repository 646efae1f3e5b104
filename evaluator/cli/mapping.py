"""`mapping try` and `mapping presets`, and the sample that `check` reads."""

import argparse
import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from importlib.resources import files
from typing import Final, cast

from evaluator.adapters.files import FileRange
from evaluator.adapters.kafka import PARTITIONERS, KafkaRange
from evaluator.cli.exits import FOUND, UsageError
from evaluator.cli.ranges import files_of
from evaluator.cli.wiring import (
    KAFKA,
    comparisons_of,
    connection_of,
    mapping_of,
    prepare_of,
    schemas_of,
    topic_names,
)
from evaluator.config import Settings
from evaluator.core.types.records import LOGS, Log
from evaluator.mapping.sampling import SampleReport
from evaluator.mapping.stage import record_at, refusal_of_size
from evaluator.ports import UNKNOWN_END
from evaluator.wire.records import Records

_PRESETS: Final = files("evaluator.mapping") / "presets"

Show = Callable[[str], object]


def try_(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator mapping try`: the messages of a sample; exit 5 if the mapping refuses records."""
    if options.sample < 1:
        raise UsageError(f"--sample {options.sample} is not accepted. Give 1 or more.")
    report = asyncio.run(sampled(options.source, settings, options.sample, show=print))
    print()
    print("\n".join(report.summary()))
    return FOUND if report.failed else 0


async def sampled(place: str, settings: Settings, most: int, *, show: Show) -> SampleReport:
    """A report on the first records of files, or the newest of topics: equally many by partition.

    *show* receives the line of each. Raises UsageError, SourceUnusable, SourceUnavailable.
    """
    mapping = mapping_of(settings)
    if mapping is None:
        raise UsageError("The setting mapping, or --mapping FILE, is required.")
    source: KafkaRange | FileRange
    schemas = None
    if place.startswith(KAFKA):
        connection = connection_of(place, settings, may_be_one=True)
        schemas = schemas_of(settings, connection, writes=False)
        source = KafkaRange(
            connection,
            topic_prefix=settings.written_prefix,
            may_differ=True,
            prepare=prepare_of(schemas),
        )
    else:
        source = files_of(place, settings, mapping.logs)
    partitioners = PARTITIONERS if isinstance(source, KafkaRange) else {}
    names = topic_names(settings, may_be_one=True)
    answers = {} if schemas is None else schemas.answers
    report = SampleReport(
        *(mapping.logs, names, partitioners, answers),
        max_future_skew_ms=settings.max_future_skew_ms,
    )
    if schemas is not None:
        report.comparisons = [finding for _, finding in await comparisons_of(settings)]
    try:
        n_partitions = await source.open()
        for log in LOGS:
            n = source.counts[log] if isinstance(source, KafkaRange) else n_partitions
            report.logs[log].placement.n_partitions = n
            for partition in range(n):
                await _sample(source, report, (log, partition), -(-most // n), show)
    finally:
        await source.close()
    return report


async def _sample(
    source: KafkaRange | FileRange,
    report: SampleReport,
    partition: tuple[Log, int],
    most: int,
    show: Show,
) -> None:
    first, end = await source.bounds(*partition)
    if end != UNKNOWN_END:
        first = max(first, end - most)
    reading = source.read(*partition, first, end, max_records=most)
    async with aclosing(cast("AsyncGenerator[Records, None]", reading)):
        async for records in reading:
            for at, offset in enumerate(records.offsets.tolist()[:most]):
                if records.values[at] is not None:  # no heartbeat
                    record, refused = record_at(records, at), refusal_of_size(records, offset)
                    for line in report.lines(*partition, offset, record, refused):
                        show(line)
            most -= len(records)
            if most <= 0:
                break


def presets(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator mapping presets [NAME]`: lists the shipped mappings, or prints one."""
    del settings
    texts = {
        each.name.removesuffix(".toml"): each.read_text("utf-8")
        for each in sorted(_PRESETS.iterdir(), key=lambda each: each.name)
    }
    if options.name is None:
        width = max(map(len, texts))
        for name, text in texts.items():
            print(f"{name:<{width}}  {text.splitlines()[0].removeprefix('# ')}")
        return 0
    if options.name not in texts:
        raise UsageError(f"{options.name} is not a preset. Presets: {', '.join(texts)}.")
    print(texts[options.name], end="")
    return 0
