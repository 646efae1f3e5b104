"""`replay`: a pinned range into files."""

import argparse
import asyncio

from evaluator.adapters.directory import ResultDirectory
from evaluator.adapters.files import FileRange
from evaluator.adapters.kafka import KafkaRange
from evaluator.cli.wiring import KAFKA, UsageError, connection_of, directory_of, topic_names
from evaluator.config import Settings
from evaluator.core.measures import MeasureSet
from evaluator.ports import RangeSource
from evaluator.replay.ranges import parse_time_ms
from evaluator.replay.run import Meaning
from evaluator.replay.run import replay as run_replay


def replay(asked: argparse.Namespace, settings: Settings) -> int:
    """`evaluator replay`."""
    live = asked.source.startswith(KAFKA)
    source: RangeSource = (
        KafkaRange(connection_of(asked.source, settings), topic_prefix=settings.topic_prefix)
        if live
        else FileRange(directory_of(asked.source))
    )
    meaning = Meaning(
        retention_ms=settings.retention_ms,
        maturity_ms=settings.maturity_ms,
        early_ms=settings.early_ms,
        remember_ms=settings.remember_ms,
        out_of_orderness_ms=settings.out_of_orderness_ms,
        max_future_skew_ms=settings.max_future_skew_ms,
        window_ms=settings.window_ms,
        measures=MeasureSet.parse(settings.measures),
        empty=settings.empty,
        emit_query=settings.emit_query,
        at_end=asked.at_end or ("hold" if live else "settle"),
    )
    asyncio.run(
        run_replay(
            source,
            ResultDirectory(asked.out, force=asked.force),
            meaning,
            topic_names=topic_names(settings),
            from_ms=_moment(asked.begin),
            to_ms=_moment(asked.end),
            max_poll_records=settings.max_poll_records,
        )
    )
    return 0


def _moment(text: str | None) -> int | None:
    try:
        return None if text is None else parse_time_ms(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
