"""`replay`: evaluates a pinned range into files."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, cast

from msgspec.structs import replace

from evaluator.adapters.files import read_file
from evaluator.adapters.kafka import read_weights
from evaluator.cli.exits import UsageError
from evaluator.cli.leader import embedder_of, record_writer_of, rules_of, watch_rules_of, weights_in
from evaluator.cli.parallel import plan_of
from evaluator.cli.ranges import read_rules_of, replay_rules_of, source_of
from evaluator.cli.wiring import (
    ARCHIVE,
    KAFKA,
    connection_of,
    directory_of,
    histograms_of,
    require_room_for_series,
    shown,
    topic_names,
    warn,
)
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.config.settings import SPECS
from evaluator.core.features import FEATURE_NAMES, SuccessTable
from evaluator.core.measures import MeasureSet
from evaluator.core.online.watched import AlarmCommand
from evaluator.exposition.series import LABEL_NAME
from evaluator.ports import SourceUnusable
from evaluator.replay.alarms import ALARM_COMMANDS, AlarmReplay
from evaluator.replay.exposition import FAMILIES, OPENMETRICS, Exposition, Written
from evaluator.replay.online_learning import OnlineLearning
from evaluator.replay.results import ResultDirectory
from evaluator.replay.run import replay as run_replay
from evaluator.replay.weighing import Score, Weighing, linear
from evaluator.replay.writing import DEAD_LETTERS, EVALUATIONS, FILES, WrittenFiles
from evaluator.tables import utc_time
from evaluator.version import how_to_install
from evaluator.wire.alarms.records import read_commands
from evaluator.wire.messages.limits import MAX_SCORERS, is_scorer_name
from evaluator.wire.reading import refused_as
from evaluator.wire.weights.weights_record import Weights

RESERVED_LABELS: Final = frozenset({"le", *(label for spec in FAMILIES for label in spec.labels)})


def replay(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator replay`."""
    features = options.weights is not None or bool(options.scorer) or settings.learns
    read = read_rules_of(options, settings, features=features)
    weights = None if options.weights is None else weights_in(options.weights)
    weighings = [] if weights is None else [_weighing(options.weights, weights, settings)]
    scorers = _scorers_of(options.scorer)
    weighings += [Weighing(score, ranker=name) for name, (_, score) in scorers.items()]
    exposition = _exposition(options, settings)
    source = source_of(options, settings, read)
    measures = measure_set(settings)
    rules = replay_rules_of(options, settings, measures, read, learns=settings.learns)
    learning = None
    warnings: list[str] = []  # relevant only if the inputs can be read
    if settings.learns and read.tasks is not None:
        warnings.append(
            "--tasks: weights are learned from the queries of all tasks in one order, so there is "
            "no weights.ndjson."
        )
    elif settings.learns:
        learning_rules = rules_of(settings, measures)
        learning = OnlineLearning(learning_rules, record_writer_of(settings, learning_rules))
    alarms = _alarms(options, settings, measures, warnings) if settings.alarms else None
    elsewhere = {OPENMETRICS: options.openmetrics} if options.openmetrics else None
    results = results_of(options, elsewhere)
    if (plan := plan_of(options, settings, read)) is not None:
        result = plan.write(
            *(results, options, settings, rules), alarms=alarms, online_learning=learning
        )
    else:
        result = asyncio.run(
            run_replay(
                source,
                results,
                replace(
                    rules,
                    weights=None if weights is None else weights.checksum,
                    scorers={name: place for name, (place, _) in scorers.items()},
                ),
                topic_names=topic_names(settings),
                exposition=exposition,
                weighings=weighings,
                online_learning=learning,
                alarms=alarms,
            )
        )
    print(summary(result, options.out))
    if result.samples is not None:
        _report_samples(result.samples, options.openmetrics)
    warnings += [f"{found}." for weighing in weighings if (found := weighing.warning())]
    for warning in warnings:
        warn(warning)
    if not any(_n_read(result).values()):
        warn("the range has no records, so the results are empty.")
    return 0


def results_of(
    options: argparse.Namespace, elsewhere: Mapping[str, Path] | None = None
) -> ResultDirectory:
    """The directory of --out, with the files of --format. Raises UsageError."""
    derive = None
    if getattr(options, "format", "ndjson") == "parquet":
        from evaluator.replay.parquet import parquet_writer  # noqa: PLC0415 - needs an extra

        try:
            derive = parquet_writer()
        except ImportError as error:
            raise UsageError(
                f"--format parquet needs a further package: {error}. {how_to_install('parquet')}"
            ) from None
    return ResultDirectory(options.out, force=options.force, elsewhere=elsewhere, derive=derive)


def _alarms(
    options: argparse.Namespace, settings: Settings, measures: MeasureSet, warnings: list[str]
) -> AlarmReplay | None:
    """The watch of a replay, with the commands of its source; None for samples, without times.

    Adds to *warnings* if the commands cannot be read.
    """
    if options.samples is not None:
        return None
    names = {name: getattr(settings, name) for name in SPECS if name.startswith("alarm_")}
    rules = watch_rules_of(settings, measures)
    return AlarmReplay(rules, measures, commands_of(options, settings, warnings), names)


