"""`replay`: a pinned range into files."""

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast

from evaluator.adapters.directory import ResultDirectory
from evaluator.adapters.files import FileRange, SampleRange
from evaluator.adapters.kafka import KafkaRange
from evaluator.cli.wiring import (
    KAFKA,
    UsageError,
    connection_of,
    directory_of,
    histograms_of,
    require_room_for_series,
    topic_names,
)
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.ports import RangeSource
from evaluator.replay.exposition import FAMILIES, OPENMETRICS, Exposition, Written
from evaluator.replay.ranges import parse_time_ms
from evaluator.replay.run import DEAD_LETTERS, EVALUATIONS, FILES, Meaning, ReplayResult
from evaluator.replay.run import replay as run_replay
from evaluator.wire.openmetrics import LABEL_NAME

OWN_LABELS: Final = frozenset({"le", *(label for spec in FAMILIES for label in spec.labels)})


def replay(asked: argparse.Namespace, settings: Settings) -> int:
    """`evaluator replay`."""
    from_ms, to_ms = _moment(asked.begin), _moment(asked.end)
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise UsageError(
            f"--from {asked.begin} is not before --to {asked.end}: nothing can be between them."
        )
    source, live = _source(asked, settings)
    exposition = _exposition(asked, settings)
    meaning = Meaning(
        retention_ms=settings.retention_ms,
        maturity_ms=settings.maturity_ms,
        early_ms=settings.early_ms,
        remember_ms=settings.remember_ms,
        out_of_orderness_ms=settings.out_of_orderness_ms,
        max_future_skew_ms=settings.max_future_skew_ms,
        window_ms=settings.window_ms,
        measures=measure_set(settings),
        empty=settings.empty,
        ties=settings.ties,
        judged_only=settings.judged_only,
        freshness_half_life_ms=settings.freshness_half_life_ms,
        emit_query=settings.emit_query,
        at_end=asked.at_end or ("hold" if live else "settle"),
    )
    result = asyncio.run(
        run_replay(
            source,
            ResultDirectory(
                asked.out,
                force=asked.force,
                elsewhere={OPENMETRICS: asked.openmetrics} if asked.openmetrics else None,
            ),
            meaning,
            topic_names=topic_names(settings),
            from_ms=from_ms,
            to_ms=to_ms,
            max_poll_records=settings.max_poll_records,
            exposition=exposition,
        )
    )
    print(summary(result, asked.out))
    if result.written is not None:
        _tell(result.written, asked.openmetrics)
    if not any(_n_read(result).values()):
        print(
            "evaluator: warning: nothing was in the range, the results are empty.", file=sys.stderr
        )
    return 0


def _source(asked: argparse.Namespace, settings: Settings) -> tuple[RangeSource, bool]:
    """What is read, and whether it is live, so that more may come."""
    if asked.samples is not None:
        if asked.begin is not None or asked.end is not None:
            raise UsageError("samples have no times: leave --from and --to out.")
        if asked.openmetrics is not None:
            raise UsageError("samples have no times: leave --openmetrics out.")
        return SampleRange(asked.samples), False
    if asked.source.startswith(KAFKA):
        connection = connection_of(asked.source, settings)
        return KafkaRange(connection, topic_prefix=settings.topic_prefix), True
    return FileRange(directory_of(asked.source)), False


def _exposition(asked: argparse.Namespace, settings: Settings) -> Exposition | None:
    """How the counters are written for Prometheus, if they are asked for."""
    if asked.openmetrics is None:
        if asked.openmetrics_label:
            raise UsageError("--openmetrics-label says nothing without --openmetrics FILE.")
        return None
    if asked.openmetrics.resolve() in {(asked.out / name).resolve() for name in FILES}:
        raise UsageError(f"{asked.openmetrics} is a file of the replay itself. Name another.")
    require_room_for_series(settings, "--openmetrics", "or leave it out")
    labels: dict[str, str] = {}
    for text in asked.openmetrics_label:
        name, equals, value = text.partition("=")
        if not equals or not LABEL_NAME.fullmatch(name) or name.startswith("__"):
            raise UsageError(f"--openmetrics-label {text!r} is no NAME=VALUE, e.g. job=evaluator.")
        if name in OWN_LABELS:
            raise UsageError(f"the label {name} has its meaning already. Name another.")
        labels[name] = value
    return Exposition(labels=labels, histograms=histograms_of(settings))


def _tell(written: Written, path: Path) -> None:
    """Says what the file for Prometheus has, and warns of what Prometheus would make of it."""
    if written.first_time is None or written.last_time is None:
        print(f"no samples in {path}")
        return
    print(
        f"{written.n_samples:,} samples from {_iso(written.first_time)} to "
        f"{_iso(written.last_time)} in {path}"
    )
    if written.last_time > time.time():
        print(
            f"evaluator: warning: {path} reaches into the future. A Prometheus that loads it takes "
            "no samples until then, and may drop its own for being old: end the replay with --to "
            "and --at-end hold, or remove records with wrong times.",
            file=sys.stderr,
        )


def _iso(seconds: int) -> str:
    """A time as ISO 8601; beyond the years that this can write, as it is."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def summary(result: ReplayResult, directory: Path) -> str:
    """What a replay read and found and where its files are, in one line."""
    n_read = _n_read(result)
    queries = cast("Mapping[str, int]", result.totals["queries"])
    return (
        f"read {n_read['rankings']:,} rankings and {n_read['judgments']:,} judgments; "
        f"{queries['settled']:,} queries settled ({queries['settled_judged']:,} judged), "
        f"{result.files[EVALUATIONS].rows:,} evaluations, "
        f"{result.files[DEAD_LETTERS].rows:,} dead letters; files in {directory}"
    )


def _n_read(result: ReplayResult) -> dict[str, int]:
    """Records of the range, per log."""
    ledger = cast("Mapping[str, Mapping[str, int]]", result.totals["ledger"])
    return {log: counts["read"] for log, counts in ledger.items()}


def _moment(text: str | None) -> int | None:
    try:
        return None if text is None else parse_time_ms(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
