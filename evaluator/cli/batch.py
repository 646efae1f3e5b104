"""`replay`: a pinned range into files."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from evaluator.adapters.directory import ResultDirectory
from evaluator.adapters.files import read_file
from evaluator.cli.promotion import embedder_of, record_writer_of, rules_of
from evaluator.cli.ranges import (
    default_end,
    meaning_of,
    moments_of,
    require_apart,
    source_of,
)
from evaluator.cli.skips import skips_of
from evaluator.cli.wiring import UsageError, histograms_of, require_room_for_series, topic_names
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.features import FEATURE_NAMES, History
from evaluator.core.measures import MeasureSet
from evaluator.exposition.openmetrics import LABEL_NAME
from evaluator.ports import SourceUnusable
from evaluator.replay.exposition import FAMILIES, OPENMETRICS, Exposition, Written
from evaluator.replay.online_learning import OnlineLearning
from evaluator.replay.run import DEAD_LETTERS, EVALUATIONS, FILES, ReplayResult
from evaluator.replay.run import replay as run_replay
from evaluator.replay.weighing import Weighing
from evaluator.tables import utc_time
from evaluator.wire.weights.weights_record import Weights, WeightsRefused, read_weights

OWN_LABELS: Final = frozenset({"le", *(label for spec in FAMILIES for label in spec.labels)})


def replay(asked: argparse.Namespace, settings: Settings) -> int:
    """`evaluator replay`."""
    from_ms, to_ms = moments_of(asked)
    require_apart(asked, _written(asked))
    weights = None if asked.weights is None else _weights(asked.weights)
    weighing = None if weights is None else _weighing(asked.weights, weights, settings)
    exposition = _exposition(asked, settings)
    skips = skips_of(asked, settings)
    features = weights is not None or settings.learns
    source, live = source_of(asked, settings, features=features, skips=skips)
    meaning = replace(
        meaning_of(settings, measure_set(settings), at_end=asked.at_end or default_end(live)),
        weights=None if weights is None else weights.checksum,
        skips=skips,
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
            weighing=weighing,
            online_learning=_online_learning(settings, meaning.measures),
        )
    )
    print(summary(result, asked.out))
    if result.written is not None:
        _tell(result.written, asked.openmetrics)
    if weighing is not None and (warning := weighing.warning()):
        print(f"evaluator: warning: {warning}.", file=sys.stderr)
    if not any(_n_read(result).values()):
        print(
            "evaluator: warning: nothing was in the range, the results are empty.", file=sys.stderr
        )
    return 0


def _written(asked: argparse.Namespace) -> dict[str, Path]:
    """What a replay writes, by the words for it."""
    results = {f"{name} in --out {asked.out}": asked.out / name for name in FILES}
    written = {f"--out {asked.out}": asked.out, **results}
    if asked.openmetrics is not None:
        written[f"--openmetrics {asked.openmetrics}"] = asked.openmetrics
    return written


def _online_learning(settings: Settings, measures: MeasureSet) -> OnlineLearning | None:
    """What learns from the replay, if anything does."""
    if not settings.learns:
        return None
    rules = rules_of(settings, measures)
    return OnlineLearning(rules, record_writer_of(settings, rules))


def _weighing(path: Path, weights: Weights, settings: Settings) -> Weighing:
    """Raises UsageError where features of the weights cannot be made as they were."""
    embedder = embedder_of(settings)
    before = (weights.settings or {}).get("embedder", embedder.name)
    if tuple(weights.feature_names) == FEATURE_NAMES and before != embedder.name:
        raise UsageError(
            f"{path} was learned with the embedder {before}, and this one is {embedder.name}. Set "
            "embedder as it was then, ngrams or minilm."
        )
    return Weighing(
        weights.weights,
        weights.feature_names,
        embedder=embedder,
        history=weights.table() or History(),
    )


def _weights(path: Path) -> Weights:
    """Raises SourceUnusable."""
    try:
        return read_weights(read_file(path))
    except WeightsRefused as error:
        raise SourceUnusable(f"{path}: {error}") from None


def _exposition(asked: argparse.Namespace, settings: Settings) -> Exposition | None:
    """How the counters are written for Prometheus, if they are asked for."""
    if asked.openmetrics is None:
        if asked.openmetrics_label:
            raise UsageError("--openmetrics-label says nothing without --openmetrics FILE.")
        return None
    if asked.samples is not None:
        raise UsageError("samples have no times: leave --openmetrics out.")
    if os.path.realpath(asked.openmetrics) in {os.path.realpath(asked.out / n) for n in FILES}:
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
        f"{written.n_samples:,} samples from {utc_time(written.first_time)} to "
        f"{utc_time(written.last_time)} in {path}"
    )
    if written.last_time > time.time():
        print(
            f"evaluator: warning: {path} reaches into the future. A Prometheus that loads it takes "
            "no samples until then, and may drop its own for being old: end the replay with --to "
            "and --at-end hold, or remove records with wrong times.",
            file=sys.stderr,
        )


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
