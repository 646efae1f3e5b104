"""`mapping try` and `mapping presets`."""

import argparse
import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.resources import files
from typing import Final, cast

from evaluator.cli.exits import FOUND, UsageError
from evaluator.cli.ranges import source_of
from evaluator.cli.wiring import mapping_of, stages_of, topic_names
from evaluator.config import Settings
from evaluator.core.types.records import LOGS
from evaluator.mapping.sampling import SampleReport
from evaluator.mapping.stage import record_at
from evaluator.ports import UNKNOWN_END, RangeSource
from evaluator.replay.ranges import ReadRules
from evaluator.wire.records import Records

_PRESETS: Final = files("evaluator.mapping") / "presets"


def try_(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator mapping try`: what the mapping makes of a sample; exit 5 if it refuses records."""
    mapping = mapping_of(settings)
    if mapping is None or options.sample < 1:
        raise UsageError("--mapping FILE and --sample N, at least 1, are required.")
    topics = topic_names(settings)
    stages = stages_of(settings)
    rules = ReadRules(max_future_skew_ms=settings.max_future_skew_ms, stages=stages)
    source, live = source_of(options, settings, rules)
    report = SampleReport(dict(mapping.logs), topics)
    asyncio.run(_try(source, report, options.sample, newest=live))
    print()
    print("\n".join(report.summary()))
    return FOUND if report.failed else 0


async def _try(source: RangeSource, report: SampleReport, sample: int, *, newest: bool) -> None:
    """Maps the first records of files, the newest of topics: equally many of each partition."""
    try:
        n_partitions = await source.open()
        for log in LOGS:
            for partition in range(n_partitions if log in report.logs else 0):
                first, end = await source.bounds(log, partition)
                most = -(-sample // n_partitions)
                if newest and end != UNKNOWN_END:
                    first = max(first, end - most)
                n = 0
                reading = source.read(log, partition, first, end, max_records=most)
                async with aclosing(cast("AsyncGenerator[Records, None]", reading)):
                    async for records in reading:
                        _print(report, records)
                        n += len(records)
                        if n >= most:
                            break
    finally:
        await source.close()


def _print(report: SampleReport, records: Records) -> None:
    for at, offset in enumerate(records.offsets.tolist()):
        if records.values[at] is not None:  # no heartbeat
            for line in report.lines(
                records.log, records.partition, offset, record_at(records, at)
            ):
                print(line)


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
