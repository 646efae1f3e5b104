"""What `replay` and `fit` have in common: a source, a range of it, and what it means."""

import argparse
import contextlib
from collections.abc import Mapping
from pathlib import Path

from evaluator.adapters.files import FileRange, SampleRange, names_log
from evaluator.adapters.kafka import KafkaRange
from evaluator.cli.wiring import KAFKA, UsageError, connection_of, directory_of, engine_settings
from evaluator.config import Settings
from evaluator.core.measures import MeasureSet
from evaluator.core.types.skips import Skips
from evaluator.ports import RangeSource
from evaluator.replay.ranges import parse_time_ms
from evaluator.replay.run import AtEnd, Meaning


def add_range_to(parser: argparse.ArgumentParser, *, kafka: str) -> None:
    """The options that name a range: --source or --samples, --from and --to."""
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--source", metavar="SRC", help=f"{kafka} or file://DIR")
    given.add_argument(
        "--samples",
        type=Path,
        metavar="FILE",
        help="offline samples instead: NDJSON, one row per candidate, also .gz or .zst",
    )
    moment = "ISO 8601 or epoch ms; the first record whose clock reaches it"
    parser.add_argument("--from", dest="begin", metavar="T", help=f"begin there: {moment}")
    parser.add_argument("--to", dest="end", metavar="T", help=f"end before there: {moment}")


def moments_of(asked: argparse.Namespace) -> tuple[int | None, int | None]:
    """--from and --to in epoch milliseconds. Raises UsageError."""
    from_ms, to_ms = _moment(asked.begin), _moment(asked.end)
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise UsageError(
            f"--from {asked.begin} is not before --to {asked.end}: nothing can be between them."
        )
    return from_ms, to_ms


def _moment(text: str | None) -> int | None:
    try:
        return None if text is None else parse_time_ms(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def source_of(
    asked: argparse.Namespace,
    settings: Settings,
    *,
    features: bool = False,
    skips: Skips | None = None,
) -> tuple[RangeSource, bool]:
    """What is read, and whether it is live, so that more may come."""
    if asked.samples is not None:
        if asked.begin is not None or asked.end is not None:
            raise UsageError("samples have no times: leave --from and --to out.")
        return SampleRange(asked.samples, features=features), False
    if asked.source.startswith(KAFKA):
        connection = connection_of(asked.source, settings)
        prefix = settings.topic_prefix
        return KafkaRange(connection, topic_prefix=prefix, skips=skips), True
    return FileRange(directory_of(asked.source)), False


def require_apart(asked: argparse.Namespace, written: Mapping[str, Path]) -> None:
    """Raises UsageError where a path that would be written is an input, links included.

    Args:
        asked: what is read: `source` or `samples`, `config` and, of a replay, `weights`.
        written: files and directories, each by the words that name it in the error.
    """
    logs = None if _reads_no_files(asked) else directory_of(asked.source)
    inputs = [asked.samples, asked.config, getattr(asked, "weights", None)]
    with contextlib.suppress(OSError):  # found again, and named, where it is read
        inputs += [] if logs is None else filter(names_log, logs.iterdir())
    for words, path in written.items():
        clash = any(_same(path, each) for each in inputs if each is not None)
        if logs is not None:
            clash |= _same(path.parent if names_log(path) else asked.out, logs)
        if clash:
            raise UsageError(
                f"{words} is an input of this command. Name another place: inputs are never "
                "written to, not even with --force."
            )


def _reads_no_files(asked: argparse.Namespace) -> bool:
    return asked.samples is not None or asked.source.startswith(KAFKA)


def _same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except (OSError, ValueError):  # missing or unreadable files are not the same
        return False


def default_end(live: bool) -> AtEnd:
    """What becomes of young queries at the end of the logs."""
    return "hold" if live else "settle"


def meaning_of(settings: Settings, measures: MeasureSet, *, at_end: AtEnd) -> Meaning:
    """What results depend on beside the logs."""
    return Meaning(
        **engine_settings(settings),
        max_future_skew_ms=settings.max_future_skew_ms,
        measures=measures,
        emit_query=settings.emit_query,
        at_end=at_end,
        learns=settings.learns,
    )