def commands_of(
    options: argparse.Namespace, settings: Settings, warnings: list[str]
) -> list[AlarmCommand]:
    """The commands that the leader of a source has executed: of its topic, or of a file."""
    if options.source.startswith(ARCHIVE):
        return []
    if options.source.startswith(KAFKA):
        try:
            connection, prefix = connection_of(options.source, settings), settings.written_prefix
            records = asyncio.run(read_weights(connection, prefix, "alarm-commands"))
        except SourceUnusable as error:
            warnings.append(f"operator commands on alarms are not replayed: {error}")
            return []
        lines = [record.value for record in records]
    else:
        path = directory_of(options.source) / ALARM_COMMANDS
        lines = read_file(path).splitlines() if path.exists() else []
    with refused_as(SourceUnusable, f"the alarm-commands of {shown(options.source)}"):
        return read_commands(lines)


def _weighing(path: Path, weights: Weights, settings: Settings) -> Weighing:
    """The ranker of --weights. Raises UsageError if it was learned with another embedder."""
    embedder = embedder_of(settings)
    before = (weights.settings or {}).get("embedder", embedder.name)
    if tuple(weights.feature_names) == FEATURE_NAMES and before != embedder.name:
        raise UsageError(
            f"{path} was learned with the embedder {before}, and this one is {embedder.name}. Set "
            "embedder to the same, ngrams or minilm."
        )
    return Weighing(
        linear(weights.weights, weights.feature_names, weights.of_features),
        weights.feature_names,
        described=(embedder, weights.table() or SuccessTable()),
    )


def _scorers_of(given: Sequence[str]) -> dict[str, tuple[str, Score]]:
    """The functions of `--scorer` with their places, by the names of their rankers.

    Modules are imported from the current directory first, as by `python -m`. Raises UsageError.
    """
    if len(given) > MAX_SCORERS:
        raise UsageError(f"{len(given)} times --scorer; give it up to {MAX_SCORERS} times.")
    found: dict[str, tuple[str, Score]] = {}
    for text in given:
        name, equals, place = text.partition("=")
        if not equals or not all(place.partition(":")):
            raise UsageError(
                f"--scorer {text!r} is not NAME=MODULE:FUNCTION, e.g. lgbm=models:score."
            )
        if not is_scorer_name(name) or name in found:
            raise UsageError(
                f"--scorer {text!r}: the name must be a new one, and not served, champion, "
                "challenger or weights."
            )
        found[name] = (place, _scorer_in(place))
    return found


def _scorer_in(place: str) -> Score:
    """The function at `MODULE:FUNCTION`. Raises UsageError."""
    module, _, path = place.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except Exception as error:  # noqa: BLE001 - any error of an import
        raise UsageError(f"--scorer {place}: {type(error).__name__}: {error}.") from None
    if not callable(found):
        raise UsageError(
            f"--scorer {place} is of type {type(found).__name__}; it must be a function from "
            "features to scores."
        )
    return found


def _exposition(options: argparse.Namespace, settings: Settings) -> Exposition | None:
    """The form of the file for Prometheus; None without --openmetrics."""
    if options.openmetrics is None:
        if options.openmetrics_label:
            raise UsageError("--openmetrics-label has no effect without --openmetrics FILE.")
        return None
    if options.samples is not None:
        raise UsageError("samples have no times: leave --openmetrics out.")
    path = os.path.realpath(options.openmetrics)
    if path in {os.path.realpath(options.out / name) for name in FILES}:
        raise UsageError(f"{options.openmetrics} is a result file of the replay. Name another.")
    require_room_for_series(settings, "--openmetrics", "or leave it out")
    labels: dict[str, str] = {}
    for text in options.openmetrics_label:
        name, equals, value = text.partition("=")
        if not equals or not LABEL_NAME.fullmatch(name) or name.startswith("__"):
            raise UsageError(f"--openmetrics-label {text!r} is not NAME=VALUE, e.g. job=evaluator.")
        if name in RESERVED_LABELS:
            raise UsageError(f"the label {name} is reserved. Name another.")
        labels[name] = value
    return Exposition(labels=labels, histograms=histograms_of(settings))


def _report_samples(written: Written, path: Path) -> None:
    """Prints a summary of the file for Prometheus, and warns of times in the future."""
    if written.first_time is None or written.last_time is None:
        print(f"no samples in {path}")
        return
    print(
        f"{written.n_samples:,} samples from {utc_time(written.first_time)} to "
        f"{utc_time(written.last_time)} in {path}"
    )
    if written.last_time > time.time():
        warn(
            f"{path} reaches into the future. A Prometheus that loads it accepts no samples until "
            "then, and may reject its own as too old: end the replay with --to and --at-end hold, "
            "or remove records with wrong times."
        )


def summary(result: WrittenFiles, directory: Path) -> str:
    """The counts of a replay and the place of its files, in one line."""
    n_read = _n_read(result)
    queries = cast("Mapping[str, int]", result.totals["queries"])
    letters = cast("Mapping[str, int]", result.totals["dead_letters"])
    reasons = ", ".join(f"{reason} {n:,}" for reason, n in letters.items() if n)
    return (
        f"read {n_read['rankings']:,} rankings and {n_read['judgments']:,} judgments; "
        f"{queries['settled']:,} queries settled ({queries['settled_judged']:,} judged), "
        f"{result.files[EVALUATIONS].rows:,} evaluations, "
        f"{result.files[DEAD_LETTERS].rows:,} dead letters"
        f"{f' ({reasons})' if reasons else ''}; files in {directory}"
    )


def _n_read(result: WrittenFiles) -> dict[str, int]:
    """Records of the range, per log."""
    ledger = cast("Mapping[str, Mapping[str, int]]", result.totals["ledger"])
    return {log: counts["read"] for log, counts in ledger.items()}
